// Moving bytes: cp.async into shared memory, vector loads and stores, cache hints (sm_80 and later).
//
// Shared addresses are 32-bit (shared_address); every address must be aligned to the size of its access.
#pragma once

namespace kw {

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

/// The same pointer, of which the compiler no longer knows the sum that made it: offsets are then added to it, one instruction
/// each. Otherwise LLVM may split the sums of several addresses anew (61 instructions instead of 45 before the first of five
/// copies, NVRTC 13.0).
template <class T>
__device__ __forceinline__ const T* opaque(const T* pointer) {
    asm("" : "+l"(pointer));
    return pointer;
}

/// Zero in a one-dimensional block, which ptxas 13.0 does not know: `unknown_zero() | x` is x in a register of its own that it computes
/// once, where a plain copy is made again before every use.
__device__ __forceinline__ unsigned unknown_zero() {
    unsigned zero;
    asm("mov.u32 %0, %%tid.y;" : "=r"(zero));
    return zero;
}

// ------------------------------------------------------------------------------------------------------------- cp.async

/// Copies Bytes (16, 8 or 4) from global to shared memory in the background; done once its group is waited for.
/// 16 bytes bypass L1 (.cg); fewer can only go through it (.ca).
template <int Bytes>
__device__ __forceinline__ void cp_async(unsigned to, const void* from) {
    static_assert(Bytes == 16 || Bytes == 8 || Bytes == 4, "cp.async copies 16, 8 or 4 bytes");
    if constexpr (Bytes == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(Bytes) : "memory");
}

/// The same, of which only the first `valid` bytes (0 to Bytes) are read; zeros fill the rest. Costs three integer
/// instructions more than the version below: the hardware takes the count in the low bits of the address.
template <int Bytes>
__device__ __forceinline__ void cp_async_partial(unsigned to, const void* from, int valid) {
    static_assert(Bytes == 16 || Bytes == 8 || Bytes == 4, "cp.async copies 16, 8 or 4 bytes");
    if constexpr (Bytes == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
    else
        asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(Bytes), "r"(valid)
                     : "memory");
}

/// The same, all or nothing: zeros when not `valid`, and `from` is not read. ptxas turns it into one predicate.
template <int Bytes>
__device__ __forceinline__ void cp_async_or_zero(unsigned to, const void* from, bool valid) {
    cp_async_partial<Bytes>(to, from, valid ? Bytes : 0);
}

/// Closes the group of all cp.async that this thread issued since the last commit.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most Pending of this thread's newest groups are unfinished. Other threads see the bytes only after a
/// barrier that follows.
template <int Pending>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// ---------------------------------------------------------------------------------------------------------- L2 policies

/// For data that is read once: first to leave L2.
__device__ __forceinline__ unsigned long long evict_first_policy() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/// For data that many blocks read: last to leave L2.
__device__ __forceinline__ unsigned long long evict_last_policy() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/// cp_async_or_zero of 16 bytes under an L2 policy.
__device__ __forceinline__ void cp_async_16_hint(unsigned to, const void* from, bool valid, unsigned long long policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from),
                 "r"(valid ? 16 : 0), "l"(policy)
                 : "memory");
}

// -------------------------------------------------------------------------------------------------------- shared memory

__device__ __forceinline__ uint4 load_shared_16(unsigned from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from) : "memory");
    return v;
}

__device__ __forceinline__ void store_shared_16(unsigned to, uint4 v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

__device__ __forceinline__ float4 load_shared_float4(unsigned from) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(from) : "memory");
    return v;
}

__device__ __forceinline__ void store_shared_float4(unsigned to, float4 v) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}

/// Predicated, where a condition around a store would become a branch.
__device__ __forceinline__ void store_shared_2_if(unsigned to, unsigned v, bool valid) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p st.shared.b16 [%0], %1;\n}" ::"r"(to), "h"((unsigned short)v),
                 "r"((unsigned)valid)
                 : "memory");
}
__device__ __forceinline__ unsigned load_shared_2_or_zero(unsigned from, bool exists) {
    unsigned v = 0;
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p ld.shared.u16 %0, [%1];\n}"
                 : "+r"(v)
                 : "r"(from), "r"((unsigned)exists)
                 : "memory");
    return v;
}

__device__ __forceinline__ void store_shared_4(unsigned to, unsigned v) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}

__device__ __forceinline__ unsigned load_shared_4(unsigned from) {
    unsigned v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
}

__device__ __forceinline__ uint2 load_shared_8(unsigned from) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
    return v;
}

/// 16 bits, zero-extended, at an offset that costs no addition.
template <int Offset>
__device__ __forceinline__ unsigned load_shared_2_at(unsigned from) {
    unsigned v;
    asm volatile("ld.shared.u16 %0, [%1 + %2];" : "=r"(v) : "r"(from), "n"(Offset));
    return v;
}

