// wgmma: the warpgroup's matrix multiplication, 64 x N x 16, sums in registers, operand A there or, like B, in shared memory (sm_90a).
//
// Sums of one thread: d[i] is element (row, column) of the 64 x N tile with
//   row = (warp in warpgroup) * 16 + lane / 4 + i / 2 % 2 * 8,   column = i / 4 * 8 + lane % 4 * 2 + i % 2.
// Sums in fp16 are packed: bits 0-15 of d[i] are element 2 i, bits 16-31 element 2 i + 1.
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
template <int Count>
__device__ __forceinline__ void wgmma_settle(unsigned (&d)[Count]) {
#pragma unroll
    for (int i = 0; i < Count; i++) asm volatile("" : "+r"(d[i])::"memory");
}

// KW_REGISTERSn(F, X) is F(0) X(1) ... X(n - 1): the registers of the sums, in the text of the instruction or bound to d.
#define KW_REGISTERS2(F, X) F(0) X(1)
#define KW_REGISTERS4(F, X) KW_REGISTERS2(F, X) X(2) X(3)
#define KW_REGISTERS8(F, X) KW_REGISTERS4(F, X) X(4) X(5) X(6) X(7)
#define KW_REGISTERS12(F, X) KW_REGISTERS8(F, X) X(8) X(9) X(10) X(11)
#define KW_REGISTERS16(F, X) KW_REGISTERS12(F, X) X(12) X(13) X(14) X(15)
#define KW_REGISTERS20(F, X) KW_REGISTERS16(F, X) X(16) X(17) X(18) X(19)
#define KW_REGISTERS24(F, X) KW_REGISTERS20(F, X) X(20) X(21) X(22) X(23)
#define KW_REGISTERS28(F, X) KW_REGISTERS24(F, X) X(24) X(25) X(26) X(27)
#define KW_REGISTERS32(F, X) KW_REGISTERS28(F, X) X(28) X(29) X(30) X(31)
#define KW_REGISTERS36(F, X) KW_REGISTERS32(F, X) X(32) X(33) X(34) X(35)
#define KW_REGISTERS40(F, X) KW_REGISTERS36(F, X) X(36) X(37) X(38) X(39)
#define KW_REGISTERS44(F, X) KW_REGISTERS40(F, X) X(40) X(41) X(42) X(43)
#define KW_REGISTERS48(F, X) KW_REGISTERS44(F, X) X(44) X(45) X(46) X(47)
#define KW_REGISTERS52(F, X) KW_REGISTERS48(F, X) X(48) X(49) X(50) X(51)
#define KW_REGISTERS56(F, X) KW_REGISTERS52(F, X) X(52) X(53) X(54) X(55)
#define KW_REGISTERS60(F, X) KW_REGISTERS56(F, X) X(56) X(57) X(58) X(59)
#define KW_REGISTERS64(F, X) KW_REGISTERS60(F, X) X(60) X(61) X(62) X(63)
#define KW_REGISTERS72(F, X) KW_REGISTERS64(F, X) X(64) X(65) X(66) X(67) X(68) X(69) X(70) X(71)
#define KW_REGISTERS80(F, X) KW_REGISTERS72(F, X) X(72) X(73) X(74) X(75) X(76) X(77) X(78) X(79)
#define KW_REGISTERS88(F, X) KW_REGISTERS80(F, X) X(80) X(81) X(82) X(83) X(84) X(85) X(86) X(87)
#define KW_REGISTERS96(F, X) KW_REGISTERS88(F, X) X(88) X(89) X(90) X(91) X(92) X(93) X(94) X(95)
#define KW_REGISTERS104(F, X) KW_REGISTERS96(F, X) X(96) X(97) X(98) X(99) X(100) X(101) X(102) X(103)
#define KW_REGISTERS112(F, X) KW_REGISTERS104(F, X) X(104) X(105) X(106) X(107) X(108) X(109) X(110) X(111)
#define KW_REGISTERS120(F, X) KW_REGISTERS112(F, X) X(112) X(113) X(114) X(115) X(116) X(117) X(118) X(119)
#define KW_REGISTERS128(F, X) KW_REGISTERS120(F, X) X(120) X(121) X(122) X(123) X(124) X(125) X(126) X(127)
#define KW_TEXT_FIRST(i) "%" #i
#define KW_TEXT(i) ", %" #i
#define KW_F32_FIRST(i) "+f"(d[i])
#define KW_F32(i) , "+f"(d[i])
#define KW_F16X2_FIRST(i) "+r"(d[i])
#define KW_F16X2(i) , "+r"(d[i])

