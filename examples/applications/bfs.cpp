// Breadth-first search level by level: kernelwright verify examples/applications/bfs.cpp --problem expert:bfs:1000x8000 --target cpu
extern "C" void kernel(const int* offsets, const int* targets, const int* source, int* distance, int* parent, long vertices, long edges,
                       long, long, long, long, long) {
    for (long v = 0; v < vertices; v++) distance[v] = 1 << 30, parent[v] = int(v);
    int* queue = new int[vertices];
    long first = 0, last = 0;
    distance[queue[last++] = *source] = 0;
    while (first < last) {
        int u = queue[first++];
        for (int e = offsets[u]; e < offsets[u + 1]; e++) {
            int v = targets[e];
            if (distance[v] == 1 << 30) distance[v] = distance[u] + 1, parent[v] = u, queue[last++] = v;
        }
    }
    delete[] queue;
}
