// vecmath.h: arithmetic, mathematical functions, reductions and the running sum on vec.h's registers.
//
// Nothing here assumes finite values: NaN and infinity go through as IEEE 754 says, so the build must not use -ffast-math; contraction
// to FMA is welcome. Errors are in units of 2^-24 of the true value, the largest seen over the whole float32 range. Coefficients:
// minimax fits of our own (Lawson's iteration; the rational ones after Sanathanan and Koerner), rounded to float32.

#ifndef EXP_DEGREE
#define EXP_DEGREE 6  // of the polynomial in exp: 6 (error 1.7 units) or 5 (error 2.8 units, one FMA less)
#endif
#ifndef NEWTON
#define NEWTON 0  // 1: quotients of bounded numbers by VRCP14PS and a Newton step, for CPUs whose VDIVPS is slow
#endif

// ------------------------------------------------------------------------------------------------------------------ arithmetic

FN f32v abs(f32v x) { return as_float(as_int(x) & 0x7fffffff); }
FN f32v copysign(f32v magnitude, f32v sign) { return as_float((as_int(magnitude) & 0x7fffffff) | (as_int(sign) & (int)0x80000000)); }

// PyTorch's maximum and minimum: NaN if either is.
FN f32v maximum(f32v a, f32v b) { return (a > b) | (a != a) ? a : b; }
FN f32v minimum(f32v a, f32v b) { return (a < b) | (a != a) ? a : b; }
// With a limit that is not NaN one VMAXPS or VMINPS does it: these return their second operand when either is NaN. (GCC 12 makes a
// comparison and a masked move of the same expression in C++.)
#if LANES == 16
FN f32v at_least(f32v x, float limit) { return (f32v)__builtin_ia32_maxps512_mask(splat(limit), x, f32v{}, (unsigned short)-1, 4); }
FN f32v at_most(f32v x, float limit) { return (f32v)__builtin_ia32_minps512_mask(splat(limit), x, f32v{}, (unsigned short)-1, 4); }
#elif LANES == 8
FN f32v at_least(f32v x, float limit) { return (f32v)__builtin_ia32_maxps256(splat(limit), x); }
FN f32v at_most(f32v x, float limit) { return (f32v)__builtin_ia32_minps256(splat(limit), x); }
#else
FN f32v at_least(f32v x, float limit) { return (f32v)__builtin_ia32_maxps(splat(limit), x); }
FN f32v at_most(f32v x, float limit) { return (f32v)__builtin_ia32_minps(splat(limit), x); }
#endif

FN f32v sqrt(f32v x) {
    for (int i = 0; i < LANES; ++i) x[i] = __builtin_sqrtf(x[i]);
    return x;
}
FN f32v rsqrt(f32v x) { return 1.0f / sqrt(x); }
FN f32v pow(f32v x, f32v y) {
    for (int i = 0; i < LANES; ++i) x[i] = __builtin_powf(x[i], y[i]);
    return x;
}

// n / d where d and n / d are finite and normal; error 1 unit.
FN f32v quotient(f32v n, f32v d) {
#if LANES == 16 && NEWTON
    f32v r = (f32v)__builtin_ia32_rcp14ps512_mask(d, f32v{}, (unsigned short)-1);
    r = r + r * (1.0f - d * r);
    f32v q = n * r;
    return q + r * (n - d * q);
#else
    return n / d;
#endif
}

// x / d for a d that stays the same along the row: a product with 1 / d (error 1.5 units) unless that would leave the normal range.
struct Divisor {
    f32v d, inverse;
    bool safe;
    static INLINE Divisor make(f32v d) {
        float size = __builtin_fabsf(d[0]);
        return {d, 1.0f / d, size >= 0x1p-126f && size <= 0x1p126f};
    }
};
FN f32v operator/(f32v x, const Divisor& by) { return by.safe ? x * by.inverse : x / by.d; }

// p 2^n for integral n, |n| < 252; rounds once into the denormals.
FN f32v scale(f32v p, f32v n) {
#if LANES == 16
    return (f32v)__builtin_ia32_scalefps512_mask(p, n, f32v{}, (unsigned short)-1, 4);
#else
    i32v k = __builtin_convertvector(n, i32v), half = k >> 1;
    return p * as_float((half + 127) << 23) * as_float((k - half + 127) << 23);
#endif
}

