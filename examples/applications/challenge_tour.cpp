// Nearest neighbours, then 2-opt: kernelwright verify examples/applications/challenge_tour.cpp --problem expert:challenge-tour:200x1000
#include <algorithm>
#include <cmath>
extern "C" void kernel(const float* place, int* order, long n, long ms, long ld, long) {
    auto way = [&](int a, int b) { return std::hypot(place[a * ld] - place[b * ld], place[a * ld + 1] - place[b * ld + 1]); };
    for (long i = 0; i < n; i++) order[i] = int(i);
    for (long i = 1; i < n; i++) {
        long best = i;
        for (long j = i + 1; j < n; j++)
            if (way(order[i - 1], order[j]) < way(order[i - 1], order[best])) best = j;
        std::swap(order[i], order[best]);
    }
    for (bool better = n > 3; better;) {
        better = false;
        for (long i = 0; i + 2 < n; i++)
            for (long j = i + 2; j < n - (i == 0); j++) {
                int a = order[i], b = order[i + 1], c = order[j], d = order[(j + 1) % n];
                if (way(a, c) + way(b, d) < way(a, b) + way(c, d) - 1e-6f) std::reverse(order + i + 1, order + j + 1), better = true;
            }
    }
}
