// All pairs, velocity Verlet: kernelwright verify examples/applications/lennard_jones.cpp --problem expert:lennard-jones:4x5x4 --target cpu
#include <cmath>
#include <vector>

static const float SHIFT = 0.0389994774528f;  // no force at the cutoff

static void push(const std::vector<float>& x, std::vector<float>& f, long n, float box) {
    for (float& v : f) v = 0;
    for (long i = 0; i < n; i++)
        for (long j = i + 1; j < n; j++) {
            float d[3], square = 0;
            for (int k = 0; k < 3; k++) {
                d[k] = x[3 * i + k] - x[3 * j + k];
                d[k] -= box * rintf(d[k] / box);
                square += d[k] * d[k];
            }
            if (square >= 6.25f) continue;
            float inverse = 1 / square, sixth = inverse * inverse * inverse;
            float force = 24 * (2 * sixth * sixth - sixth) * inverse + SHIFT * sqrtf(inverse);
            for (int k = 0; k < 3; k++) f[3 * i + k] += force * d[k], f[3 * j + k] -= force * d[k];
        }
}

extern "C" void kernel(const float* position, const float* velocity, const float* box, float* positions, float* velocities, float* forces,
                       long side, long every, long snapshots, long ld_x, long ld_v, long, long ld_xs, long ld_vs, long ld_fs) {
    const float dt = 0.004f;
    long n = 4 * side * side * side;
    std::vector<float> x(3 * n), v(3 * n), f(3 * n);
    for (long i = 0; i < n; i++)
        for (int k = 0; k < 3; k++) x[3 * i + k] = position[i * ld_x + k], v[3 * i + k] = velocity[i * ld_v + k];
    push(x, f, n, *box);
    for (long step = 0; step < every * snapshots; step++) {
        for (long c = 0; c < 3 * n; c++) v[c] += 0.5f * dt * f[c], x[c] += dt * v[c], x[c] -= *box * floorf(x[c] / *box);
        push(x, f, n, *box);
        for (long c = 0; c < 3 * n; c++) v[c] += 0.5f * dt * f[c];
        if (step % every < every - 1) continue;
        for (long i = 0; i < n; i++)
            for (int k = 0; k < 3; k++) {
                long row = step / every * n + i;
                positions[row * ld_xs + k] = x[3 * i + k], velocities[row * ld_vs + k] = v[3 * i + k], forces[row * ld_fs + k] = f[3 * i + k];
            }
    }
}