/// d = a * b + (accumulate ? d : 0). TransposedA, TransposedB: the operand is M or N contiguous. Sums in fp16 round in every step
/// of 16 along K: only for callers who asked for it.
template <class Element, int N, bool TransposedA, bool TransposedB>
struct Wgmma;

// The sums are operands 0 to SUMS - 1, descriptor a comes next, then what is named here.
#define KW_WGMMA_TYPES(N, D, AB, BIND, SUMS, B, S, TA, TB)                                                                   \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #S ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16." D "." AB "." AB \
                 " {" KW_REGISTERS##SUMS(KW_TEXT_FIRST, KW_TEXT) "}, %" #SUMS ", %" #B ", p, 1, 1, %" #TA ", %" #TB ";\n}"    \
                 : KW_REGISTERS##SUMS(BIND##_FIRST, BIND)                                                                    \
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(TransposedA), "n"(TransposedB))
// KW_WGMMA(N, the numbers of KW_WGMMA_TYPES with sums in fp32, those with sums in fp16)
#define KW_WGMMA(N, SUMS, B, S, TA, TB, HALF_SUMS, HALF_B, HALF_S, HALF_TA, HALF_TB)                                         \
    template <class Element, bool TransposedA, bool TransposedB>                                                             \
    struct Wgmma<Element, N, TransposedA, TransposedB> {                                                                     \
        static __device__ __forceinline__ void run(float (&d)[N / 2], unsigned long long a, unsigned long long b,            \
                                                   bool accumulate) {                                                        \
            if constexpr (is_bf16<Element>)                                                                                  \
                KW_WGMMA_TYPES(N, "f32", "bf16", KW_F32, SUMS, B, S, TA, TB);                                                \
            else                                                                                                             \
                KW_WGMMA_TYPES(N, "f32", "f16", KW_F32, SUMS, B, S, TA, TB);                                                 \
        }                                                                                                                    \
        static __device__ __forceinline__ void run(unsigned (&d)[N / 4], unsigned long long a, unsigned long long b,         \
                                                   bool accumulate) {                                                        \
            static_assert(!is_bf16<Element>, "sums in fp16 are of fp16 products");                                           \
            KW_WGMMA_TYPES(N, "f16", "f16", KW_F16X2, HALF_SUMS, HALF_B, HALF_S, HALF_TA, HALF_TB);                          \
        }                                                                                                                    \
    };

KW_WGMMA(8, 4, 5, 6, 7, 8, 2, 3, 4, 5, 6)
KW_WGMMA(16, 8, 9, 10, 11, 12, 4, 5, 6, 7, 8)
KW_WGMMA(32, 16, 17, 18, 19, 20, 8, 9, 10, 11, 12)
KW_WGMMA(48, 24, 25, 26, 27, 28, 12, 13, 14, 15, 16)
KW_WGMMA(64, 32, 33, 34, 35, 36, 16, 17, 18, 19, 20)
KW_WGMMA(80, 40, 41, 42, 43, 44, 20, 21, 22, 23, 24)
KW_WGMMA(96, 48, 49, 50, 51, 52, 24, 25, 26, 27, 28)
KW_WGMMA(112, 56, 57, 58, 59, 60, 28, 29, 30, 31, 32)
KW_WGMMA(128, 64, 65, 66, 67, 68, 32, 33, 34, 35, 36)
KW_WGMMA(144, 72, 73, 74, 75, 76, 36, 37, 38, 39, 40)
KW_WGMMA(160, 80, 81, 82, 83, 84, 40, 41, 42, 43, 44)
KW_WGMMA(176, 88, 89, 90, 91, 92, 44, 45, 46, 47, 48)
KW_WGMMA(192, 96, 97, 98, 99, 100, 48, 49, 50, 51, 52)
KW_WGMMA(208, 104, 105, 106, 107, 108, 52, 53, 54, 55, 56)
KW_WGMMA(224, 112, 113, 114, 115, 116, 56, 57, 58, 59, 60)
KW_WGMMA(240, 120, 121, 122, 123, 124, 60, 61, 62, 63, 64)
KW_WGMMA(256, 128, 129, 130, 131, 132, 64, 65, 66, 67, 68)

