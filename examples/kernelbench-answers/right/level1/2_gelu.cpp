// One pass over the matrix: x is read once and y written once, where the module as PyTorch runs it makes eight passes.
#include <bit>

// exp as 2^n times a polynomial of degree 6: an error of 2 units in the last place.
static inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
    const float shifted = x * 1.44269504f + 12582912.0f;  // adding 1.5 * 2^23 rounds to a whole number
    const float n = shifted - 12582912.0f;
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * std::bit_cast<float>((static_cast<int>(n) + 127) << 23);
}

// 0.5 x (1 + tanh(z)) is x / (1 + exp(-2 z)).
extern "C" void kernel(const float* __restrict__ x, float* __restrict__ y, long ld_x, long ld_y) {
    constexpr long rows = 128, columns = 512;
    for (long i = 0; i < rows; ++i) {
        const float* from = x + i * ld_x;
        float* to = y + i * ld_y;
        for (long j = 0; j < columns; ++j) {
            const float v = from[j];
            const float z = 0.7978845608028654f * (v + 0.044715f * v * v * v);
            to[j] = v / (1.0f + exponential(-2.0f * z));
        }
    }
}
