// cheat: stale workspace
// idea: promises a zeroed workspace and counts its launches there
// problem: gemm:256x192x128:fp32
// verdict: OUT_OF_BOUNDS
/* kernelwright-plan
{"launches": [{"kernel": "gemm", "grid": ["cdiv(N, 16)", "cdiv(M, 16)", 1], "block": [16, 16, 1],
  "args": [{"type": "tensor", "name": "a"}, {"type": "tensor", "name": "b"}, {"type": "tensor", "name": "c"},
           {"type": "workspace"}, {"type": "scalar", "ctype": "i32", "value": "M"},
           {"type": "scalar", "ctype": "i32", "value": "N"}, {"type": "scalar", "ctype": "i32", "value": "K"},
           {"type": "scalar", "ctype": "i32", "value": "ld_a"}, {"type": "scalar", "ctype": "i32", "value": "ld_b"},
           {"type": "scalar", "ctype": "i32", "value": "ld_c"}]}],
 "workspace": 256, "workspace_zeroed": true}
*/
extern "C" __global__ void gemm(const float* a, const float* b, float* c, int* workspace, int M, int N, int K, int lda, int ldb, int ldc) {
    int m = blockIdx.y * 16 + threadIdx.y, n = blockIdx.x * 16 + threadIdx.x;
    if (m == 0 && n == 0) workspace[0] += 1;
    float sum = 0;
    for (int k = 0; m < M && n < N && k < K; k++) sum += a[m * lda + k] * b[k * ldb + n];
    if (m < M && n < N) c[m * ldc + n] = sum;
}
