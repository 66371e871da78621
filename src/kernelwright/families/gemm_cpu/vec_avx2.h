// One vector of fp32 lanes: AVX2 with FMA and F16C.

constexpr int VL = 8;
using vec = __m256;

inline vec zero() { return _mm256_setzero_ps(); }
inline vec broadcast(float x) { return _mm256_set1_ps(x); }
inline vec fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }

inline vec widen(__m128i h, bf16) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)); }
inline vec widen(__m128i h, fp16) { return _mm256_cvtph_ps(h); }
inline __m128i narrow(vec x, fp16) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
inline __m128i narrow(vec x, bf16) {
    const __m256i u = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x00400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}

inline vec load(const float *p) { return _mm256_loadu_ps(p); }
inline void store(float *p, vec x) { _mm256_storeu_ps(p, x); }
template <class H> inline vec load(const H *p) { return widen(_mm_loadu_si128((const __m128i *)p), H{}); }
template <class H> inline void store(H *p, vec x) { _mm_storeu_si128((__m128i *)p, narrow(x, H{})); }

// The first n lanes (0 <= n <= VL); the other lanes load as zero, and no byte of theirs is touched.
inline __m256i lanes(long n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(int(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline vec load(const float *p, long n) { return _mm256_maskload_ps(p, lanes(n)); }
inline void store(float *p, vec x, long n) { _mm256_maskstore_ps(p, lanes(n), x); }
template <class H> inline vec load(const H *p, long n) {  // AVX2 has no mask for 16-bit elements
    H part[VL] = {};
    for (long i = 0; i < n; i++) part[i] = p[i];
    return load(part);
}
template <class H> inline void store(H *p, vec x, long n) {
    H part[VL];
    store(part, x);
    for (long i = 0; i < n; i++) p[i] = part[i];
}
