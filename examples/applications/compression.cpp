// Differences from the neighbour, packed: kernelwright verify examples/applications/compression.cpp --problem expert:compression:64x256
#include <cmath>
#include <cstring>
#include <vector>
typedef long long i64;
typedef unsigned long long u64;

static int bits(u64 n) { return n ? 64 - __builtin_clzll(n) : 0; }

extern "C" void kernel(const float* x, const float* bound, int* stream, int* length, long rows, long cols, long ld_x, long, long, long) {
    long count = rows * cols, blocks = (count + 63) / 64;
    unsigned char* out = (unsigned char*)stream;
    long at = blocks;
    for (long b = 0; b < blocks; b++) {
        i64 q[64];
        for (long i = 0; i < 64; i++) {
            long k = b * 64 + i < count ? b * 64 + i : count - 1;
            q[i] = llround(double(x[k / cols * ld_x + k % cols]) / (2 * double(*bound)));
        }
        u64 codes[4][64], largest[4] = {0, 0, 0, 0};
        i64 before = q[0], difference = 0;
        for (int i = 0; i < 64; i++) {
            i64 now = q[i] - before, r[4] = {q[i], q[i] - q[0], now, now - difference};
            before = q[i], difference = now;
            for (int p = 0; p < 4; p++) codes[p][i] = u64(r[p] << 1 ^ r[p] >> 63), largest[p] |= codes[p][i];
        }
        int best = 0;
        for (int p = 1; p < 4; p++)
            if (8 * bits(largest[p]) + 4 < 8 * bits(largest[best]) + (best ? 4 : 0)) best = p;
        int width = bits(largest[best]);
        out[b] = (unsigned char)(best << 6 | width);
        if (best) {
            int base = int(q[0]);
            memcpy(out + at, &base, 4), at += 4;
        }
        unsigned __int128 waiting = 0;
        int held = 0;
        for (int i = 0; i < 64; i++) {
            waiting |= (unsigned __int128)codes[best][i] << held, held += width;
            for (; held >= 8; held -= 8, waiting >>= 8) out[at++] = (unsigned char)waiting;
        }
    }
    *length = int(at);
}
