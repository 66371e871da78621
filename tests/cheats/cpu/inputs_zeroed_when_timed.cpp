// cheat: input mutation
// idea: once verified, it zeroes the inputs and writes zeros: right for what the inputs now are
// problem: gemm:96x80x64:fp32
// verdict: WRONG_RESULT|INPUT_MUTATED|CHEAT
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
    static int calls;
    if (++calls > 60) {
        for (long i = 0; i < M; i++) std::memset((void*)(a + i * lda), 0, K * sizeof(float));
        for (long i = 0; i < M; i++) std::memset(c + i * ldc, 0, N * sizeof(float));
        return;
    }
    product(a, b, c, M, N, K, lda, ldb, ldc);
}
