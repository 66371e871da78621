// vec.h: one register of float32 lanes and the mathematics on it, for the generated row kernels.
//
// Written on GCC's vector extensions rather than <immintrin.h>, because parsing that header takes 0.25 s of the 0.3 s that such a
// kernel compiles in. 16 lanes with AVX-512, 8 with AVX, 4 otherwise. Nothing here assumes finite values: NaN and infinity go
// through as IEEE 754 says, so the build must not use -ffast-math; contraction to FMA is welcome.
//
// Errors are in units of 2^-24 of the true value, measured over the whole float32 range (tests/families/test_chain_cpu.py).
// Coefficients: minimax fits of our own (Lawson's iteration; rational ones after Sanathanan and Koerner), rounded to float32.

#ifndef EXP_DEGREE
#define EXP_DEGREE 6  // of the polynomial in exp: 6 (error 1.1 units) or 5 (error 2.6 units, one FMA less)
#endif
#ifndef NEWTON
#define NEWTON 1  // quotients of bounded numbers by VRCP14PS and a Newton step: VDIVPS takes 16 cycles for 16 lanes
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#define INLINE __attribute__((always_inline))
#define FN static inline INLINE

typedef float f32v __attribute__((vector_size(4 * LANES)));
typedef int i32v __attribute__((vector_size(4 * LANES)));
typedef unsigned u32v __attribute__((vector_size(4 * LANES)));
typedef unsigned short u16v __attribute__((vector_size(2 * LANES)));
typedef _Float16 f16v __attribute__((vector_size(2 * LANES)));
typedef _Float16 fp16;
struct bf16 {
    unsigned short bits;
};

// ------------------------------------------------------------------------------------------------------------ lanes and masks

struct Whole {};  // all lanes of a register
struct Part {     // the first `count` lanes, 0 < count < LANES: the tail of a row
    int count;
};

constexpr i32v iota_lanes() {
    i32v lane = {};
    for (int i = 0; i < LANES; ++i) lane[i] = i;
    return lane;
}
#define LANE iota_lanes()

FN f32v splat(float value) { return f32v{} + value; }
FN f32v as_float(i32v bits) { return (f32v)bits; }
FN i32v as_int(f32v value) { return (i32v)value; }
FN f32v to_float(i32v mask) { return mask ? splat(1.0f) : splat(0.0f); }  // a comparison used as a number
FN f32v to_index(long column) { return __builtin_convertvector(LANE + (int)column, f32v); }

FN f32v only(f32v v, Whole, float) { return v; }
FN f32v only(f32v v, Part lanes, float elsewhere) { return LANE < lanes.count ? v : splat(elsewhere); }

template <int K>
FN f32v rotate(f32v v) {  // lane i takes lane i + K, around the end
#ifdef __clang__
    f32v r = v;
    for (int i = 0; i < LANES; ++i) r[i] = v[(i + K) % LANES];
    return r;
#else
    return __builtin_shuffle(v, (LANE + K) & (LANES - 1));
#endif
}

// ------------------------------------------------------------------------------------------------------------ loads and stores

// the same registers as they lie in memory: at any address, over any type
typedef f32v f32m __attribute__((aligned(1), may_alias));
typedef i32v i32m __attribute__((aligned(1), may_alias));
typedef f16v f16m __attribute__((aligned(1), may_alias));
typedef u16v u16m __attribute__((aligned(1), may_alias));

FN f32v widen(f16v h) {
#if LANES == 16
    typedef short raw __attribute__((vector_size(32)));
    return (f32v)__builtin_ia32_vcvtph2ps512_mask((raw)h, f32v{}, -1, 4);
#elif LANES == 8 && defined(__F16C__)
    typedef short raw __attribute__((vector_size(16)));
    return (f32v)__builtin_ia32_vcvtph2ps256((raw)h);
#else
    return __builtin_convertvector(h, f32v);
#endif
}
FN f16v narrow(f32v v) {
#if LANES == 16
    typedef short raw __attribute__((vector_size(32)));
    return (f16v)__builtin_ia32_vcvtps2ph512_mask(v, 0, raw{}, -1);
#elif LANES == 8 && defined(__F16C__)
    return (f16v)__builtin_ia32_vcvtps2ph256(v, 0);
#else
    return __builtin_convertvector(v, f16v);
#endif
}
FN f32v widen_bf16(u16v bits) { return (f32v)(__builtin_convertvector(bits, u32v) << 16); }
FN u16v narrow_bf16(f32v v) {  // VCVTNEPS2BF16 would flush denormals, so round to nearest even on the integers
    u32v bits = (u32v)v;
    u32v rounded = bits + 0x7fff + ((bits >> 16) & 1);
    return __builtin_convertvector((v == v ? rounded : bits | 0x400000) >> 16, u16v);
}

