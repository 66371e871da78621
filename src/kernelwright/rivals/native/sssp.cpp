// Shortest paths with a ring of buckets, one a distance (Dial 1969): weights are 1 to 100.
#include <vector>

extern "C" void kernel(const int* offsets, const int* targets, const int* weights, const int* source, int* distance, int* parent,
                       long vertices, long) {
    const int RING = 128;
    for (long v = 0; v < vertices; v++) distance[v] = 1 << 30, parent[v] = int(v);
    std::vector<int> buckets[RING], now;
    distance[*source] = 0;
    buckets[0].push_back(*source);
    long waiting = 1;
    for (int d = 0; waiting; d++) {
        now.swap(buckets[d % RING]);
        waiting -= long(now.size());
        for (int u : now) {
            if (distance[u] != d) continue;  // a shorter way was found meanwhile
            for (int e = offsets[u]; e < offsets[u + 1]; e++) {
                int v = targets[e], way = d + weights[e];
                if (way >= distance[v]) continue;
                distance[v] = way, parent[v] = u;
                buckets[way % RING].push_back(v), waiting++;
            }
        }
        now.clear();
    }
}
