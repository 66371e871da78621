// Transposes and sums across lanes, in log2(VL) butterfly steps of two-vector shuffles, for any vector length.

// Lane l of the result: pick(l) in [0, VL) is a lane of x, in [VL, 2 VL) a lane of y.
template <class Pick, int... L> inline vec shuffle(vec x, vec y, std::integer_sequence<int, L...>) {
    return __builtin_shufflevector(x, y, Pick::lane(L)...);
}
template <class Pick> inline vec shuffle(vec x, vec y) {
    return shuffle<Pick>(x, y, std::make_integer_sequence<int, VL>{});
}
template <int D> struct KeepOwn { static constexpr int lane(int l) { return l & D ? VL + l : l; } };
template <int D> struct CrossOver { static constexpr int lane(int l) { return l & D ? VL + l - D : l + D; } };
template <int D> struct Low { static constexpr int lane(int l) { return l & D ? VL + l - D : l; } };
template <int D> struct High { static constexpr int lane(int l) { return l & D ? VL + l : l + D; } };

// Transposes the VL x VL matrix whose rows are r[0..VL).
template <int D = VL / 2> inline void transpose(vec (&r)[VL]) {
#pragma GCC unroll 16
    for (int i = 0; i < VL; i++)
        if (!(i & D)) {
            const vec x = r[i], y = r[i + D];
            r[i] = shuffle<Low<D>>(x, y);
            r[i + D] = shuffle<High<D>>(x, y);
        }
    if constexpr (D > 1) transpose<D / 2>(r);
}

// Lane i < N of the result is the sum of all lanes of r[i]; N is a power of two up to VL. Destroys r.
template <int N, int D = N / 2> inline vec sums(vec *r) {
    if constexpr (D >= 1) {
#pragma GCC unroll 16
        for (int i = 0; i < D; i++) r[i] = shuffle<KeepOwn<D>>(r[i], r[i + D]) + shuffle<CrossOver<D>>(r[i], r[i + D]);
        return sums<N, D / 2>(r);
    } else {
        vec x = r[0];
        if constexpr (N <= VL / 16) x += shuffle<CrossOver<VL / 16>>(x, x);
        if constexpr (N <= VL / 8) x += shuffle<CrossOver<VL / 8>>(x, x);
        if constexpr (N <= VL / 4) x += shuffle<CrossOver<VL / 4>>(x, x);
        if constexpr (N <= VL / 2) x += shuffle<CrossOver<VL / 2>>(x, x);
        return x;
    }
}
