// Vector loads and stores, conversions, and the warp collectives that row kernels are made of. sm_80 and newer.
//
// Storage types are float, f16, bf16, int and long long; arithmetic is float. Nothing here allocates shared memory.
#pragma once

#include "kernelwright/numeric.cuh"

namespace kw {

// ------------------------------------------------------------------------------------------------------------ scalars

/// IEEE 754-2019 maximum: NaN wins, as in PyTorch; fmaxf would drop it. One FMNMX.NAN instruction from sm_80 on.
__device__ __forceinline__ float max_nan(float a, float b) {
    float value;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(value) : "f"(a), "f"(b));
    return value;
}

__device__ __forceinline__ float min_nan(float a, float b) {
    float value;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(value) : "f"(a), "f"(b));
    return value;
}

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(int x) { return static_cast<float>(x); }
__device__ __forceinline__ float to_float(long long x) { return static_cast<float>(x); }

// ------------------------------------------------------------------------------------------------------------ vectors

/// Element i of 32-bit words as they lie in memory. i must be a constant after unrolling, else the words go to local memory.
template <class T>
__device__ __forceinline__ float element(const unsigned* words, int i) {
    const unsigned word = words[i / 2];
    return to_float(T{static_cast<unsigned short>(i % 2 ? word >> 16 : word & 0xffffu)});
}

/// bfloat16 is the upper half of a float: one shift or mask.
template <>
__device__ __forceinline__ float element<bf16>(const unsigned* words, int i) {
    return __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
}

template <>
__device__ __forceinline__ float element<float>(const unsigned* words, int i) {
    return __uint_as_float(words[i]);
}

template <>
__device__ __forceinline__ float element<int>(const unsigned* words, int i) {
    return static_cast<float>(static_cast<int>(words[i]));
}

template <>
__device__ __forceinline__ float element<long long>(const unsigned* words, int i) {
    return static_cast<float>(static_cast<long long>(static_cast<unsigned long long>(words[2 * i + 1]) << 32 | words[2 * i]));
}

/// N elements of the storage type, held as words: a bf16 row costs half the registers of a float row.
template <class T, int N>
struct Vec {
    static constexpr int BYTES = N * static_cast<int>(sizeof(T));
    static constexpr int WORDS = (BYTES + 3) / 4;
    static_assert(BYTES == 2 || BYTES == 4 || BYTES == 8 || BYTES % 16 == 0, "a vector is 2, 4, 8 or a multiple of 16 bytes");
    unsigned words[WORDS];

    __device__ __forceinline__ float operator[](int i) const { return element<T>(words, i); }
};

enum class Access {
    PLAIN,   // through L1. Not ld.global.nc: launched dependently, a kernel runs while its predecessor writes what it will read
    STREAM,  // .cs: first to be evicted, for data that nobody reads again soon
};

template <Access HOW, class Word>
__device__ __forceinline__ Word load_word(const Word* from) {
    if constexpr (HOW == Access::STREAM) {
        return __ldcs(from);
    } else {
        return __ldca(from);
    }
}

template <Access HOW, class Word>
__device__ __forceinline__ void store_word(Word* to, Word word) {
    if constexpr (HOW == Access::STREAM) {
        __stcs(to, word);
    } else {
        *to = word;
    }
}

/// Reads N elements in accesses of 16 bytes, or in one where they are fewer. `from` must be aligned to the access, and nobody may
/// write there while the kernel runs.
template <class T, int N, Access HOW>
__device__ __forceinline__ Vec<T, N> load(const T* from) {
    using V = Vec<T, N>;
    V to;
    if constexpr (V::BYTES == 2) {
        to.words[0] = load_word<HOW>(reinterpret_cast<const unsigned short*>(from));
    } else if constexpr (V::BYTES == 4) {
        to.words[0] = load_word<HOW>(reinterpret_cast<const unsigned*>(from));
    } else if constexpr (V::BYTES == 8) {
        const uint2 a = load_word<HOW>(reinterpret_cast<const uint2*>(from));
        to.words[0] = a.x, to.words[1] = a.y;
    } else {
#pragma unroll
        for (int i = 0; i < V::WORDS; i += 4) {
            const uint4 a = load_word<HOW>(reinterpret_cast<const uint4*>(from) + i / 4);
            to.words[i] = a.x, to.words[i + 1] = a.y, to.words[i + 2] = a.z, to.words[i + 3] = a.w;
        }
    }
    return to;
}

/// Rounds N floats to nearest even and writes them in accesses of 16 bytes, or in one where they are fewer bytes.
template <class T, int N, Access HOW>
__device__ __forceinline__ void store(T* to, const float (&values)[N]) {
    using V = Vec<T, N>;
    unsigned words[V::WORDS];
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int i = 0; i < N; i++) words[i] = __float_as_uint(values[i]);
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 2) words[i / 2] = pack2<T>(values[i], values[N > 1 ? i + 1 : i]);
    }
    if constexpr (V::BYTES == 2) {
        store_word<HOW>(reinterpret_cast<unsigned short*>(to), static_cast<unsigned short>(words[0]));
    } else if constexpr (V::BYTES == 4) {
        store_word<HOW>(reinterpret_cast<unsigned*>(to), words[0]);
    } else if constexpr (V::BYTES == 8) {
        store_word<HOW>(reinterpret_cast<uint2*>(to), make_uint2(words[0], words[1]));
    } else {
#pragma unroll
        for (int i = 0; i < V::WORDS; i += 4) {
            store_word<HOW>(reinterpret_cast<uint4*>(to) + i / 4, make_uint4(words[i], words[i + 1], words[i + 2], words[i + 3]));
        }
    }
}

/// One element as a float, for gathers and per-row values.
template <class T>
__device__ __forceinline__ float load_one(const T* from) {
    return load<T, 1, Access::PLAIN>(from)[0];
}

// ----------------------------------------------------------------------------------------------------- warp collectives

/// Several values that are reduced together, so that their shuffles overlap.
template <int N>
struct Partial {
    float v[N > 0 ? N : 1];
};

/// Every one of LANES neighbouring lanes gets the reduction over them, bit for bit the same: a butterfly of commutative steps.
/// All 32 lanes of the warp must take part.
template <int LANES, int N, class Combine>
__device__ __forceinline__ Partial<N> warp_all_reduce(Partial<N> p, Combine combine) {
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2) {
        Partial<N> other;
#pragma unroll
        for (int k = 0; k < N; k++) other.v[k] = __shfl_xor_sync(0xffffffffu, p.v[k], distance);
        p = combine(p, other);
    }
    return p;
}

/// Inclusive running sum over LANES neighbouring lanes (Hillis and Steele 1986). All 32 lanes of the warp must take part.
template <int LANES>
__device__ __forceinline__ float warp_scan(float x, int lane) {
#pragma unroll
    for (int distance = 1; distance < LANES; distance *= 2) {
        const float left = __shfl_up_sync(0xffffffffu, x, distance, LANES);
        if (lane >= distance) x += left;
    }
    return x;
}

}  // namespace kw
