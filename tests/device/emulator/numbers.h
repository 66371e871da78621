// 16-bit floating point.
#pragma once

namespace emulator {

inline float bits_to_float(unsigned bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

struct HalfTable {
    float values[65536];
    HalfTable() {
        for (unsigned h = 0; h < 65536; h++) {
            int exponent = h >> 10 & 31, mantissa = h & 1023;
            float value = exponent == 31 ? (mantissa ? NAN : INFINITY)
                          : exponent     ? ldexpf(float(mantissa + 1024), exponent - 25)
                                         : ldexpf(float(mantissa), -24);
            values[h] = h & 0x8000 ? -value : value;
        }
    }
};
const HalfTable half_table;

inline float half_to_float(unsigned short h) { return half_table.values[h]; }

inline unsigned short float_to_half(float x) {
    unsigned sign = signbit(x) ? 0x8000 : 0;
    x = fabsf(x);
    if (isnan(x)) return 0x7fff;
    if (x >= 65520.f) return sign | 0x7c00;
    int exponent = x == 0.f ? -14 : ilogbf(x) < -14 ? -14 : ilogbf(x);
    unsigned steps = unsigned(nearbyintf(ldexpf(x, 10 - exponent)));  // 1024 to 2048 for normal numbers
    return sign | (unsigned(exponent + 14) << 10) + steps;
}

inline unsigned short float_to_bfloat(float x) {
    unsigned bits;
    memcpy(&bits, &x, 4);
    if (isnan(x)) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

}  // namespace emulator