// e^x for x <= 0 or NaN: n = round(x / ln 2), r = x - n ln 2 in two steps (Cody and Waite), polynomial in r, times 2^n.
FN f32v exp_of_negative(f32v x) {
    x = at_least(x, -105.0f);                                       // below it the result is 0; NaN stays
    const float round = 0x1.8p23f;                                  // adding it leaves the integer nearest in the low bits
    f32v n = (x * 1.44269504f + round) - round;
    f32v r = (x - n * 0x1.62e4p-1f) - n * 1.42860677e-6f;           // ln 2 = 0x1.62e4p-1 + 1.4286e-6, the first exact times n
#if EXP_DEGREE == 6
    f32v p = 8.368677459657192e-3f + r * 1.382073387503624e-3f;
    p = 0.04166826605796814f + r * p;
    p = 0.1666652113199234f + r * p;
    p = 0.4999999403953552f + r * p;
    p = 1.0f + r * p;
#else
    f32v p = 0.041898176074028015f + r * 0.008289359509944916f;
    p = 0.16667652130126953f + r * p;
    p = 0.4999914765357971f + r * p;
    p = 0.9999997019767761f + r * p;
#endif
    return scale(1.0f + r * p, n);
}
FN f32v exp(f32v x) { return exp_of_negative(at_most(x, 89.0f)); }  // above it the result is infinity; nothing else needs the sign

// 1 / (1 + e^-x), through e^-|x| so that nothing overflows and the small side keeps its relative accuracy.
FN f32v sigmoid(f32v x) {
    f32v e = exp_of_negative(as_float(as_int(x) | (int)0x80000000));
    return quotient(x < 0.0f ? e : splat(1.0f), 1.0f + e);
}

// Odd rational function on |x| <= 9.04: tanh rounds to 1 from 9.011 on, and at 9.04 so does the quotient, with FMA and without.
FN f32v tanh(f32v x) {
    f32v t = at_most(at_least(x, -9.04f), 9.04f), s = t * t;
    f32v p = 3.0583584970579265e-8f + s * -1.2202304204222036e-11f;
    p = 2.8006912599704806e-5f + s * p;
    p = 3.8683024310691995e-3f + s * p;
    p = 0.13679895383840227f + s * p;
    p = 0.99999999871345091f + s * p;
    f32v q = 3.9385851725355240e-4f + s * 1.2873267109574260e-6f;
    q = 2.7245747809250966e-2f + s * q;
    q = 0.47013227455570711f + s * q;
    q = 1.0f + s * q;
    return quotient(t * p, q);
}

// Odd rational function on |x| <= 3.95: erf rounds to 1 from 3.92 on, and at 3.95 so does the quotient, with FMA and without.
FN f32v erf(f32v x) {
    f32v t = at_most(at_least(x, -3.95f), 3.95f), s = t * t;
    f32v p = 2.8464475280772509e-4f + s * 2.0258591471985145e-6f;
    p = 3.8070332114076813e-3f + s * p;
    p = 5.2871883072239410e-2f + s * p;
    p = 0.19152652645688475f + s * p;
    p = 1.1283791440886257f + s * p;
    f32v q = 1.1704197298816527e-3f + s * 3.7829046588784161e-5f;
    q = 1.5052835246536824e-2f + s * q;
    q = 0.11454941712919189f + s * q;
    q = 0.50306864632590831f + s * q;
    q = 1.0f + s * q;
    return quotient(t * p, q);
}

// ln x: x = 2^e m with m in [sqrt 1/2, sqrt 2); ln m = f - f^2/2 + f^3 P(f) with f = m - 1.
FN f32v log(f32v x) {
    i32v tiny = x < 0x1p-126f;
    i32v bits = as_int(tiny ? x * 0x1p23f : x) - 0x3f3504f3;
    f32v e = __builtin_convertvector(bits >> 23, f32v) - (tiny ? splat(23.0f) : splat(0.0f));
    f32v f = as_float((bits & 0x7fffff) + 0x3f3504f3) - 1.0f;
    f32v p = -0.11670192331075668f + f * 0.06749556213617325f;
    p = 0.11883470416069031f + f * p;
    p = -0.12406207621097565f + f * p;
    p = 0.14220362901687622f + f * p;
    p = -0.16667990386486053f + f * p;
    p = 0.2000207155942917f + f * p;
    p = -0.25000008940696716f + f * p;
    p = 0.3333331346511841f + f * p;
    f32v square = f * f;
    f32v small = square * f * p + e * 1.42860677e-6f - 0.5f * square;
    f32v y = small + f + e * 0x1.62e4p-1f;
    y = x == 0.0f ? splat(-__builtin_inff()) : y;
    y = x == __builtin_inff() ? x : y;
    return x >= 0.0f ? y : splat(__builtin_nanf(""));
}

