// Functions that CUDA has not got, or has only slower. Errors in units in the last place (ulp) of float; NaN in, NaN out.

#define INF __int_as_float(0x7f800000)
#define NOT_A_NUMBER __int_as_float(0x7fffffff)

// Division by b to 2.5 ulp over the whole range, with IEEE 754's infinities and NaNs and without the call to a slow path (and the
// registers spilled around it) that a / b costs. Scaling by 2^64 keeps the reciprocal of a denormal finite and that of a huge
// value normal; it is exact, and overflows only where the quotient does.
struct Divisor {
    float up, inverse, down;
};

__device__ __forceinline__ Divisor divisor(float b) {
    const float up = fabsf(b) < 0x1p-64f ? 0x1p64f : 1.0f;
    const float down = fabsf(b) > 0x1p64f ? 0x1p-64f : 1.0f;
    return {up, reciprocal_fast(b * up * down), down};
}

__device__ __forceinline__ float operator/(float a, const Divisor& b) { return a * b.up * b.inverse * b.down; }

// 1 ulp, without the slow path of sqrtf.
__device__ __forceinline__ float root(float x) {
    float d;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(d) : "f"(x));
    return d;
}

// 1 / (1 + e^-x). The denominator is at least 1, where __fdividef is good to 2 ulp; above 2^126 it gives 0, as it should.
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }

// e^x = 2^(x log2 e) in two instructions. Rounding x log2 e costs |x| / 2 ulp; results below 2^-126 become 0.
__device__ __forceinline__ float exp_fast(float x) {
    float d;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x * 1.4426950408889634f));
    return d;
}

__device__ __forceinline__ float sigmoid_fast(float x) { return reciprocal_fast(1.0f + exp_fast(-x)); }

// tanh x = 1 - 2 / (1 + e^2x): absolute error about 2^-23, so results near 0 lose relative accuracy.
__device__ __forceinline__ float tanh_fast(float x) { return fmaf(-2.0f, reciprocal_fast(1.0f + exp_fast(2.0f * x)), 1.0f); }

// One instruction, relative error up to 2^-11: for results that are rounded to 16 bits.
__device__ __forceinline__ float tanh_16bit(float x) {
    float d;
    asm("tanh.approx.f32 %0, %1;" : "=f"(d) : "f"(x));
    return d;
}

// Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: absolute error up to 2e-7, so results near 0 lose relative
// accuracy. Half the instructions of erff.
__device__ __forceinline__ float erf_fast(float x) {
    const float t = reciprocal_fast(fmaf(0.3275911f, fabsf(x), 1.0f));
    float p = fmaf(1.061405429f, t, -1.453152027f);
    p = fmaf(p, t, 1.421413741f);
    p = fmaf(p, t, -0.284496736f);
    p = fmaf(p, t, 0.254829592f);
    return copysignf(fmaf(-p * t, exp_fast(-x * x), 1.0f), x);
}
