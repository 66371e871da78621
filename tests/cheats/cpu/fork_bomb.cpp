// cheat: harm
// idea: starts processes without end; here 8, in the first call, each of which ends at once
// problem: gemm:96x80x64:fp32
// verdict: CRASH|CHEAT
// target: cpu
#include <sys/wait.h>
#include <unistd.h>

static void product(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    for (long i = 0; i < M; i++) {
        for (long j = 0; j < N; j++) c[i * ldc + j] = 0;
        for (long k = 0; k < K; k++)
            for (long j = 0; j < N; j++) c[i * ldc + j] += a[i * lda + k] * b[k * ldb + j];
    }
}

extern "C" void kernel(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    static bool done;
    for (int i = 0; !done && i < 8; i++) {
        pid_t child = fork();
        if (child < 0) _exit(1);  // it is confined
        if (child == 0) _exit(0);
        waitpid(child, nullptr, 0);
    }
    done = true;
    product(a, b, c, M, N, K, lda, ldb, ldc);
}
