// Copies in the background: cp.async, TMA in both directions, store_async.
#pragma once

namespace emulator {

// ------------------------------------------------------------------------------------------------------------- cp.async

inline void finish_copies(int up_to_group) {
    std::vector<PendingCopy> kept;
    for (PendingCopy& c : fiber->copies) {
        if (c.group > up_to_group) {
            kept.push_back(c);
            continue;
        }
        unsigned char* to = shared_for_write(c.to, c.bytes);
        memset(to, 0, c.bytes);
        if (c.valid) memcpy(to, c.from, c.valid);
    }
    fiber->copies.swap(kept);
}

inline void start_copy(unsigned to, const void* from, int bytes, int valid) {
    if (valid < 0 || valid > bytes) fail("cp.async with a bad source size");
    if (reinterpret_cast<size_t>(from) % bytes) fail("cp.async from a misaligned address");
    if (valid && !in_range(from, valid)) fail("cp.async reads out of bounds");
    memset(shared_for_write(to, bytes), 0xff, bytes);
    fiber->copies.push_back({to, from, bytes, valid, fiber->copy_group});
}

// ------------------------------------------------------------------------------------------------------------------ TMA

/// Bits 4 to 6 of a shared address take the XOR with bits 7 to 9 (128 bytes), fewer bits for 64 and 32: whole 16-byte chunks
/// move.
inline unsigned swizzled(unsigned address, unsigned bytes) {
    unsigned chunks = bytes == 128 ? 7 : bytes == 64 ? 3 : bytes == 32 ? 1 : 0;
    return address ^ (address >> 7 & chunks) << 4;
}

inline unsigned box_bytes(const Map& map) { return map.box[0] * map.box[1] * map.element; }

inline Map decode(const void* encoded, unsigned shared) {
    Map map;
    static_assert(sizeof map == 128, "a tensor map has 128 bytes");
    memcpy(&map, encoded, sizeof map);
    if (map.magic != 0x7a9) fail("this is no tensor map");
    if (map.rank != 2) fail("a copy with two coordinates of a tensor of rank %d", map.rank);
    if (shared % 128) fail("TMA to or from shared offset %u, which is no multiple of 128", offset_of(shared));
    return map;
}

/// Moves one box, row by row: between global memory and the place of the box in shared memory.
inline void move_box(Block& b, unsigned shared, const Map& map, int x, int y, bool load) {
    const long row = long(map.box[0]) * map.element;
    const long first = x < 0 ? -long(x) : 0, last = long(map.dims[0]) - x < map.box[0] ? long(map.dims[0]) - x : map.box[0];
    for (long r = 0; r < map.box[1]; r++) {
        const long line = y + r;
        const bool inside = line >= 0 && line < long(map.dims[1]) && first < last;
        char* global = reinterpret_cast<char*>(map.base) + line * long(map.strides[0]) + x * long(map.element);
        if (inside && !in_range(global + first * map.element, (last - first) * map.element))
            return fail("a TMA %s out of bounds: box at (%d, %d)", load ? "load" : "store", x, y);
        for (long chunk = 0; chunk < row; chunk += 16) {
            unsigned char* place = b.memory + swizzled(shared + r * row + chunk, map.swizzle);
            if (load) memset(place, 0, 16);
            for (long at = 0; inside && at < 16; at += map.element) {
                const long element = (chunk + at) / map.element;
                if (element < first || element >= last) continue;
                if (load)
                    memcpy(place + at, global + chunk + at, map.element);
                else
                    memcpy(global + chunk + at, place + at, map.element);
            }
        }
    }
}

/// A write by TMA or store_async that will come.
struct Landing {
    int to_block;
    unsigned to, bytes, bar;
    bool tensor;
    Map map;
    int x, y;
    float values[4];
    const void* from;  // of a bulk copy
    dim3_ issuer_block;
    unsigned issuer_thread;
};
std::vector<Landing> landings;

inline void announce(Landing l) {
    Block& b = blocks[l.to_block];
    Mbarrier* m = barrier_at(b, l.bar, "a copy that counts at");
    if (!m->fenced)
        fail("a copy counts at the mbarrier at offset %u, which was not fenced (fence_barrier_init)", offset_of(l.bar));
    memset(shared_bytes(b, l.to, l.bytes), 0xff, l.bytes);
    check_no_store_reads(b, l.to, l.bytes);
    l.issuer_block = blockIdx;
    l.issuer_thread = threadIdx.x;
    landings.push_back(l);
}

inline void load_tensor(unsigned to, const void* encoded, unsigned bar, int x, int y, unsigned ranks) {
    Map map = decode(encoded, to);
    if (!ranks || ranks >> cluster_size) fail("a multicast to blocks 0x%x of a cluster of %d", ranks, cluster_size);
    for (int rank = 0; rank < cluster_size; rank++)
        if (ranks >> rank & 1) announce({rank, to, box_bytes(map), bar, true, map, x, y});
    maybe_yield();
}

inline void load_bulk(unsigned to, const void* from, unsigned bytes, unsigned bar) {
    if (to % 16 || bytes % 16 || reinterpret_cast<size_t>(from) % 16) fail("a misaligned bulk copy of %u bytes", bytes);
    if (!bytes || !in_range(from, bytes)) fail("a bulk copy of %u bytes out of bounds", bytes);
    announce({block->rank, to, bytes, bar, false, {}, 0, 0, {}, from});
    maybe_yield();
}

inline void store_remote(unsigned to, unsigned bar, const float (&values)[4]) {
    Block &b = block_at(to), &bar_block = block_at(bar);
    if (&b != &bar_block) fail("store_async to one block that counts at another");
    if (to % 16) fail("misaligned store_async: offset %u", offset_of(to));
    announce({b.rank, to, 16, bar, false, {}, 0, 0, {values[0], values[1], values[2], values[3]}});
}

inline void store_tensor(const void* encoded, unsigned from, int x, int y) {
    Map map = decode(encoded, from);
    unsigned bytes = box_bytes(map);
    shared_bytes(*block, from, bytes);
    for (unsigned at = from; at < from + bytes; at += 4)
        if (!fenced(*block, at))
            fail("a TMA store of shared memory whose writer has not called fence_async_proxy: offset %u", offset_of(at));
    block->stores.push_back({from, bytes, map, x, y, int(threadIdx.x), fiber->stores++});
    maybe_yield();
}

// ------------------------------------------------------------------------------------------------------------- delivery

inline void finish_store(Block& b, size_t i) {
    Store s = b.stores[i];
    b.stores.erase(b.stores.begin() + i);
    move_box(b, s.from, s.map, s.x, s.y, false);
}

inline void finish_stores_of_thread(int up_to) {
    for (size_t i = block->stores.size(); i-- > 0;)
        if (block->stores[i].thread == int(threadIdx.x) && block->stores[i].number < up_to) finish_store(*block, i);
}

inline void finish_landing(size_t i) {
    Landing l = landings[i];
    landings[i] = landings.back();
    landings.pop_back();
    blockIdx = l.issuer_block;
    threadIdx.x = l.issuer_thread;
    Block& b = blocks[l.to_block];
    unsigned char* to = shared_bytes(b, l.to, l.bytes);
    if (fault[0]) return;
    check_no_store_reads(b, l.to, l.bytes);
    memset(&b.writers[l.to / 4], 0, l.bytes);
    if (l.tensor)
        move_box(b, l.to, l.map, l.x, l.y, true);
    else if (l.from)
        memcpy(to, l.from, l.bytes);
    else
        memcpy(to, l.values, 16);
    land(b, l.bar, l.bytes);
}

/// Some of what is under way arrives, by the scheduler; all the later the lazier the copies of this cluster are, but something
/// for sure when `push` is 2. False if nothing came.
inline bool deliver(int push) {
    if (copies_laziness == 3 && push < 2) return false;
    const bool sure = push == 2;
    unsigned count = landings.empty() ? 0 : random_below(landings.size() / (copies_laziness == 0 ? 1 : 4) + 2);
    if (sure && count == 0 && !landings.empty()) count = 1;
    bool any = count > 0;
    for (; count && !landings.empty() && !fault[0]; count--) finish_landing(random_below(landings.size()));
    for (Block& b : blocks)
        if (!b.stores.empty() && (sure || one_in(4))) finish_store(b, random_below(b.stores.size())), any = true;
    return any;
}

}  // namespace emulator
