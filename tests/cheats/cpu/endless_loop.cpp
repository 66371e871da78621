// cheat: hang
// idea: never ends
// problem: gemm:96x80x64:fp32
// verdict: TIMEOUT
// target: cpu
#include <unistd.h>

static void product(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    for (long i = 0; i < M; i++) {
        for (long j = 0; j < N; j++) c[i * ldc + j] = 0;
        for (long k = 0; k < K; k++)
            for (long j = 0; j < N; j++) c[i * ldc + j] += a[i * lda + k] * b[k * ldb + j];
    }
}

extern "C" void kernel(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    for (volatile int forever = 1; forever;) usleep(1000);
    product(a, b, c, M, N, K, lda, ldb, ldc);
}
