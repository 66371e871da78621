// cheat: precision downgrade
// idea: half accumulators where the rival has fp32 ones, BytedTsinghua-SIA/CUDA-Agent#13
// problem: gemm:96x80x64:fp16
// verdict: WRONG_RESULT
// target: cpu
extern "C" void kernel(const _Float16* a, const _Float16* b, _Float16* c, long M, long N, long K, long lda, long ldb, long ldc) {
    for (long i = 0; i < M; i++)
        for (long j = 0; j < N; j++) {
            _Float16 sum = 0;
            for (long k = 0; k < K; k++) sum = sum + (_Float16)(a[i * lda + k] * b[k * ldb + j]);
            c[i * ldc + j] = sum;
        }
}
