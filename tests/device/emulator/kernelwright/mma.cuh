#pragma once
#include "kernelwright/copy.cuh"
#include "kernelwright/numeric.cuh"
namespace kw {
// Rows of matrix i are at the addresses of lanes 8i to 8i + 7. Counts bank conflicts: 8 rows must lie in 8 groups of 4 banks.
inline void load_matrices(unsigned (&r)[4], unsigned address, bool transposed) {
    auto lanes = emulator::exchange(transposed ? emulator::op_ldmatrix_trans : emulator::op_ldmatrix, &address, 4);
    unsigned rows[32];
    for (int l = 0; l < 32; l++) memcpy(&rows[l], lanes[l], 4);
    int lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++) {
        unsigned short pair[2];
        for (int e = 0; e < 2; e++) {
            int row = transposed ? lane % 4 * 2 + e : lane / 4, column = transposed ? lane / 4 : lane % 4 * 2 + e;
            memcpy(&pair[e], static_cast<char*>(emulator::shared_at(rows[i * 8 + row], 16)) + column * 2, 2);
        }
        r[i] = pair[0] | unsigned(pair[1]) << 16;
        if (lane == 0) {
            unsigned groups = 0;
            for (int row = 0; row < 8; row++) groups |= 1u << (rows[i * 8 + row] / 16 % 8);
            emulator::ldmatrix_conflicts += groups != 0xff;
        }
    }
}
inline void ldmatrix_x4(unsigned (&r)[4], unsigned address) { load_matrices(r, address, false); }
inline void ldmatrix_x4_trans(unsigned (&r)[4], unsigned address) { load_matrices(r, address, true); }

/// The lane that holds element (row, column) of a matrix holds (column, row) of the transposed one.
template <int Count>
void store_matrices(unsigned address, const unsigned (&values)[Count], bool transposed) {
    auto lanes = emulator::exchange(transposed ? emulator::op_stmatrix_trans : emulator::op_stmatrix, &address, 4);
    int lane = threadIdx.x % 32;
    for (int i = 0; i < Count; i++)
        for (int e = 0; e < 2; e++) {
            int row = transposed ? lane % 4 * 2 + e : lane / 4, column = transposed ? lane / 4 : lane % 4 * 2 + e;
            unsigned to;
            memcpy(&to, lanes[i * 8 + row], 4);
            if (to % 16) emulator::fail("stmatrix to a row that is not aligned to 16 bytes");
            unsigned short half = values[i] >> e * 16;
            store_shared(to + column * 2, half);
        }
}
inline void stmatrix_x4(unsigned address, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
    store_matrices<4>(address, {r0, r1, r2, r3}, false);
}
inline void stmatrix_x4_trans(unsigned address, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
    store_matrices<4>(address, {r0, r1, r2, r3}, true);
}
inline void stmatrix_x2(unsigned address, unsigned r0, unsigned r1) { store_matrices<2>(address, {r0, r1}, false); }
inline void stmatrix_x2_trans(unsigned address, unsigned r0, unsigned r1) { store_matrices<2>(address, {r0, r1}, true); }

inline unsigned movmatrix_trans(unsigned r) {
    auto lanes = emulator::exchange(emulator::op_movmatrix, &r, 4);
    int lane = threadIdx.x % 32;
    unsigned short pair[2];
    for (int e = 0; e < 2; e++) memcpy(&pair[e], lanes[(lane % 4 * 2 + e) * 4 + lane / 8] + lane / 4 % 2 * 2, 2);
    return pair[0] | unsigned(pair[1]) << 16;
}

/// Value of the 16 x 8 product at (row, column), from all lanes' fragments as the PTX ISA lays them out.
template <class Element>
float product(const unsigned char (*lanes)[32], int row, int column) {
    float sum = 0.f;
    for (int k = 0; k < 16; k++) {
        unsigned a, b;  // a[k / 8 * 2 + row / 8] of lane (row % 8) * 4 + k % 8 / 2; b[k / 8] of lane column * 4 + k % 8 / 2
        memcpy(&a, lanes[row % 8 * 4 + k % 8 / 2] + (k / 8 * 2 + row / 8) * 4, 4);
        memcpy(&b, lanes[column * 4 + k % 8 / 2] + 16 + k / 8 * 4, 4);
        sum += to_float(Element{static_cast<unsigned short>(k % 2 ? a >> 16 : a)}) *
               to_float(Element{static_cast<unsigned short>(k % 2 ? b >> 16 : b)});
    }
    return sum;
}
template <class Element>
void multiply_fragments(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    unsigned mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    auto lanes = emulator::exchange(emulator::op_mma, mine, 24);
    int lane = threadIdx.x % 32;
    for (int e = 0; e < 4; e++) d[e] += product<Element>(lanes, lane / 4 + e / 2 * 8, lane % 4 * 2 + e % 2);
}
inline void mma_f16_f32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { multiply_fragments<f16>(d, a, b); }
inline void mma_bf16_f32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { multiply_fragments<bf16>(d, a, b); }
inline void mma_f16_f16(unsigned (&d)[2], const unsigned (&a)[4], const unsigned (&b)[2]) {
    float sum[4];
    unpack2<f16>(d[0], sum[0], sum[1]);
    unpack2<f16>(d[1], sum[2], sum[3]);
    multiply_fragments<f16>(sum, a, b);
    d[0] = pack2<f16>(sum[0], sum[1]);
    d[1] = pack2<f16>(sum[2], sum[3]);
}

/// A (16 x 32) as its codes say where its stored values stand, times B.
template <class Element, int Selector>
void multiply_sparse(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[4], unsigned codes) {
    static_assert(Selector == 0 || Selector == 1);
    unsigned stored[32][5], others[32][4];
    unsigned mine[5] = {a[0], a[1], a[2], a[3], codes};
    auto lanes = emulator::exchange(emulator::op_mma, mine, 20);
    for (int l = 0; l < 32; l++) memcpy(stored[l], lanes[l], 20);
    lanes = emulator::exchange(emulator::op_mma, b, 16);
    for (int l = 0; l < 32; l++) memcpy(others[l], lanes[l], 16);
    const int lane = threadIdx.x % 32;
    const auto half = [](unsigned word, int i) { return to_float(Element{static_cast<unsigned short>(word >> i * 16)}); };
    for (int e = 0; e < 4; e++) {
        const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
        float sum = 0.f;
        for (int group = 0; group < 8; group++) {
            const unsigned code = stored[row % 8 * 4 + 2 * Selector + group / 4][4] >> (row / 8 * 16 + group % 4 * 4) & 15;
            if ((code & 3) >= code >> 2) emulator::fail("mma.sp with a code whose places do not ascend: %u", code);
            for (int i = 0; i < 2; i++) {
                const int k = group * 4 + (code >> 2 * i & 3);
                sum += half(stored[row % 8 * 4 + group % 4][group / 4 * 2 + row / 8], i) *
                       half(others[column * 4 + k % 8 / 2][k / 8], k % 2);
            }
        }
        d[e] += sum;
    }
}
template <int Selector>
void mma_sp_f16_f32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[4], unsigned codes) {
    multiply_sparse<f16, Selector>(d, a, b, codes);
}
template <int Selector>
void mma_sp_bf16_f32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[4], unsigned codes) {
    multiply_sparse<bf16, Selector>(d, a, b, codes);
}
}  // namespace kw
