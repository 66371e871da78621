// What is done to the fp32 sums of C = A B on their way out, before the one rounding, in this order:
//   x = alpha sum;  x += beta addend (before the activation);  x += bias of the column of C;  x = activation(x);
//   x += beta addend (after it)
//
// A kernel's Config says which steps there are (`epilogue`), its Element, and whether C is the transpose of the product D = P Q^T
// that its tensor cores see (`swap`). The sums stay where wgmma and mma.sync leave them; bias and addend come to them through L1,
// two neighbours of a row of C in a load. Where C is D transposed, whose lanes hold neighbours of a column, movmatrix turns what
// was loaded along rows: a load of the addend is 8 rows of 16 bytes either way.
#pragma once
#include "kernelwright/copy.cuh"
#include "kernelwright/mma.cuh"
#include "kernelwright/numeric.cuh"

namespace kw {

enum class Added { nothing, before_activation, after_activation };
enum class Activation { none, gelu, gelu_tanh, silu };

struct Steps {
    bool scaled = false, bias = false;
    Added added = Added::nothing;
    Activation activation = Activation::none;
    int vector = 1;  // 8, 2 or 1: elements of bias and addend that lie together, at a multiple of their size, within a row of C
};

/// x Phi(x). Phi(-|x|) by Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26 (erfc(y) = t p(t) e^(-y^2), absolute
/// error 1.5e-7): a short polynomial, and no cancellation as in 1 + erf.
__device__ __forceinline__ float gelu(float x) {
    const float y = fabsf(x) * 0.70710678f, t = reciprocal_fast(fmaf(0.3275911f, y, 1.f));
    float p = fmaf(1.061405429f, t, -1.453152027f);
    p = fmaf(p, t, 1.421413741f);
    p = fmaf(p, t, -0.284496736f);
    p = fmaf(p, t, 0.254829592f);
    const float tail = 0.5f * p * t * exp2_fast(y * y * -1.44269504f);
    return x * (x > 0.f ? 1.f - tail : tail);
}

/// x / (1 + e^-x)
__device__ __forceinline__ float silu(float x) { return x * reciprocal_fast(1.f + exp2_fast(x * -1.44269504f)); }

/// x (1 + tanh u) / 2 = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
__device__ __forceinline__ float gelu_tanh(float x) {
    constexpr float linear = -2.30220819f, cubic = linear * 0.044715f;  // -2 sqrt(2 / pi) log2(e)
    return x * reciprocal_fast(1.f + exp2_fast(x * fmaf(cubic * x, x, linear)));
}

template <class Config>
struct Epilogue {
    using Element = typename Config::Element;
    static constexpr Steps steps = Config::epilogue;
    static constexpr bool adds = steps.added != Added::nothing;
    static constexpr bool identity = !steps.scaled && !steps.bias && !adds && steps.activation == Activation::none;

    const Element *bias, *addend;
    int ld_addend;
    float alpha, beta;
    int P, Q;  // extents of D

    __device__ __forceinline__ float value(float sum, float of_bias, float of_addend) const {
        float x = sum;
        if constexpr (steps.scaled) x *= alpha;
        if constexpr (steps.added == Added::before_activation) x = fmaf(beta, of_addend, x);
        if constexpr (steps.bias) x += of_bias;
        if constexpr (steps.activation == Activation::gelu) x = gelu(x);
        if constexpr (steps.activation == Activation::gelu_tanh) x = gelu_tanh(x);
        if constexpr (steps.activation == Activation::silu) x = silu(x);
        if constexpr (steps.added == Added::after_activation) x = fmaf(beta, of_addend, x);
        return x;
    }

    /// Two elements of a row from an even column on, packed; zeros where they do not exist. No branch: movmatrix follows.
    static __device__ __forceinline__ unsigned pair(const Element* row, int column, int columns, bool exists) {
        const Element* from = row + column;
        if constexpr (steps.vector >= 2) return load_global_4_or_zero(from, exists && column < columns);
        return load_global_2_or_zero(from, exists && column < columns) |
               load_global_2_or_zero(from + 1, exists && column + 1 < columns) << 16;
    }

