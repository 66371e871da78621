// wgmma, warp by warp: each warp of a warpgroup multiplies its 16 rows on its own time, as nothing makes the four run in step.
//
// An operation reads its operands either when it is issued or when it is waited for, at random: a slot that is overwritten
// between the two gives wrong sums. The sums leave the threads (NaN stays) until all operations on them have been waited for.
#pragma once

namespace emulator {

/// A matrix descriptor (PTX ISA, "Matrix descriptor format").
struct Operand {
    unsigned start, leading, stride, swizzle;
    bool transposed;

    Operand(unsigned long long d, bool transposed)
        : start((d & 0x3fff) << 4), leading((d >> 16 & 0x3fff) << 4), stride((d >> 32 & 0x3fff) << 4), transposed(transposed) {
        constexpr unsigned modes[4] = {0, 128, 64, 32};
        swizzle = modes[d >> 62];
        if (d >> 49 & 7) fail("a wgmma descriptor with a base offset");
        if (swizzle && start / swizzle % 8)
            fail("a wgmma descriptor that starts inside a swizzle pattern: offset %u", offset_of(start));
        if (!swizzle && transposed) fail("a transposed wgmma operand without swizzle is not emulated");
    }

    /// Shared address of the element `index` along M or N, `k` along K.
    unsigned address(unsigned index, unsigned k) const {
        if (!swizzle) return start + index / 8 * stride + index % 8 * 16 + k / 8 * leading + k % 8 * 2;
        if (!transposed) return swizzled(start + index / 8 * stride + index % 8 * swizzle + k * 2, swizzle);
        unsigned width = swizzle / 2;
        return swizzled(start + index / width * leading + k / 8 * stride + k % 8 * swizzle + index % width * 2, swizzle);
    }
};

inline float element_value(const unsigned char* at, bool bf16) {
    unsigned short bits;
    memcpy(&bits, at, 2);
    return bf16 ? bits_to_float(unsigned(bits) << 16) : half_to_float(bits);
}

inline void read_operands(MatrixOperation& op, int first_row) {
    Operand q(op.q, op.transposed_q);
    op.q_values.resize(16 * op.n);
    if (!op.p_in_registers) {
        Operand p(op.p, op.transposed_p);
        op.p_values.resize(16 * 16);
        for (int row = 0; row < 16; row++)
            for (int k = 0; k < 16; k++)
                op.p_values[row * 16 + k] = element_value(shared_bytes(*block, p.address(first_row + row, k), 2), op.bf16);
    }
    for (int column = 0; column < op.n; column++)
        for (int k = 0; k < 16; k++)
            op.q_values[k * op.n + column] = element_value(shared_bytes(*block, q.address(column, k), 2), op.bf16);
    op.read = true;
}

inline void check_fenced(const MatrixOperation& op, int first_row) {
    Operand p(op.p_in_registers ? op.q : op.p, op.transposed_p), q(op.q, op.transposed_q);
    for (int side = op.p_in_registers; side < 2; side++)
        for (int i = 0; i < (side ? op.n : 16); i++)
            for (int k = 0; k < 16; k++) {
                unsigned address = side ? q.address(i, k) : p.address(first_row + i, k);
                shared_bytes(*block, address, 2);
                if (!fenced(*block, address))
                    fail("wgmma reads shared memory whose writer has not called fence_async_proxy: offset %u",
                         offset_of(address));
            }
}

/// Row and column of sum i of a lane, in its warp's 16 rows.
inline int sum_row(int lane, int i) { return lane / 4 + i / 2 % 2 * 8; }
inline int sum_column(int lane, int i) { return i / 4 * 8 + lane % 4 * 2 + i % 2; }

/// Sum i of a lane, in fp32 or fp16.
inline float sum_of(const void* sums, int i, bool fp16) {
    return fp16 ? half_to_float(static_cast<const unsigned short*>(sums)[i]) : static_cast<const float*>(sums)[i];
}
inline void put_sum(void* sums, int i, bool fp16, float value) {
    if (fp16)
        static_cast<unsigned short*>(sums)[i] = float_to_half(value);
    else
        static_cast<float*>(sums)[i] = value;
}

/// Sums in fp16 are rounded once, after all 16 products: hardware may round oftener.
inline void multiply(const MatrixOperation& op, float* sums) {
    const int n = op.n;
    if (!op.accumulate) memset(sums, 0, sizeof(float) * 16 * n);
    for (int row = 0; row < 16; row++) {
        float* to = sums + row * n;
        for (int k = 0; k < 16; k++) {
            const float p = op.p_values[row * 16 + k];
            const float* q = &op.q_values[k * n];
            for (int column = 0; column < n; column++) to[column] += p * q[column];
        }
        for (int column = 0; op.fp16_sums && column < n; column++) to[column] = half_to_float(float_to_half(to[column]));
    }
}

struct MatrixArguments {
    unsigned long long p, q;
    void* sums;
    int accumulate;
};

/// By the last lane that comes to the instruction.
inline void issue_matrix(const Lanes* lanes, MatrixOperation op) {
    Warp& warp = my_warp();
    const int warp_rank = threadIdx.x / 32 % 4;
    if (thread_count < int(threadIdx.x / 128 + 1) * 128) fail("wgmma by less than a warpgroup");
    MatrixArguments all[32];
    for (int l = 0; l < 32; l++) memcpy(&all[l], lanes[l], sizeof all[l]);
    for (const MatrixArguments& a : all)
        if (a.p != all[0].p || a.q != all[0].q || a.accumulate != all[0].accumulate)
            fail("the lanes of a warp give wgmma different operands");
    op.p = all[0].p, op.q = all[0].q, op.accumulate = all[0].accumulate, op.key = all[0].sums;
    auto& calls = block->calls[threadIdx.x / 128];
    if (warp.matrix_count == calls.size()) calls.push_back({op.p, op.q, op.n});
    const MatrixCall& call = calls[warp.matrix_count++];
    if (call.p != op.p || call.q != op.q || call.n != op.n) fail("the warps of a warpgroup give wgmma different operands");

    Sums& sums = warp.sums[op.key];
    if (sums.users++ == 0) {
        if (!warp.fenced) fail("wgmma without a wgmma_fence since its sums were last free");
        sums.n = op.n;
        sums.values.resize(16 * op.n);
        for (int l = 0; l < 32; l++) {
            sums.lanes[l] = all[l].sums;
            for (int i = 0; i < op.n / 2; i++) {
                sums.values[sum_row(l, i) * op.n + sum_column(l, i)] = sum_of(all[l].sums, i, op.fp16_sums);
                put_sum(all[l].sums, i, op.fp16_sums, NAN);
            }
        }
    }
    if (sums.n != op.n) fail("two wgmma of different N share sums");
    op.group = warp.matrix_group;
    check_fenced(op, warp_rank * 16);
    if (one_in(2)) read_operands(op, warp_rank * 16);
    warp.operations.push_back(std::move(op));
}

/// Operand A in registers, which are read at once: that they change before the wait is not seen.
struct RegisterArguments {
    unsigned a[4];
    unsigned long long q;
    void* sums;
};
inline void issue_matrix_of_registers(const Lanes* lanes, MatrixOperation op) {
    unsigned char given[32][32];
    op.p_values.resize(16 * 16);
    op.p_in_registers = true;
    for (int l = 0; l < 32; l++) {
        RegisterArguments mine;
        memcpy(&mine, lanes[l], sizeof mine);
        for (int i = 0; i < 8; i++) {  // a[0], a[2]: row l / 4; a[1], a[3]: 8 further; a[2], a[3]: k + 8
            const unsigned short bits = mine.a[i / 2] >> i % 2 * 16;
            op.p_values[(l / 4 + i / 2 % 2 * 8) * 16 + l % 4 * 2 + i % 2 + i / 4 * 8] = element_value(reinterpret_cast<const unsigned char*>(&bits), op.bf16);
        }
        const MatrixArguments plain = {0, mine.q, mine.sums, 1};
        memcpy(given[l], &plain, sizeof plain);
    }
    issue_matrix(given, std::move(op));
}

inline void finish_matrix(int up_to_group) {
    Warp& warp = my_warp();
    while (!warp.operations.empty() && warp.operations.front().group < up_to_group) {
        MatrixOperation& op = warp.operations.front();
        if (!op.read) read_operands(op, threadIdx.x / 32 % 4 * 16);
        Sums& sums = warp.sums[op.key];
        multiply(op, sums.values.data());
        if (--sums.users == 0) {
            for (int l = 0; l < 32; l++)
                for (int i = 0; i < op.n / 2; i++)
                    put_sum(sums.lanes[l], i, op.fp16_sums, sums.values[sum_row(l, i) * op.n + sum_column(l, i)]);
            warp.sums.erase(op.key);
            warp.fenced = false;
        }
        warp.operations.pop_front();
    }
}

}  // namespace emulator
