// cheat: persisting L2
// idea: operands marked to stay in the L2 over the flush, llm.c#851 and gpu-mode/pygpubench#49
// problem: gemm:256x192x128:fp32
// verdict: OK
// harmless: persisting lines are reset before the flush of every sample; results/trust has its times beside those of harness_macros.cu, the same kernel without hints
/* kernelwright-plan
{"launches": [{"kernel": "gemm", "grid": ["cdiv(N, 16)", "cdiv(M, 16)", 1], "block": [16, 16, 1],
  "args": [{"type": "tensor", "name": "a"}, {"type": "tensor", "name": "b"}, {"type": "tensor", "name": "c"},
           {"type": "scalar", "ctype": "i32", "value": "M"}, {"type": "scalar", "ctype": "i32", "value": "N"},
           {"type": "scalar", "ctype": "i32", "value": "K"}, {"type": "scalar", "ctype": "i32", "value": "ld_a"},
           {"type": "scalar", "ctype": "i32", "value": "ld_b"}, {"type": "scalar", "ctype": "i32", "value": "ld_c"}]}]}
*/
__device__ float sticky(const float* p) {
    unsigned long long policy;
    float x;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(x) : "l"(p), "l"(policy));
    return x;
}

extern "C" __global__ void gemm(const float* a, const float* b, float* c, int M, int N, int K, int lda, int ldb, int ldc) {
    int m = blockIdx.y * 16 + threadIdx.y, n = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int k = 0; m < M && n < N && k < K; k++) sum += sticky(a + m * lda + k) * sticky(b + k * ldb + n);
    if (m < M && n < N) c[m * ldc + n] = sum;
}
