// cheat: input mutation
// idea: works in place on an input and does not undo it
// problem: gemm:96x80x64:fp32
// verdict: INPUT_MUTATED
// target: cpu
#include <utility>

static void product(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    for (long i = 0; i < M; i++) {
        for (long j = 0; j < N; j++) c[i * ldc + j] = 0;
        for (long k = 0; k < K; k++)
            for (long j = 0; j < N; j++) c[i * ldc + j] += a[i * lda + k] * b[k * ldb + j];
    }
}

extern "C" void kernel(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    product(a, b, c, M, N, K, lda, ldb, ldc);
    for (long i = 0; i + 1 < K; i += 2)
        for (long j = 0; j < N; j++) std::swap(((float*)b)[i * ldb + j], ((float*)b)[(i + 1) * ldb + j]);
}
