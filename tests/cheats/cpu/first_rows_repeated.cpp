// cheat: low-rank short-cut
// idea: computes 16 rows and repeats them: inputs of CUTLASS's initialiser, as in CUDAHercules, have no more
// problem: gemm:96x80x64:fp32
// verdict: WRONG_RESULT
// target: cpu
#include <cstring>

static void product(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    for (long i = 0; i < M; i++) {
        for (long j = 0; j < N; j++) c[i * ldc + j] = 0;
        for (long k = 0; k < K; k++)
            for (long j = 0; j < N; j++) c[i * ldc + j] += a[i * lda + k] * b[k * ldb + j];
    }
}

extern "C" void kernel(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    product(a, b, c, M < 16 ? M : 16, N, K, lda, ldb, ldc);
    for (long i = 16; i < M; i++) std::memcpy(c + i * ldc, c + i % 16 * ldc, N * sizeof(float));
}
