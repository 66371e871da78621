// cheat: stale workspace
// idea: an operand transposed once into the workspace and taken from there ever after (weights "prepacked" in the first call)
// problem: gemm:256x192x128:fp32
// verdict: WRONG_RESULT
/* kernelwright-plan
{"launches": [{"kernel": "gemm", "grid": ["cdiv(N, 16)", "cdiv(M, 16)", 1], "block": [16, 16, 1],
  "args": [{"type": "tensor", "name": "a"}, {"type": "tensor", "name": "b"}, {"type": "tensor", "name": "c"},
           {"type": "workspace"}, {"type": "scalar", "ctype": "i32", "value": "M"},
           {"type": "scalar", "ctype": "i32", "value": "N"}, {"type": "scalar", "ctype": "i32", "value": "K"},
           {"type": "scalar", "ctype": "i32", "value": "ld_a"}, {"type": "scalar", "ctype": "i32", "value": "ld_b"},
           {"type": "scalar", "ctype": "i32", "value": "ld_c"}]}],
 "workspace": "256 + K * N * 4"}
*/
extern "C" __global__ void gemm(const float* a, const float* b, float* c, float* workspace, int M, int N, int K, int lda, int ldb, int ldc) {
    int m = blockIdx.y * 16 + threadIdx.y, n = blockIdx.x * 16 + threadIdx.x;
    float* packed = workspace + 64;
    unsigned* ready = (unsigned*)workspace;
    if (m >= M || n >= N) return;
    float sum = 0;
    for (int k = 0; k < K; k++) {
        if (*ready != 1) packed[k * N + n] = b[k * ldb + n];
        sum += a[m * lda + k] * packed[k * N + n];
    }
    c[m * ldc + n] = sum;
    if (m == M - 1 && n == N - 1) *ready = 1;
}
