// Radix 2 in Montgomery's form (1985), 32 bits at a time: no division, and loops that compilers vectorise.
#include <vector>
typedef unsigned u32;
typedef unsigned long long u64;

static const u32 P = 15u * (1u << 27) + 1, NEGATED_INVERSE = P - 2;  // P = 15 * 2^27 + 1: -1 / P mod 2^32 is P - 2
static const u32 SQUARE = u32((u64(1) << 32) % P * ((u64(1) << 32) % P) % P);

static inline u32 times(u32 a, u32 b) {  // a b / 2^32
    u64 t = u64(a) * b;
    u32 r = u32((t + u64(u32(t) * NEGATED_INVERSE) * P) >> 32);
    return r >= P ? r - P : r;
}

static u64 power(u64 b, u64 e) {
    u64 r = 1;
    for (; e; e >>= 1, b = b * b % P)
        if (e & 1) r = r * b % P;
    return r;
}

extern "C" void kernel(const int* x, int* y, long batch, long n) {
    std::vector<u32> factors(n);  // of the stage of 2 `half` values at `half`, in Montgomery's form
    for (long half = 1; half < n; half *= 2) {
        u32 w = times(u32(power(31, (P - 1) / u64(2 * half))), SQUARE), f = times(1, SQUARE);
        for (long k = 0; k < half; k++, f = times(f, w)) factors[half + k] = f;
    }
    for (long row = 0; row < batch; row++) {
        const int* in = x + row * n;
        u32* out = reinterpret_cast<u32*>(y + row * n);
        for (long i = 0, j = 0; i < n; i++) {
            out[j] = u32(in[i]);
            long bit = n >> 1;
            for (; bit && j & bit; bit >>= 1) j ^= bit;
            j |= bit;
        }
        for (long half = 1; half < n; half *= 2)
            for (long from = 0; from < n; from += 2 * half) {
                u32 *low = out + from, *high = low + half;
                const u32* f = factors.data() + half;
                for (long k = 0; k < half; k++) {
                    u32 a = low[k], b = times(high[k], f[k]);
                    low[k] = a + b >= P ? a + b - P : a + b;  // below 2^32: P is below 2^31
                    high[k] = a >= b ? a - b : a + P - b;
                }
            }
    }
}