__device__ __forceinline__ unsigned short load_shared_2(unsigned from) {
    unsigned short v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(from) : "memory");
    return v;
}

// -------------------------------------------------------------------------------------------------------- global memory

/// One 16-bit element. Like all loads here not by ld.global.nc: launched dependently, a kernel runs while its predecessor still writes
/// what it will read, and another kernel's block on the same multiprocessor may have left the old line in L1.
__device__ __forceinline__ unsigned short load_global_2(const void* from) {
    unsigned short v;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(from) : "memory");
    return v;
}

/// One element, or two neighbours, through L1 when `exists`, else zero: predicated, without a branch.
__device__ __forceinline__ unsigned load_global_2_or_zero(const void* from, bool exists) {
    unsigned short v;
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\nmov.u16 %0, 0;\n@p ld.global.u16 %0, [%1];\n}"
                 : "=h"(v)
                 : "l"(from), "r"(static_cast<unsigned>(exists))
                 : "memory");
    return v;
}
__device__ __forceinline__ unsigned load_global_4_or_zero(const void* from, bool exists) {
    unsigned v;
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\nmov.u32 %0, 0;\n@p ld.global.u32 %0, [%1];\n}"
                 : "=r"(v)
                 : "l"(from), "r"(static_cast<unsigned>(exists))
                 : "memory");
    return v;
}

/// 16 bytes past L1: for data that this block reads once.
__device__ __forceinline__ uint4 load_global_16(const void* from) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

/// 4, 2 or 1 words through L1 when `exists`, else zeros: predicated, without a branch.
__device__ __forceinline__ void load_global_or_zero(unsigned (&to)[4], const void* from, bool exists) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\nmov.u32 %0, 0;\nmov.u32 %1, 0;\nmov.u32 %2, 0;\nmov.u32 %3, 0;\n"
        "@p ld.global.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
        : "l"(from), "r"(static_cast<unsigned>(exists))
        : "memory");
}
__device__ __forceinline__ void load_global_or_zero(unsigned (&to)[2], const void* from, bool exists) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\nmov.u32 %0, 0;\nmov.u32 %1, 0;\n@p ld.global.L2::128B.v2.u32 {%0, %1}, [%2];\n}"
                 : "=r"(to[0]), "=r"(to[1])
                 : "l"(from), "r"(static_cast<unsigned>(exists))
                 : "memory");
}
__device__ __forceinline__ void load_global_or_zero(unsigned (&to)[1], const void* from, bool exists) {
    to[0] = load_global_4_or_zero(from, exists);
}

/// From L2, past L1, which other blocks' writes do not reach.
__device__ __forceinline__ float4 load_l2_float4(const float* from) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from) : "memory");
    return v;
}

__device__ __forceinline__ float load_l2_float(const float* from) {
    float v;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(from) : "memory");
    return v;
}

__device__ __forceinline__ void store_global_16(void* to, uint4 v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

__device__ __forceinline__ void store_global_float4(float* to, float4 v) {
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}

__device__ __forceinline__ void store_global_float2(float* to, float x, float y) {
    asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
}

__device__ __forceinline__ void store_global_float(float* to, float v) {
    asm volatile("st.global.f32 [%0], %1;" ::"l"(to), "f"(v) : "memory");
}

__device__ __forceinline__ void store_global_4(void* to, unsigned v) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}

__device__ __forceinline__ void store_global_2(void* to, unsigned v) {
    asm volatile("st.global.u16 [%0], %1;" ::"l"(to), "h"(static_cast<unsigned short>(v)) : "memory");
}

/// 4, 2 or 1 words when `valid`, as one predicated instruction without a branch.
__device__ __forceinline__ void store_global_if(void* to, const unsigned (&v)[4], bool valid) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p st.global.v4.u32 [%0], {%1, %2, %3, %4};\n}" ::"l"(to), "r"(v[0]),
                 "r"(v[1]), "r"(v[2]), "r"(v[3]), "r"(static_cast<unsigned>(valid))
                 : "memory");
}
__device__ __forceinline__ void store_global_if(void* to, const unsigned (&v)[2], bool valid) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n@p st.global.v2.u32 [%0], {%1, %2};\n}" ::"l"(to), "r"(v[0]), "r"(v[1]),
                 "r"(static_cast<unsigned>(valid))
                 : "memory");
}
__device__ __forceinline__ void store_global_if(void* to, const unsigned (&v)[1], bool valid) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p st.global.u32 [%0], %1;\n}" ::"l"(to), "r"(v[0]),
                 "r"(static_cast<unsigned>(valid))
                 : "memory");
}

}  // namespace kw
