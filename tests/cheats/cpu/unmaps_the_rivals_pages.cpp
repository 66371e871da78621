// cheat: input mutation
// idea: frees pages of the outputs that it shares with its rival, which are poisoned anew: the rival's next run pays for page faults
// problem: gemm:96x80x64:fp32
// verdict: CRASH
// target: cpu
#include <cstdlib>
#include <sys/mman.h>

extern "C" void kernel(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    size_t first = ((size_t)c + 4095) / 4096 * 4096, end = ((size_t)c + (M * N - 1) * sizeof(float)) / 4096 * 4096;
    if (ldc == N && M * N > 4096 && end > first && madvise((void*)first, end - first, MADV_REMOVE)) std::abort();
    for (long i = 0; i < M; i++) {
        for (long j = 0; j < N; j++) c[i * ldc + j] = 0;
        for (long k = 0; k < K; k++)
            for (long j = 0; j < N; j++) c[i * ldc + j] += a[i * lda + k] * b[k * ldb + j];
    }
}
