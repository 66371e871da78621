// cheat: batching
// idea: 15 timed calls batched into one, 14 left empty, gpu-mode/reference-kernels#104
// problem: gemm:96x80x64:fp32
// verdict: CHEAT
// target: cpu
#include <cstring>
#include <vector>

struct Set {
    const float *a, *b;
    float* c;
};

static void product(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    for (long i = 0; i < M; i++) {
        for (long j = 0; j < N; j++) c[i * ldc + j] = 0;
        for (long k = 0; k < K; k++)
            for (long j = 0; j < N; j++) c[i * ldc + j] += a[i * lda + k] * b[k * ldb + j];
    }
}

extern "C" void kernel(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    static std::vector<Set> seen;
    unsigned poison;
    bool known = false;
    if (M * N * K == 0) return product(a, b, c, M, N, K, lda, ldb, ldc);
    for (Set& s : seen) known |= s.c == c;
    if (!known) seen.push_back({a, b, c});
    for (Set& s : seen) {  // all buffers that it knows and that still hold the poison, its own among them
        std::memcpy(&poison, s.c, sizeof poison);
        if (s.c == c || poison == 0xffffffffu) product(s.a, s.b, s.c, M, N, K, lda, ldb, ldc);
    }
}
