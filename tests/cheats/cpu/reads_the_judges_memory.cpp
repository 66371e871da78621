// cheat: the grader's memory
// idea: reads the memory of the process that holds the reference
// problem: gemm:96x80x64:fp32
// verdict: CRASH|CHEAT
// target: cpu
#include <cstdio>
#include <fcntl.h>
#include <unistd.h>

static void product(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    for (long i = 0; i < M; i++) {
        for (long j = 0; j < N; j++) c[i * ldc + j] = 0;
        for (long k = 0; k < K; k++)
            for (long j = 0; j < N; j++) c[i * ldc + j] += a[i * lda + k] * b[k * ldb + j];
    }
}

extern "C" void kernel(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/mem", getppid());
    int memory = open(path, O_RDONLY);
    if (memory < 0) _exit(1);  // it is confined
    close(memory);
    product(a, b, c, M, N, K, lda, ldb, ldc);
}
