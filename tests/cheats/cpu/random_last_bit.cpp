// cheat: race
// idea: other bits in every run, as a sum in the order in which threads arrive
// problem: gemm:96x80x64:fp32
// verdict: NONDETERMINISTIC
// target: cpu
static void product(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    for (long i = 0; i < M; i++) {
        for (long j = 0; j < N; j++) c[i * ldc + j] = 0;
        for (long k = 0; k < K; k++)
            for (long j = 0; j < N; j++) c[i * ldc + j] += a[i * lda + k] * b[k * ldb + j];
    }
}

extern "C" void kernel(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    product(a, b, c, M, N, K, lda, ldb, ldc);
    static unsigned calls;
    if (++calls % 2 && M && N && c[0] != (long)c[0]) c[0] += c[0] * 1.2e-7f;
}
