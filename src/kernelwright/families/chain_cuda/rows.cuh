// Chains with reductions or running sums along rows. `Chain` (generated) says what to do with one vector in each stage;
// this file moves the data and joins the threads of a row. Every reduction has a fixed order: same inputs, same bits.
//
// A stage ends in one collective: all reductions and running sums whose arguments are known by then. After the last stage the
// outputs are computed and stored.

template <int S>
struct Stage {};

template <int S, int END, class Body>
__device__ __forceinline__ void for_each_stage(Body&& body) {
    if constexpr (S < END) {
        body(Stage<S>{});
        for_each_stage<S + 1, END>(body);
    }
}

// The threads that share a row: 8 to 32 lanes of a warp, or a whole block of up to 1024.
template <int ROW_THREADS, int ITEMS, int VEC, int WIDEST>
struct RowGroup {
    static constexpr int LANES = ROW_THREADS < 32 ? ROW_THREADS : 32;
    static constexpr int WARPS = ROW_THREADS / LANES;
    static constexpr int SPAN = ROW_THREADS * ITEMS * VEC;  // columns that the group covers at once

    float* scratch;  // 2 x WARPS x WIDEST values; the halves take turns, so that one barrier per collective is enough
    int lane = threadIdx.x % LANES;
    int warp = threadIdx.x % ROW_THREADS / LANES;
    int phase = 0;

    __device__ __forceinline__ explicit RowGroup(float* shared) : scratch(shared) {}

    // A warp owns neighbouring columns, item after item: accesses are coalesced, and running sums need one value a warp.
    __device__ __forceinline__ int column(int item) const { return ((warp * ITEMS + item) * LANES + lane) * VEC; }

    template <int N, class Combine>
    __device__ __forceinline__ Partial<N> all_reduce(Partial<N> p, Combine combine) {
        p = warp_all_reduce<LANES>(p, combine);
        if constexpr (WARPS > 1) {
            float* half = scratch + phase * (WARPS * WIDEST);
            phase ^= 1;
            if (lane == 0) {
#pragma unroll
                for (int k = 0; k < N; k++) half[k * WARPS + warp] = p.v[k];
            }
            __syncthreads();
            // every warp reduces the warps' values once more, in copies side by side
#pragma unroll
            for (int k = 0; k < N; k++) p.v[k] = half[k * WARPS + lane % WARPS];
            p = warp_all_reduce<WARPS>(p, combine);
        }
        return p;
    }

    // Turns the VEC values of each item, `values(item)`, into running sums along the row that start from `carry`.
    // Returns the carry for the columns behind.
    template <class Values>
    __device__ __forceinline__ float scan(Values values, float carry) {
        float before[ITEMS];
        float total = 0.0f;  // of this warp's items so far
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            float* v = values(i);
#pragma unroll
            for (int j = 1; j < VEC; j++) v[j] += v[j - 1];
            const float upto = warp_scan<LANES>(v[VEC - 1], lane);
            // shifted, not `upto - v`: an infinity must not turn into NaN before its own column
            const float left = __shfl_up_sync(0xffffffffu, upto, 1, LANES);
            before[i] = lane == 0 ? total : total + left;
            total += __shfl_sync(0xffffffffu, upto, LANES - 1, LANES);
        }
        if constexpr (WARPS > 1) {
            float* half = scratch + phase * (WARPS * WIDEST);
            phase ^= 1;
            if (lane == 0) half[warp] = total;
            __syncthreads();
            const float upto = warp_scan<32>(lane < WARPS ? half[lane] : 0.0f, lane);
            total = __shfl_sync(0xffffffffu, upto, WARPS - 1);
            const float left = __shfl_sync(0xffffffffu, upto, warp > 0 ? warp - 1 : 0);
            if (warp > 0) {
#pragma unroll
                for (int i = 0; i < ITEMS; i++) before[i] += left;
            }
        }
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            float* v = values(i);
#pragma unroll
            for (int j = 0; j < VEC; j++) v[j] += carry + before[i];
        }
        return carry + total;
    }
};

