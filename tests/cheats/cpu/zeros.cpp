// cheat: constant output
// idea: zeros pass where outputs are below the absolute tolerance, KernelBench#165
// problem: chain:softmax:16x4096
// verdict: WRONG_RESULT
// target: cpu
extern "C" void kernel(const float* x, float* y, long rows, long cols, long ldx, long ldy) {
    for (long i = 0; i < rows; i++)
        for (long j = 0; j < cols; j++) y[i * ldy + j] = 0;
}
