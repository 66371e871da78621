// Micro-kernel for bf16 with AVX512-BF16: as MicroFma, but every step takes a pair of k and vdpbf16ps adds both products.
#include "bf16_pairs.h"
#include "micro_fma.h"

template <int TILE_ROWS, int TILE_VECS> struct MicroDpbf16 {
    static_assert(PACK_LEFT && PACK_RIGHT);
    static constexpr int MR = TILE_ROWS, NR = TILE_VECS * VL;
    static long take_rows(long left) { return take<MR>(left); }
    static long take_cols(long left) { return least(left, NR); }
    static constexpr int M_UNIT = 1, N_UNIT = VL, K_UNIT = 2;
    using Session = FlushWatch;
    static long depth(long kb) { return (kb + 1) / 2; }
    using L = uint32_t;
    using R = uint32_t;
    using InFp32 = MicroFma<4, 2>;  // for inputs with which the instruction may flush denormals

    static void pack_left(Session &s, uint32_t *to, const T *l, long ld, long rows, long kb) {
        pack_pairs<LEFT_ALONG_K>(s.left, to, 1, l, ld, rows, kb);
    }
    static void pack_right(Session &s, uint32_t *to, const T *r, long ld, long cols, long kb) {
        pack_pairs<RIGHT_ALONG_K>(s.right, to, VL, r, ld, cols, kb);
    }

    template <int ROWS, int VECS> static void tile(long kb, const uint32_t *l, const uint32_t *r, long cols, const Output &out) {
        vec acc[ROWS][VECS];
#pragma GCC unroll 32
        for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 32
            for (int v = 0; v < VECS; v++) acc[i][v] = zero();
        const long pairs = depth(kb);
#pragma GCC unroll UNROLL
        for (long k = 0; k < pairs; k++, l += ROWS, r += VECS * VL) {
            __m512i b[VECS];
#pragma GCC unroll 32
            for (int v = 0; v < VECS; v++) {
                b[v] = _mm512_loadu_si512(r + v * VL);
                if constexpr (PREFETCH > 0) __builtin_prefetch(r + PREFETCH * VECS * VL + v * VL);
            }
#pragma GCC unroll 32
            for (int i = 0; i < ROWS; i++) {
                const __m512i a = _mm512_set1_epi32(int(l[i]));
#pragma GCC unroll 32
                for (int v = 0; v < VECS; v++) acc[i][v] = _mm512_dpbf16_ps(acc[i][v], (__m512bh)a, (__m512bh)b[v]);
            }
        }
        float sums[ROWS][VECS * VL];
#pragma GCC unroll 32
        for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 32
            for (int v = 0; v < VECS; v++) store(&sums[i][v * VL], acc[i][v]);
        write_tile(sums[0], VECS * VL, ROWS, cols, out);
    }

    using Tile = void (*)(long, const L *, const R *, long, const Output &);
    template <int ROWS, int VECS> static constexpr Tile instance() {
        if constexpr (takes<MR>(ROWS)) return &tile<ROWS, VECS>;
        else return nullptr;
    }
    static void run(long rows, long cols, long kb, const L *l, long, const R *r, long, const Output &out) {
        static constexpr auto table = []<int... I>(std::integer_sequence<int, I...>) {
            return std::array<Tile, sizeof...(I)>{instance<I / TILE_VECS + 1, I % TILE_VECS + 1>()...};
        }(std::make_integer_sequence<int, MR * TILE_VECS>{});
        table[(rows - 1) * TILE_VECS + (cols - 1) / VL](kb, l, r, cols, out);
    }
};