// One stage over the group's ITEMS vectors, which start at column `base` of the row and end before `limit`.
// Returns this thread's part of the stage's reductions, joined with `partial`.
template <class Chain, class Group, int ITEMS, class Columns, int S, int N>
__device__ __forceinline__ Partial<N> accumulate(const Chain& chain, const Group& group, typename Chain::Slot (&slot)[ITEMS],
                                                 const Columns& columns, const typename Chain::Row& r, int base, int limit,
                                                 Stage<S> stage, Partial<N> partial) {
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const int col = base + group.column(i);
        if (col < limit) {
            chain.accumulate(stage, partial, slot[i], columns(i), r, col);
        } else {
            chain.skip(stage, slot[i]);
        }
    }
    return partial;
}

// The reductions of one stage over all threads of the group.
template <class Chain, class Group, int S, int N>
__device__ __forceinline__ Partial<N> reduce(const Chain& chain, Group& group, Stage<S> stage, const Partial<N>& partial) {
    if constexpr (N > 0) {
        const auto combine = [&](const Partial<N>& a, const Partial<N>& b) { return chain.combine(stage, a, b); };
        return group.all_reduce(partial, combine);
    } else {
        return partial;
    }
}

// The running sums of one stage, in place; `carry` holds the sums of the columns before, and then of these too.
template <class Chain, class Group, int ITEMS, int S>
__device__ __forceinline__ void scan(const Chain& chain, Group& group, typename Chain::Slot (&slot)[ITEMS], Stage<S> stage,
                                     float (&carry)[Chain::WIDEST]) {
    if constexpr (Chain::scans(Stage<S>{}) > 0) {
#pragma unroll
        for (int k = 0; k < Chain::scans(Stage<S>{}); k++) {
            carry[k] = group.scan([&](int i) { return chain.scanned(stage, slot[i], k); }, carry[k]);
        }
    }
}

// The whole row lives in registers: read once, written once. Needs cols <= ROW_THREADS x ITEMS x VEC.
// HOIST reads per-column inputs once a thread, before the first row; else each row reads them (from L1) where they are used.
template <class Chain, int ROW_THREADS, int ROWS, int ITEMS, bool HOIST>
__device__ __forceinline__ void rows_in_registers(const Chain& chain, int rows, int cols) {
    using Group = RowGroup<ROW_THREADS, ITEMS, Chain::VEC, Chain::WIDEST>;
    __shared__ float scratch[2 * Group::WARPS * Chain::WIDEST];
    Group group(scratch);

    typename Chain::Columns hoisted[HOIST ? ITEMS : 1];
    if constexpr (HOIST) {
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            if (group.column(i) < cols) hoisted[i] = chain.columns(group.column(i));
        }
    }
    const auto columns = [&](int i) {
        if constexpr (HOIST) {
            return hoisted[i];
        } else {
            return chain.columns(group.column(i));
        }
    };

    for (long long first = blockIdx.x * 1ll * ROWS; first < rows; first += gridDim.x * 1ll * ROWS) {
        const long long row = first + threadIdx.x / ROW_THREADS;
        const int limit = row < rows ? cols : 0;  // a group without a row goes along: its warp's shuffles need it
        typename Chain::Slot slot[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            if (group.column(i) < limit) chain.load(slot[i], row, group.column(i));
        }
        typename Chain::Row r = chain.row(row < rows ? row : first);

        for_each_stage<0, Chain::STAGES>([&](auto stage) {
            auto partial = accumulate(chain, group, slot, columns, r, 0, limit, stage, chain.identity(stage));
            partial = reduce(chain, group, stage, partial);
            float carry[Chain::WIDEST] = {};
            scan(chain, group, slot, stage, carry);
            chain.finish(stage, r, partial);
        });

#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            if (group.column(i) < limit) chain.store(slot[i], columns(i), r, row, group.column(i));
        }
        if (row < rows && threadIdx.x % ROW_THREADS == 0) chain.store_row(r, row);
    }
}

