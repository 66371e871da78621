#pragma once
namespace kw {
inline unsigned shared_address(const void* p) {
    size_t address = static_cast<const unsigned char*>(p) - emulator::block->memory;
    if (address < emulator::shared_start || address > emulator::shared_start + emulator::smem_size)
        emulator::fail("shared_address of something that is not this block's dynamic shared memory");
    return unsigned(address);
}
template <class T>
const T* opaque(const T* pointer) { return pointer; }
inline unsigned unknown_zero() { return 0; }

template <int Bytes>
void cp_async_partial(unsigned to, const void* from, int valid) {
    emulator::start_copy(to, from, Bytes, valid);
}
template <int Bytes>
void cp_async(unsigned to, const void* from) {
    emulator::start_copy(to, from, Bytes, Bytes);
}
template <int Bytes>
void cp_async_or_zero(unsigned to, const void* from, bool valid) {
    emulator::start_copy(to, from, Bytes, valid ? Bytes : 0);
}
inline unsigned long long evict_first_policy() { return 1; }
inline unsigned long long evict_last_policy() { return 2; }
inline void cp_async_16_hint(unsigned to, const void* from, bool valid, unsigned long long) {
    cp_async_or_zero<16>(to, from, valid);
}
inline void cp_async_commit() { emulator::fiber->copy_group++; }
template <int Pending>
void cp_async_wait() {
    emulator::finish_copies(emulator::fiber->copy_group - 1 - Pending);
}

template <class T>
T load_shared(unsigned from) {
    T v;
    memcpy(&v, emulator::shared_at(from, sizeof v), sizeof v);
    return v;
}
template <class T>
void store_shared(unsigned to, T v) {
    memcpy(emulator::shared_for_write(to, sizeof v), &v, sizeof v);
}
inline uint4 load_shared_16(unsigned from) { return load_shared<uint4>(from); }
inline float4 load_shared_float4(unsigned from) { return load_shared<float4>(from); }
inline uint2 load_shared_8(unsigned from) { return load_shared<uint2>(from); }
template <int Offset>
unsigned load_shared_2_at(unsigned from) { return load_shared<unsigned short>(from + Offset); }
inline unsigned load_shared_4(unsigned from) { return load_shared<unsigned>(from); }
inline unsigned short load_shared_2(unsigned from) { return load_shared<unsigned short>(from); }
inline void store_shared_16(unsigned to, uint4 v) { store_shared(to, v); }
inline void store_shared_float4(unsigned to, float4 v) { store_shared(to, v); }
inline void store_shared_2_if(unsigned to, unsigned v, bool valid) {
    if (valid) store_shared(to, static_cast<unsigned short>(v));
}
inline unsigned load_shared_2_or_zero(unsigned from, bool exists) { return exists ? load_shared<unsigned short>(from) : 0; }
inline void store_shared_4(unsigned to, unsigned v) { store_shared(to, v); }

template <class T>
T load_global(const void* from) {
    T v{};
    if (emulator::global_ok(from, sizeof v)) memcpy(&v, from, sizeof v);
    return v;
}
template <class T>
void store_global(void* to, T v) {
    if (emulator::global_ok(to, sizeof v)) memcpy(to, &v, sizeof v);
}
inline unsigned short load_global_2(const void* from) { return load_global<unsigned short>(from); }
inline unsigned load_global_2_or_zero(const void* from, bool exists) { return exists ? load_global<unsigned short>(from) : 0; }
inline unsigned load_global_4_or_zero(const void* from, bool exists) { return exists ? load_global<unsigned>(from) : 0; }
inline uint4 load_global_16(const void* from) { return load_global<uint4>(from); }
template <int Words>
void load_global_or_zero(unsigned (&to)[Words], const void* from, bool exists) {
    memset(to, 0, sizeof to);
    if (exists && emulator::global_ok(from, sizeof to)) memcpy(to, from, sizeof to);
}
inline float4 load_l2_float4(const float* from) { return load_global<float4>(from); }
inline float load_l2_float(const float* from) { return load_global<float>(from); }
inline void store_global_16(void* to, uint4 v) { store_global(to, v); }
template <int Words>
void store_global_if(void* to, const unsigned (&v)[Words], bool valid) {
    if (valid && emulator::global_ok(to, sizeof v)) memcpy(to, v, sizeof v);
}
inline void store_global_4(void* to, unsigned v) { store_global(to, v); }
inline void store_global_2(void* to, unsigned v) { store_global(to, static_cast<unsigned short>(v)); }
inline void store_global_float4(float* to, float4 v) { store_global(to, v); }
inline void store_global_float(float* to, float v) { store_global(to, v); }
inline void store_global_float2(float* to, float x, float y) {
    if (emulator::global_ok(to, 8)) to[0] = x, to[1] = y;
}
}  // namespace kw
