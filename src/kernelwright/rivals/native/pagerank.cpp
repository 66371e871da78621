// Power iteration over the edges turned round, so that each rank is a sum of what its neighbours give.
#include <cmath>
#include <vector>

extern "C" void kernel(const int* offsets, const int* targets, float* rank, long vertices, long edges) {
    std::vector<int> from(vertices + 1), sources(edges);
    for (long e = 0; e < edges; e++) from[targets[e] + 1]++;
    for (long v = 0; v < vertices; v++) from[v + 1] += from[v];
    std::vector<int> place(from.begin(), from.end() - 1);
    for (long u = 0; u < vertices; u++)
        for (int e = offsets[u]; e < offsets[u + 1]; e++) sources[place[targets[e]]++] = int(u);
    std::vector<float> gives(vertices);
    for (long v = 0; v < vertices; v++) rank[v] = 1.0f / float(vertices);
    for (bool moves = true; moves;) {
        double lost = 0;
        for (long u = 0; u < vertices; u++) {
            int degree = offsets[u + 1] - offsets[u];
            gives[u] = degree ? rank[u] / float(degree) : 0;
            if (!degree) lost += rank[u];
        }
        double base = (0.15 + 0.85 * lost) / double(vertices);
        moves = false;
        for (long v = 0; v < vertices; v++) {
            double sum = 0;  // 16,000 floats added as floats are off by 2e-6: ranks of popular vertices would never settle for sure
            for (int i = from[v]; i < from[v + 1]; i++) sum += gives[sources[i]];
            float after = float(base + 0.85 * sum);
            moves |= std::fabs(after - rank[v]) > 2e-6f * after;
            rank[v] = after;
        }
    }
}
