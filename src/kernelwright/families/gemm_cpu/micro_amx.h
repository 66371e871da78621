// Micro-kernel for bf16 with AMX: 2 x 2 tiles of 16 x 16 fp32 sums; tdpbf16ps multiplies 16 rows x 16 pairs of k by 16 pairs x 16
// columns. Intel, Architecture Instruction Set Extensions Reference, chapter on AMX.
#include "bf16_pairs.h"
#include "micro_fma.h"

template <int, int> struct MicroAmx {
    static_assert(PACK_LEFT && PACK_RIGHT);
    static constexpr int MR = 32, NR = 32;
    static long take_rows(long left) { return least(left, MR); }
    static long take_cols(long left) { return least(left, NR); }
    static constexpr int M_UNIT = 16, N_UNIT = 16, K_UNIT = 32;
    static long depth(long kb) { return round_up(kb, 32) / 2; }
    using L = uint32_t;
    using R = uint32_t;
    using InFp32 = MicroFma<4, 2>;  // for inputs with which the instruction may flush denormals, and where AMX is not granted

    // Linux grants the tile registers to a process that asks: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA).
    static bool granted() {
        static const bool answer = syscall(SYS_arch_prctl, 0x1023, 18) == 0;
        return answer;
    }
    struct Session : FlushWatch {  // sets the shape of all eight tile registers: 16 rows of 64 bytes
        Session() {
            struct alignas(64) { uint8_t palette, start, reserved[14]; uint16_t row_bytes[16]; uint8_t rows[16]; } shape = {};
            shape.palette = 1;
            for (int t = 0; t < 8; t++) shape.row_bytes[t] = 64, shape.rows[t] = 16;
            _tile_loadconfig(&shape);
        }
        ~Session() { _tile_release(); }
    };

    // to[rows / 16][depth / 16][16][16] of pairs: one tile register's load is 1 KB in a row
    static void pack_left(Session &s, uint32_t *to, const T *l, long ld, long rows, long kb) {
        const long d = depth(kb);
        Magnitudes note = s.left;
        for (long i0 = 0; i0 < rows; i0 += 16)
            for (long k0 = 0; k0 < d; k0 += 16, to += 256) {
                if constexpr (LEFT_ALONG_K) {
                    const __mmask32 inside = kb - 2 * k0 >= 32 ? ~0u : (1u << (kb - 2 * k0)) - 1;
                    for (long i = 0; i < least(16, rows - i0); i++)
                        _mm512_storeu_si512(to + i * 16, note(_mm512_maskz_loadu_epi16(inside, l + (i0 + i) * ld + 2 * k0)));
                } else {
                    vec row[16];
#pragma GCC unroll 16
                    for (int q = 0; q < 16; q++) row[q] = (vec)note(pairs_across(l, ld, 2 * (k0 + q), kb, i0, rows));
                    transpose(row);
#pragma GCC unroll 16
                    for (int i = 0; i < 16; i++) store((float *)to + i * 16, row[i]);
                }
            }
        s.left = note;
    }
    // to[depth][cols rounded up to 16] of pairs
    static void pack_right(Session &s, uint32_t *to, const T *r, long ld, long cols, long kb) {
        const long width = round_up(cols, 16), filled = (kb + 1) / 2;
        pack_pairs<RIGHT_ALONG_K>(s.right, to, 16, r, ld, cols, kb);
        memset(to + filled * width, 0, size_t(4 * width * (depth(kb) - filled)));
    }

    template <bool LOWER, bool RIGHTMOST> static void tile(long d, const uint32_t *l, const uint32_t *r, float *sums) {
        constexpr int width = RIGHTMOST ? 32 : 16;
        _tile_zero(0);
        if constexpr (RIGHTMOST) _tile_zero(1);
        if constexpr (LOWER) _tile_zero(2);
        if constexpr (LOWER && RIGHTMOST) _tile_zero(3);
        for (long k = 0; k < d; k += 16) {
            _tile_loadd(6, r + k * width, width * 4);
            _tile_loadd(4, l + 16 * k, 64);
            _tile_dpbf16ps(0, 4, 6);
            if constexpr (RIGHTMOST) {
                _tile_loadd(7, r + k * width + 16, width * 4);
                _tile_dpbf16ps(1, 4, 7);
            }
            if constexpr (LOWER) {
                _tile_loadd(5, l + 16 * (d + k), 64);
                _tile_dpbf16ps(2, 5, 6);
                if constexpr (RIGHTMOST) _tile_dpbf16ps(3, 5, 7);
            }
        }
        _tile_stored(0, sums, NR * 4);
        if constexpr (RIGHTMOST) _tile_stored(1, sums + 16, NR * 4);
        if constexpr (LOWER) _tile_stored(2, sums + 16 * NR, NR * 4);
        if constexpr (LOWER && RIGHTMOST) _tile_stored(3, sums + 16 * NR + 16, NR * 4);
    }

    static void run(long rows, long cols, long kb, const L *l, long, const R *r, long, const Output &out) {
        alignas(64) float sums[MR * NR];
        const bool lower = rows > 16, rightmost = cols > 16;
        const auto f = lower ? (rightmost ? tile<true, true> : tile<true, false>) : (rightmost ? tile<false, true> : tile<false, false>);
        f(depth(kb), l, r, sums);
        write_tile(sums, NR, rows, cols, out);
    }
};
