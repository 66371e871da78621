// cheat: input mutation
// idea: works in place on an input and undoes it, except for what rounding took
// problem: gemm:256x192x128:fp32
// verdict: INPUT_MUTATED|WRONG_RESULT|NONDETERMINISTIC
/* kernelwright-plan
{"launches": [
  {"kernel": "shift", "grid": ["cdiv(numel_a, 256)", 1, 1], "block": [256, 1, 1],
   "args": [{"type": "tensor", "name": "a"}, {"type": "scalar", "ctype": "f32", "value": 1.0},
            {"type": "scalar", "ctype": "i32", "value": "numel_a"}]},
  {"kernel": "gemm", "grid": ["cdiv(N, 16)", "cdiv(M, 16)", 1], "block": [16, 16, 1],
   "args": [{"type": "tensor", "name": "a"}, {"type": "tensor", "name": "b"}, {"type": "tensor", "name": "c"},
            {"type": "scalar", "ctype": "i32", "value": "M"}, {"type": "scalar", "ctype": "i32", "value": "N"},
            {"type": "scalar", "ctype": "i32", "value": "K"}, {"type": "scalar", "ctype": "i32", "value": "ld_a"},
            {"type": "scalar", "ctype": "i32", "value": "ld_b"}, {"type": "scalar", "ctype": "i32", "value": "ld_c"}]},
  {"kernel": "shift", "grid": ["cdiv(numel_a, 256)", 1, 1], "block": [256, 1, 1],
   "args": [{"type": "tensor", "name": "a"}, {"type": "scalar", "ctype": "f32", "value": -1.0},
            {"type": "scalar", "ctype": "i32", "value": "numel_a"}]}],
 "requires": ["ld_a == K", "M > 0", "K > 0", "N > 0"]}
*/
extern "C" __global__ void shift(float* a, float by, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) a[i] += by;
}

extern "C" __global__ void gemm(const float* a, const float* b, float* c, int M, int N, int K, int lda, int ldb, int ldc) {
    int m = blockIdx.y * 16 + threadIdx.y, n = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int k = 0; m < M && n < N && k < K; k++) sum += (a[m * lda + k] - 1) * b[k * ldb + n];
    if (m < M && n < N) c[m * ldc + n] = sum;
}
