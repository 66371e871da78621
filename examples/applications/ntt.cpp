// Radix 2 with bits reversed first: kernelwright verify examples/applications/ntt.cpp --problem expert:ntt:16x1024 --target cpu
typedef unsigned long long u64;
static const u64 P = 15ull * (1 << 27) + 1;

static u64 power(u64 b, u64 e) {
    u64 r = 1;
    for (; e; e >>= 1, b = b * b % P)
        if (e & 1) r = r * b % P;
    return r;
}

extern "C" void kernel(const int* x, int* y, long batch, long n, long ld_x, long ld_y) {
    for (long row = 0; row < batch; row++) {
        const int* in = x + row * ld_x;
        int* out = y + row * ld_y;
        for (long i = 0, j = 0; i < n; i++) {
            out[j] = in[i];
            long bit = n >> 1;
            for (; bit && j & bit; bit >>= 1) j ^= bit;
            j |= bit;
        }
        for (long half = 1; half < n; half *= 2) {
            u64 w = power(31, (P - 1) / (2 * half));
            for (long from = 0; from < n; from += 2 * half) {
                u64 factor = 1;
                for (long k = from; k < from + half; k++, factor = factor * w % P) {
                    u64 a = out[k], b = out[k + half] * factor % P;
                    out[k] = int((a + b) % P), out[k + half] = int((a + P - b) % P);
                }
            }
        }
    }
}
