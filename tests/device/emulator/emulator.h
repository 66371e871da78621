// Runs a CUDA kernel's own text on the host, to find faults before a GPU is there. Forced in front of the kernel (g++ -include);
// the folder beside it replaces kernelwright/*.cuh by functions with the same contracts.
//
// Clusters run one after another in random order; all threads of a cluster are fibers that run in random order, warps at random
// speeds, from one barrier or warp-wide instruction to the next, so a missing barrier shows as a wrong result for some seed.
// Shared memory starts as NaN. Copies in the background (cp.async, TMA, store_async) fill their destination with NaN at once and
// land late; wgmma reads its operands late and shows its sums only to those who wait. Every access to global memory must lie in a
// registered range; every shared one inside the launch's dynamic shared memory of a block that has not ended. What it does not
// see: reads of sums in flight as such (they are NaN), missing acquire and release, instruction-level hazards.
#pragma once
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <deque>
#include <map>
#include <unordered_map>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __constant__ const
#define __grid_constant__
#define __restrict__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct uint2 {
    unsigned x, y;
};
struct uint4 {
    unsigned x, y, z, w;
};
struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};
struct dim3_ {
    unsigned x = 1, y = 1, z = 1;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

dim3_ threadIdx, blockIdx, blockDim, gridDim;

#include "state.h"

#include "numbers.h"
#include "warp.h"

#include "barriers.h"
#include "copies.h"
#include "matrix.h"
#include "scheduler.h"

inline void __syncthreads() { emulator::join(emulator::block->named[0], emulator::block->alive, 0); }
inline void __syncwarp(unsigned = 0xffffffffu) { emulator::exchange(emulator::op_syncwarp, nullptr, 0); }
inline void __threadfence() {}

template <class T>
T emulator_shuffle(T value, int lane) {
    auto lanes = emulator::exchange(emulator::op_shuffle, &value, sizeof value);
    memcpy(&value, lanes[lane & 31], sizeof value);
    return value;
}
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
    return emulator_shuffle(value, lane);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
    return emulator_shuffle(value, int(threadIdx.x % 32) ^ mask);
}
template <class T>
T __shfl_down_sync(unsigned, T value, unsigned delta) {
    int lane = threadIdx.x % 32;
    return emulator_shuffle(value, lane + delta < 32 ? lane + delta : lane);
}
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned delta) {
    int lane = threadIdx.x % 32;
    return emulator_shuffle(value, lane >= int(delta) ? lane - delta : lane);
}

inline int atomicAdd(int* to, int value) {
    if (!emulator::global_ok(to, 4)) return 0;
    int old = *to;
    *to += value;
    return old;
}
inline int atomicExch(int* to, int value) {
    if (!emulator::global_ok(to, 4)) return 0;
    int old = *to;
    *to = value;
    return old;
}
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return shift & 31 ? low >> (shift & 31) | high << (32 - (shift & 31)) : low;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const unsigned long long both = (unsigned long long)y << 32 | x;
    unsigned picked = 0;
    for (int i = 0; i < 4; i++) picked |= unsigned(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return picked;
}
inline float __uint_as_float(unsigned bits) { return emulator::bits_to_float(bits); }
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    return bits;
}

extern "C" void emulator_add_range(const void* first, size_t bytes) {
    emulator::ranges.push_back({static_cast<const char*>(first), static_cast<const char*>(first) + bytes});
}
extern "C" void emulator_clear() { emulator::ranges.clear(), emulator::ldmatrix_conflicts = 0; }
extern "C" long emulator_ldmatrix_conflicts() { return emulator::ldmatrix_conflicts; }
