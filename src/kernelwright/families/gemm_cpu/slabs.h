// The whole product on one thread, or cut into slabs of C along its longer axis. Each thread has packing buffers of its own and
// computes its slab to the end: no barrier between them.
template <class Micro> void compute(const Problem &whole, char *workspace) {
    if constexpr (THREADS == 1) {
        gemm<Micro>(whole, workspace);
    } else {
        const bool along_n = whole.n >= whole.m;
        const long size = along_n ? whole.n : whole.m;
        const Split slabs(size, round_up((size + THREADS - 1) / THREADS, 32), 32);
        const long stride = left_bytes(whole) + right_bytes(whole) + partial_bytes(whole);
#pragma omp parallel for num_threads(THREADS) schedule(static, 1)
        for (long t = 0; t < slabs.parts; t++) {
            const long from = slabs.begin(t), count = slabs.begin(t + 1) - from;
            Problem slab = whole;
            slab.c = along_n ? whole.out(0, from) : whole.out(from, 0);
            if (along_n) slab.r = whole.right(from, 0), slab.n = count;
            else slab.l = whole.left(from, 0), slab.m = count;
            gemm<Micro>(slab, workspace + t * stride);
        }
    }
}
