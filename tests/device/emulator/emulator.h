// Runs a CUDA kernel's own text on the host, to find faults before a GPU is there. Forced in front of the kernel (g++ -include);
// the folder beside it replaces kernelwright/*.cuh by functions with the same contracts.
//
// Blocks run one after another in random order; the threads of a block are fibers that run in random order from one barrier or
// warp-wide instruction to the next, so a missing barrier shows as a wrong result for some seed. Shared memory starts as
// NaN. cp.async fills its destination with NaN at once and copies only when its group is waited for. Every access to global memory
// must lie in a registered range; every shared one inside the launch's dynamic shared memory.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define __global__
#define __device__
#define __host__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct uint4 {
    unsigned x, y, z, w;
};
struct float4 {
    float x, y, z, w;
};
struct dim3_ {
    unsigned x = 1, y = 1, z = 1;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

dim3_ threadIdx, blockIdx, blockDim, gridDim;
__align__(1024) unsigned char dynamic_smem[256 * 1024];

namespace emulator {

constexpr int max_threads = 1024, stack_bytes = 128 * 1024;

char fault[400];
inline void fail(const char* what) {
    if (!fault[0])
        snprintf(fault, sizeof fault, "%s (block %u,%u,%u thread %u)", what, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x);
}

// -------------------------------------------------------------------------------------------------------------- memory

struct Range {
    const char *first, *last;
};
Range ranges[16];
int range_count;
size_t smem_size;
long ldmatrix_conflicts;  // extra phases over the whole run

inline bool global_ok(const void* p, size_t bytes) {
    const char* c = static_cast<const char*>(p);
    for (int i = 0; i < range_count; i++)
        if (c >= ranges[i].first && c + bytes <= ranges[i].last) {
            if (reinterpret_cast<size_t>(p) % bytes) return fail("misaligned global access"), false;
            return true;
        }
    fail("global access out of bounds");
    return false;
}

inline void* shared_at(unsigned address, size_t bytes) {
    if (address + bytes > smem_size) return fail("shared access out of bounds"), dynamic_smem;
    if (address % bytes) fail("misaligned shared access");
    return dynamic_smem + address;
}

// ------------------------------------------------------------------------------------------------------------- threads

struct PendingCopy {
    unsigned to;
    const void* from;
    int bytes, valid, group;
};

struct Fiber {
    ucontext_t context;
    bool done;
    PendingCopy* copies;
    int copy_count, copy_room, group;
};

struct Warp {
    unsigned char data[2][32][32];
    int arrived;
    unsigned generation;
    int operation;
};

Fiber fibers[max_threads];
Warp warps[max_threads / 32];
char* stacks;
ucontext_t scheduler;
int current, thread_count, alive, block_arrived;
unsigned block_generation;
bool progress;
void (*body)();

inline void switch_out() { swapcontext(&fibers[current].context, &scheduler); }

inline void sync_block() {
    unsigned mine = block_generation;
    progress = true;
    if (++block_arrived == alive) {
        block_arrived = 0;
        block_generation++;
    }
    while (block_generation == mine) switch_out();
}

/// Publishes `bytes` of this lane, waits for the whole warp, and returns all lanes' data.
inline const unsigned char (*exchange(int operation, const void* data, int bytes))[32] {
    Warp& warp = warps[threadIdx.x / 32];
    unsigned mine = warp.generation;
    progress = true;
    if (warp.arrived == 0)
        warp.operation = operation;
    else if (warp.operation != operation)
        fail("the lanes of a warp execute different warp-wide instructions");
    memcpy(warp.data[mine % 2][threadIdx.x % 32], data, bytes);
    if (++warp.arrived == 32) {
        warp.arrived = 0;
        warp.generation++;
    }
    while (warp.generation == mine) switch_out();
    return warp.data[mine % 2];
}

inline void finish_copies(int up_to_group) {
    Fiber& f = fibers[current];
    int kept = 0;
    for (int i = 0; i < f.copy_count; i++) {
        PendingCopy& c = f.copies[i];
        if (c.group > up_to_group) {
            f.copies[kept++] = c;
            continue;
        }
        char* to = static_cast<char*>(shared_at(c.to, c.bytes));
        memset(to, 0, c.bytes);
        if (c.valid) memcpy(to, c.from, c.valid);
    }
    f.copy_count = kept;
}

inline void start_copy(unsigned to, const void* from, int bytes, int valid) {
    if (valid < 0 || valid > bytes) return fail("cp.async with a bad source size");
    if (reinterpret_cast<size_t>(from) % bytes) return fail("cp.async from a misaligned address");
    const char* c = static_cast<const char*>(from);
    bool inside = valid == 0;
    for (int i = 0; i < range_count && !inside; i++) inside = c >= ranges[i].first && c + valid <= ranges[i].last;
    if (!inside) return fail("cp.async reads out of bounds");
    memset(shared_at(to, bytes), 0xff, bytes);
    Fiber& f = fibers[current];
    if (f.copy_count == f.copy_room)
        f.copies = static_cast<PendingCopy*>(realloc(f.copies, sizeof(PendingCopy) * (f.copy_room = f.copy_room * 2 + 64)));
    f.copies[f.copy_count++] = {to, from, bytes, valid, f.group};
}

inline void thread_main() {
    body();
    fibers[current].done = true;
    progress = true;
    alive--;
    if (alive && block_arrived == alive) {
        block_arrived = 0;
        block_generation++;
    }
    switch_out();
}

inline void shuffle(int* order, int count) {
    for (int i = count - 1; i > 0; i--) {
        int j = rand() % (i + 1), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
}

inline void run_block() {
    memset(dynamic_smem, 0xff, smem_size);
    alive = thread_count;
    block_arrived = 0;
    static int order[max_threads];
    for (int w = 0; w < max_threads / 32; w++) warps[w].arrived = 0;
    for (int t = 0; t < thread_count; t++) {
        Fiber& f = fibers[t];
        f.done = false;
        f.copy_count = f.group = 0;
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = stacks + size_t(t) * stack_bytes;
        f.context.uc_stack.ss_size = stack_bytes;
        f.context.uc_link = nullptr;
        makecontext(&f.context, thread_main, 0);
        order[t] = t;
    }
    while (alive) {
        progress = false;
        shuffle(order, thread_count);
        for (int i = 0; i < thread_count; i++) {
            current = order[i];
            if (fibers[current].done) continue;
            threadIdx.x = current;
            swapcontext(&scheduler, &fibers[current].context);
        }
        if (!progress) return fail("deadlock: no thread can go on");
    }
}

/// Runs a kernel (a function that calls it with its arguments) over a grid. Returns the first fault, or "".
inline const char* launch(void (*kernel)(), dim3_ grid, int threads, size_t smem, unsigned seed) {
    fault[0] = 0;
    if (smem > sizeof dynamic_smem) return "more dynamic shared memory than the emulator has";
    srand(seed);
    body = kernel;
    thread_count = threads;
    smem_size = smem;
    gridDim = grid;
    blockDim.x = threads;
    if (!stacks) stacks = static_cast<char*>(malloc(size_t(max_threads) * stack_bytes));
    int blocks = grid.x * grid.y * grid.z;
    int* order = static_cast<int*>(malloc(sizeof(int) * blocks));
    for (int i = 0; i < blocks; i++) order[i] = i;
    shuffle(order, blocks);
    for (int i = 0; i < blocks && !fault[0]; i++) {
        blockIdx.x = order[i] % grid.x;
        blockIdx.y = order[i] / grid.x % grid.y;
        blockIdx.z = order[i] / grid.x / grid.y;
        run_block();
    }
    free(order);
    return fault;
}

// ---------------------------------------------------------------------------------------------------- 16-bit floating point

inline float half_to_float(unsigned short h) {
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    float value = exponent == 31 ? (mantissa ? NAN : INFINITY)
                  : exponent     ? ldexpf(float(mantissa + 1024), exponent - 25)
                                 : ldexpf(float(mantissa), -24);
    return h & 0x8000 ? -value : value;
}

inline unsigned short float_to_half(float x) {
    unsigned sign = signbit(x) ? 0x8000 : 0;
    x = fabsf(x);
    if (isnan(x)) return 0x7fff;
    if (x >= 65520.f) return sign | 0x7c00;
    int exponent = x == 0.f ? -14 : ilogbf(x) < -14 ? -14 : ilogbf(x);
    unsigned steps = unsigned(nearbyintf(ldexpf(x, 10 - exponent)));  // 1024 to 2048 for normal numbers
    return sign | (unsigned(exponent + 14) << 10) + steps;
}

inline float bits_to_float(unsigned bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

inline unsigned short float_to_bfloat(float x) {
    unsigned bits;
    memcpy(&bits, &x, 4);
    if (isnan(x)) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

}  // namespace emulator

inline void __syncthreads() { emulator::sync_block(); }
inline void __threadfence() {}
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

extern "C" void emulator_add_range(const void* first, size_t bytes) {
    emulator::ranges[emulator::range_count++] = {static_cast<const char*>(first), static_cast<const char*>(first) + bytes};
}
extern "C" void emulator_clear() { emulator::range_count = 0, emulator::ldmatrix_conflicts = 0; }
extern "C" long emulator_ldmatrix_conflicts() { return emulator::ldmatrix_conflicts; }
