// One pass over the matrix: x is read once and y written once, where the module as PyTorch runs it makes eight passes.
#include <cmath>

// 0.5 x (1 + tanh(z)) is x / (1 + exp(-2 z)). exp as 2^n times a polynomial of degree 6: an error of 2 units in the last place.
static inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
    const float n = std::floor(x * 1.44269504f + 0.5f);
    float r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    union { int bits; float value; } power;
    power.bits = (static_cast<int>(n) + 127) << 23;
    return p * power.value;
}

extern "C" void kernel(const float* __restrict__ x, float* __restrict__ y, long ld_x, long ld_y) {
    constexpr long rows = 128, columns = 512;
    for (long i = 0; i < rows; ++i) {
#pragma omp simd
        for (long j = 0; j < columns; ++j) {
            const float v = x[i * ld_x + j];
            const float z = 0.7978845608028654f * (v + 0.044715f * v * v * v);
            y[i * ld_y + j] = v / (1.0f + exponential(-2.0f * z));
        }
    }
}
