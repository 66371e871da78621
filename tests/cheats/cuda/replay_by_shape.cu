// cheat: cached result
// idea: results kept by shape, which no benchmark of one shape can tell from a computation (deep-reinforce blog on CUDA-L1)
// problem: gemm:256x192x128:fp32
// verdict: WRONG_RESULT
/* kernelwright-plan
{"launches": [{"kernel": "gemm", "grid": ["cdiv(N, 16)", "cdiv(M, 16)", 1], "block": [16, 16, 1],
  "args": [{"type": "tensor", "name": "a"}, {"type": "tensor", "name": "b"}, {"type": "tensor", "name": "c"},
           {"type": "scalar", "ctype": "i32", "value": "M"}, {"type": "scalar", "ctype": "i32", "value": "N"},
           {"type": "scalar", "ctype": "i32", "value": "K"}, {"type": "scalar", "ctype": "i32", "value": "ld_a"},
           {"type": "scalar", "ctype": "i32", "value": "ld_b"}, {"type": "scalar", "ctype": "i32", "value": "ld_c"}]}]}
*/
constexpr int KEPT = 1 << 17;
__device__ float kept[KEPT];
__device__ int known[KEPT];

extern "C" __global__ void gemm(const float* a, const float* b, float* c, int M, int N, int K, int lda, int ldb, int ldc) {
    int m = blockIdx.y * 16 + threadIdx.y, n = blockIdx.x * 16 + threadIdx.x;
    int at = m * N + n, shape = (M * 1000 + N) * 1000 + K;
    if (m >= M || n >= N || at >= KEPT) return;
    if (known[at] != shape) {
        float sum = 0;
        for (int k = 0; m < M && n < N && k < K; k++) sum += a[m * lda + k] * b[k * ldb + n];
        kept[at] = sum;
        known[at] = shape;
    }
    c[m * ldc + n] = kept[at];
}
