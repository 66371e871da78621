// One vector of fp32 lanes: the vector extension of GCC and Clang, on any processor.
constexpr int VL = 4;
typedef float vec __attribute__((vector_size(4 * VL)));

inline vec zero() { return vec{}; }
inline vec broadcast(float x) { return vec{} + x; }
inline vec fma(vec a, vec b, vec c) { return a * b + c; }

inline vec load(const float *p) { vec x; memcpy(&x, p, sizeof x); return x; }
inline void store(float *p, vec x) { memcpy(p, &x, sizeof x); }

// The first n lanes (0 <= n <= VL); the other lanes load as zero, and no byte of theirs is touched.
template <class E> inline vec load(const E *p, long n) {
    float part[VL] = {};
    for (long i = 0; i < n; i++) part[i] = to_float(p[i]);
    return load(part);
}
template <class E> inline void store(E *p, vec x, long n) {
    float part[VL];
    store(part, x);
    for (long i = 0; i < n; i++) put(p + i, part[i]);
}
template <class H> inline vec load(const H *p) { return load(p, VL); }
template <class H> inline void store(H *p, vec x) { store(p, x, VL); }
