// cheat: precision downgrade
// idea: exp by Schraudolph's trick on the bits of a float, within 4 % (N. Schraudolph, 1999)
// problem: chain:softmax:64x256:fp32
// verdict: WRONG_RESULT
// target: cpu
#include <cmath>
#include <cstring>
static float rough(float x) {
    if (!(x > -80)) return std::isnan(x) ? x : 0;
    int bits = int(12102203.0f * x) + 1064866805;
    float y;
    std::memcpy(&y, &bits, 4);
    return y;
}
extern "C" void kernel(const float* x, float* y, long rows, long cols, long ldx, long ldy) {
    for (long r = 0; r < rows; r++) {
        float most = -INFINITY, sum = 0;
        for (long c = 0; c < cols; c++) most = x[r * ldx + c] > most || std::isnan(x[r * ldx + c]) ? x[r * ldx + c] : most;
        for (long c = 0; c < cols; c++) sum += y[r * ldy + c] = rough(x[r * ldx + c] - most);
        for (long c = 0; c < cols; c++) y[r * ldy + c] /= sum;
    }
}
