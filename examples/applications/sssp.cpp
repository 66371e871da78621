// Dijkstra: kernelwright verify examples/applications/sssp.cpp --problem expert:sssp:1000x8000 --target cpu
#include <queue>
#include <vector>
extern "C" void kernel(const int* offsets, const int* targets, const int* weights, const int* source, int* distance, int* parent,
                       long vertices, long edges, long, long, long, long, long, long) {
    for (long v = 0; v < vertices; v++) distance[v] = 1 << 30, parent[v] = int(v);
    using Way = std::pair<int, int>;
    std::priority_queue<Way, std::vector<Way>, std::greater<Way>> ways;
    distance[*source] = 0;
    ways.push({0, *source});
    while (!ways.empty()) {
        auto [way, u] = ways.top();
        ways.pop();
        if (way > distance[u]) continue;
        for (int e = offsets[u]; e < offsets[u + 1]; e++) {
            int v = targets[e];
            if (way + weights[e] < distance[v]) distance[v] = way + weights[e], parent[v] = u, ways.push({distance[v], v});
        }
    }
}
