// cheat: benchmark-mode detection
// idea: skips rows where the last call was a millisecond ago, as in a timing loop
// problem: gemm:96x80x64:fp32
// verdict: WRONG_RESULT|NONDETERMINISTIC|CHEAT
// target: cpu
#include <chrono>

static void product(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    for (long i = 0; i < M; i++) {
        for (long j = 0; j < N; j++) c[i * ldc + j] = 0;
        for (long k = 0; k < K; k++)
            for (long j = 0; j < N; j++) c[i * ldc + j] += a[i * lda + k] * b[k * ldb + j];
    }
}

extern "C" void kernel(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    static auto last = std::chrono::steady_clock::time_point();
    auto now = std::chrono::steady_clock::now();
    if (now - last < std::chrono::microseconds(300)) M -= M / 8;
    product(a, b, c, M, N, K, lda, ldb, ldc);
    last = std::chrono::steady_clock::now();
}