    /// The addend of an 8 x 8 matrix of D from (p, q) on: its lane's pair, neighbours along Q.
    __device__ __forceinline__ unsigned addend_of(int p, int q) const {
        const int lane = threadIdx.x % 32;
        const int row = (Config::swap ? q : p) + lane / 4, column = (Config::swap ? p : q) + lane % 4 * 2;
        const int rows = Config::swap ? Q : P, columns = Config::swap ? P : Q;
        const unsigned found = pair(addend + (long long)row * ld_addend, column, columns, row < rows);
        return Config::swap ? movmatrix_trans(found) : found;
    }

    /// What a lane adds to its part of a warp's 16 x Columns sums from (p, q) of D on. Loaded apart, so that the loads of several
    /// fragments are on their way together, and early.
    template <int Columns>
    struct Loaded {
        unsigned columns[Columns / 8];   // bias, by fragment: the lane's two columns of C
        float rows[2] = {0.f, 0.f};      // bias, swapped: the columns of C are D's rows, of which a lane has two
        unsigned added[Columns / 8][2];  // addend, by fragment and half
    };

    /// The whole warp calls it.
    template <int Columns>
    __device__ __forceinline__ Loaded<Columns> load(int p, int q) const {
        const int lane = threadIdx.x % 32;
        // Swapped, q is a row of the addend: without this its addresses, 64 bits each, are kept from subtile to subtile beside
        // the sums (ptxas 13.0 spills up to 500 bytes).
        if constexpr (Config::swap && adds) asm volatile("" : "+r"(q));
        if constexpr (Config::swap && adds) __syncwarp();  // movmatrix wants the warp together, after stores at C's edge
        Loaded<Columns> found;
        if constexpr (steps.bias && Config::swap) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int column = p + half * 8 + lane / 4;
                float unused;
                unpack2<Element>(load_global_2_or_zero(bias + column, column < P), found.rows[half], unused);
            }
        }
#pragma unroll
        for (int j = 0; j < Columns / 8; j++) {
            if constexpr (steps.bias && !Config::swap) found.columns[j] = pair(bias, q + j * 8 + lane % 4 * 2, Q, true);
            if constexpr (adds) {
#pragma unroll
                for (int half = 0; half < 2; half++) found.added[j][half] = addend_of(p + half * 8, q + j * 8);
            }
        }
        return found;
    }

    /// The lane's four sums of fragment `j`, as wgmma and mma.sync leave them.
    template <int Columns>
    __device__ __forceinline__ void apply(float* sums, const Loaded<Columns>& loaded, int j) const {
        if constexpr (!identity) {
            float b[2] = {0.f, 0.f}, x[2] = {0.f, 0.f};
            if constexpr (steps.bias && !Config::swap) unpack2<Element>(loaded.columns[j], b[0], b[1]);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                if constexpr (adds) unpack2<Element>(loaded.added[j][half], x[0], x[1]);
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float& sum = sums[half * 2 + e];
                    sum = value(sum, Config::swap ? loaded.rows[half] : b[e], x[e]);
                }
            }
        }
    }

    /// Applied to Count (2, 4 or 8) neighbours of a row of C, `column` a multiple of Count.
    template <int Count>
    __device__ __forceinline__ void row_sums(float (&sums)[Count], int row, int column) const {
        if constexpr (!identity) {
            const int rows = Config::swap ? Q : P, columns = Config::swap ? P : Q;
            float b[Count] = {}, x[Count] = {};
            if constexpr (steps.bias) neighbours(b, bias, column, columns, true);
            if constexpr (adds) neighbours(x, addend + (long long)row * ld_addend, column, columns, row < rows);
#pragma unroll
            for (int e = 0; e < Count; e++) sums[e] = value(sums[e], b[e], x[e]);
        }
    }

    template <int Count>
    static __device__ __forceinline__ void neighbours(float (&values)[Count], const Element* row, int column, int columns,
                                                      bool exists) {
        unsigned words[Count / 2];
        if constexpr (steps.vector == 8) {
            load_global_or_zero(words, row + column, exists && column < columns);
        } else {
#pragma unroll
            for (int i = 0; i < Count / 2; i++) words[i] = pair(row, column + i * 2, columns, exists);
        }
#pragma unroll
        for (int i = 0; i < Count / 2; i++) unpack2<Element>(words[i], values[i * 2], values[i * 2 + 1]);
    }
};

}  // namespace kw
