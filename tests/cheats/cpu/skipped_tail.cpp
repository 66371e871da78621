// cheat: skipped tail
// idea: whole tiles only: right for every size that is a multiple of 16
// problem: gemm:96x80x64:fp32
// verdict: WRONG_RESULT
// target: cpu
static void product(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    for (long i = 0; i < M; i++) {
        for (long j = 0; j < N; j++) c[i * ldc + j] = 0;
        for (long k = 0; k < K; k++)
            for (long j = 0; j < N; j++) c[i * ldc + j] += a[i * lda + k] * b[k * ldb + j];
    }
}

extern "C" void kernel(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    product(a, b, c, M / 16 * 16, N / 16 * 16, K, lda, ldb, ldc);
}
