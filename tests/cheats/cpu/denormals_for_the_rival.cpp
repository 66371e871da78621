// cheat: input mutation
// idea: leaves denormals in the inputs, which slow down whoever is clocked next on the same buffers
// problem: gemm:96x80x64:fp32
// verdict: INPUT_MUTATED|WRONG_RESULT
// target: cpu
static void product(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    for (long i = 0; i < M; i++) {
        for (long j = 0; j < N; j++) c[i * ldc + j] = 0;
        for (long k = 0; k < K; k++)
            for (long j = 0; j < N; j++) c[i * ldc + j] += a[i * lda + k] * b[k * ldb + j];
    }
}

extern "C" void kernel(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    static int calls;
    product(a, b, c, M, N, K, lda, ldb, ldc);
    if (++calls > 60)
        for (long i = 0; i < M * lda; i++) ((float*)a)[i] *= 1e-38f;
}
