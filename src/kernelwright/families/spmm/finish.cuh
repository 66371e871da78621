// What follows the product on its way out: y = sum + bias; y = silu(y) * factor, or silu(y) * the y of another layer in the same
// matrix; y = y + addend; each where Config says so.
#pragma once
#include "kernelwright/epilogue.cuh"

template <class Config>
struct Finish {
    using Element = typename Config::Element;
    const Element *bias, *factor, *addend;
    Element* y;
    int ld_factor, ld_addend, ld_y;

    __device__ __forceinline__ static float at(const Element* from) { return kw::to_float(Element{kw::load_global_2(from)}); }

    /// Row n and column m of Y.
    __device__ __forceinline__ void store(float value, int n, int m) const {
        if constexpr (Config::bias) value += at(bias + m);
        if constexpr (Config::silu_mul) value = kw::silu(value) * at(factor + (long long)n * ld_factor + m);
        if constexpr (Config::residual) value += at(addend + (long long)n * ld_addend + m);
        kw::store_global_2(y + (long long)n * ld_y + m, kw::pack2<Element>(value, 0.f));
    }

    /// The same for two layers in one: sums of rows `row` and `row` + 16 of W make column m of Y.
    __device__ __forceinline__ void store_gated(float gate, float other, int n, int m, int row) const {
        if constexpr (Config::bias) gate += at(bias + row), other += at(bias + row + 16);
        float value = kw::silu(gate) * other;
        if constexpr (Config::residual) value += at(addend + (long long)n * ld_addend + m);
        kw::store_global_2(y + (long long)n * ld_y + m, kw::pack2<Element>(value, 0.f));
    }
};
