// Packing for the bf16 instructions, which multiply pairs of neighbours along k: a pair is one 32-bit word, low half first.

// The instructions flush denormal inputs, products and sums to zero. Products of bf16 with exponents ea and eb are multiples of
// 2^(ea - 7 + eb - 7), and so are their sums however rounded; at 2^-126 or more such a multiple is either zero or normal. So
// packing notes the smallest magnitudes, and a product that may have flushed is computed again in fp32.
struct Magnitudes {
    __m512i least_less_one = _mm512_set1_epi32(-1);  // of the magnitudes as 16-bit integers; zero less one wraps to the largest

    inline __attribute__((always_inline)) __m512i operator()(__m512i pairs) {
        const __m512i magnitude = _mm512_and_si512(pairs, _mm512_set1_epi16(0x7fff));
        least_less_one = _mm512_min_epu16(least_less_one, _mm512_sub_epi16(magnitude, _mm512_set1_epi16(1)));
        return pairs;
    }
    int biased_exponent() const {
        uint16_t lane[32], least = 0xffff;
        _mm512_storeu_si512(lane, least_less_one);
        for (uint16_t x : lane) least = x < least ? x : least;
        return (least + 1) >> 7;  // 512 where all is zero
    }
};

struct FlushWatch {
    Magnitudes left, right;
    bool may_have_flushed() const {
        const int l = left.biased_exponent(), r = right.biased_exponent();
        return l == 0 || r == 0 || l + r - 2 * 127 - 14 < -126;
    }
};

// Pairs (k, k + 1) of the VL elements from x[k * ld + i], where k counts rows; zero outside k < kb and i < count.
inline __m512i pairs_across(const bf16 *x, long ld, long k, long kb, long i, long count) {
    const __mmask16 inside = lanes(count > i ? least(VL, count - i) : 0);
    const __mmask16 first = k < kb ? inside : 0, second = k + 1 < kb ? inside : 0;
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first, x + k * ld + i));
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(second, x + (k + 1) * ld + i));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

// to[k / 2][count rounded up to `unit`] of pairs, from x stored along k or across it; what lies outside becomes zero.
template <bool ALONG_K> void pack_pairs(Magnitudes &seen, uint32_t *to, long unit, const bf16 *x, long ld, long count, long kb) {
    const long width = round_up(count, unit);
    Magnitudes note = seen;  // a copy, which stays in a register
    if constexpr (ALONG_K) {
        // A row is a row of pairs already: transpose words, 16 x 16 at a time. The vectors only carry bits.
        for (long i0 = 0; i0 < width; i0 += VL)
            for (long k0 = 0; k0 < kb; k0 += 2 * VL) {
                const __mmask32 inside = kb - k0 >= 32 ? ~0u : (1u << (kb - k0)) - 1;
                vec row[VL];
#pragma GCC unroll 16
                for (int i = 0; i < VL; i++)
                    row[i] = i0 + i < count ? (vec)note(_mm512_maskz_loadu_epi16(inside, x + (i0 + i) * ld + k0)) : zero();
                transpose(row);
                const long pairs = least(VL, (kb - k0 + 1) / 2);
#pragma GCC unroll 16
                for (int i = 0; i < VL; i++)
                    if (i < pairs) store((float *)to + (k0 / 2 + i) * width + i0, row[i], least(VL, width - i0));
            }
    } else {
        for (long k = 0; k < kb; k += 2, to += width)
            for (long i = 0; i < width; i += VL)
                _mm512_mask_storeu_epi32(to + i, lanes(least(VL, width - i)), note(pairs_across(x, ld, k, kb, i, count)));
    }
    seen = note;
}
