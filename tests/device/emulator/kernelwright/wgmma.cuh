#pragma once
#include "kernelwright/numeric.cuh"
namespace kw {
template <int Swizzle>
unsigned long long wgmma_descriptor(unsigned address, unsigned leading, unsigned stride) {
    static_assert(Swizzle == 128 || Swizzle == 64 || Swizzle == 32, "a swizzle is 128, 64 or 32 bytes");
    if (address % 16 || leading % 16 || stride % 16 || address >> 18 || leading >> 18 || stride >> 18)
        emulator::fail("a bad wgmma descriptor");
    const unsigned long long mode = Swizzle == 128 ? 1 : Swizzle == 64 ? 2 : 3;
    return mode << 62 | (unsigned long long)(stride >> 4) << 32 | (unsigned long long)(leading >> 4) << 16 | address >> 4;
}

inline void wgmma_fence() {
    emulator::collective(emulator::op_wgmma_fence, nullptr, 0, [](const emulator::Lanes*) { emulator::my_warp().fenced = true; });
}
inline void wgmma_commit() {
    emulator::collective(emulator::op_wgmma_commit, nullptr, 0,
                         [](const emulator::Lanes*) { emulator::my_warp().matrix_group++; });
}
template <int Pending>
void wgmma_wait() {
    emulator::collective(emulator::op_wgmma_wait, nullptr, 0,
                         [](const emulator::Lanes*) { emulator::finish_matrix(emulator::my_warp().matrix_group - Pending); });
}
template <int Count>
void wgmma_settle(float (&)[Count]) {}
template <int Count>
void wgmma_settle(unsigned (&)[Count]) {}

template <class Element, int N, bool TransposedA, bool TransposedB>
struct Wgmma {
    static_assert(N == 8 || (N % 16 == 0 && N >= 16 && N <= 256), "wgmma.cuh has no such N");
    static void run(float (&d)[N / 2], unsigned long long a, unsigned long long b, bool accumulate) {
        issue<false>(d, a, b, accumulate);
    }
    static void run(unsigned (&d)[N / 4], unsigned long long a, unsigned long long b, bool accumulate) {
        static_assert(!is_bf16<Element>, "sums in fp16 are of fp16 products");
        issue<true>(d, a, b, accumulate);
    }

    template <bool Fp16Sums>
    static void issue(void* d, unsigned long long a, unsigned long long b, bool accumulate) {
        emulator::MatrixArguments mine = {a, b, d, accumulate};
        emulator::collective(emulator::op_wgmma, &mine, sizeof mine, [](const emulator::Lanes* lanes) {
            emulator::MatrixOperation operation{};
            operation.n = N;
            operation.bf16 = is_bf16<Element>;
            operation.fp16_sums = Fp16Sums;
            operation.transposed_p = TransposedA;
            operation.transposed_q = TransposedB;
            emulator::issue_matrix(lanes, std::move(operation));
        });
    }
};
template <class Element, int N>
struct WgmmaRegisters {
    static void run(float (&d)[N / 2], const unsigned (&a)[4], unsigned long long b) {
        emulator::RegisterArguments mine = {{a[0], a[1], a[2], a[3]}, b, d};
        emulator::collective(emulator::op_wgmma, &mine, sizeof mine, [](const emulator::Lanes* lanes) {
            emulator::MatrixOperation operation{};
            operation.n = N;
            operation.bf16 = is_bf16<Element>;
            emulator::issue_matrix_of_registers(lanes, std::move(operation));
        });
    }
};
}  // namespace kw
