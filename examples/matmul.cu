// A CUDA kernel of one's own: kernelwright verify examples/matmul.cu --problem gemm:200x136x72:fp32 --target cuda
/* kernelwright-plan
{"launches": [{"kernel": "matmul", "grid": ["max(1, cdiv(N, 32))", "max(1, cdiv(M, 8))", 1], "block": [32, 8, 1],
  "args": [{"type": "tensor", "name": "a"}, {"type": "tensor", "name": "b"}, {"type": "tensor", "name": "c"},
           {"type": "scalar", "ctype": "i32", "value": "M"}, {"type": "scalar", "ctype": "i32", "value": "N"},
           {"type": "scalar", "ctype": "i32", "value": "K"}, {"type": "scalar", "ctype": "i32", "value": "ld_a"},
           {"type": "scalar", "ctype": "i32", "value": "ld_b"}, {"type": "scalar", "ctype": "i32", "value": "ld_c"}]}]}
*/
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int M, int N, int K, int lda, int ldb, int ldc) {
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= M || column >= N) return;
    float sum = 0;
    for (int k = 0; k < K; k++) sum += a[row * lda + k] * b[k * ldb + column];
    c[row * ldc + column] = sum;
}
