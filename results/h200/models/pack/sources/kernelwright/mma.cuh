// Warp-wide matrix instructions: ldmatrix, stmatrix (sm_90), mma.sync m16n8k16 and mma.sp m16n8k32. All 32 lanes must call them
// together.
//
// Fragments of m16n8k16 (PTX ISA, "Matrix fragments for mma.m16n8k16"), with g = lane / 4 and t = lane % 4, two 16-bit
// elements a register:
//   A (16 x 16)  a[0]: row g,     k 2t, 2t+1      a[1]: row g + 8, same k      a[2], a[3]: the same with k + 8
//   B (16 x 8)   b[0]: k 2t, 2t+1, column g       b[1]: k + 8
//   D (16 x 8)   d[0], d[1]: row g, columns 2t, 2t+1      d[2], d[3]: row g + 8
#pragma once

namespace kw {

/// Four 8x8 matrices of 16-bit elements. Lanes 8i to 8i + 7 give the shared addresses of the 8 rows (16 bytes each) of
/// matrix i; r[i] of lane l gets row l / 4, elements 2 (l % 4) and the next, of matrix i.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], unsigned row_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row_address)
                 : "memory");
}

/// The same with each matrix transposed on the way: r[i] of lane l gets column l / 4, rows 2 (l % 4) and the next.
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&r)[4], unsigned row_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row_address)
                 : "memory");
}

#if __CUDA_ARCH__ >= 900
/// The inverse of ldmatrix_x4: four 8x8 matrices from registers to the rows whose addresses the lanes give.
__device__ __forceinline__ void stmatrix_x4(unsigned row_address, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address), "r"(r0), "r"(r1),
                 "r"(r2), "r"(r3)
                 : "memory");
}

/// The inverse of ldmatrix_x4_trans: each matrix is transposed on the way.
__device__ __forceinline__ void stmatrix_x4_trans(unsigned row_address, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row_address), "r"(r0), "r"(r1),
                 "r"(r2), "r"(r3)
                 : "memory");
}

/// Two matrices: the addresses of lanes 0 to 15 count.
__device__ __forceinline__ void stmatrix_x2(unsigned row_address, unsigned r0, unsigned r1) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(row_address), "r"(r0), "r"(r1) : "memory");
}
__device__ __forceinline__ void stmatrix_x2_trans(unsigned row_address, unsigned r0, unsigned r1) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row_address), "r"(r0), "r"(r1) : "memory");
}
#endif

/// An 8x8 matrix of 16-bit elements, spread over the lanes as ldmatrix leaves it, transposed within the warp.
__device__ __forceinline__ unsigned movmatrix_trans(unsigned r) {
    unsigned transposed;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(r));
    return transposed;
}

/// d += a b, fp16 inputs, fp32 accumulators.
__device__ __forceinline__ void mma_f16_f32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// d += a b, bf16 inputs, fp32 accumulators.
__device__ __forceinline__ void mma_bf16_f32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// d += a b, fp16 inputs, fp16 accumulators: d[0] packs row g, d[1] row g + 8. Only for callers who asked for it: the sum
/// itself rounds to 11 bits in every step.
__device__ __forceinline__ void mma_f16_f16(unsigned (&d)[2], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
                 : "+r"(d[0]), "+r"(d[1])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// d += a b where two of four neighbours along K of A are zeros at least: A is 16 x 32 with 16 x 16 of it stored, spread over the
/// lanes as A of m16n8k16 is, so that a[0] is the two values of row g and columns 4t to 4t + 3, a[2] those of columns 16 further;
/// B (32 x 8) is b[0], b[1] of m16n8k16 twice. codes: 4 bits for each group of four columns, the places of its two values, the
/// smaller one in the low bits. Lanes 2 Selector (columns 0 to 15) and 2 Selector + 1 (16 to 31) of each four give those of row g in
/// the low half, of row g + 8 in the high half (PTX ISA, "Matrix fragments for sparse mma.m16n8k32"). fp16 inputs, fp32 accumulators.
template <int Selector>
__device__ __forceinline__ void mma_sp_f16_f32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[4], unsigned codes) {
    asm volatile(
        "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, %13;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(codes), "n"(Selector));
}

/// The same with bf16 inputs.
template <int Selector>
__device__ __forceinline__ void mma_sp_bf16_f32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[4], unsigned codes) {
    asm volatile(
        "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9, %10, %11}, {%0, %1, %2, %3}, %12, %13;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(codes), "n"(Selector));
}

}  // namespace kw
