// All pairs in one block: kernelwright verify examples/applications/lennard_jones.cu --problem expert:lennard-jones:4x5x4 --target cuda
/* kernelwright-plan
{"launches": [{"kernel": "simulate", "grid": [1, 1, 1], "block": [256, 1, 1],
  "args": [{"type": "tensor", "name": "position"}, {"type": "tensor", "name": "velocity"}, {"type": "tensor", "name": "box"},
           {"type": "tensor", "name": "positions"}, {"type": "tensor", "name": "velocities"}, {"type": "tensor", "name": "forces"},
           {"type": "scalar", "ctype": "i32", "value": "4 * side * side * side"}, {"type": "scalar", "ctype": "i32", "value": "every"},
           {"type": "scalar", "ctype": "i32", "value": "snapshots"},
           {"type": "scalar", "ctype": "i32", "value": "ld_position"}, {"type": "scalar", "ctype": "i32", "value": "ld_velocity"},
           {"type": "scalar", "ctype": "i32", "value": "ld_positions"}, {"type": "scalar", "ctype": "i32", "value": "ld_velocities"},
           {"type": "scalar", "ctype": "i32", "value": "ld_forces"}]}]}
*/

#define SHIFT 0.0389994774528f  // no force at the cutoff

// Of particle i, from the positions of all.
__device__ void push(const float* x, int ld, float* f, int i, int n, float box) {
    float sum[3] = {0, 0, 0};
    for (int j = 0; j < n; j++) {
        float d[3], square = 0;
        for (int k = 0; k < 3; k++) {
            d[k] = x[i * ld + k] - x[j * ld + k];
            d[k] -= box * rintf(d[k] / box);
            square += d[k] * d[k];
        }
        if (j == i || square >= 6.25f) continue;
        float inverse = 1 / square, sixth = inverse * inverse * inverse;
        float force = 24 * (2 * sixth * sixth - sixth) * inverse + SHIFT * sqrtf(inverse);
        for (int k = 0; k < 3; k++) sum[k] += force * d[k];
    }
    for (int k = 0; k < 3; k++) f[k] = sum[k];
}

extern "C" __global__ void simulate(const float* position, const float* velocity, const float* box, float* positions, float* velocities,
                                    float* forces, int n, int every, int snapshots, int ld, int ld_v, int ld_xs, int ld_vs, int ld_fs) {
    const float dt = 0.004f;
    // the last snapshot holds the present
    float *x = positions + (snapshots - 1) * n * ld_xs, *v = velocities + (snapshots - 1) * n * ld_vs, *f = forces + (snapshots - 1) * n * ld_fs;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        for (int k = 0; k < 3; k++) x[i * ld_xs + k] = position[i * ld + k], v[i * ld_vs + k] = velocity[i * ld_v + k];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) push(x, ld_xs, f + i * ld_fs, i, n, *box);
    __syncthreads();
    for (int step = 1; step <= every * snapshots; step++) {
        for (int i = threadIdx.x; i < n; i += blockDim.x)
            for (int k = 0; k < 3; k++) {
                v[i * ld_vs + k] += 0.5f * dt * f[i * ld_fs + k];
                float moved = x[i * ld_xs + k] + dt * v[i * ld_vs + k];
                x[i * ld_xs + k] = moved - *box * floorf(moved / *box);
            }
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += blockDim.x) {
            push(x, ld_xs, f + i * ld_fs, i, n, *box);
            for (int k = 0; k < 3; k++) v[i * ld_vs + k] += 0.5f * dt * f[i * ld_fs + k];
            if (step % every == 0)
                for (int k = 0; k < 3; k++) {
                    int row = (step / every - 1) * n + i;
                    positions[row * ld_xs + k] = x[i * ld_xs + k];
                    velocities[row * ld_vs + k] = v[i * ld_vs + k];
                    forces[row * ld_fs + k] = f[i * ld_fs + k];
                }
        }
        __syncthreads();
    }
}
