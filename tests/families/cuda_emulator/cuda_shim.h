// What a CUDA kernel needs to compile and run as C++ on the host. See __init__.py for what it covers.
//
// Each CUDA thread is a fiber (ucontext); one OS thread runs them all, so a run is deterministic. A fiber runs until it ends or waits
// at a barrier. Kernels that forget a barrier give other results when the fibers run in the opposite order: run both.
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>

#define __CUDA_ARCH__ 900
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
// blocks run one after the other, so one copy serves all
#define __shared__ static

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace emulator {

constexpr int MOST_THREADS = 1024;
constexpr int STACK = 64 * 1024;

enum class Waits { NO, FOR_BLOCK, FOR_WARP, DONE };

struct Fiber {
    ucontext_t context;
    char* stack = nullptr;
    dim3 thread;
    Waits waits = Waits::DONE;
    unsigned mask = 0;         // of the warp barrier it waits at
    const char* at = "";       // the collective it takes part in
    unsigned long long value;  // what it gives to the other lanes
};

inline Fiber fibers[MOST_THREADS];
inline int threads = 0;
inline int current = 0;
inline ucontext_t scheduler;
inline char error[512];
inline dim3 block_index, block_size, grid_size;
inline void (*body)(void**) = nullptr;
inline void** arguments = nullptr;
alignas(1024) inline char dynamic_shared[256 * 1024];

// Ends the launch with a message: never returns into the fiber.
template <class... Values>
void fail(const char* format, Values... values) {
    if (!error[0]) std::snprintf(error, sizeof error, format, values...);
    swapcontext(&fibers[current].context, &scheduler);
}

inline void wait(Waits what, unsigned mask, const char* at) {
    Fiber& fiber = fibers[current];
    fiber.waits = what, fiber.mask = mask, fiber.at = at;
    swapcontext(&fiber.context, &scheduler);
}

inline void main_of_fiber() {
    body(arguments);
    fibers[current].waits = Waits::DONE;
    swapcontext(&fibers[current].context, &scheduler);
}

// Lets go on whoever waits at a barrier that all its threads have reached. False when nobody can.
inline bool release() {
    bool any = false, all_at_block = true;
    for (int t = 0; t < threads; t++) all_at_block &= fibers[t].waits == Waits::FOR_BLOCK || fibers[t].waits == Waits::DONE;
    for (int t = 0; t < threads; t++) {
        Fiber& fiber = fibers[t];
        if (fiber.waits == Waits::FOR_BLOCK && all_at_block) fiber.waits = Waits::NO, any = true;
        if (fiber.waits != Waits::FOR_WARP) continue;
        bool all = true;
        for (int lane = 0; lane < 32; lane++) {
            if (!(fiber.mask >> lane & 1) || t / 32 * 32 + lane >= threads) continue;
            const Fiber& other = fibers[t / 32 * 32 + lane];
            if (other.waits == Waits::DONE) {
                std::snprintf(error, sizeof error, "%s waits for lane %d, which has ended", fiber.at, lane);
                return false;
            }
            all &= other.waits == Waits::FOR_WARP && other.mask == fiber.mask && !std::strcmp(other.at, fiber.at);
        }
        if (all) {
            const unsigned mask = fiber.mask;
            for (int lane = 0; lane < 32; lane++) {
                if (mask >> lane & 1 && t / 32 * 32 + lane < threads) fibers[t / 32 * 32 + lane].waits = Waits::NO;
            }
            any = true;
        }
    }
    return any;
}

inline bool run_block(bool descending) {
    for (int t = 0; t < threads; t++) {
        Fiber& fiber = fibers[t];
        if (!fiber.stack) fiber.stack = new char[STACK];
        const unsigned x = block_size.x, y = block_size.y, n = t;
        fiber.thread = {n % x, n / x % y, n / x / y};
        fiber.waits = Waits::NO;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack;
        fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, main_of_fiber, 0);
    }
    for (;;) {
        bool live = false;
        for (int n = 0; n < threads; n++) {
            current = descending ? threads - 1 - n : n;
            if (fibers[current].waits == Waits::NO) swapcontext(&scheduler, &fibers[current].context);
            if (error[0]) return false;
            live |= fibers[current].waits != Waits::DONE;
        }
        if (!live) return true;
        if (!release()) {
            if (!error[0]) std::snprintf(error, sizeof error, "the threads of block %u wait at different barriers", block_index.x);
            return false;
        }
    }
}

template <class... P, std::size_t... I>
void call(void (*kernel)(P...), void** values, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_cv_t<P>*>(values[I])...);
}

// Runs all blocks, one after the other. Returns null, or what went wrong.
template <auto KERNEL, class... P>
const char* launch(void (*)(P...), void** values, dim3 grid, dim3 block, bool descending) {
    body = [](void** v) { call(KERNEL, v, std::index_sequence_for<P...>{}); };
    arguments = values, grid_size = grid, block_size = block, error[0] = 0;
    threads = block.x * block.y * block.z;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                block_index = {x, y, z};
                if (!run_block(descending)) return error;
            }
    return nullptr;
}