// ---------------------------------------------------------------------------------------------------------- reductions and scan
// N independent accumulators hide the latency of the addition. The totals are in every lane of the result.

template <int N>
struct Sum {
    f32v part[N] = {};
    template <class Lanes, class S>
    INLINE void add(f32v v, Lanes lanes, S) { part[S::index % N] += only(v, lanes, 0.0f); }
    INLINE f32v total() const {
        f32v t = part[0];
        for (int i = 1; i < N; ++i) t += part[i];
        if constexpr (LANES >= 16) t += rotate<8>(t);
        if constexpr (LANES >= 8) t += rotate<4>(t);
        t += rotate<2>(t);
        return t + rotate<1>(t);
    }
};

// Largest (SIGN = 1) or smallest (SIGN = -1) element, NaN if there is one. VMAXPS forgets a NaN, so a second chain remembers it.
#if LANES == 16
typedef unsigned short Flags;
constexpr Flags ALL = 0xffff;
FN Flags ordered_too(Flags flags, f32v v) { return __builtin_ia32_cmpps512_mask(v, v, 7, flags, 4); }
FN bool every(Flags flags) { return flags == ALL; }
#else
typedef i32v Flags;
#define ALL (i32v{} - 1)
FN Flags ordered_too(Flags flags, f32v v) { return flags & (v == v); }
FN bool every(Flags flags) {
    int all = -1;
    for (int i = 0; i < LANES; ++i) all &= flags[i];
    return all;
}
#endif

template <int N, int SIGN>
struct Extreme {
    f32v best[N];
    Flags ordered[N];  // lanes that have seen no NaN
    INLINE Extreme() {
        for (int i = 0; i < N; ++i) best[i] = splat(-SIGN * __builtin_inff()), ordered[i] = ALL;
    }
    template <class Lanes, class S>
    INLINE void add(f32v v, Lanes lanes, S) {
        constexpr int i = S::index % N;
        v = only(v, lanes, -SIGN * __builtin_inff());
        best[i] = (SIGN > 0 ? v > best[i] : v < best[i]) ? v : best[i];
        ordered[i] = ordered_too(ordered[i], v);
    }
    FN f32v better(f32v a, f32v b) { return (SIGN > 0 ? a > b : a < b) ? a : b; }
    INLINE f32v total() const {
        f32v t = best[0];
        Flags all = ordered[0];
        for (int i = 1; i < N; ++i) t = better(t, best[i]), all &= ordered[i];
        if constexpr (LANES >= 16) t = better(t, rotate<8>(t));
        if constexpr (LANES >= 8) t = better(t, rotate<4>(t));
        t = better(t, rotate<2>(t));
        t = better(t, rotate<1>(t));
        return every(all) ? t : splat(__builtin_nanf(""));
    }
};
template <int N>
using Max = Extreme<N, 1>;
template <int N>
using Min = Extreme<N, -1>;

// Running sum along the row: a prefix sum inside the register (Hillis and Steele, log2(LANES) shifted additions), then the carry of the
// columns before. The carry is a double, as PyTorch's is: in float32 its error would grow with the length of the row.
template <int K>
FN f32v shift_up(f32v v) {  // lane i takes lane i - K; zero below
    return LANE < K ? splat(0.0f) : rotate<LANES - K>(v);
}
struct Scan {
    double carry = 0;
    INLINE f32v add(f32v v) {
        v += shift_up<1>(v);
        v += shift_up<2>(v);
        if constexpr (LANES >= 8) v += shift_up<4>(v);
        if constexpr (LANES >= 16) v += shift_up<8>(v);
        f32v sum = v + (float)carry;
        carry += v[LANES - 1];
        return sum;
    }
};
