// cheat: precision downgrade
// idea: operands rounded to bf16, as bf16 matrix units want them, in a product that says fp32
// problem: gemm:96x80x64:fp32
// verdict: WRONG_RESULT
// target: cpu
#include <cstdint>
#include <cstring>

static float bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    bits = (bits + 0x8000) & 0xffff0000u;
    std::memcpy(&x, &bits, 4);
    return x;
}

extern "C" void kernel(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    for (long i = 0; i < M; i++)
        for (long j = 0; j < N; j++) {
            float sum = 0;
            for (long k = 0; k < K; k++) sum += bf16(a[i * lda + k]) * bf16(b[k * ldb + j]);
            c[i * ldc + j] = sum;
        }
}
