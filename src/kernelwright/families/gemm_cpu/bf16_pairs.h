// Packing for the bf16 instructions, which multiply pairs of neighbours along k: a pair is one 32-bit word, low half first.
// They flush denormal inputs, products and sums to zero, so a product that could hold one is computed in fp32 instead.

// Pairs (k, k + 1) of the VL elements from x[k * ld + i], where k counts rows; zero outside k < kb and i < count.
inline __m512i pairs_across(const bf16 *x, long ld, long k, long kb, long i, long count) {
    const __mmask16 inside = lanes(count > i ? least(VL, count - i) : 0);
    const __mmask16 first = k < kb ? inside : 0, second = k + 1 < kb ? inside : 0;
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first, x + k * ld + i));
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(second, x + (k + 1) * ld + i));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

// to[k / 2][count rounded up to `unit`] of pairs, from x stored along k or across it; what lies outside becomes zero.
template <bool ALONG_K> void pack_pairs(uint32_t *to, long unit, const bf16 *x, long ld, long count, long kb) {
    const long width = round_up(count, unit);
    if constexpr (ALONG_K) {
        // A row is a row of pairs already: transpose words, 16 x 16 at a time. The vectors only carry bits.
        for (long i0 = 0; i0 < width; i0 += VL)
            for (long k0 = 0; k0 < kb; k0 += 2 * VL) {
                const __mmask32 inside = kb - k0 >= 32 ? ~0u : (1u << (kb - k0)) - 1;
                vec row[VL];
#pragma GCC unroll 16
                for (int i = 0; i < VL; i++)
                    row[i] = i0 + i < count ? (vec)_mm512_maskz_loadu_epi16(inside, x + (i0 + i) * ld + k0) : zero();
                transpose(row);
                const long pairs = least(VL, (kb - k0 + 1) / 2);
#pragma GCC unroll 16
                for (int i = 0; i < VL; i++)
                    if (i < pairs) store((float *)to + (k0 / 2 + i) * width + i0, row[i], least(VL, width - i0));
            }
    } else {
        for (long k = 0; k < kb; k += 2, to += width)
            for (long i = 0; i < width; i += VL)
                _mm512_mask_storeu_epi32(to + i, lanes(least(VL, width - i)), pairs_across(x, ld, k, kb, i, count));
    }
}

// Smallest magnitude of a nonzero element, as bits; 0x10000 when all are zero.
inline uint32_t least_magnitude(const bf16 *x, long ld, long rows, long cols) {
    uint16_t least_less_one = 0xffff;  // zero less one wraps to the largest
    for (long r = 0; r < rows; r++)
        for (long c = 0; c < cols; c++) {
            const uint16_t m = uint16_t((x[r * ld + c].bits & 0x7fff) - 1);
            least_less_one = m < least_less_one ? m : least_less_one;
        }
    return uint32_t(least_less_one) + 1;
}

// Whether a denormal can arise. Products of bf16 with exponents ea and eb are multiples of 2^(ea - 7 + eb - 7), so are their sums
// however rounded; at 2^-126 or more such a multiple is either zero or normal. Biased by 127, that is ea + eb >= 142.
inline bool may_flush(const Problem &p) {
    const uint32_t l = LEFT_ALONG_K ? least_magnitude(p.l, p.ld_l, p.m, p.k) : least_magnitude(p.l, p.ld_l, p.k, p.m);
    const uint32_t r = RIGHT_ALONG_K ? least_magnitude(p.r, p.ld_r, p.n, p.k) : least_magnitude(p.r, p.ld_r, p.k, p.n);
    const uint32_t el = l >> 7, er = r >> 7;
    return el == 0 || er == 0 || el + er < 142;
}
