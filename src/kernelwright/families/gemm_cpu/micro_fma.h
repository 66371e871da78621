// Micro-kernel with vectors along n: each step of k broadcasts ROWS elements of L against VECS vectors of a row of R and keeps
// ROWS x VECS accumulators in registers (the outer-product scheme of Goto and van de Geijn, 2008).

template <int TILE_ROWS, int TILE_VECS> struct MicroFma {
    static constexpr int MR = TILE_ROWS, NR = TILE_VECS * VL;
    static long take_rows(long left) { return take<MR>(left); }
    static long take_cols(long left) { return least(left, NR); }
    static constexpr int M_UNIT = 1, N_UNIT = VL, K_UNIT = 1;  // tiles of R hold whole vectors
    struct Session {};
    static long depth(long kb) { return kb; }  // packed elements of one row or column
    using L = std::conditional_t<PACK_LEFT, float, T>;
    using R = std::conditional_t<PACK_RIGHT, float, T>;

    // rows x kb of L to to[k][rows], and kb x cols of R to to[k][cols rounded up to vectors]
    static void pack_left(Session &, float *to, const T *l, long ld, long rows, long kb) {
        if constexpr (LEFT_ALONG_K) pack_transpose(to, rows, rows, l, ld, rows, kb);
        else pack_copy(to, rows, rows, l, ld, kb, rows);
    }
    static void pack_right(Session &, float *to, const T *r, long ld, long cols, long kb) {
        const long width = round_up(cols, VL);
        if constexpr (RIGHT_ALONG_K) pack_transpose(to, width, width, r, ld, cols, kb);
        else pack_copy(to, width, width, r, ld, kb, cols);
    }

    // MASKED: only `cols` of the columns exist, and an unpacked R must not be read beyond them.
    template <int ROWS, int VECS, bool MASKED>
    static void tile(long kb, const L *l, long ld_l, const R *r, long ld_r, long cols, const Output &out) {
        constexpr bool UNIT_ROW = PACK_LEFT || !LEFT_ALONG_K;
        const long row = UNIT_ROW ? 1 : ld_l, depth = PACK_LEFT ? ROWS : LEFT_ALONG_K ? 1 : ld_l;
        const long step = PACK_RIGHT ? VECS * VL : ld_r;
        const long in_last = cols - (VECS - 1) * VL;
        vec acc[ROWS][VECS];
#pragma GCC unroll 32
        for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 32
            for (int v = 0; v < VECS; v++) acc[i][v] = zero();
        if constexpr (PARTIAL_IN_C && PACK_RIGHT)  // large products: C comes from L3 (3 % at 512^3)
#pragma GCC unroll 32
            for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 32
                for (int v = 0; v < VECS; v++) __builtin_prefetch(out.c + i * out.row + v * VL, 1);
#pragma GCC unroll UNROLL
        for (long k = 0; k < kb; k++, l += depth, r += step) {
            vec b[VECS];
#pragma GCC unroll 32
            for (int v = 0; v < VECS; v++) {
                b[v] = MASKED && !PACK_RIGHT && v == VECS - 1 ? load(r + v * VL, in_last) : load(r + v * VL);
                if constexpr (PREFETCH > 0) __builtin_prefetch(r + PREFETCH * step + v * VL);
            }
#pragma GCC unroll 32
            for (int i = 0; i < ROWS; i++) {
                const vec a = broadcast(to_float(l[i * row]));
#pragma GCC unroll 32
                for (int v = 0; v < VECS; v++) acc[i][v] = fma(a, b[v], acc[i][v]);
            }
        }
        if constexpr (SWAP) {
            float sums[ROWS][VECS * VL];
#pragma GCC unroll 32
            for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 32
                for (int v = 0; v < VECS; v++) store(&sums[i][v * VL], acc[i][v]);
            write_tile(sums[0], VECS * VL, ROWS, cols, out);
        } else {
            if (!out.first) add<ROWS, VECS, MASKED>(acc, out, in_last);
            if (PARTIAL_IN_C || out.last) leave<ROWS, VECS, MASKED>(acc, out.c, out.row, in_last);
            else leave<ROWS, VECS, MASKED>(acc, out.partial, out.partial_row, in_last);
        }
    }

    template <int ROWS, int VECS, bool MASKED>
    static inline __attribute__((always_inline)) void add(vec (&acc)[ROWS][VECS], const Output &out, long in_last) {
#pragma GCC unroll 32
        for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 32
            for (int v = 0; v < VECS; v++) {
                const float *p = out.partial + i * out.partial_row + v * VL;
                acc[i][v] += MASKED && v == VECS - 1 ? load(p, in_last) : load(p);
            }
    }
    template <int ROWS, int VECS, bool MASKED, class E>
    static inline __attribute__((always_inline)) void leave(vec (&acc)[ROWS][VECS], E *to, long row, long in_last) {
#pragma GCC unroll 32
        for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 32
            for (int v = 0; v < VECS; v++)
                if (MASKED && v == VECS - 1) store(to + i * row + v * VL, acc[i][v], in_last);
                else store(to + i * row + v * VL, acc[i][v]);
    }

    // One instance for every size that take_rows and take_cols give: 65 columns cost five vectors, not six.
    using Tile = void (*)(long, const L *, long, const R *, long, long, const Output &);
    template <int ROWS, int VECS, bool MASKED> static constexpr Tile instance() {
        if constexpr (takes<MR>(ROWS)) return &tile<ROWS, VECS, MASKED>;
        else return nullptr;
    }
    static void run(long rows, long cols, long kb, const L *l, long ld_l, const R *r, long ld_r, const Output &out) {
        static constexpr auto partial = []<int... I>(std::integer_sequence<int, I...>) {
            return std::array<Tile, sizeof...(I)>{instance<I / TILE_VECS + 1, I % TILE_VECS + 1, true>()...};
        }(std::make_integer_sequence<int, MR * TILE_VECS>{});
        static constexpr auto whole = []<int... I>(std::integer_sequence<int, I...>) {
            return std::array<Tile, sizeof...(I)>{instance<I + 1, TILE_VECS, false>()...};
        }(std::make_integer_sequence<int, MR>{});
        const Tile f = cols == NR ? whole[rows - 1] : partial[(rows - 1) * TILE_VECS + (cols - 1) / VL];
        f(kb, l, ld_l, r, ld_r, cols, out);
    }
};
