// cheat: race
// idea: no barrier between filling shared memory and reading it: right whenever the warps happen to be in step
// problem: gemm:256x192x128:fp32
// verdict: WRONG_RESULT|NONDETERMINISTIC
/* kernelwright-plan
{"launches": [{"kernel": "gemm", "grid": ["cdiv(N, 16)", "cdiv(M, 16)", 1], "block": [16, 16, 1],
  "args": [{"type": "tensor", "name": "a"}, {"type": "tensor", "name": "b"}, {"type": "tensor", "name": "c"},
           {"type": "scalar", "ctype": "i32", "value": "M"}, {"type": "scalar", "ctype": "i32", "value": "N"},
           {"type": "scalar", "ctype": "i32", "value": "K"}, {"type": "scalar", "ctype": "i32", "value": "ld_a"},
           {"type": "scalar", "ctype": "i32", "value": "ld_b"}, {"type": "scalar", "ctype": "i32", "value": "ld_c"}]}]}
*/
extern "C" __global__ void gemm(const float* a, const float* b, float* c, int M, int N, int K, int lda, int ldb, int ldc) {
    __shared__ float x[16][256], y[256][16];
    volatile float(*tile)[256] = x;
    int m = blockIdx.y * 16 + threadIdx.y, n = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int first = 0; first < K; first += 256) {
        for (int k = threadIdx.x; k < 256; k += 16) tile[threadIdx.y][k] = m < M && first + k < K ? a[m * lda + first + k] : 0;
        for (int k = threadIdx.y; k < 256; k += 16) y[k][threadIdx.x] = n < N && first + k < K ? b[(first + k) * ldb + n] : 0;
        // __syncthreads() belongs here
        for (int k = 0; k < 256; k++) sum += tile[threadIdx.y][k] * y[k][threadIdx.x];
        __syncthreads();
    }
    if (m < M && n < N) c[m * ldc + n] = sum;
}