// Rows of any length: every stage reads the row anew, ITEMS vectors a thread at a time. Short rows come back from L1 or L2.
template <class Chain, int ROW_THREADS, int ROWS, int ITEMS>
__device__ __forceinline__ void rows_reread(const Chain& chain, int rows, int cols) {
    using Group = RowGroup<ROW_THREADS, ITEMS, Chain::VEC, Chain::WIDEST>;
    __shared__ float scratch[2 * Group::WARPS * Chain::WIDEST];
    Group group(scratch);

    for (long long first = blockIdx.x * 1ll * ROWS; first < rows; first += gridDim.x * 1ll * ROWS) {
        const long long row = first + threadIdx.x / ROW_THREADS;
        const int limit = row < rows ? cols : 0;
        typename Chain::Row r = chain.row(row < rows ? row : first);
        typename Chain::Slot slot[ITEMS];
        const auto load = [&](int base) {
#pragma unroll
            for (int i = 0; i < ITEMS; i++) {
                if (base + group.column(i) < limit) chain.load(slot[i], row, base + group.column(i));
            }
        };

        for_each_stage<0, Chain::STAGES>([&](auto stage) {
            auto partial = chain.identity(stage);
            for (int base = 0; base < cols; base += Group::SPAN) {
                load(base);
                const auto columns = [&](int i) { return chain.columns(base + group.column(i)); };
                partial = accumulate(chain, group, slot, columns, r, base, limit, stage, partial);
            }
            partial = reduce(chain, group, stage, partial);
            chain.finish(stage, r, partial);
        });

        if constexpr (Chain::FULL_OUTPUTS > 0) {
            for (int base = 0; base < cols; base += Group::SPAN) {
                load(base);
#pragma unroll
                for (int i = 0; i < ITEMS; i++) {
                    const int col = base + group.column(i);
                    if (col < limit) chain.store(slot[i], chain.columns(col), r, row, col);
                }
            }
        }
        if (row < rows && threadIdx.x % ROW_THREADS == 0) chain.store_row(r, row);
    }
}

// Running sums over rows of any length: one pass in pieces of SPAN columns, the sums so far carried from piece to piece.
// The next piece is on its way while this one is summed.
template <class Chain, int ROW_THREADS, int ROWS, int ITEMS>
__device__ __forceinline__ void rows_carried(const Chain& chain, int rows, int cols) {
    using Group = RowGroup<ROW_THREADS, ITEMS, Chain::VEC, Chain::WIDEST>;
    __shared__ float scratch[2 * Group::WARPS * Chain::WIDEST];
    Group group(scratch);

    for (long long first = blockIdx.x * 1ll * ROWS; first < rows; first += gridDim.x * 1ll * ROWS) {
        const long long row = first + threadIdx.x / ROW_THREADS;
        const int limit = row < rows ? cols : 0;
        const typename Chain::Row r = chain.row(row < rows ? row : first);
        float carry[Chain::STAGES][Chain::WIDEST] = {};
        typename Chain::Slot ahead[ITEMS];
        const auto load = [&](int base) {
#pragma unroll
            for (int i = 0; i < ITEMS; i++) {
                if (base + group.column(i) < limit) chain.load(ahead[i], row, base + group.column(i));
            }
        };

        load(0);
        for (int base = 0; base < cols; base += Group::SPAN) {
            typename Chain::Slot slot[ITEMS];
#pragma unroll
            for (int i = 0; i < ITEMS; i++) slot[i] = ahead[i];
            load(base + Group::SPAN);
            const auto columns = [&](int i) { return chain.columns(base + group.column(i)); };

            for_each_stage<0, Chain::STAGES>([&](auto stage) {
                accumulate(chain, group, slot, columns, r, base, limit, stage, chain.identity(stage));
                scan(chain, group, slot, stage, carry[Chain::number(stage)]);
            });
#pragma unroll
            for (int i = 0; i < ITEMS; i++) {
                const int col = base + group.column(i);
                if (col < limit) chain.store(slot[i], columns(i), r, row, col);
            }
        }
    }
}
