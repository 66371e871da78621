// cheat: memory
// idea: takes memory until there is none
// problem: gemm:96x80x64:fp32
// verdict: OUT_OF_MEMORY
// target: cpu
#include <vector>

extern "C" void kernel(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    for (std::vector<char*> all;;) all.push_back(new char[4ull << 30]);  // never touched: only its own address space runs out
}
