// vec.h: one register of float32 lanes, its way to and from memory, and the sweep over a row, for the generated row kernels.
//
// Written on GCC's vector extensions rather than <immintrin.h>, because parsing that header takes 0.25 s where such a kernel compiles
// in 0.1 s. 16 lanes with AVX-512, 8 with AVX, 4 otherwise.

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

// Streaming stores go past the caches: no line is read before it is overwritten. Tails and unaligned rows are stored as usual.
typedef long long i64v __attribute__((vector_size(2 * LANES)));
FN void stream_bits(float* p, f32v v) {
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
FN void stream_bits(void* p, i64v v) {
#if defined(__clang__) || LANES == 4
    *(i64v*)p = v;
#elif LANES == 16
    __builtin_ia32_movntdq256((i64v*)p, v);
#else
    __builtin_ia32_movntdq((i64v*)p, v);
#endif
}
FN void stream_bits(fp16* p, f32v v) { stream_bits((void*)p, (i64v)narrow(v)); }
FN void stream_bits(bf16* p, f32v v) { stream_bits((void*)p, (i64v)narrow_bf16(v)); }
template <class T>
FN void stream(T* p, f32v v, Part lanes) { store(p, v, lanes); }
template <class T>
FN void stream(T* p, f32v v, Whole lanes) {
    if ((unsigned long)p % (sizeof(T) * LANES)) return store(p, v, lanes);
    stream_bits(p, v);
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
