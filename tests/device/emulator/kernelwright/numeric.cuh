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

inline float to_float(f16 x) { return emulator::half_to_float(x.bits); }
inline float to_float(bf16 x) { return emulator::bits_to_float(unsigned(x.bits) << 16); }
template <class Element>
unsigned pack2(float low, float high) {
    if (is_bf16<Element>) return emulator::float_to_bfloat(low) | unsigned(emulator::float_to_bfloat(high)) << 16;
    return emulator::float_to_half(low) | unsigned(emulator::float_to_half(high)) << 16;
}
template <class Element>
void unpack2(unsigned packed, float& low, float& high) {
    low = to_float(Element{static_cast<unsigned short>(packed)});
    high = to_float(Element{static_cast<unsigned short>(packed >> 16)});
}
inline unsigned dot_bytes(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 32; i += 8) c += (a >> i & 255) * (b >> i & 255);
    return c;
}
inline float exp2_fast(float x) { return exp2f(x); }
inline float reciprocal_fast(float x) { return 1.f / x; }
inline int quotient(int a, float reciprocal) { return int((float(a) + 0.5f) * reciprocal); }
}  // namespace kw
