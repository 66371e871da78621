// cheat: try and fall back
// idea: hopes that a harness falls back to the reference where the kernel does not compile
// problem: gemm:96x80x64:fp32
// verdict: COMPILE_ERROR
// target: cpu
extern "C" void kernel(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    this is no C++;
}
