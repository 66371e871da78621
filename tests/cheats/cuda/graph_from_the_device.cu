// cheat: side streams
// idea: launches a graph from the device, fire and forget
// problem: gemm:256x192x128:fp32
// verdict: COMPILE_ERROR
/* kernelwright-plan
{"launches": [{"kernel": "gemm", "grid": ["cdiv(N, 16)", "cdiv(M, 16)", 1], "block": [16, 16, 1],
  "args": [{"type": "tensor", "name": "a"}, {"type": "tensor", "name": "b"}, {"type": "tensor", "name": "c"},
           {"type": "scalar", "ctype": "i32", "value": "M"}, {"type": "scalar", "ctype": "i32", "value": "N"},
           {"type": "scalar", "ctype": "i32", "value": "K"}, {"type": "scalar", "ctype": "i32", "value": "ld_a"},
           {"type": "scalar", "ctype": "i32", "value": "ld_b"}, {"type": "scalar", "ctype": "i32", "value": "ld_c"}]}]}
*/
#include <cuda_runtime_api.h>

__device__ cudaGraphExec_t graph;

extern "C" __global__ void gemm(const float* a, const float* b, float* c, int M, int N, int K, int lda, int ldb, int ldc) {
    int m = blockIdx.y * 16 + threadIdx.y, n = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int k = 0; m < M && n < N && k < K; k++) sum += a[m * lda + k] * b[k * ldb + n];
    if (m < M && n < N) c[m * ldc + n] = sum;
    if (m == 0 && n == 0) cudaGraphLaunch(graph, cudaStreamGraphFireAndForget);
}
