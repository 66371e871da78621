// Named barriers, the cluster's barrier, and mbarriers with the hardware's counts: arrivals and bytes of a phase.
#pragma once

namespace emulator {

// ------------------------------------------------------------------------------------------------------- named barriers

inline void arrive_at(NamedBarrier& barrier, int threads, int id) {
    if (id < 0 || id > 15) fail("named barrier %d: they are 0 to 15", id);
    if (id > 0 && (threads <= 0 || threads % 32)) fail("named barrier %d for %d threads: whole warps are needed", id, threads);
    if (barrier.arrived && id > 0 && barrier.expected != threads)
        fail("named barrier %d is used for %d and for %d threads at a time", id, barrier.expected, threads);
    barrier.expected = threads;
    if (++barrier.arrived >= threads) {
        barrier.arrived = 0;
        barrier.generation++;
    }
}

inline void join(NamedBarrier& barrier, int threads, int id) {
    unsigned mine = barrier.generation;
    arrive_at(barrier, threads, id);
    if (barrier.generation == mine)
        wait_for_change(barrier.generation, mine, id ? "named barrier" : "__syncthreads, barrier", id);
}

// -------------------------------------------------------------------------------------------------------------- cluster

inline void release_cluster_if_all() {
    if (cluster_arrived && cluster_arrived == cluster_alive) {
        cluster_arrived = 0;
        cluster_generation++;
    }
}

inline void arrive_cluster() {
    if (fiber->in_cluster_barrier) fail("cluster_arrive twice without cluster_wait");
    fiber->in_cluster_barrier = true;
    fiber->cluster_generation = cluster_generation;
    cluster_arrived++;
    release_cluster_if_all();
    maybe_yield();
}

inline void wait_cluster() {
    if (!fiber->in_cluster_barrier) fail("cluster_wait without cluster_arrive");
    if (cluster_generation == fiber->cluster_generation)
        wait_for_change(cluster_generation, fiber->cluster_generation, "the cluster's barrier", 0);
    fiber->in_cluster_barrier = false;
}

// ------------------------------------------------------------------------------------------------------------ mbarriers

/// Stands in the 8 bytes of a live barrier, so that data written over it is seen.
inline unsigned long long barrier_mark(unsigned address) { return 0xba221e5ull << 32 | address; }

/// The barrier at an address, or null after a fault.
inline Mbarrier* barrier_at(Block& b, unsigned address, const char* use) {
    unsigned char* place = shared_bytes(b, address, 8);
    auto found = b.barriers.find(address);
    if (found == b.barriers.end())
        return fail("%s offset %d of block %d, where no mbarrier is initialised", use, int(offset_of(address)), b.rank), nullptr;
    unsigned long long mark = barrier_mark(address);
    if (memcmp(place, &mark, 8)) return fail("the mbarrier at offset %u has been overwritten", offset_of(address)), nullptr;
    return &found->second;
}

inline void end_phase_if_complete(Mbarrier& m, unsigned address) {
    if (m.pending) return;
    if (m.bytes < 0)
        fail("%ld bytes more have landed at the mbarrier at offset %u than were announced", -m.bytes, offset_of(address));
    if (m.bytes == 0) {
        m.phase++;
        m.pending = m.arrivals;
    }
}

inline void initialise(unsigned address, int arrivals) {
    unsigned char* place = shared_for_write(address, 8);
    if (arrivals < 1 || arrivals >= 1 << 20) fail("an mbarrier for %d arrivals", arrivals);
    if (block->barriers.count(address)) fail("the mbarrier at offset %u is initialised twice", offset_of(address));
    block->barriers[address] = {arrivals, arrivals, 0, 0, int(threadIdx.x), false};
    unsigned long long mark = barrier_mark(address);
    memcpy(place, &mark, 8);
}

inline void arrive(Block& b, unsigned address, long bytes) {
    Mbarrier* m = barrier_at(b, address, "an arrival at");
    if (!m->fenced && &b != block) fail("the mbarrier at offset %u was not fenced (fence_barrier_init)", offset_of(address));
    if (m->pending == 0)
        fail("more arrivals in a phase of the mbarrier at offset %u than its %d", offset_of(address), m->arrivals);
    m->bytes += bytes;
    m->pending--;
    end_phase_if_complete(*m, address);
    maybe_yield();
}

/// Bytes that a copy has written.
inline void land(Block& b, unsigned address, long bytes) {
    Mbarrier* m = barrier_at(b, address, "bytes land at");
    if (!m) return;
    m->bytes -= bytes;
    end_phase_if_complete(*m, address);
}

inline bool phase_ended(unsigned address, unsigned parity, const char* use) {
    if (parity > 1) fail("a wait for parity %u", parity);
    return (barrier_at(*block, address, use)->phase & 1) != parity;
}

inline void wait_phase(unsigned address, unsigned parity) {
    if (phase_ended(address, parity, "a wait at")) return;
    const Mbarrier& m = *barrier_at(*block, address, "a wait at");
    wait_for_change(m.phase, m.phase, parity ? "parity 1 of the mbarrier at offset" : "parity 0 of the mbarrier at offset",
                    offset_of(address));
}

inline bool try_phase(unsigned address, unsigned parity) {
    if (phase_ended(address, parity, "a wait at")) return true;
    fiber->polling = true;
    fiber->wait.what = "polling the mbarrier at offset";
    fiber->wait.place = offset_of(address);
    switch_out();
    return phase_ended(address, parity, "a wait at");
}

/// Barriers of a block that ends must not have bytes under way or unannounced.
inline void check_barriers_at_end(const Block& b) {
    for (auto& [address, m] : b.barriers)
        if (m.bytes)
            fail("block %d ends while the mbarrier at offset %u %s %ld bytes", b.rank, offset_of(address),
                 m.bytes > 0 ? "still awaits" : "has got, unannounced,", labs(m.bytes));
}

}  // namespace emulator
