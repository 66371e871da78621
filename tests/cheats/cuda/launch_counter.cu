// cheat: benchmark-mode detection
// idea: right while it is verified, half of the rows once it has been launched often enough (warm-up detection, reference-kernels#142)
// problem: gemm:256x192x128:fp32
// verdict: WRONG_RESULT
/* kernelwright-plan
{"launches": [{"kernel": "gemm", "grid": ["cdiv(N, 16)", "cdiv(M, 16)", 1], "block": [16, 16, 1],
  "args": [{"type": "tensor", "name": "a"}, {"type": "tensor", "name": "b"}, {"type": "tensor", "name": "c"},
           {"type": "scalar", "ctype": "i32", "value": "M"}, {"type": "scalar", "ctype": "i32", "value": "N"},
           {"type": "scalar", "ctype": "i32", "value": "K"}, {"type": "scalar", "ctype": "i32", "value": "ld_a"},
           {"type": "scalar", "ctype": "i32", "value": "ld_b"}, {"type": "scalar", "ctype": "i32", "value": "ld_c"}]}]}
*/
__device__ int launches;

extern "C" __global__ void gemm(const float* a, const float* b, float* c, int M, int N, int K, int lda, int ldb, int ldc) {
    int m = blockIdx.y * 16 + threadIdx.y, n = blockIdx.x * 16 + threadIdx.x;
    int before = launches;
    if (blockIdx.x + blockIdx.y + threadIdx.x + threadIdx.y == 0) atomicAdd(&launches, 1);
    if (before > 60 && m >= M / 2) return;
    float sum = 0;
    for (int k = 0; m < M && n < N && k < K; k++) sum += a[m * lda + k] * b[k * ldb + n];
    if (m < M && n < N) c[m * ldc + n] = sum;
}
