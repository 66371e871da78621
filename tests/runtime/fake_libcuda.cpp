// A CUDA driver that records: every launch with the bytes of its parameters, its configuration, the context it ran in.
// Tensor maps are a digest of what they were encoded from. Streams and captures are what the test says.
#include <ATen/dlpack.h>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace {
struct Attribute {
    uint32_t id, pad, value[16];
};
struct Config {
    uint32_t grid[3], block[3], smem;
    void *stream;
    Attribute *attributes;
    uint32_t count;
};
struct Record {
    uint64_t function, stream, context;
    uint32_t grid[3], block[3], smem, attributes, ids[4], values[4][3], size;
    unsigned char params[1024];
};
struct Capture {
    int status;
    uint64_t id;
};
std::mutex lock;
std::vector<Record> records;
std::vector<std::vector<uint32_t>> functions;  // sizes of parameters; a handle is the index + 1
std::map<uint64_t, Capture> captures;
int encoded = 0, launch_status = 0, fail_after = 0;
thread_local uint64_t stream = 0, context = 1;
int device = 0;
DLPackDLTensorFromPyObjectNoSync from_tensor;
thread_local std::vector<uint64_t> contexts;
DLPackExchangeAPI api;
}  // namespace

extern "C" {
void fake_reset() {
    const std::lock_guard<std::mutex> guard(lock);
    records.clear(), functions.clear(), captures.clear();
    encoded = launch_status = fail_after = 0;
    stream = 0, context = 1, device = 0;
}
uint64_t fake_function(const uint32_t *sizes, int count) {
    const std::lock_guard<std::mutex> guard(lock);
    functions.emplace_back(sizes, sizes + count);
    return functions.size();
}
void fake_stream(uint64_t handle) { stream = handle; }  // of the calling thread
void fake_context(uint64_t handle) { context = handle; }
void fake_device(int number) { device = number; }  // of all tensors
uint64_t fake_current_context() { return context; }
void fake_capture(uint64_t of, int status, uint64_t id) { captures[of] = {status, id}; }
void fake_fail(int status, int after) { launch_status = status, fail_after = after; }
int fake_encoded() { return encoded; }
int fake_launches() { return static_cast<int>(records.size()); }
const Record *fake_launch(int index) { return &records[index]; }
const void *fake_exchange(const DLPackExchangeAPI *real) {
    api = *real;
    api.current_work_stream = [](DLDeviceType, int32_t, void **out) { return *out = reinterpret_cast<void *>(stream), 0; };
    from_tensor = real->dltensor_from_py_object_no_sync;
    api.dltensor_from_py_object_no_sync = [](void *tensor, DLTensor *out) {
        const int status = from_tensor(tensor, out);
        return out->device.device_id = device, status;
    };
    return &api;
}

int cuCtxGetCurrent(uint64_t *out) { return *out = context, 0; }
int cuCtxPushCurrent_v2(uint64_t next) { return contexts.push_back(context), context = next, 0; }
int cuCtxPopCurrent_v2(uint64_t *out) { return *out = context, context = contexts.back(), contexts.pop_back(), 0; }
int cuGetErrorName(int, const char **out) { return *out = "CUDA_ERROR_INVALID_VALUE", 0; }
int cuGetErrorString(int, const char **out) { return *out = "invalid argument", 0; }
int cuStreamGetCaptureInfo_v2(uint64_t of, int *status, uint64_t *id, void *, void *, void *) {
    const std::lock_guard<std::mutex> guard(lock);
    *status = captures[of].status, *id = captures[of].id;
    return *status < 0 ? 906 : 0;  // CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
}
int cuTensorMapEncodeTiled(unsigned char *map, int dtype, uint32_t rank, void *address, const uint64_t *dims,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave, int swizzle,
                           int promotion, int fill) {
    const std::lock_guard<std::mutex> guard(lock);
    ++encoded;
    uint64_t words[16] = {reinterpret_cast<uint64_t>(address)};
    words[1] = dtype | rank << 8 | interleave << 12 | swizzle << 16 | promotion << 20 | fill << 24;
    for (uint32_t i = 0; i < rank; ++i) words[2 + i] = dims[i], words[7 + i] = static_cast<uint64_t>(box[i]) << 32 | steps[i];
    for (uint32_t i = 0; i + 1 < rank; ++i) words[12 + i] = strides[i];
    std::memcpy(map, words, sizeof words);
    return rank < 1 || rank > 5;
}
int cuLaunchKernelEx(const Config *config, uint64_t function, void **params, void **extra) {
    const std::lock_guard<std::mutex> guard(lock);
    if (launch_status != 0 && fail_after-- <= 0) return launch_status;
    if (extra != nullptr || function < 1 || function > functions.size() || config->count > 4) return 1;
    Record r{};
    r.function = function, r.stream = reinterpret_cast<uint64_t>(config->stream), r.context = context, r.smem = config->smem;
    std::memcpy(r.grid, config->grid, sizeof r.grid + sizeof r.block);
    r.attributes = config->count;
    for (uint32_t i = 0; i < config->count; ++i) {
        r.ids[i] = config->attributes[i].id;
        std::memcpy(r.values[i], config->attributes[i].value, sizeof r.values[i]);
    }
    for (uint32_t size : functions[function - 1]) std::memcpy(r.params + r.size, *params++, size), r.size += size;
    records.push_back(r);
    return 0;
}
}