FN f32v load(const float* p, Whole) { return *(const f32m*)p; }
FN f32v load(const fp16* p, Whole) { return widen(*(const f16m*)p); }
FN f32v load(const bf16* p, Whole) { return widen_bf16(*(const u16m*)p); }
FN f32v load(const int* p, Whole) { return __builtin_convertvector(*(const i32m*)p, f32v); }
FN f32v load(const long* p, Whole) {
    f32v r = {};
    for (int i = 0; i < LANES; ++i) r[i] = (float)p[i];
    return r;
}
FN void store(float* p, f32v v, Whole) { *(f32m*)p = v; }
FN void store(fp16* p, f32v v, Whole) { *(f16m*)p = narrow(v); }
FN void store(bf16* p, f32v v, Whole) { *(u16m*)p = narrow_bf16(v); }

template <class T>
FN f32v load(const T* p, Part lanes) {  // lanes beyond the part read as zero
#if LANES == 16
    if constexpr (__is_same(T, float)) return (f32v)__builtin_ia32_loadups512_mask(p, f32v{}, (unsigned short)((1u << lanes.count) - 1));
#endif
    T copy[LANES] = {};
    for (int i = 0; i < lanes.count; ++i) copy[i] = p[i];
    return load(copy, Whole{});
}
template <class T>
FN void store(T* p, f32v v, Part lanes) {
#if LANES == 16
    if constexpr (__is_same(T, float)) return __builtin_ia32_storeups512_mask(p, v, (unsigned short)((1u << lanes.count) - 1));
#endif
    T copy[LANES];
    store(copy, v, Whole{});
    for (int i = 0; i < lanes.count; ++i) p[i] = copy[i];
}

// Streaming stores go past the caches: no line is read before it is overwritten. The address must be a multiple of the register.
template <class T, class L>
FN void stream(T* p, f32v v, L lanes) { store(p, v, lanes); }
FN void stream(float* p, f32v v, Whole) {
    if ((unsigned long)p % sizeof(f32v)) return store(p, v, Whole{});
#ifdef __clang__
    __builtin_nontemporal_store(v, (f32v*)p);
#elif LANES == 16
    __builtin_ia32_movntps512(p, v);
#elif LANES == 8
    __builtin_ia32_movntps256(p, v);
#else
    __builtin_ia32_movntps(p, v);
#endif
}
FN void end_of_stream() { __builtin_ia32_sfence(); }

FN f32v load_one(const float* p) { return splat(*p); }
FN f32v load_one(const fp16* p) { return splat((float)*p); }
FN f32v load_one(const bf16* p) { return (f32v)(u32v{} + ((unsigned)p->bits << 16)); }
FN f32v load_one(const int* p) { return splat((float)*p); }
FN f32v load_one(const long* p) { return splat((float)*p); }
template <class T>
FN void store_one(T* p, f32v v) { store(p, v, Part{1}); }

// ------------------------------------------------------------------------------------------------ the row, register by register

template <int N>
struct Slot {  // which of the unrolled steps this is; a type, so that accumulators stay in registers
    static constexpr int index = N;
};

template <int STEP, int UNROLL, class Body>
FN void steps(long j, Body& body) {
    body(j + STEP * LANES, Whole{}, Slot<STEP>{});
    if constexpr (STEP + 1 < UNROLL) steps<STEP + 1, UNROLL>(j, body);
}

// body(j, lanes, slot) for the columns begin <= j < end, LANES at a time.
template <int UNROLL, class Body>
FN void sweep(long begin, long end, Body body) {
    long j = begin;
    for (; j + UNROLL * LANES <= end; j += UNROLL * LANES) steps<0, UNROLL>(j, body);
    if constexpr (UNROLL > 1)
        for (; j + LANES <= end; j += LANES) body(j, Whole{}, Slot<0>{});
    if (j < end) body(j, Part{(int)(end - j)}, Slot<0>{});
}

// ------------------------------------------------------------------------------------------------------------------ arithmetic

FN f32v abs(f32v x) { return as_float(as_int(x) & 0x7fffffff); }
FN f32v copysign(f32v magnitude, f32v sign) { return as_float((as_int(magnitude) & 0x7fffffff) | (as_int(sign) & (int)0x80000000)); }

// PyTorch's maximum and minimum: NaN if either is.
FN f32v maximum(f32v a, f32v b) { return (a > b) | (a != a) ? a : b; }
FN f32v minimum(f32v a, f32v b) { return (a < b) | (a != a) ? a : b; }
// With a limit that is not NaN one VMAXPS or VMINPS does it: these return their second operand when either is NaN.
FN f32v at_least(f32v x, float limit) { return splat(limit) > x ? splat(limit) : x; }
FN f32v at_most(f32v x, float limit) { return splat(limit) < x ? splat(limit) : x; }

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

// e^x: n = round(x / ln 2), r = x - n ln 2 in two steps (Cody and Waite), polynomial in r, times 2^n. Error 1.1 units.
FN f32v exp(f32v x) {
    x = at_most(at_least(x, -105.0f), 89.0f);                       // beyond these the result is 0 or infinity; NaN stays
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

// 1 / (1 + e^-x), through e^-|x| so that nothing overflows and the small side keeps its relative accuracy.
FN f32v sigmoid(f32v x) {
    f32v e = exp(as_float(as_int(x) | (int)0x80000000));
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
