// One vector of fp32 lanes: AVX-512 (F, BW, VL).

constexpr int VL = 16;
using vec = __m512;

inline vec zero() { return _mm512_setzero_ps(); }
inline vec broadcast(float x) { return _mm512_set1_ps(x); }
inline vec fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }

inline vec widen(__m256i h, bf16) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)); }
inline vec widen(__m256i h, fp16) { return _mm512_cvtph_ps(h); }
inline __m256i narrow(vec x, fp16) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
inline __m256i narrow(vec x, bf16) {  // not vcvtneps2bf16, which flushes denormals
    const __m512i u = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i kept = _mm512_mask_or_epi32(rounded, nan, u, _mm512_set1_epi32(0x00400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
}

inline vec load(const float *p) { return _mm512_loadu_ps(p); }
inline void store(float *p, vec x) { _mm512_storeu_ps(p, x); }
template <class H> inline vec load(const H *p) { return widen(_mm256_loadu_si256((const __m256i *)p), H{}); }
template <class H> inline void store(H *p, vec x) { _mm256_storeu_si256((__m256i *)p, narrow(x, H{})); }

// The first n lanes (0 <= n <= VL); the other lanes load as zero, and no byte of theirs is touched.
inline __mmask16 lanes(long n) { return __mmask16(_bzhi_u32(0xffff, unsigned(n))); }
inline vec load(const float *p, long n) { return _mm512_maskz_loadu_ps(lanes(n), p); }
inline void store(float *p, vec x, long n) { _mm512_mask_storeu_ps(p, lanes(n), x); }
template <class H> inline vec load(const H *p, long n) { return widen(_mm256_maskz_loadu_epi16(lanes(n), p), H{}); }
template <class H> inline void store(H *p, vec x, long n) { _mm256_mask_storeu_epi16(p, lanes(n), narrow(x, H{})); }
