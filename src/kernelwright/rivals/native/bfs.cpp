// Breadth-first search with a queue.
#include <vector>

extern "C" void kernel(const int* offsets, const int* targets, const int* source, int* distance, int* parent, long vertices, long) {
    const int FAR = 1 << 30;
    for (long v = 0; v < vertices; v++) distance[v] = FAR, parent[v] = int(v);
    std::vector<int> queue(vertices);
    long first = 0, last = 0;
    distance[queue[last++] = *source] = 0;
    while (first < last) {
        int u = queue[first++], next = distance[u] + 1;
        for (int e = offsets[u]; e < offsets[u + 1]; e++) {
            int v = targets[e];
            if (distance[v] == FAR) distance[v] = next, parent[v] = u, queue[last++] = v;
        }
    }
}
