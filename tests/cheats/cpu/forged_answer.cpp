// cheat: stdout forged
// idea: writes an answer of its own into every descriptor that is open, one of which is the judge's pipe
// problem: gemm:96x80x64:fp32
// verdict: CHEAT|CRASH|WRONG_RESULT
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
    static int calls;
    const char answer[] = "{\"median\": 1.0, \"dropped\": 0, \"sum\": 1.0, \"between\": 0.0}";
    int size = __builtin_bswap32(sizeof answer - 1);
    for (int fd = 3; ++calls > 60 && fd < 64; fd++)
        if (write(fd, &size, 4) == 4) (void)!write(fd, answer, sizeof answer - 1);
    if (calls <= 60) product(a, b, c, M, N, K, lda, ldb, ldc);
}
