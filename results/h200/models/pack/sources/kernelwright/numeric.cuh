// 16-bit floating-point storage types and their conversions to and from float, without cuda_fp16.h: that header alone
// costs NVRTC more time than a whole kernel here. And two of the hardware's approximations, for what a float goes through before
// it is rounded to 16 bits.
//
// f16 and bf16 hold bits only; arithmetic happens in float or in the tensor cores. All roundings are to nearest even.
#pragma once

namespace kw {

struct f16 {
    unsigned short bits;
};

struct bf16 {
    unsigned short bits;
};

template <class Element>
constexpr bool is_bf16 = false;
template <>
constexpr bool is_bf16<bf16> = true;

/// Two floats rounded to Element and packed: `low` in bits 0-15 (the lower address), `high` in bits 16-31.
template <class Element>
__device__ __forceinline__ unsigned pack2(float low, float high);

template <>
__device__ __forceinline__ unsigned pack2<f16>(float low, float high) {
    unsigned packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

template <>
__device__ __forceinline__ unsigned pack2<bf16>(float low, float high) {
    unsigned packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

__device__ __forceinline__ float to_float(f16 x) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
    return value;
}

/// bfloat16 is the upper half of a float.
__device__ __forceinline__ float to_float(bf16 x) { return __uint_as_float(unsigned(x.bits) << 16); }

/// The two halves of a packed pair, as floats.
template <class Element>
__device__ __forceinline__ void unpack2(unsigned packed, float& low, float& high) {
    low = to_float(Element{static_cast<unsigned short>(packed & 0xffffu)});
    high = to_float(Element{static_cast<unsigned short>(packed >> 16)});
}

/// 2^x to 2 ulp; results below 2^-126 become 0. (CUDA has no intrinsic for one instruction.)
__device__ __forceinline__ float exp2_fast(float x) {
    float d;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
    return d;
}

/// 1 / x to 1 ulp; denormal x counts as 0, denormal results become 0.
__device__ __forceinline__ float reciprocal_fast(float x) {
    float d;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
    return d;
}

/// a / b, rounded down, for a < 2^21 and b > 0, from reciprocal_fast(b): half is 2.5 times the product's error there. Three
/// instructions, where a division of integers takes about twenty-five, one behind the other.
__device__ __forceinline__ int quotient(int a, float reciprocal) { return int((float(a) + 0.5f) * reciprocal); }

/// c + the sum of the products of a's and b's four unsigned bytes, in one instruction: a byte of `a`, taken out, multiplied and added.
__device__ __forceinline__ unsigned dot_bytes(unsigned a, unsigned b, unsigned c) {
    unsigned d;
    asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

}  // namespace kw
