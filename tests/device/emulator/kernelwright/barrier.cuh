#pragma once
namespace kw {
inline void barrier_init(unsigned bar, int arrivals) { emulator::initialise(bar, arrivals); }
inline void fence_barrier_init() {
    for (auto& [address, m] : emulator::block->barriers) m.fenced |= m.owner == int(threadIdx.x);
}
inline void barrier_expect(unsigned bar, unsigned bytes) { emulator::arrive(*emulator::block, bar, bytes); }
inline void barrier_arrive(unsigned bar) { emulator::arrive(*emulator::block, bar, 0); }
inline void barrier_arrive_cluster(unsigned cluster_bar) {
    emulator::Block& b = emulator::block_at(cluster_bar);
    emulator::arrive(b, cluster_bar, 0);
}
inline bool barrier_try_wait(unsigned bar, unsigned parity) { return emulator::try_phase(bar, parity); }
inline void barrier_wait(unsigned bar, unsigned parity) { emulator::wait_phase(bar, parity); }
inline void barrier_wait_cluster(unsigned bar, unsigned parity) { emulator::wait_phase(bar, parity); }

inline void named_sync(int id, int threads) {
    if (id < 1 || id > 15) emulator::fail("named barrier %d: 1 to 15 are free", id);
    emulator::join(emulator::block->named[id], threads, id);
}
template <int Id>
void named_sync(int threads) {
    static_assert(Id >= 1 && Id <= 15, "barriers 1 to 15 are free");
    named_sync(Id, threads);
}
inline void named_arrive(int id, int threads) {
    if (id < 1 || id > 15) emulator::fail("named barrier %d: 1 to 15 are free", id);
    emulator::arrive_at(emulator::block->named[id], threads, id);
    emulator::maybe_yield();
}

inline unsigned cluster_rank() { return emulator::block->rank; }
inline unsigned cluster_address(unsigned shared, unsigned rank) {
    if (int(rank) >= emulator::cluster_size)
        emulator::fail("cluster_address of block %u of a cluster of %d", rank, emulator::cluster_size);
    if (shared >> emulator::rank_shift) emulator::fail("cluster_address of a cluster address");
    return (rank + 1) << emulator::rank_shift | shared;
}
inline void cluster_arrive() { emulator::arrive_cluster(); }
inline void cluster_arrive_relaxed() { emulator::arrive_cluster(); }
inline void cluster_wait() { emulator::wait_cluster(); }
inline float load_cluster_float(unsigned cluster_from) {
    emulator::Block& b = emulator::block_at(cluster_from);
    float v;
    memcpy(&v, emulator::shared_bytes(b, cluster_from, 4), 4);
    return v;
}
inline void store_async(unsigned cluster_to, unsigned cluster_bar, float x, float y, float z, float w) {
    emulator::store_remote(cluster_to, cluster_bar, {x, y, z, w});
}

/// Any lane, but always the same.
inline bool elect_one() {
    emulator::exchange(emulator::op_elect, nullptr, 0);
    return int(threadIdx.x % 32) == emulator::elected_lane;
}
inline int warp_index() { return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); }

template <int Registers>
void set_registers() {
    static_assert(Registers % 8 == 0 && Registers >= 24 && Registers <= 240, "setmaxnreg takes multiples of 8, 24 to 240");
    emulator::collective(emulator::op_registers, nullptr, 0,
                         [](const emulator::Lanes*) { emulator::my_warp().register_calls.push_back(Registers); });
}
template <int Registers>
void shrink_registers() {
    set_registers<Registers>();
}
template <int Registers>
void grow_registers() {
    set_registers<Registers>();
}
}  // namespace kw
