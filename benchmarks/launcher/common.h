// What all bindings do with three tensors: a key of their sizes, strides, type and device, a table, a launch.
#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <unordered_map>

struct Key {
    int64_t words[16];
    int count = 0;
    bool operator==(const Key &other) const { return count == other.count && std::memcmp(words, other.words, count * 8) == 0; }
};

struct Hash {
    size_t operator()(const Key &key) const {
        uint64_t hash = 0;
        for (int i = 0; i < key.count; ++i) hash = (hash ^ key.words[i]) * 0x9E3779B97F4A7C15u, hash ^= hash >> 32;
        return hash;
    }
};

struct Call {
    Key key;
    void *data[3];
    int tensors = 0;

    explicit Call(int64_t op) { key.words[key.count++] = op; }
    void add(void *address, int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride, int64_t type) {
        data[tensors++] = address;
        for (int64_t word : {rows, columns, row_stride, column_stride, type}) key.words[key.count++] = word;
    }
    bool launch(void *stream) {
        static auto driver = reinterpret_cast<int (*)(void *, void *, void **, void **)>(dlsym(RTLD_DEFAULT, "cuLaunchKernelEx"));
        static std::unordered_map<Key, int, Hash> table;
        if (++table[key] == 1) return false;
        void *params[3] = {data, data + 1, data + 2};
        return driver(&stream, nullptr, params, nullptr) == 0;
    }
};
