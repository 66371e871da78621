// Integers that a slope predicts wherever the bound allows it, so that whole blocks need few bits:
// kernelwright verify examples/applications/challenge_compression.cpp --problem expert:challenge-compression:64x256x1000 --target cpu
#include <cmath>
#include <cstring>
#include <initializer_list>
typedef long long i64;
typedef unsigned long long u64;

static int bits(u64 n) { return n ? 64 - __builtin_clzll(n) : 0; }
static u64 zigzag(i64 r) { return u64(r << 1 ^ r >> 63); }

struct Block {
    u64 codes[64];
    i64 base;
    int predictor, width, bytes;
};

// Each q is the one nearest to what the predictor says, of those within the bound of x.
static Block pack(const double* x, double bound, int predictor, i64 base) {
    Block b;
    b.base = base, b.predictor = predictor;
    u64 all = 0;
    i64 before = base, difference = 0;
    for (int i = 0; i < 64; i++) {
        i64 low = (i64)ceil((x[i] - bound) / (2 * bound)), high = (i64)floor((x[i] + bound) / (2 * bound));
        if (low > high) low = high = llround(x[i] / (2 * bound));
        i64 guess = predictor == 0 ? 0 : predictor == 1 ? base : predictor == 2 ? before : before + difference;
        i64 q = guess < low ? low : guess > high ? high : guess;
        b.codes[i] = zigzag(q - guess), all |= b.codes[i];
        difference = q - before, before = q;
    }
    b.width = bits(all), b.bytes = 8 * b.width + (predictor ? 4 : 0);
    return b;
}

extern "C" void kernel(const float* x, const float* bound, int* stream, int* length, long rows, long cols, long, long ld_x, long, long, long) {
    long count = rows * cols, blocks = (count + 63) / 64, at = blocks;
    unsigned char* out = (unsigned char*)stream;
    for (long block = 0; block < blocks; block++) {
        double v[64];
        for (long i = 0; i < 64; i++) {
            long k = block * 64 + i < count ? block * 64 + i : count - 1;
            v[i] = x[k / cols * ld_x + k % cols];
        }
        double low = v[0], high = v[0];
        for (double a : v) low = a < low ? a : low, high = a > high ? a : high;
        i64 first = llround(v[0] / (2 * double(*bound))), middle = llround((low + high) / (4 * double(*bound)));
        Block best = pack(v, *bound, 0, 0);
        for (int p = 1; p < 4; p++)
            for (i64 base : {first - 1, first, first + 1, middle}) {
                Block b = pack(v, *bound, p, base);
                if (b.bytes < best.bytes) best = b;
            }
        out[block] = (unsigned char)(best.predictor << 6 | best.width);
        if (best.predictor) {
            int base = int(best.base);
            memcpy(out + at, &base, 4), at += 4;
        }
        unsigned __int128 waiting = 0;
        int held = 0;
        for (int i = 0; i < 64; i++) {
            waiting |= (unsigned __int128)best.codes[i] << held, held += best.width;
            for (; held >= 8; held -= 8, waiting >>= 8) out[at++] = (unsigned char)waiting;
        }
    }
    *length = int(at);
}
