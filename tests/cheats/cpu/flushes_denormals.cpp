// cheat: fast math
// idea: denormals are flushed to zero by the processor's mode
// problem: gemm:96x80x64:fp32
// verdict: WRONG_RESULT
// target: cpu
#include <xmmintrin.h>
extern "C" void kernel(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    _mm_setcsr(_mm_getcsr() | 0x8040);
    for (long i = 0; i < M; i++) {
        for (long j = 0; j < N; j++) c[i * ldc + j] = 0;
        for (long k = 0; k < K; k++)
            for (long j = 0; j < N; j++) c[i * ldc + j] += a[i * lda + k] * b[k * ldb + j];
    }
}
