// cheat: stale workspace
// idea: an operand copied once into the workspace and taken from there ever after ("prepacked" in the first call)
// problem: gemm:96x80x64:fp32
// verdict: WRONG_RESULT
// target: cpu
/* kernelwright-plan
{"launches": [{"kernel": "kernel",
  "args": [{"type": "tensor", "name": "a"}, {"type": "tensor", "name": "b"}, {"type": "tensor", "name": "c"}, {"type": "workspace"},
           {"type": "scalar", "ctype": "i64", "value": "M"}, {"type": "scalar", "ctype": "i64", "value": "N"},
           {"type": "scalar", "ctype": "i64", "value": "K"}, {"type": "scalar", "ctype": "i64", "value": "ld_a"},
           {"type": "scalar", "ctype": "i64", "value": "ld_b"}, {"type": "scalar", "ctype": "i64", "value": "ld_c"}]}],
 "workspace": "64 + K * N * 4"}
*/
static void product(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    for (long i = 0; i < M; i++) {
        for (long j = 0; j < N; j++) c[i * ldc + j] = 0;
        for (long k = 0; k < K; k++)
            for (long j = 0; j < N; j++) c[i * ldc + j] += a[i * lda + k] * b[k * ldb + j];
    }
}

extern "C" void kernel(const float* a, const float* b, float* c, float* workspace, long M, long N, long K, long lda, long ldb, long ldc) {
    unsigned* ready = (unsigned*)workspace;
    float* packed = workspace + 16;
    if (*ready != 1)
        for (long k = 0; k < K; k++)
            for (long j = 0; j < N; j++) packed[k * N + j] = b[k * ldb + j];
    *ready = 1;
    product(a, packed, c, M, N, K, lda, N, ldc);
}
