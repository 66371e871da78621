// The loops around the micro-kernel: blocks of n, k and m (NC, KC, MC: what should stay in L3, L1 and L2), then tiles.

// Bytes of the three buffers of one thread; the launch plan (render.py) has the same formulas. Rounding up to 32 leaves room for the
// padding of every micro-kernel.
long left_bytes(const Problem &p) {
    return PACK_LEFT ? 4 * round_up(least(p.m, MC), 32) * round_up(least(p.k, KC), 32) : 0;
}
long right_bytes(const Problem &p) {
    return PACK_RIGHT ? 4 * round_up(least(p.n, NC), 32) * round_up(least(p.k, KC), 32) : 0;
}
long partial_bytes(const Problem &p) {
    return !PARTIAL_IN_C && p.k > KC ? 4 * round_up(p.m, 32) * round_up(least(p.n, NC), 32) : 0;
}

template <class Micro> void gemm(const Problem &p, char *workspace) {
    using L = typename Micro::L;
    using R = typename Micro::R;
    if constexpr (requires { Micro::granted(); })
        if (!Micro::granted()) return gemm<typename Micro::InFp32>(p, workspace);
    typename Micro::Session session;
    L *const left_buffer = (L *)workspace;
    R *const right_buffer = (R *)(workspace + left_bytes(p));
    float *const partial_buffer = (float *)(workspace + left_bytes(p) + right_bytes(p));

    const Split n_blocks(p.n, NC, Micro::N_UNIT), k_blocks(p.k, KC, Micro::K_UNIT), m_blocks(p.m, MC, Micro::M_UNIT);
    for (long jc = 0; jc < n_blocks.parts; jc++) {
        const long j0 = n_blocks.begin(jc), nb = n_blocks.begin(jc + 1) - j0;
        long pc = 0;
        do {  // once for k = 0, which writes zeros
            const long k0 = k_blocks.begin(pc), kb = k_blocks.begin(pc + 1) - k0, depth = Micro::depth(kb);
            if constexpr (PACK_RIGHT)
                for (long j = 0, cols; j < nb; j += cols) {
                    cols = Micro::take_cols(nb - j);
                    Micro::pack_right(session, right_buffer + j * depth, p.right(j0 + j, k0), p.ld_r, cols, kb);
                }
            for (long ic = 0; ic < m_blocks.parts; ic++) {
                const long i0 = m_blocks.begin(ic), mb = m_blocks.begin(ic + 1) - i0;
                if constexpr (PACK_LEFT)
                    for (long i = 0, rows; i < mb; i += rows) {
                        rows = Micro::take_rows(mb - i);
                        Micro::pack_left(session, left_buffer + i * depth, p.left(i0 + i, k0), p.ld_l, rows, kb);
                    }
                for (long j = 0, cols; j < nb; j += cols) {
                    cols = Micro::take_cols(nb - j);
                    const R *r;
                    if constexpr (PACK_RIGHT) r = right_buffer + j * depth;
                    else r = p.right(j0 + j, k0);
                    for (long i = 0, rows; i < mb; i += rows) {
                        rows = Micro::take_rows(mb - i);
                        const L *l;
                        if constexpr (PACK_LEFT) l = left_buffer + i * depth;
                        else l = p.left(i0 + i, k0);
                        Output out{p.out(i0 + i, j0 + j), p.row, p.col, nullptr, 0, pc == 0, pc + 1 >= k_blocks.parts};
                        if constexpr (PARTIAL_IN_C) {
                            out.partial = out.c;
                            out.partial_row = p.row;
                        } else {
                            out.partial_row = round_up(nb, 32);
                            out.partial = partial_buffer + (i0 + i) * out.partial_row + j;
                        }
                        Micro::run(rows, cols, kb, l, p.ld_l, r, p.ld_r, out);
                    }
                }
            }
        } while (++pc < k_blocks.parts);
    }
    if constexpr (requires { typename Micro::InFp32; })
        if (session.may_have_flushed()) gemm<typename Micro::InFp32>(p, workspace);
}
