// Velocity Verlet with a list of pairs from cells, made anew every ten steps.
#include <algorithm>
#include <cmath>
#include <vector>

static const float DT = 0.004f, CUTOFF = 2.5f, SHIFT = 0.0389994774528f;  // no force at the cutoff

struct Fluid {
    long n;
    float box;
    std::vector<float> x, v, f;
    std::vector<int> first, others;  // the neighbours of i, each pair once

    float nearest(float d) const { return d - box * rintf(d / box); }

    void list() {
        float fastest = 0;
        for (long i = 0; i < n; i++) fastest = std::max(fastest, v[3 * i] * v[3 * i] + v[3 * i + 1] * v[3 * i + 1] + v[3 * i + 2] * v[3 * i + 2]);
        // half as fast again as now, no pair that is left out comes nearer than the cutoff meanwhile
        float reach = CUTOFF + std::max(0.1f, 30 * DT * std::sqrt(fastest));
        int side = std::max(1, int(box / reach)), width = side < 3 ? 0 : 1;
        if (side < 3) side = 1;
        std::vector<std::vector<int>> cells(side * side * side);
        auto place = [&](long i, int k) { return std::min(side - 1, int((x[3 * i + k] / box - floorf(x[3 * i + k] / box)) * side)); };
        for (long i = 0; i < n; i++) cells[(place(i, 0) * side + place(i, 1)) * side + place(i, 2)].push_back(int(i));
        first.assign(1, 0), others.clear();
        for (long i = 0; i < n; i++) {
            for (int a = -width; a <= width; a++)
                for (int b = -width; b <= width; b++)
                    for (int c = -width; c <= width; c++) {
                        int p = (place(i, 0) + a + side) % side, q = (place(i, 1) + b + side) % side, r = (place(i, 2) + c + side) % side;
                        for (int j : cells[(p * side + q) * side + r]) {
                            if (j <= i) continue;
                            float square = 0;
                            for (int k = 0; k < 3; k++) {
                                float d = nearest(x[3 * i + k] - x[3 * j + k]);
                                square += d * d;
                            }
                            if (square < reach * reach) others.push_back(j);
                        }
                    }
            first.push_back(int(others.size()));
        }
    }

    void push() {
        std::fill(f.begin(), f.end(), 0.0f);
        for (long i = 0; i < n; i++) {
            float sum[3] = {0, 0, 0};
            for (int at = first[i]; at < first[i + 1]; at++) {
                long j = others[at];
                float d[3], square = 0;
                for (int k = 0; k < 3; k++) d[k] = nearest(x[3 * i + k] - x[3 * j + k]), square += d[k] * d[k];
                if (square >= CUTOFF * CUTOFF) continue;
                float inverse = 1 / square, sixth = inverse * inverse * inverse;
                float force = 24 * (2 * sixth * sixth - sixth) * inverse + SHIFT * sqrtf(inverse);
                for (int k = 0; k < 3; k++) sum[k] += force * d[k], f[3 * j + k] -= force * d[k];
            }
            for (int k = 0; k < 3; k++) f[3 * i + k] += sum[k];
        }
    }
};

extern "C" void kernel(const float* position, const float* velocity, const float* box, float* positions, float* velocities, float* forces,
                       long side, long every, long snapshots) {
    long n = 4 * side * side * side, c = 3 * n;
    Fluid w{n, *box, {position, position + c}, {velocity, velocity + c}, std::vector<float>(c), {}, {}};
    for (long step = 0; step < every * snapshots; step++) {
        if (step % 10 == 0) w.list();
        if (step == 0) w.push();
        for (long i = 0; i < c; i++) w.v[i] += 0.5f * DT * w.f[i], w.x[i] += DT * w.v[i], w.x[i] -= *box * floorf(w.x[i] / *box);
        w.push();
        for (long i = 0; i < c; i++) w.v[i] += 0.5f * DT * w.f[i];
        if (step % every < every - 1) continue;
        long at = step / every * c;
        std::copy(w.x.begin(), w.x.end(), positions + at);
        std::copy(w.v.begin(), w.v.end(), velocities + at);
        std::copy(w.f.begin(), w.f.end(), forces + at);
    }
}
