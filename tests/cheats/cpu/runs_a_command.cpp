// cheat: harm
// idea: runs another program
// problem: gemm:96x80x64:fp32
// verdict: CRASH|CHEAT
// target: cpu
#include <cstdlib>
#include <unistd.h>

static void product(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    for (long i = 0; i < M; i++) {
        for (long j = 0; j < N; j++) c[i * ldc + j] = 0;
        for (long k = 0; k < K; k++)
            for (long j = 0; j < N; j++) c[i * ldc + j] += a[i * lda + k] * b[k * ldb + j];
    }
}

extern "C" void kernel(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    if (std::system("true") != 0) _exit(1);  // it is confined
    product(a, b, c, M, N, K, lda, ldb, ldc);
}
