"""What the scripted model answers for new-gelu: a kernel that does not compile, its repair, one that is wrong, its repair, a fast one."""

from __future__ import annotations

from scripted_server import answer

HEAD = 'extern "C" void kernel(const float* x, float* y, long rows, long cols, long ld_x, long ld_y) {'

PLAIN = f"""#include <cmath>
{HEAD}
    for (long i = 0; i < rows; i++)
        for (long j = 0; j < cols; j++) {{
            float v = x[i * ld_x + j], z = 0.7978845608f * (v + 0.044715f * v * v * v);
            y[i * ld_y + j] = 0.5f * v * (1.0f + std::tanh(z));
        }}
}}
"""

MISSPELT = PLAIN.replace("std::tanh", "std::tangens_hyperbolicus")

CLAMPED = PLAIN.replace("std::tanh(z)", "(z < -1 ? -1 : z > 1 ? 1 : z)").replace("#include <cmath>\n", "")

DOUBLE = PLAIN.replace("std::tanh(z)", "static_cast<float>(std::tanh(static_cast<double>(z)))")

FAST = f"""#include <cmath>
#include <cstdint>
#include <cstring>

// exp(t): 2^n exp(r) with r in [-ln 2 / 2, ln 2 / 2]; infinity from n = 128 on, NaN stays NaN
static inline float exponential(float t) {{
    t = t < -87.0f ? -87.0f : t > 89.0f ? 89.0f : t;
    float n = std::nearbyint(t * 1.44269504f);
    float r = t - n * 0.693145752f - n * 1.42860677e-6f;
    float p = 1.0f + r * (1.0f + r * (0.5f + r * (0.166666667f + r * (0.0416666667f + r * (0.00833333333f + r * 0.00138888889f)))));
    int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, 4);
    return p * scale;
}}

{HEAD}
    for (long i = 0; i < rows; i++) {{
        const float* from = x + i * ld_x;
        float* to = y + i * ld_y;
#pragma omp simd
        for (long j = 0; j < cols; j++) {{
            float v = from[j], z = 1.5957691216f * (v + 0.044715f * v * v * v);
            to[j] = v / (1.0f + exponential(-z));  // 0.5 (1 + tanh(z / 2)) = 1 / (1 + exp(-z))
        }}
    }}
}}
"""

ANSWERS = (
    answer(MISSPELT),
    answer(PLAIN),
    answer(CLAMPED),
    "Certainly! Here is your kernel:\n\n" + answer(DOUBLE).split("## Code")[1],
    answer(FAST),
)
