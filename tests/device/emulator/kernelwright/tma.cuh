#pragma once
#include "kernelwright/tensormap.cuh"
namespace kw {
enum class Evict : unsigned long long {
    normal = 0x1000000000000000ull,
    first = 0x12F0000000000000ull,
    last = 0x14F0000000000000ull
};

inline void prefetch_tensor_map(const CUtensorMap* map) { emulator::decode(map, 0); }
inline void tma_load(unsigned to, const CUtensorMap* map, unsigned bar, int x, int y, Evict) {
    emulator::load_tensor(to, map, bar, x, y, 1u << emulator::block->rank);
}
inline void bulk_load(unsigned to, const void* from, unsigned bytes, unsigned bar, Evict) {
    emulator::load_bulk(to, from, bytes, bar);
}
inline void bulk_prefetch(const void* from, unsigned bytes) {
    if (reinterpret_cast<size_t>(from) % 16 || bytes % 16) emulator::fail("a misaligned bulk prefetch");
    if (!emulator::in_range(from, bytes)) emulator::fail("a bulk prefetch out of bounds");
}
inline void tma_load_multicast(unsigned to, const CUtensorMap* map, unsigned bar, int x, int y, unsigned short blocks, Evict) {
    emulator::load_tensor(to, map, bar, x, y, blocks);
}
inline void tma_store(const CUtensorMap* map, unsigned from, int x, int y) { emulator::store_tensor(map, from, x, y); }
template <int Pending>
void tma_store_wait() {
    emulator::finish_stores_of_thread(emulator::fiber->stores - Pending);
}
inline void fence_async_proxy() { emulator::fiber->fences++; }
}  // namespace kw
