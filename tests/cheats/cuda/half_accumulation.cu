// cheat: precision downgrade
// idea: half accumulators where the rival has fp32 ones, BytedTsinghua-SIA/CUDA-Agent#13
// problem: gemm:256x192x128:fp16
// verdict: WRONG_RESULT
/* kernelwright-plan
{"launches": [{"kernel": "gemm", "grid": ["cdiv(N, 16)", "cdiv(M, 16)", 1], "block": [16, 16, 1],
  "args": [{"type": "tensor", "name": "a"}, {"type": "tensor", "name": "b"}, {"type": "tensor", "name": "c"},
           {"type": "scalar", "ctype": "i32", "value": "M"}, {"type": "scalar", "ctype": "i32", "value": "N"},
           {"type": "scalar", "ctype": "i32", "value": "K"}, {"type": "scalar", "ctype": "i32", "value": "ld_a"},
           {"type": "scalar", "ctype": "i32", "value": "ld_b"}, {"type": "scalar", "ctype": "i32", "value": "ld_c"}]}]}
*/
#include <cuda_fp16.h>

extern "C" __global__ void gemm(const __half* a, const __half* b, __half* c, int M, int N, int K, int lda, int ldb, int ldc) {
    int m = blockIdx.y * 16 + threadIdx.y, n = blockIdx.x * 16 + threadIdx.x;
    __half sum = 0;
    for (int k = 0; m < M && n < N && k < K; k++) sum = __hfma(a[m * lda + k], b[k * ldb + n], sum);
    if (m < M && n < N) c[m * ldc + n] = sum;
}
