// What is registered - launches, and products of the library, by key - and what is cached for them: encoded tensor maps,
// workspaces. No Python here.
//
// Part of launcher.cpp, like launch.h and product.h: one translation unit, so that all is inlined into the two fast paths.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "driver_abi.h"

namespace {

constexpr int MAX_TENSORS = 8, MAX_RANK = 4, MAX_PARAMS = 48, MAX_PARAM_BYTES = 4096;
constexpr int KEY_WORDS = 1 + MAX_TENSORS * (1 + 2 * MAX_RANK);
constexpr size_t MAX_ENTRIES = 65536;  // about 100 MB of launches; then all are forgotten and registered anew as they are met

/// What a call is known by: operation, then for each tensor its type, device, rank and alignment, its sizes and strides.
struct Key {
    int64_t words[KEY_WORDS];
    int count = 0;

    void add(int64_t word) { words[count++] = word; }
    bool operator==(const Key &other) const {
        return count == other.count && std::memcmp(words, other.words, count * sizeof *words) == 0;
    }
};

struct Hash {
    size_t operator()(const Key &key) const {
        uint64_t hash = key.count;
        for (int i = 0; i < key.count; ++i) {
            hash = (hash ^ static_cast<uint64_t>(key.words[i])) * 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio, Knuth's multiplier
            hash ^= hash >> 32;
        }
        return hash;
    }
};

// The records up to Entry arrive as bytes that __init__.py packs: keep PATCH and HEAD there in step.
struct TensorMapSpec {
    uint64_t id;  // given here
    uint64_t dims[5], strides[5];
    uint32_t box[5];
    int dtype, rank, swizzle, l2_promotion;
};

/// A parameter that is not the same in every launch.
struct Patch {
    enum Kind : uint32_t { TENSOR, WORKSPACE, TENSOR_MAP } kind;
    uint32_t at;      // byte in the parameters
    uint64_t number;  // of the tensor; WORKSPACE: bytes from its start
    TensorMapSpec map;
};

struct Head {
    cuda::Function function;
    cuda::LaunchConfig config;
    cuda::LaunchAttribute attributes[2];
    uint32_t patches, params, param_bytes;
};
static_assert(sizeof(Patch) == 144 && sizeof(Head) == 224);

struct Launch : Head {
    std::vector<Patch> patches;
    std::vector<uint32_t> offsets;  // of each parameter in `params`
    std::vector<unsigned char> params;
};

/// A product that cuBLASLt does, called as thinly as a launch of ours: what cublasLtMatmul takes beside addresses, workspace and
/// stream.
struct Vendor {
    int (*matmul)(void *handle, void *desc, const void *alpha, const void *first, void *first_layout, const void *second,
                  void *second_layout, const void *beta, const void *c, void *c_layout, void *out, void *out_layout,
                  const void *algo, void *workspace, size_t workspace_bytes, cuda::Stream stream);
    int (*set)(void *desc, int attribute, const void *value, size_t size);  // null: there is no bias
    void *handle, *desc, *first, *second, *out;
    uint64_t algo[8];
};
static_assert(sizeof(Vendor) == 120);

struct Entry {
    bool library = false;  // known, and PyTorch's to call
    cuda::Context context = nullptr;
    size_t workspace = 0;
    bool zeroed = false;
    std::vector<Launch> launches;
    std::vector<Vendor> vendor;             // one or none
    std::unique_ptr<std::mutex> bias_turn;  // the address of a bias is written into a description that all calls share
};

/// One for each stream outside and one inside a capture: launches of a stream follow each other, so they can share it. A graph
/// must have its own, because it may be replayed beside whatever then runs on the stream that it was captured on.
struct Workspace {
    uint64_t capture = 0;
    unsigned char *address = nullptr;
    std::atomic<size_t> size{0};
    std::mutex turn;  // the launches of one plan must not be interleaved with others that use the same workspace
};
using WorkspaceKey = std::tuple<int, cuda::Stream, bool, bool>;  // device, stream, zeroed, capturing
constexpr uint64_t UNKNOWN_CAPTURE = ~0ull;

cuda::Driver driver;

/// Encoded tensor maps by description and address. Sets of 8 ways, in each the least recently used one is replaced: bounded, and
/// nothing is allocated after the start.
class TensorMaps {
  public:
    void resize(size_t count) {
        ways_.assign((count + WAYS - 1) / WAYS * WAYS, Way{});
        tick_ = 0;
    }

    cuda::Result get(const TensorMapSpec &spec, void *address, unsigned char *out) {
        const std::lock_guard<std::mutex> guard(lock_);
        const uint64_t hash = (spec.id * 0x9E3779B97F4A7C15u ^ reinterpret_cast<uintptr_t>(address)) * 0xD6E8FEB86659FD93u;
        Way *const set = &ways_[(hash >> 32) % (ways_.size() / WAYS) * WAYS], *oldest = set;
        ++tick_;
        for (Way *way = set; way != set + WAYS; ++way) {
            if (way->spec == spec.id && way->address == address) {
                way->used = tick_;
                std::memcpy(out, &way->map, sizeof way->map);
                return 0;
            }
            if (way->used < oldest->used) oldest = way;
        }
        static constexpr uint32_t ones[5] = {1, 1, 1, 1, 1};
        oldest->spec = 0;
        const cuda::Result result =
            driver.cuTensorMapEncodeTiled(&oldest->map, spec.dtype, spec.rank, address, spec.dims, spec.strides, spec.box, ones,
                                          0, spec.swizzle, spec.l2_promotion, 0);
        if (result != 0) return result;
        oldest->spec = spec.id, oldest->address = address, oldest->used = tick_;
        std::memcpy(out, &oldest->map, sizeof oldest->map);
        return 0;
    }

  private:
    static constexpr int WAYS = 8;
    struct Way {
        uint64_t spec = 0;  // 0: empty
        void *address = nullptr;
        uint64_t used = 0;
        cuda::TensorMap map;
    };
    std::vector<Way> ways_;
    uint64_t tick_ = 0;
    std::mutex lock_;
};

std::shared_mutex lock;  // guards what follows; held through a launch, so that `release` returns when none is under way
std::unordered_map<Key, Entry, Hash> entries;
std::map<WorkspaceKey, Workspace> workspaces;
TensorMaps maps;

}  // namespace
