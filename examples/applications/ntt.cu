// Radix 2, one block a row: kernelwright verify examples/applications/ntt.cu --problem expert:ntt:16x1024 --target cuda
/* kernelwright-plan
{"launches": [{"kernel": "ntt", "grid": ["batch", 1, 1], "block": [256, 1, 1],
  "args": [{"type": "tensor", "name": "x"}, {"type": "tensor", "name": "y"}, {"type": "scalar", "ctype": "i32", "value": "n"},
           {"type": "scalar", "ctype": "i64", "value": "ld_x"}, {"type": "scalar", "ctype": "i64", "value": "ld_y"}]}]}
*/
typedef unsigned long long u64;
#define P 2013265921ull

__device__ u64 power(u64 b, u64 e) {
    u64 r = 1;
    for (; e; e >>= 1, b = b * b % P)
        if (e & 1) r = r * b % P;
    return r;
}

extern "C" __global__ void ntt(const int* x, int* y, int n, long long ld_x, long long ld_y) {
    const int* in = x + blockIdx.x * ld_x;
    int* out = y + blockIdx.x * ld_y;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        int j = 0;
        for (int bit = 1; bit < n; bit *= 2) j = 2 * j + ((i & bit) != 0);
        out[j] = in[i];
    }
    for (int half = 1; half < n; half *= 2) {
        __syncthreads();
        u64 w = power(31, (P - 1) / (2 * half));
        for (int i = threadIdx.x; i < n / 2; i += blockDim.x) {
            int k = i / half * 2 * half + i % half;
            u64 a = out[k], b = out[k + half] * power(w, i % half) % P;
            out[k] = int((a + b) % P);
            out[k + half] = int((a + P - b) % P);
        }
    }
}
