// cheat: cached result
// idea: results kept by a light fingerprint of the values, flashinfer-bench-starter-kit#21 and AgentKernelArena#113
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
__device__ unsigned prints[KEPT];

extern "C" __global__ void gemm(const float* a, const float* b, float* c, int M, int N, int K, int lda, int ldb, int ldc) {
    int m = blockIdx.y * 16 + threadIdx.y, n = blockIdx.x * 16 + threadIdx.x;
    int at = m * N + n;
    if (m >= M || n >= N || at >= KEPT) return;
    unsigned print = 1;  // 32 elements stand for all: another draw always has others
    for (int i = 0; i < 32; i++) {
        print = print * 31 + __float_as_uint(a[i * 7919 % M * lda + i * 104729 % K]);
        print = print * 31 + __float_as_uint(b[i * 7919 % K * ldb + i * 104729 % N]);
    }
    if (prints[at] == print) {
        c[m * ldc + n] = kept[at];
        return;
    }
    float sum = 0;
    for (int k = 0; m < M && n < N && k < K; k++) sum += a[m * lda + k] * b[k * ldb + n];
    c[m * ldc + n] = kept[at] = sum;
    prints[at] = print;
}
