// Element types as they lie in memory, and their exact conversion to float. Arithmetic is always fp32.

struct bf16 { uint16_t bits; };
struct fp16 { uint16_t bits; };

inline float float_of_bits(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
inline uint32_t bits_of_float(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) { return float_of_bits(uint32_t(x.bits) << 16); }
inline float to_float(fp16 h) {
    const uint32_t sign = uint32_t(h.bits & 0x8000) << 16, magnitude = h.bits & 0x7fff;
    if (magnitude >= 0x7c00) return float_of_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);  // Inf, NaN
    if (magnitude < 0x0400) {  // denormal: an integer multiple of 2^-24, exact in fp32
        const float f = float(magnitude) * 0x1p-24f;
        return sign ? -f : f;
    }
    return float_of_bits(sign | ((magnitude << 13) + (112u << 23)));
}

// Round to nearest, ties to even; NaN stays NaN.
inline void put(float *p, float x) { *p = x; }
inline void put(bf16 *p, float x) {
    const uint32_t u = bits_of_float(x);
    p->bits = uint16_t((x != x ? u | 0x00400000 : u + 0x7fff + (u >> 16 & 1)) >> 16);
}
inline void put(fp16 *p, float x) {
    const uint32_t u = bits_of_float(x), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
    uint32_t h;
    if (magnitude > 0x7f800000) h = 0x7e00;
    else if (magnitude >= 0x477ff000) h = 0x7c00;  // 65520 and above round to Inf
    else if (magnitude < 0x38800000)               // below 2^-14: adding 0.5 leaves multiples of 2^-24 in the low bits
        h = bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3f000000;
    else h = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    p->bits = uint16_t(sign | h);
}

inline long least(long a, long b) { return a < b ? a : b; }
inline long round_up(long n, long unit) { return (n + unit - 1) / unit * unit; }

// `total` in the fewest parts of at most `most`, as even as whole units allow.
struct Split {
    long parts, units, total, unit;
    Split(long total, long most, long unit) : total(total), unit(unit) {
        const long most_units = most > unit ? most / unit : 1;
        units = (total + unit - 1) / unit;
        parts = (units + most_units - 1) / most_units;
    }
    long begin(long i) const { return parts ? least(units * i / parts * unit, total) : 0; }
};

// The next tile when `left` rows are left: tiles of MOST and MOST - 1 where they add up exactly (100 = 4 x 13 + 4 x 12), else full
// tiles and the rest in powers of two. Few sizes, because each is an instance of the micro-kernel and costs time to compile.
template <long MOST> inline long take(long left) {
    const long tiles = (left + MOST - 1) / MOST;
    if (left >= tiles * (MOST - 1)) return (left + tiles - 1) / tiles;
    return left > MOST ? MOST : 1L << (63 - __builtin_clzl(left));
}
template <long MOST> constexpr bool takes(long size) { return size >= MOST - 1 || (size & (size - 1)) == 0; }
