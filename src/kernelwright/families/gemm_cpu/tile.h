// What surrounds a micro-kernel: the product it takes part in, and how a tile leaves its results.
//
// The product is written C = L R (L: m x k, R: k x n). Without SWAP, L is A and R is B; with SWAP the transposed product is
// computed: L = B^T, R = A^T, so that n is the axis of A's rows.

struct Problem {
    const T *l, *r;
    T *c;
    long m, n, k, ld_l, ld_r;
    long row, col;  // strides of C in elements, in L's and R's terms

    const T *left(long i, long k0) const { return LEFT_ALONG_K ? l + i * ld_l + k0 : l + k0 * ld_l + i; }
    const T *right(long j, long k0) const { return RIGHT_ALONG_K ? r + j * ld_r + k0 : r + k0 * ld_r + j; }
    T *out(long i, long j) const { return c + i * row + j * col; }
};

constexpr bool PARTIAL_IN_C = sizeof(T) == 4 && !SWAP;  // fp32 C collects its own partial sums

// Where a tile of C goes. Over the blocks of k, partial sums in fp32 collect in `partial`; the last block rounds into C.
struct Output {
    T *c;
    long row, col;
    float *partial;
    long partial_row;
    bool first, last;
};

// The general way out, from memory: sums[i][j] of `rows` x `cols`, rows `ld` apart. May read up to VL - 1 floats past a row.
[[maybe_unused]] void write_tile(const float *sums, long ld, long rows, long cols, const Output &out) {
    for (long i = 0; i < rows; i++) {
        const float *s = sums + i * ld;
        float *p = out.partial + i * out.partial_row;
        T *c = out.c + i * out.row;
        for (long j = 0; j < cols; j += VL) {
            const long n = least(VL, cols - j);
            vec x = load(s + j);
            if (!out.first) x += load(p + j, n);
            if (!PARTIAL_IN_C && !out.last) store(p + j, x, n);
            else if constexpr (!SWAP) store(c + j, x, n);
            else {  // a column of C
                float column[VL];
                store(column, x);
                for (long v = 0; v < n; v++) put(c + (j + v) * out.col, column[v]);
            }
        }
    }
}
