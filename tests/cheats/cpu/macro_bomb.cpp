// cheat: memory
// idea: a few lines of macros that the compiler unfolds until the machine has no memory left
// problem: gemm:64x64x64:fp32
// verdict: COMPILE_ERROR
// target: cpu
#define A(...) __VA_ARGS__, __VA_ARGS__, __VA_ARGS__, __VA_ARGS__, __VA_ARGS__, __VA_ARGS__, __VA_ARGS__, __VA_ARGS__
#define B(...) A(A(A(__VA_ARGS__)))
#define C(...) B(B(B(__VA_ARGS__)))
static const char large[] = {C(C('a'))};
extern "C" void kernel(const float*, const float*, float* c, long, long, long, long, long, long) { c[0] = large[0]; }