// ------------------------------------------------------------------------------------------------------------ collectives

inline int lane() { return current % 32; }

// Each lane gives a value and takes that of lane `from`, itself included.
template <class T>
T exchange(unsigned mask, T value, int from, const char* at) {
    Fiber& fiber = fibers[current];
    if (!(mask >> lane() & 1)) fail("%s: lane %d is not in its own mask", at, lane());
    fiber.value = 0;
    std::memcpy(&fiber.value, &value, sizeof value);
    wait(Waits::FOR_WARP, mask, at);
    std::memcpy(&value, &fibers[current / 32 * 32 + from].value, sizeof value);
    wait(Waits::FOR_WARP, mask, at);  // nobody overwrites its value before all have read it
    return value;
}

template <class T>
const T* aligned(const T* p) {
    if (reinterpret_cast<std::uintptr_t>(p) % sizeof(T)) fail("an access of %d bytes at a misaligned address", int(sizeof(T)));
    return p;
}

template <class To, class From>
To bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// PTX's max.NaN and min.NaN.
inline unsigned dot_bytes(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 32; i += 8) c += (a >> i & 255) * (b >> i & 255);
    return c;
}
inline float max_nan(float a, float b) { return std::isnan(a) ? a : std::isnan(b) ? b : std::fmax(a, b); }
inline float min_nan(float a, float b) { return std::isnan(a) ? a : std::isnan(b) ? b : std::fmin(a, b); }
// .ftz: denormals in and out count as zero.
inline float ftz(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

// tanh.approx: relative error up to 2^-11, here by dropping the mantissa's lower 13 bits.
inline float rough(float x) { return std::isnan(x) ? x : bits<float>(bits<unsigned>(x) & 0xffffe000u); }

inline unsigned short half_of(float x) { return bits<unsigned short>(static_cast<_Float16>(x)); }
inline float float_of_half(unsigned short x) { return static_cast<float>(bits<_Float16>(x)); }
inline unsigned short bfloat_of(float x) {
    const unsigned u = bits<unsigned>(x);
    return std::isnan(x) ? 0x7fff : static_cast<unsigned short>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
inline unsigned pack(unsigned short low, unsigned short high) { return static_cast<unsigned>(high) << 16 | low; }

}  // namespace emulator

#define threadIdx (emulator::fibers[emulator::current].thread)
#define blockIdx (emulator::block_index)
#define blockDim (emulator::block_size)
#define gridDim (emulator::grid_size)

inline void __syncthreads() { emulator::wait(emulator::Waits::FOR_BLOCK, 0, "__syncthreads"); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { emulator::wait(emulator::Waits::FOR_WARP, mask, "__syncwarp"); }

template <class T>
T __shfl_sync(unsigned mask, T v, int from, int width = 32) {
    return emulator::exchange(mask, v, emulator::lane() / width * width + (from & (width - 1)), "__shfl_sync");
}
template <class T>
T __shfl_up_sync(unsigned mask, T v, int distance, int width = 32) {
    const int from = emulator::lane() - distance;
    return emulator::exchange(mask, v, from < emulator::lane() / width * width ? emulator::lane() : from, "__shfl_up_sync");
}
template <class T>
T __shfl_down_sync(unsigned mask, T v, int distance, int width = 32) {
    const int from = emulator::lane() + distance, end = (emulator::lane() / width + 1) * width;
    return emulator::exchange(mask, v, from >= end ? emulator::lane() : from, "__shfl_down_sync");
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int distance, int width = 32) {
    const int from = emulator::lane() ^ distance, end = (emulator::lane() / width + 1) * width;
    return emulator::exchange(mask, v, from >= end ? emulator::lane() : from, "__shfl_xor_sync");
}

template <class T>
T __ldca(const T* p) {
    return *emulator::aligned(p);
}
template <class T>
T __ldcs(const T* p) {
    return *emulator::aligned(p);
}
template <class T>
T __ldcg(const T* p) {
    return *emulator::aligned(p);
}
template <class T>
void __stcs(T* p, T v) {
    *const_cast<T*>(emulator::aligned(p)) = v;
}
template <class T>
void __stcg(T* p, T v) {
    *const_cast<T*>(emulator::aligned(p)) = v;
}

inline unsigned __float_as_uint(float x) { return emulator::bits<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return emulator::bits<float>(x); }
inline int __float_as_int(float x) { return emulator::bits<int>(x); }
inline float __int_as_float(int x) { return emulator::bits<float>(x); }
inline float __fdividef(float a, float b) { return std::fabs(b) > 0x1p126f && !std::isinf(b) ? a * 0.0f : a / b; }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
