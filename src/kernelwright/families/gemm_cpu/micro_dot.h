// Micro-kernel with vectors along k: ROWS x COLS dot products side by side, each in a vector accumulator, summed across lanes at
// the end. Both operands are read along k, so a layout that stores them so (`nt`) needs no packing.

template <int TILE_ROWS, int TILE_COLS> struct MicroDot {
    static constexpr int MR = TILE_ROWS, NR = TILE_COLS;
    static long take_rows(long left) { return take<MR>(left); }
    static long take_cols(long left) { return take<NR>(left); }
    static constexpr int M_UNIT = 1, N_UNIT = 1, K_UNIT = 1;
    struct Session {};
    static long depth(long kb) { return kb; }  // packed elements of one row or column
    using L = std::conditional_t<PACK_LEFT, float, T>;
    using R = std::conditional_t<PACK_RIGHT, float, T>;

    // to to[i][kb]
    static void pack_left(Session &, float *to, const T *l, long ld, long rows, long kb) {
        if constexpr (LEFT_ALONG_K) pack_copy(to, kb, kb, l, ld, rows, kb);
        else pack_transpose(to, kb, kb, l, ld, kb, rows);
    }
    static void pack_right(Session &, float *to, const T *r, long ld, long cols, long kb) {
        if constexpr (RIGHT_ALONG_K) pack_copy(to, kb, kb, r, ld, cols, kb);
        else pack_transpose(to, kb, kb, r, ld, kb, cols);
    }

    template <int ROWS, int COLS>
    static void tile(long kb, const L *l, long ld_l, const R *r, long ld_r, const Output &out) {
        const long row = PACK_LEFT ? kb : ld_l, col = PACK_RIGHT ? kb : ld_r;
        constexpr int COUNT = ROWS * COLS;
        constexpr int GROUP = COUNT >= VL ? VL : COUNT > 8 ? 16 : COUNT > 4 ? 8 : COUNT > 2 ? 4 : COUNT;
        constexpr int GROUPS = (COUNT + GROUP - 1) / GROUP;
        vec acc[GROUPS * GROUP];
#pragma GCC unroll 48
        for (int i = 0; i < GROUPS * GROUP; i++) acc[i] = zero();
        long k = 0;
#pragma GCC unroll UNROLL
        for (; k + VL <= kb; k += VL) {
            vec b[COLS];
#pragma GCC unroll 32
            for (int j = 0; j < COLS; j++) {
                b[j] = load(r + j * col + k);
                if constexpr (PREFETCH > 0) __builtin_prefetch(r + j * col + k + PREFETCH * VL);
            }
#pragma GCC unroll 32
            for (int i = 0; i < ROWS; i++) {
                const vec a = load(l + i * row + k);
#pragma GCC unroll 32
                for (int j = 0; j < COLS; j++) acc[i * COLS + j] = fma(a, b[j], acc[i * COLS + j]);
            }
        }
        if (k < kb) {
            vec b[COLS];
#pragma GCC unroll 32
            for (int j = 0; j < COLS; j++) b[j] = load(r + j * col + k, kb - k);
#pragma GCC unroll 32
            for (int i = 0; i < ROWS; i++) {
                const vec a = load(l + i * row + k, kb - k);
#pragma GCC unroll 32
                for (int j = 0; j < COLS; j++) acc[i * COLS + j] = fma(a, b[j], acc[i * COLS + j]);
            }
        }
        float total[GROUPS * GROUP + VL] = {};
#pragma GCC unroll 32
        for (int g = 0; g < GROUPS; g++) store(total + g * GROUP, sums<GROUP>(acc + g * GROUP));
        write_tile(total, COLS, ROWS, COLS, out);
    }

    using Tile = void (*)(long, const L *, long, const R *, long, const Output &);
    template <int ROWS, int COLS> static constexpr Tile instance() {
        if constexpr (takes<MR>(ROWS) && takes<NR>(COLS)) return &tile<ROWS, COLS>;
        else return nullptr;
    }
    static void run(long rows, long cols, long kb, const L *l, long ld_l, const R *r, long ld_r, const Output &out) {
        static constexpr auto table = []<int... I>(std::integer_sequence<int, I...>) {
            return std::array<Tile, sizeof...(I)>{instance<I / NR + 1, I % NR + 1>()...};
        }(std::make_integer_sequence<int, MR * NR>{});
        table[(rows - 1) * NR + cols - 1](kb, l, ld_l, r, ld_r, out);
    }
};
