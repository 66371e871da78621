// Runs the blocks of one cluster together, clusters one after another.
#pragma once

namespace emulator {

/// The last thread of a block has ended.
inline void end_block() {
    for (const Landing& l : landings)
        if (&blocks[l.to_block] == block)
            fail("block %d of the cluster ends while a copy to its shared offset %u is under way", block->rank, offset_of(l.to));
    check_barriers_at_end(*block);
    for (Warp& warp : block->warps) {
        if (!warp.operations.empty()) fail("a warp ends with wgmma in flight (wgmma_commit and wgmma_wait)");
        if (warp.register_calls != block->warps[(&warp - block->warps.data()) / 4 * 4].register_calls)
            fail("shrink_registers or grow_registers was not called alike by all warps of a warpgroup");
    }
    int start = 65536 / thread_count / 8 * 8, all = 0;  // what one block can get
    start = start > 248 ? 248 : start;
    for (Warp& warp : block->warps) all += 32 * (warp.register_calls.empty() ? start : warp.register_calls.back());
    if (all > start * thread_count)
        fail("grow_registers waits for ever: %d registers asked for, the block has %d", all, start * thread_count);
    while (!block->stores.empty()) finish_store(*block, random_below(block->stores.size()));
}

inline void thread_main() {
    for (;;) {
        body();
        if (fiber->in_cluster_barrier) fail("a thread ends between cluster_arrive and cluster_wait");
        if (block->alive == 1) end_block();
        fiber->done = true;
        block->alive--;
        cluster_alive--;
        NamedBarrier& all = block->named[0];
        if (block->alive && all.arrived == block->alive) all.arrived = 0, all.generation++;
        release_cluster_if_all();
        switch_out();
    }
}

inline void shuffle(std::vector<int>& order) {
    for (int i = int(order.size()) - 1; i > 0; i--) {
        int j = random_below(i + 1), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
}

__attribute__((noinline)) inline void resume(int index) {
    current = index;
    fiber = &fibers[index];
    block = &blocks[index / thread_count];
    blockIdx = block->index;
    threadIdx.x = index % thread_count;
    accesses = 0;
    if (_setjmp(scheduler)) {
        current = -1;
        return;
    }
    if (fiber->started) _longjmp(fiber->context, 1);
    fiber->started = true;
    setcontext(&fiber->first);
}

/// Who waits for what.
inline void report_deadlock() {
    std::map<std::pair<int, std::pair<const char*, unsigned>>, std::pair<int, int>>
        waiting;  // (block, what, place): threads, the first
    for (size_t i = 0; i < fibers.size(); i++) {
        if (fibers[i].done) continue;
        auto& entry = waiting[{int(i) / thread_count, {fibers[i].wait.what, fibers[i].wait.place}}];
        if (entry.first++ == 0) entry.second = i % thread_count;
    }
    char text[2600] = "";
    for (auto& [key, threads] : waiting) {
        size_t n = strlen(text);
        auto& [what, place] = key.second;
        snprintf(text + n, sizeof text - n, "; rank %d: %d threads from %d on wait for %s %u", key.first, threads.first,
                 threads.second, what, place);
        auto m = blocks[key.first].barriers.find(place + shared_start);
        n = strlen(text);
        if (strstr(what, "mbarrier") && m != blocks[key.first].barriers.end())
            snprintf(text + n, sizeof text - n, " (%d of %d arrivals and %ld bytes to come, %u phases ended)", m->second.pending,
                     m->second.arrivals, m->second.bytes, m->second.phase);
    }
    blockIdx = blocks[0].index;
    threadIdx.x = 0;
    fail("deadlock: no thread can go on%s", text);
}

/// Most warps and blocks keep step; some skip half or most rounds, some run only when nobody else can.
inline int draw_laziness() { return one_in(2) ? 0 : 1 + random_below(3); }
inline bool stays_behind(int laziness, int push) {
    if (laziness == 0 || push == 2) return false;
    if (push == 1) return one_in(2);
    return laziness == 3 || !one_in(laziness == 1 ? 2 : 8);
}

inline void start_cluster() {
    elected_lane = random_below(32);
    cluster_alive = cluster_size * thread_count;
    cluster_arrived = 0;
    landings.clear();
    copies_laziness = draw_laziness();
    for (Block& b : blocks) {
        memset(b.memory + shared_start, 0xff, smem_size);
        b.writers.assign((shared_start + smem_size) / 4 + 1, 0);
        b.alive = thread_count;
        b.warps.assign((thread_count + 31) / 32, Warp{});
        b.laziness = draw_laziness();
        for (Warp& w : b.warps) w.laziness = draw_laziness();
        memset(b.named, 0, sizeof b.named);
        b.barriers.clear();
        b.stores.clear();
        for (auto& calls : b.calls) calls.clear();
    }
    for (Fiber& f : fibers) {
        f.done = f.polling = f.in_cluster_barrier = false;
        f.wait = {};
        f.copies.clear();
        f.copy_group = f.stores = 0;
        f.fences = 0;
    }
}

/// A round runs every thread that can go on to its next stop, once. `push` 0: lazy warps and blocks stay behind; 1: some of them
/// come along; 2: all run. Returns how many threads did more than poll.
inline int run_round(std::vector<int>& order, int push, int& resumed) {
    int moved = 0;
    resumed = 0;
    shuffle(order);
    for (Block& b : blocks) {
        const bool behind = stays_behind(b.laziness, push);
        for (Warp& w : b.warps) w.lazy_round = behind || stays_behind(w.laziness, push);
    }
    for (int i : order) {
        Fiber& f = fibers[i];
        if (f.done || (f.wait.counter && *f.wait.counter == f.wait.value)) continue;
        if (blocks[i / thread_count].warps[i % thread_count / 32].lazy_round) continue;
        f.polling = false;
        resume(i);
        if (fault[0]) return 0;
        resumed++;
        moved += !f.polling;
    }
    return moved;
}

inline void run_cluster(std::vector<int>& order) {
    start_cluster();
    constexpr int patience = 1000;  // rounds of nothing but polling
    for (int idle = 0; cluster_alive && !fault[0];) {
        int resumed = 0, moved = 0;
        for (int push = 0; push <= 2 && !moved && !fault[0]; push++) {
            moved = run_round(order, push, resumed);
            if (!fault[0] && deliver(push)) moved++;
        }
        idle = moved ? 0 : idle + 1;
        if (idle > patience || (idle && !resumed)) report_deadlock();
    }
}

/// Memory and stacks for that many blocks and threads; fibers start afresh.
inline void prepare_fibers() {
    static char* stacks;
    static size_t stacks_size;
    size_t threads = size_t(cluster_size) * thread_count, size = threads * stack_bytes;
    if (size > stacks_size) {
        if (stacks) munmap(stacks, stacks_size);
        void* got = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (got == MAP_FAILED) abort();
        stacks = static_cast<char*>(got);
        stacks_size = size;
    }
    static unsigned char* memory[max_blocks];
    blocks.resize(cluster_size);
    for (int rank = 0; rank < cluster_size; rank++) {
        if (!memory[rank]) memory[rank] = static_cast<unsigned char*>(aligned_alloc(1024, shared_start + shared_limit));
        blocks[rank].memory = memory[rank];
        blocks[rank].rank = rank;
    }
    fibers.resize(threads);
    for (size_t t = 0; t < threads; t++) {
        Fiber& f = fibers[t];
        f.started = false;
        getcontext(&f.first);
        f.first.uc_stack.ss_sp = stacks + t * stack_bytes;
        f.first.uc_stack.ss_size = stack_bytes;
        f.first.uc_link = nullptr;
        makecontext(&f.first, thread_main, 0);
    }
}

/// Runs a kernel (a function that calls it with its arguments) over a grid. Returns the first fault, or "".
inline const char* launch(void (*kernel)(), dim3_ grid, dim3_ cluster, int threads, size_t smem, unsigned seed) {
    fault[0] = 0;
    current = -1;
    if (smem > shared_limit) return "more dynamic shared memory than a block can have";
    random_state = seed * 2654435761ull + 88172645463325252ull;
    body = kernel;
    thread_count = threads;
    cluster_size = cluster.x * cluster.y * cluster.z;
    smem_size = smem;
    gridDim = grid;
    blockDim.x = threads;
    prepare_fibers();
    std::vector<int> order(grid.x * grid.y * grid.z / cluster_size), threads_order(fibers.size());
    for (size_t i = 0; i < order.size(); i++) order[i] = i;
    for (size_t i = 0; i < threads_order.size(); i++) threads_order[i] = i;
    shuffle(order);
    const dim3_ clusters = {grid.x / cluster.x, grid.y / cluster.y, grid.z / cluster.z};
    for (int c : order) {
        for (unsigned rank = 0; rank < unsigned(cluster_size); rank++)
            blocks[rank].index = {c % clusters.x * cluster.x + rank % cluster.x,
                                  c / clusters.x % clusters.y * cluster.y + rank / cluster.x % cluster.y,
                                  c / clusters.x / clusters.y * cluster.z + rank / cluster.x / cluster.y};
        run_cluster(threads_order);
        if (fault[0]) break;
    }
    return fault;
}

}  // namespace emulator
