// cheat: threads
// idea: returns at once and lets a thread finish the work after the clock was read (CUDA-L1's side streams, on a CPU)
// problem: gemm:96x80x64:fp32
// verdict: WRONG_RESULT|CRASH
// target: cpu
#include <thread>
#include <unistd.h>

static void product(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    for (long i = 0; i < M; i++) {
        for (long j = 0; j < N; j++) c[i * ldc + j] = 0;
        for (long k = 0; k < K; k++)
            for (long j = 0; j < N; j++) c[i * ldc + j] += a[i * lda + k] * b[k * ldb + j];
    }
}

extern "C" void kernel(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    std::thread([=] {
        usleep(20000);
        product(a, b, c, M, N, K, lda, ldb, ldc);
    }).detach();
}