/// d += a * b with A in registers: a warp holds 16 of the 64 rows, laid out as mma.sync's fragments (mma.cuh). B is K contiguous. The
/// registers of `a` must keep their values until the wait: wgmma_settle(a) after it says so to the compiler.
template <class Element, int N>
struct WgmmaRegisters;

#define KW_WGMMA_REGISTERS(N, SUMS, A0, A1, A2, A3, B)                                                                       \
    template <class Element>                                                                                                 \
    struct WgmmaRegisters<Element, N> {                                                                                      \
        static __device__ __forceinline__ void run(float (&d)[N / 2], const unsigned (&a)[4], unsigned long long b) {         \
            if constexpr (is_bf16<Element>)                                                                                  \
                KW_WGMMA_REGISTERS_TYPE(N, "bf16", SUMS, A0, A1, A2, A3, B);                                                 \
            else                                                                                                             \
                KW_WGMMA_REGISTERS_TYPE(N, "f16", SUMS, A0, A1, A2, A3, B);                                                  \
        }                                                                                                                    \
    };
#define KW_WGMMA_REGISTERS_TYPE(N, AB, SUMS, A0, A1, A2, A3, B)                                                              \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." AB "." AB                                                 \
                 " {" KW_REGISTERS##SUMS(KW_TEXT_FIRST, KW_TEXT) "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B          \
                 ", 1, 1, 1, 0;"                                                                                             \
                 : KW_REGISTERS##SUMS(KW_F32_FIRST, KW_F32)                                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
KW_WGMMA_REGISTERS(8, 4, 4, 5, 6, 7, 8)
KW_WGMMA_REGISTERS(16, 8, 8, 9, 10, 11, 12)
KW_WGMMA_REGISTERS(32, 16, 16, 17, 18, 19, 20)
KW_WGMMA_REGISTERS(48, 24, 24, 25, 26, 27, 28)
KW_WGMMA_REGISTERS(64, 32, 32, 33, 34, 35, 36)
KW_WGMMA_REGISTERS(96, 48, 48, 49, 50, 51, 52)
KW_WGMMA_REGISTERS(128, 64, 64, 65, 66, 67, 68)
#undef KW_WGMMA_REGISTERS
#undef KW_WGMMA_REGISTERS_TYPE
#undef KW_WGMMA
#undef KW_WGMMA_TYPES
#undef KW_F16X2
#undef KW_F16X2_FIRST
#undef KW_F32
#undef KW_F32_FIRST
#undef KW_TEXT
#undef KW_TEXT_FIRST
#undef KW_REGISTERS2
#undef KW_REGISTERS4
#undef KW_REGISTERS8
#undef KW_REGISTERS12
#undef KW_REGISTERS16
#undef KW_REGISTERS20
#undef KW_REGISTERS24
#undef KW_REGISTERS28
#undef KW_REGISTERS32
#undef KW_REGISTERS36
#undef KW_REGISTERS40
#undef KW_REGISTERS44
#undef KW_REGISTERS48
#undef KW_REGISTERS52
#undef KW_REGISTERS56
#undef KW_REGISTERS60
#undef KW_REGISTERS64
#undef KW_REGISTERS72
#undef KW_REGISTERS80
#undef KW_REGISTERS88
#undef KW_REGISTERS96
#undef KW_REGISTERS104
#undef KW_REGISTERS112
#undef KW_REGISTERS120
#undef KW_REGISTERS128

}  // namespace kw
