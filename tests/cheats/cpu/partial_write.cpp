// cheat: partial write
// idea: 0.3 % of the outputs never written, what a "283x" kernel did the other way round (arXiv 2606.20128)
// problem: gemm:96x80x64:fp32
// verdict: WRONG_RESULT
// target: cpu
extern "C" void kernel(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    for (long i = 0; i < M; i++)
        for (long j = 0; j < N; j++) {
            if ((i * N + j) % 331 == 7) continue;
            float sum = 0;
            for (long k = 0; k < K; k++) sum += a[i * lda + k] * b[k * ldb + j];
            c[i * ldc + j] = sum;
        }
}
