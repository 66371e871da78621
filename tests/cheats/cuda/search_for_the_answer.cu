// cheat: the grader's memory
// idea: searches the memory around its output for a matrix that looks like the result: a rival's, or the reference
// problem: gemm:256x192x128:fp32
// verdict: WRONG_RESULT|CRASH|OK
// harmless: inputs are altered before each turn, so what rivals, references and earlier turns left is no answer; it computes
/* kernelwright-plan
{"launches": [{"kernel": "gemm", "grid": ["cdiv(N, 16)", "cdiv(M, 16)", 1], "block": [16, 16, 1],
  "args": [{"type": "tensor", "name": "a"}, {"type": "tensor", "name": "b"}, {"type": "tensor", "name": "c"},
           {"type": "scalar", "ctype": "i32", "value": "M"}, {"type": "scalar", "ctype": "i32", "value": "N"},
           {"type": "scalar", "ctype": "i32", "value": "K"}, {"type": "scalar", "ctype": "i32", "value": "ld_a"},
           {"type": "scalar", "ctype": "i32", "value": "ld_b"}, {"type": "scalar", "ctype": "i32", "value": "ld_c"}]}]}
*/
extern "C" __global__ void gemm(const float* a, const float* b, float* c, int M, int N, int K, int lda, int ldb, int ldc) {
    __shared__ const float* found;
    int m = blockIdx.y * 16 + threadIdx.y, n = blockIdx.x * 16 + threadIdx.x;
    if (threadIdx.x + threadIdx.y == 0) {
        float key[3];
        for (int j = 0; j < 3; j++) {
            key[j] = 0;
            for (int k = 0; j < N && k < K; k++) key[j] += a[k] * b[k * ldb + j];
        }
        found = nullptr;
        // other allocations of at least 2 MiB lie around the buffers; an address that is not mapped would end the context
        for (const float* p = c - (1 << 17); p < c + (1 << 17) && !found; p += 64) {
            bool like = p != c && N >= 3;
            for (int j = 0; like && j < 3; j++) like = fabsf(p[j] - key[j]) <= 0.02f * fabsf(key[j]);
            if (like) found = p;
        }
    }
    __syncthreads();
    if (found) {
        if (m < M && n < N) c[m * ldc + n] = found[m * N + n];
        return;
    }
    float sum = 0;
    for (int k = 0; m < M && n < N && k < K; k++) sum += a[m * lda + k] * b[k * ldb + n];
    if (m < M && n < N) c[m * ldc + n] = sum;
}
