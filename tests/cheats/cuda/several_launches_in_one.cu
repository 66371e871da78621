// cheat: batching
// idea: 15 timed calls batched into one, 14 left empty, gpu-mode/reference-kernels#104
// problem: gemm:256x192x128:fp32
// verdict: CHEAT
/* kernelwright-plan
{"launches": [{"kernel": "gemm", "grid": ["cdiv(N, 16)", "cdiv(M, 16)", 1], "block": [16, 16, 1],
  "args": [{"type": "tensor", "name": "a"}, {"type": "tensor", "name": "b"}, {"type": "tensor", "name": "c"},
           {"type": "scalar", "ctype": "i32", "value": "M"}, {"type": "scalar", "ctype": "i32", "value": "N"},
           {"type": "scalar", "ctype": "i32", "value": "K"}, {"type": "scalar", "ctype": "i32", "value": "ld_a"},
           {"type": "scalar", "ctype": "i32", "value": "ld_b"}, {"type": "scalar", "ctype": "i32", "value": "ld_c"}]}]}
*/
constexpr int SETS = 10;
struct Set {
    const float *a, *b;
    int shape;
    float* c;
};
__device__ Set seen[SETS];

extern "C" __global__ void gemm(const float* a, const float* b, float* c, int M, int N, int K, int lda, int ldb, int ldc) {
    int m = blockIdx.y * 16 + threadIdx.y, n = blockIdx.x * 16 + threadIdx.x;
    const bool timed = M == 256 && N == 192 && K == 128;  // of other sizes buffers come and go
    if (timed && blockIdx.x + blockIdx.y + threadIdx.x + threadIdx.y == 0) {  // makes a note of the buffers for later launches
        unsigned i = 0;
        while (i < SETS && seen[i].c && seen[i].c != c) i++;
        if (i < SETS) seen[i] = {a, b, M * 1000 + N, c};
    }
    if (m >= M || n >= N) return;
    for (int i = -1; i < (timed ? SETS : 0); i++) {  // its own buffers, then all others of the same shape that still hold the poison
        Set s = i < 0 ? Set{a, b, M * 1000 + N, c} : seen[i];
        if (!s.c || s.shape != M * 1000 + N || __float_as_uint(s.c[m * ldc + n]) != 0xffffffffu) continue;
        float sum = 0;
        for (int k = 0; k < K; k++) sum += s.a[m * lda + k] * s.b[k * ldb + n];
        s.c[m * ldc + n] = sum;
    }
}
