// Quad-bitmap records in shared memory -> register operand A of mma.m16n8k16 and wgmma (docs/sparse.md has the record).
//
// Decoding decides over speed: at 4.3 TB/s and 1.162 bytes a weight each of 132 multiprocessors gets 16.5 weights a clock (1.7
// GHz), so 128 issue slots leave 7.7 instructions for a weight in all. Here it takes 4.1, and 5.1 with loads, mma and the loop
// (sm_90a, NVRTC 13.x, 8 columns), against 7.1 of a plain version: a quad's bits are brought to bits 1 to 4, which ptxas turns
// into four predicates by one R2P (a test of bit 0 costs two instructions more); a prefix byte is taken out, doubled and added by
// one dp4a; an absent pair costs half an instruction of zeroing.
#pragma once
#include "kernelwright/copy.cuh"
#include "kernelwright/numeric.cuh"

constexpr int record_rows = 16, record_columns = 128;

/// When two values become a register: at_once, by an instruction under the second's predicate, which must wait for the load
/// before other predicates can take its place; or late, without a predicate, for another zeroing a pair (a quarter of an
/// instruction a weight).
enum class Packing { at_once, late };

template <int Expected, bool Wide, Packing Pack>
struct Record {
    static constexpr int chunk_header = Wide ? 192 : 160, header = 2 * chunk_header;

    unsigned below_mask, rotate, word, base;

    __device__ __forceinline__ Record() {
        const unsigned lane = threadIdx.x % 32, shift = 4 * (lane % 8);
        word = lane / 8;
        below_mask = (1u << shift) - 1;
        rotate = (shift - 1) & 31;
        // what the lane's addresses have in common: an 8-bit prefix says how far the count of values before its word is from
        // expected
        base = Wide ? 0 : header + 2 * (Expected * word - 128);
    }

    /// Two registers from the quad whose first present value is at `from` + Offset.
    template <int Offset>
    static __device__ __forceinline__ void expand(unsigned bits, unsigned from, unsigned& low, unsigned& high) {
        if constexpr (Pack == Packing::at_once) {
            unsigned value;
            low = high = 0;
            if (bits >> 1 & 1) low = kw::load_shared_2_at<Offset>(from), from += 2;
            if (bits >> 2 & 1) value = kw::load_shared_2_at<Offset>(from), from += 2, low = __byte_perm(low, value, 0x5410);
            if (bits >> 3 & 1) high = kw::load_shared_2_at<Offset>(from), from += 2;
            if (bits >> 4 & 1) value = kw::load_shared_2_at<Offset>(from), high = __byte_perm(high, value, 0x5410);
        } else {
            unsigned values[4] = {};
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (bits >> (e + 1) & 1) values[e] = kw::load_shared_2_at<Offset>(from), from += 2;
            low = __byte_perm(values[0], values[1], 0x5410), high = __byte_perm(values[2], values[3], 0x5410);
        }
    }

    /// What a lane reads of a chunk's header for k-steps 2 Half and 2 Half + 1.
    struct Head {
        uint4 words;
        uint2 prefix;  // of 8 bits: x alone
    };
    template <int Chunk, int Half>
    __device__ __forceinline__ Head head(unsigned record) const {
        const unsigned at = record + Chunk * chunk_header;
        Head found = {kw::load_shared_16(at + word * 32 + Half * 16), {}};
        if constexpr (Wide)
            found.prefix = kw::load_shared_8(at + 128 + word * 16 + Half * 8);
        else
            found.prefix.x = kw::load_shared_4(at + 128 + word * 8 + Half * 4);
        return found;
    }

    /// Fragments of k-steps 2 Half and 2 Half + 1 of chunk Chunk of the record at a shared address.
    template <int Chunk, int Half>
    __device__ __forceinline__ void fragments(unsigned record, unsigned (&a)[2][4]) const {
        fragments<Chunk, Half>(record, head<Chunk, Half>(record), a);
    }
    template <int Chunk, int Half>
    __device__ __forceinline__ void fragments(unsigned record, const Head& head, unsigned (&a)[2][4]) const {
        const unsigned words[4] = {head.words.x, head.words.y, head.words.z, head.words.w};
        const uint2 prefix = head.prefix;
        unsigned from[4];
        if constexpr (Wide) {
            from[0] = record + (prefix.x & 0xffff), from[1] = record + (prefix.x >> 16);
            from[2] = record + (prefix.y & 0xffff), from[3] = record + (prefix.y >> 16);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) from[i] = kw::dot_bytes(prefix.x, 2u << 8 * i, record + base);
        }
        unsigned bits[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            from[i] += 2 * __popc(words[i] & below_mask);
            bits[i] = __funnelshift_r(words[i], words[i], rotate);
        }
        constexpr int unit = Wide ? 0 : 8 * Expected, first = Wide ? 0 : 2 * Expected * (32 * Chunk + 16 * Half);
        expand<first>(bits[0], from[0], a[0][0], a[0][2]);
        expand<first + unit>(bits[1], from[1], a[0][1], a[0][3]);
        expand<first + 2 * unit>(bits[2], from[2], a[1][0], a[1][2]);
        expand<first + 3 * unit>(bits[3], from[3], a[1][1], a[1][3]);
    }
};
