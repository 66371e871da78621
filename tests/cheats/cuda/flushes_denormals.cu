// cheat: fast math
// idea: denormals are flushed to zero by the instructions
// problem: gemm:256x192x128:fp32
// verdict: WRONG_RESULT
/* kernelwright-plan
{"launches": [{"kernel": "gemm", "grid": ["max(1, cdiv(N, 16))", "max(1, cdiv(M, 16))", 1], "block": [16, 16, 1],
  "args": [{"type": "tensor", "name": "a"}, {"type": "tensor", "name": "b"}, {"type": "tensor", "name": "c"},
           {"type": "scalar", "ctype": "i32", "value": "M"}, {"type": "scalar", "ctype": "i32", "value": "N"},
           {"type": "scalar", "ctype": "i32", "value": "K"}, {"type": "scalar", "ctype": "i32", "value": "ld_a"},
           {"type": "scalar", "ctype": "i32", "value": "ld_b"}, {"type": "scalar", "ctype": "i32", "value": "ld_c"}]}]}
*/
extern "C" __global__ void gemm(const float* a, const float* b, float* c, int M, int N, int K, int lda, int ldb, int ldc) {
    int m = blockIdx.y * 16 + threadIdx.y, n = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int k = 0; m < M && n < N && k < K; k++) asm("fma.rn.ftz.f32 %0, %1, %2, %0;" : "+f"(sum) : "f"(a[m * lda + k]), "f"(b[k * ldb + n]));
    if (m < M && n < N) c[m * ldc + n] = sum;
}
