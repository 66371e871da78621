// wgmma: the warpgroup's matrix multiplication, 64 x N x 16, both operands in shared memory, sums in registers (sm_90a).
//
// Sums of one thread: d[i] is element (row, column) of the 64 x N tile with
//   row = (warp in warpgroup) * 16 + lane / 4 + i / 2 % 2 * 8,   column = i / 4 * 8 + lane % 4 * 2 + i % 2.
// Order of use: wgmma_fence, any number of wgmma, wgmma_commit, wgmma_wait<groups that may still run>; d must not be touched in between.
//
// How operands lie in shared memory (PTX ISA, "Shared memory matrix layout"), Swizzle = 128, 64 or 32 bytes:
// - K contiguous: rows of Swizzle bytes along K, 8 rows (along M or N) make an atom of 8 * Swizzle bytes, the next 8 rows are `stride`
//   bytes further. A step of 16 along K is 32 bytes, inside the atom's rows.
// - M or N contiguous (transposed): rows of Swizzle bytes along M or N, 8 rows (along K) make an atom, the next 8 are `stride` bytes
//   further; the next Swizzle bytes along M or N are `leading` bytes further.
// TMA with the same swizzle writes exactly this.
#pragma once
#include "kernelwright/numeric.cuh"

namespace kw {

/// The descriptor of an operand that starts at a shared address. `leading` is ignored when K is contiguous.
template <int Swizzle>
__device__ __forceinline__ unsigned long long wgmma_descriptor(unsigned address, unsigned leading, unsigned stride) {
    constexpr unsigned long long mode = Swizzle == 128 ? 1 : Swizzle == 64 ? 2 : 3;
    static_assert(Swizzle == 128 || Swizzle == 64 || Swizzle == 32, "a swizzle is 128, 64 or 32 bytes");
    return mode << 62 | (unsigned long long)(stride >> 4) << 32 | (unsigned long long)(leading >> 4) << 16 | (address & 0x3ffff) >> 4;
}

/// Orders earlier accesses to the sums and to shared memory before the wgmma that follow.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

/// Tells the compiler that the sums change here: after wgmma_wait, so that no use moves above it.
template <int Count>
__device__ __forceinline__ void wgmma_settle(float (&d)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// The operand lists of the instruction, eight registers at a time: KW_SUMS8_j are %8j to %(8j+7).
#define KW_SUMS8_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define KW_SUMS8_1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define KW_SUMS8_2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define KW_SUMS8_3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define KW_SUMS8_4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define KW_SUMS8_5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define KW_SUMS8_6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define KW_SUMS8_7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define KW_SUMS8_8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define KW_SUMS8_9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define KW_SUMS8_10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define KW_SUMS8_11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define KW_SUMS8_12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define KW_SUMS8_13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define KW_SUMS8_14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define KW_SUMS8_15 "%120, %121, %122, %123, %124, %125, %126, %127"
#define KW_BIND8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])

/// d = a * b + (accumulate ? d : 0). TransposedA, TransposedB: the operand is M or N contiguous.
template <class Element, int N, bool TransposedA, bool TransposedB>
struct Wgmma;

// KW_WGMMA(N, list of sums, numbers of the four operands after them, bindings)
#define KW_WGMMA_TYPE(N, TYPE, SUMS, A, B, S, TA, TB, ...)                                                                   \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #S ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE   \
                 " {" SUMS "}, %" #A ", %" #B ", p, 1, 1, %" #TA ", %" #TB ";\n}"                                              \
                 : __VA_ARGS__                                                                                               \
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(TransposedA), "n"(TransposedB))
#define KW_WGMMA(N, SUMS, A, B, S, TA, TB, ...)                                                                              \
    template <class Element, bool TransposedA, bool TransposedB>                                                             \
    struct Wgmma<Element, N, TransposedA, TransposedB> {                                                                     \
        static __device__ __forceinline__ void run(float (&d)[N / 2], unsigned long long a, unsigned long long b,            \
                                                   bool accumulate) {                                                        \
            if constexpr (is_bf16<Element>)                                                                                  \
                KW_WGMMA_TYPE(N, "bf16", SUMS, A, B, S, TA, TB, __VA_ARGS__);                                                \
            else                                                                                                             \
                KW_WGMMA_TYPE(N, "f16", SUMS, A, B, S, TA, TB, __VA_ARGS__);                                                 \
        }                                                                                                                    \
    };

KW_WGMMA(8, "%0, %1, %2, %3", 4, 5, 6, 7, 8, "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]))
KW_WGMMA(16, KW_SUMS8_0, 8, 9, 10, 11, 12, KW_BIND8(0))
KW_WGMMA(32, KW_SUMS8_0 ", " KW_SUMS8_1, 16, 17, 18, 19, 20, KW_BIND8(0), KW_BIND8(8))
KW_WGMMA(48, KW_SUMS8_0 ", " KW_SUMS8_1 ", " KW_SUMS8_2, 24, 25, 26, 27, 28, KW_BIND8(0), KW_BIND8(8), KW_BIND8(16))
KW_WGMMA(64, KW_SUMS8_0 ", " KW_SUMS8_1 ", " KW_SUMS8_2 ", " KW_SUMS8_3, 32, 33, 34, 35, 36, KW_BIND8(0), KW_BIND8(8), KW_BIND8(16), KW_BIND8(24))
KW_WGMMA(80, KW_SUMS8_0 ", " KW_SUMS8_1 ", " KW_SUMS8_2 ", " KW_SUMS8_3 ", " KW_SUMS8_4, 40, 41, 42, 43, 44, KW_BIND8(0), KW_BIND8(8), KW_BIND8(16), KW_BIND8(24), KW_BIND8(32))
KW_WGMMA(96, KW_SUMS8_0 ", " KW_SUMS8_1 ", " KW_SUMS8_2 ", " KW_SUMS8_3 ", " KW_SUMS8_4 ", " KW_SUMS8_5, 48, 49, 50, 51, 52, KW_BIND8(0), KW_BIND8(8), KW_BIND8(16), KW_BIND8(24), KW_BIND8(32), KW_BIND8(40))
KW_WGMMA(112, KW_SUMS8_0 ", " KW_SUMS8_1 ", " KW_SUMS8_2 ", " KW_SUMS8_3 ", " KW_SUMS8_4 ", " KW_SUMS8_5 ", " KW_SUMS8_6, 56, 57, 58, 59, 60, KW_BIND8(0), KW_BIND8(8), KW_BIND8(16), KW_BIND8(24), KW_BIND8(32), KW_BIND8(40), KW_BIND8(48))
KW_WGMMA(128, KW_SUMS8_0 ", " KW_SUMS8_1 ", " KW_SUMS8_2 ", " KW_SUMS8_3 ", " KW_SUMS8_4 ", " KW_SUMS8_5 ", " KW_SUMS8_6 ", " KW_SUMS8_7, 64, 65, 66, 67, 68, KW_BIND8(0), KW_BIND8(8), KW_BIND8(16), KW_BIND8(24), KW_BIND8(32), KW_BIND8(40), KW_BIND8(48), KW_BIND8(56))
KW_WGMMA(144, KW_SUMS8_0 ", " KW_SUMS8_1 ", " KW_SUMS8_2 ", " KW_SUMS8_3 ", " KW_SUMS8_4 ", " KW_SUMS8_5 ", " KW_SUMS8_6 ", " KW_SUMS8_7 ", " KW_SUMS8_8, 72, 73, 74, 75, 76, KW_BIND8(0), KW_BIND8(8), KW_BIND8(16), KW_BIND8(24), KW_BIND8(32), KW_BIND8(40), KW_BIND8(48), KW_BIND8(56), KW_BIND8(64))
KW_WGMMA(160, KW_SUMS8_0 ", " KW_SUMS8_1 ", " KW_SUMS8_2 ", " KW_SUMS8_3 ", " KW_SUMS8_4 ", " KW_SUMS8_5 ", " KW_SUMS8_6 ", " KW_SUMS8_7 ", " KW_SUMS8_8 ", " KW_SUMS8_9, 80, 81, 82, 83, 84, KW_BIND8(0), KW_BIND8(8), KW_BIND8(16), KW_BIND8(24), KW_BIND8(32), KW_BIND8(40), KW_BIND8(48), KW_BIND8(56), KW_BIND8(64), KW_BIND8(72))
KW_WGMMA(176, KW_SUMS8_0 ", " KW_SUMS8_1 ", " KW_SUMS8_2 ", " KW_SUMS8_3 ", " KW_SUMS8_4 ", " KW_SUMS8_5 ", " KW_SUMS8_6 ", " KW_SUMS8_7 ", " KW_SUMS8_8 ", " KW_SUMS8_9 ", " KW_SUMS8_10, 88, 89, 90, 91, 92, KW_BIND8(0), KW_BIND8(8), KW_BIND8(16), KW_BIND8(24), KW_BIND8(32), KW_BIND8(40), KW_BIND8(48), KW_BIND8(56), KW_BIND8(64), KW_BIND8(72), KW_BIND8(80))
KW_WGMMA(192, KW_SUMS8_0 ", " KW_SUMS8_1 ", " KW_SUMS8_2 ", " KW_SUMS8_3 ", " KW_SUMS8_4 ", " KW_SUMS8_5 ", " KW_SUMS8_6 ", " KW_SUMS8_7 ", " KW_SUMS8_8 ", " KW_SUMS8_9 ", " KW_SUMS8_10 ", " KW_SUMS8_11, 96, 97, 98, 99, 100, KW_BIND8(0), KW_BIND8(8), KW_BIND8(16), KW_BIND8(24), KW_BIND8(32), KW_BIND8(40), KW_BIND8(48), KW_BIND8(56), KW_BIND8(64), KW_BIND8(72), KW_BIND8(80), KW_BIND8(88))
KW_WGMMA(208, KW_SUMS8_0 ", " KW_SUMS8_1 ", " KW_SUMS8_2 ", " KW_SUMS8_3 ", " KW_SUMS8_4 ", " KW_SUMS8_5 ", " KW_SUMS8_6 ", " KW_SUMS8_7 ", " KW_SUMS8_8 ", " KW_SUMS8_9 ", " KW_SUMS8_10 ", " KW_SUMS8_11 ", " KW_SUMS8_12, 104, 105, 106, 107, 108, KW_BIND8(0), KW_BIND8(8), KW_BIND8(16), KW_BIND8(24), KW_BIND8(32), KW_BIND8(40), KW_BIND8(48), KW_BIND8(56), KW_BIND8(64), KW_BIND8(72), KW_BIND8(80), KW_BIND8(88), KW_BIND8(96))
KW_WGMMA(224, KW_SUMS8_0 ", " KW_SUMS8_1 ", " KW_SUMS8_2 ", " KW_SUMS8_3 ", " KW_SUMS8_4 ", " KW_SUMS8_5 ", " KW_SUMS8_6 ", " KW_SUMS8_7 ", " KW_SUMS8_8 ", " KW_SUMS8_9 ", " KW_SUMS8_10 ", " KW_SUMS8_11 ", " KW_SUMS8_12 ", " KW_SUMS8_13, 112, 113, 114, 115, 116, KW_BIND8(0), KW_BIND8(8), KW_BIND8(16), KW_BIND8(24), KW_BIND8(32), KW_BIND8(40), KW_BIND8(48), KW_BIND8(56), KW_BIND8(64), KW_BIND8(72), KW_BIND8(80), KW_BIND8(88), KW_BIND8(96), KW_BIND8(104))
KW_WGMMA(240, KW_SUMS8_0 ", " KW_SUMS8_1 ", " KW_SUMS8_2 ", " KW_SUMS8_3 ", " KW_SUMS8_4 ", " KW_SUMS8_5 ", " KW_SUMS8_6 ", " KW_SUMS8_7 ", " KW_SUMS8_8 ", " KW_SUMS8_9 ", " KW_SUMS8_10 ", " KW_SUMS8_11 ", " KW_SUMS8_12 ", " KW_SUMS8_13 ", " KW_SUMS8_14, 120, 121, 122, 123, 124, KW_BIND8(0), KW_BIND8(8), KW_BIND8(16), KW_BIND8(24), KW_BIND8(32), KW_BIND8(40), KW_BIND8(48), KW_BIND8(56), KW_BIND8(64), KW_BIND8(72), KW_BIND8(80), KW_BIND8(88), KW_BIND8(96), KW_BIND8(104), KW_BIND8(112))
KW_WGMMA(256, KW_SUMS8_0 ", " KW_SUMS8_1 ", " KW_SUMS8_2 ", " KW_SUMS8_3 ", " KW_SUMS8_4 ", " KW_SUMS8_5 ", " KW_SUMS8_6 ", " KW_SUMS8_7 ", " KW_SUMS8_8 ", " KW_SUMS8_9 ", " KW_SUMS8_10 ", " KW_SUMS8_11 ", " KW_SUMS8_12 ", " KW_SUMS8_13 ", " KW_SUMS8_14 ", " KW_SUMS8_15, 128, 129, 130, 131, 132, KW_BIND8(0), KW_BIND8(8), KW_BIND8(16), KW_BIND8(24), KW_BIND8(32), KW_BIND8(40), KW_BIND8(48), KW_BIND8(56), KW_BIND8(64), KW_BIND8(72), KW_BIND8(80), KW_BIND8(88), KW_BIND8(96), KW_BIND8(104), KW_BIND8(112), KW_BIND8(120))
#undef KW_WGMMA
#undef KW_WGMMA_TYPE
#undef KW_BIND8
#undef KW_SUMS8_0
#undef KW_SUMS8_1
#undef KW_SUMS8_2
#undef KW_SUMS8_3
#undef KW_SUMS8_4
#undef KW_SUMS8_5
#undef KW_SUMS8_6
#undef KW_SUMS8_7
#undef KW_SUMS8_8
#undef KW_SUMS8_9
#undef KW_SUMS8_10
#undef KW_SUMS8_11
#undef KW_SUMS8_12
#undef KW_SUMS8_13
#undef KW_SUMS8_14
#undef KW_SUMS8_15

}  // namespace kw
