// cheat: benchmark-mode detection
// idea: skips work where the last launch was 20 microseconds ago, as in a timing loop
// problem: gemm:256x192x128:fp32
// verdict: WRONG_RESULT|NONDETERMINISTIC|CHEAT
/* kernelwright-plan
{"launches": [{"kernel": "gemm", "grid": ["cdiv(N, 16)", "cdiv(M, 16)", 1], "block": [16, 16, 1],
  "args": [{"type": "tensor", "name": "a"}, {"type": "tensor", "name": "b"}, {"type": "tensor", "name": "c"},
           {"type": "scalar", "ctype": "i32", "value": "M"}, {"type": "scalar", "ctype": "i32", "value": "N"},
           {"type": "scalar", "ctype": "i32", "value": "K"}, {"type": "scalar", "ctype": "i32", "value": "ld_a"},
           {"type": "scalar", "ctype": "i32", "value": "ld_b"}, {"type": "scalar", "ctype": "i32", "value": "ld_c"}]}]}
*/
__device__ unsigned long long last[4096];

extern "C" __global__ void gemm(const float* a, const float* b, float* c, int M, int N, int K, int lda, int ldb, int ldc) {
    __shared__ bool timed;
    int m = blockIdx.y * 16 + threadIdx.y, n = blockIdx.x * 16 + threadIdx.x;
    if (threadIdx.x + threadIdx.y == 0) {
        unsigned long long now;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        int block = (blockIdx.y * gridDim.x + blockIdx.x) % 4096;
        timed = now - last[block] < 20000;
        last[block] = now;
    }
    __syncthreads();
    if (timed && m % 8 == 7) return;
    float sum = 0;
    for (int k = 0; m < M && n < N && k < K; k++) sum += a[m * lda + k] * b[k * ldb + n];
    if (m < M && n < N) c[m * ldc + n] = sum;
}
