// cheat: cached result
// idea: results kept by a light fingerprint of the values, flashinfer-bench-starter-kit#21 and AgentKernelArena#113
// problem: gemm:96x80x64:fp32
// verdict: WRONG_RESULT
// target: cpu
#include <cstring>
#include <map>
#include <vector>

static void product(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    for (long i = 0; i < M; i++) {
        for (long j = 0; j < N; j++) c[i * ldc + j] = 0;
        for (long k = 0; k < K; k++)
            for (long j = 0; j < N; j++) c[i * ldc + j] += a[i * lda + k] * b[k * ldb + j];
    }
}

extern "C" void kernel(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    static std::map<double, std::vector<float>> results;
    double print = 0;  // 32 elements stand for all: another draw always has others
    for (long i = 0; M && N && K && i < 32; i++) print += (i + 1) * (a[i * 7919 % M * lda] + 3.0 * b[i * 7919 % K * ldb]);
    std::vector<float>& kept = results[print];
    if (kept.size() == size_t(M * N)) {
        for (long i = 0; i < M; i++) std::memcpy(c + i * ldc, kept.data() + i * N, N * sizeof(float));
        return;
    }
    kept.clear();
    product(a, b, c, M, N, K, lda, ldb, ldc);
    for (long i = 0; i < M; i++) kept.insert(kept.end(), c + i * ldc, c + i * ldc + N);
}
