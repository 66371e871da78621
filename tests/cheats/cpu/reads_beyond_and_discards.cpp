// cheat: out of bounds
// idea: computes whole tiles from rows that are not there and stores only those that are: right wherever that memory can be read
// problem: gemm:90x80x64:fp32
// verdict: OUT_OF_BOUNDS|CRASH
// target: cpu
extern "C" void kernel(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    for (long i = 0; i < M; i += 16)
        for (long j = 0; j < N; j++) {
            float sum[16] = {};
            for (long k = 0; k < K; k++)
                for (long r = 0; r < 16; r++) sum[r] += a[(i + r) * lda + k] * b[k * ldb + j];
            for (long r = 0; r < 16 && i + r < M; r++) c[(i + r) * ldc + j] = sum[r];
        }
}
