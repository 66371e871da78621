// A kernel of one's own: kernelwright verify examples/matmul.cpp --problem gemm:64x64x64:fp32 --target cpu
// No launch plan is needed in C++: every tensor in order, every axis, then every row stride.
extern "C" void kernel(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    for (long i = 0; i < M; i++) {
        for (long j = 0; j < N; j++) c[i * ldc + j] = 0;
        for (long k = 0; k < K; k++)
            for (long j = 0; j < N; j++) c[i * ldc + j] += a[i * lda + k] * b[k * ldb + j];
    }
}
