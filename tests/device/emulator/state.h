// What a cluster of blocks consists of, faults, and access to memory.
#pragma once

namespace emulator {

constexpr int max_threads = 1024, max_blocks = 16;
constexpr unsigned shared_start = 1024,
                   shared_limit = 227 * 1024;  // the system keeps the first KB of a block's shared memory (sm_90)
constexpr unsigned rank_shift = 24;            // cluster addresses: (rank + 1) << 24 | shared address
constexpr size_t stack_bytes = 128 * 1024;

// ------------------------------------------------------------------------------------------------------------- threads

struct PendingCopy {  // cp.async
    unsigned to;
    const void* from;
    int bytes, valid, group;
};

/// What a thread waits for: that a counter leaves a value.
struct Wait {
    const unsigned* counter = nullptr;
    unsigned value = 0;
    const char* what = "";
    unsigned place = 0;  // of a barrier: its number, or its offset in dynamic shared memory
};

struct Fiber {
    jmp_buf context;
    ucontext_t first;
    bool started, done, polling;  // polling: its last act was a look at a barrier that was not ready
    Wait wait;
    std::vector<PendingCopy> copies;
    int copy_group;
    unsigned fences;  // calls of fence_async_proxy
    int stores;       // TMA stores so far
    bool in_cluster_barrier;
    unsigned cluster_generation;
};

using Lanes = unsigned char[32];

/// The sums of one warp, 16 rows of n, while wgmma works on them.
struct Sums {
    void* lanes[32];
    int n, users;
    std::vector<float> values;
};

struct MatrixOperation {
    unsigned long long p, q;  // descriptors
    int n, group;
    bool accumulate, bf16, fp16_sums, transposed_p, transposed_q, p_in_registers, read;
    void* key;                              // into Warp::sums
    std::vector<float> p_values, q_values;  // 16 x 16 and 16 (k) x n, once read
};

struct Warp {
    unsigned char data[2][32][32];
    int arrived, operation;
    unsigned generation;
    bool lazy_round;  // does not run this round
    int laziness;
    // wgmma
    std::deque<MatrixOperation> operations;
    std::map<void*, Sums> sums;
    int matrix_group;
    size_t matrix_count;
    bool fenced;
    std::vector<int> register_calls;
};

struct NamedBarrier {
    int expected, arrived;
    unsigned generation;
};

struct Mbarrier {
    int arrivals, pending;
    long bytes;
    unsigned phase;  // counts ended phases
    int owner;       // the thread that initialised it
    bool fenced;     // fence_barrier_init by that thread
};

struct Map {  // 128 bytes that emulate.py fills
    unsigned long long base;
    unsigned short rank, element, swizzle, magic;
    unsigned long long dims[5], strides[4];
    unsigned box[10];
};

struct Store {  // TMA
    unsigned from, bytes;
    Map map;
    int x, y, thread, number;
};

struct MatrixCall {
    unsigned long long p, q;
    int n;
};

struct Block {
    dim3_ index;
    int rank, alive, laziness;
    unsigned char* memory;
    std::vector<unsigned>
        writers;  // per 4 bytes: who wrote it through the generic proxy, and how many fences that thread had made
    std::vector<Warp> warps;
    NamedBarrier named[16];
    std::unordered_map<unsigned, Mbarrier> barriers;
    std::vector<Store> stores;
    std::vector<MatrixCall> calls[max_threads / 128];  // of each warpgroup, to compare its warps
};

std::vector<Fiber> fibers;
std::vector<Block> blocks;
int current, thread_count, cluster_size;  // `current` is -1 while the scheduler works
Block* block;
Fiber* fiber;
size_t smem_size;
int elected_lane, copies_laziness;
int cluster_alive, cluster_arrived;
unsigned cluster_generation;
void (*body)();
jmp_buf scheduler;

// ---------------------------------------------------------------------------------------------------- chance and faults

unsigned long long random_state = 1;
inline unsigned random_below(unsigned n) {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (random_state >> 33) % n;
}
inline bool one_in(unsigned n) { return random_below(n) == 0; }

char fault[3000];

__attribute__((noinline)) inline void switch_out() {
    if (!_setjmp(fiber->context)) _longjmp(scheduler, 1);
}

/// Records the first fault. From a thread it does not return: the launch ends.
__attribute__((format(printf, 1, 2))) inline void fail(const char* format, ...) {
    if (!fault[0]) {
        va_list arguments;
        va_start(arguments, format);
        int n = vsnprintf(fault, sizeof fault, format, arguments);
        va_end(arguments);
        if (n < int(sizeof fault) - 100)
            snprintf(fault + n, sizeof fault - n, " (block %u,%u,%u thread %u)", blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x);
    }
    if (current >= 0) _longjmp(scheduler, 1);
}

inline void wait_for_change(const unsigned& counter, unsigned value, const char* what, unsigned place) {
    fiber->wait = {&counter, value, what, place};
    while (counter == value) switch_out();
    fiber->wait.counter = nullptr;
}

/// Lets others run, sometimes: between steps that no barrier orders.
inline void maybe_yield() {
    if (one_in(4)) switch_out();
}

// -------------------------------------------------------------------------------------------------------------- memory

struct Range {
    const char *first, *last;
};
std::vector<Range> ranges;
long ldmatrix_conflicts;  // extra phases over the whole run
long accesses;            // to global memory since the thread was resumed

inline bool in_range(const void* p, size_t bytes) {
    const char* c = static_cast<const char*>(p);
    for (const Range& r : ranges)
        if (c >= r.first && c + bytes <= r.last) return true;
    return false;
}

inline bool global_ok(const void* p, size_t bytes) {
    if (!in_range(p, bytes)) return fail("global access out of bounds"), false;
    if (++accesses > 1 << 24)
        fail("a thread spins on global memory, which nobody else writes now: other clusters do not run beside it");
    if (reinterpret_cast<size_t>(p) % bytes) return fail("misaligned global access"), false;
    return true;
}

inline unsigned char* shared_memory() { return block->memory + shared_start; }
inline unsigned offset_of(unsigned address) { return address - shared_start; }

/// Checked for bounds only.
inline unsigned char* shared_bytes(Block& b, unsigned address, size_t bytes) {
    if (b.alive == 0) fail("access to the shared memory of block %d of the cluster, which has ended", b.rank);
    if (address >> rank_shift) fail("a cluster address where an address of this block is needed");
    if (address < shared_start || address + bytes > shared_start + smem_size) {
        fail("shared access out of bounds: offset %d, %zu bytes, of %zu", int(offset_of(address)), bytes, smem_size);
        return b.memory;
    }
    return b.memory + address;
}

inline void* shared_at(unsigned address, size_t bytes) {
    if (address % bytes) fail("misaligned shared access: offset %u, %zu bytes", offset_of(address), bytes);
    return shared_bytes(*block, address, bytes);
}

/// Something else than a TMA store changes these bytes.
inline void check_no_store_reads(const Block& b, unsigned address, unsigned bytes) {
    for (const Store& s : b.stores)
        if (address < s.from + s.bytes && s.from < address + bytes)
            fail("shared memory at offset %u is overwritten while a TMA store may still read it", offset_of(address));
}

/// A thread's own write: TMA and wgmma may read it only after fence_async_proxy.
inline unsigned char* shared_for_write(unsigned address, size_t bytes) {
    unsigned char* to = static_cast<unsigned char*>(shared_at(address, bytes));
    if (!block->stores.empty()) check_no_store_reads(*block, address, bytes);
    unsigned mark = fiber->fences << 11 | (threadIdx.x + 1);
    for (unsigned word = address / 4; word <= (address + bytes - 1) / 4; word++) block->writers[word] = mark;
    return to;
}

/// False if some thread wrote there without a fence since.
inline bool fenced(const Block& b, unsigned address) {
    unsigned mark = b.writers[address / 4];
    if (mark == 0) return true;
    const Fiber& writer = fibers[b.rank * thread_count + (mark & 2047) - 1];
    return (writer.fences << 11) != (mark & ~2047u);
}

/// The block that a cluster address means; `address` becomes the address there.
inline Block& block_at(unsigned& address) {
    unsigned rank = address >> rank_shift;
    address &= (1u << rank_shift) - 1;
    if (rank == 0) return *block;
    if (int(rank) > cluster_size) return fail("block %u of a cluster of %d", rank - 1, cluster_size), *block;
    return blocks[rank - 1];
}

}  // namespace emulator
