// C = A B on a CPU: fp32, bf16 or fp16 in and out, fp32 accumulation, any M, N, K >= 0, rows any distance >= their length apart.
// By hand: g++ -std=c++20 -shared -fPIC -O3 -march=native -fopenmp kernel.cpp
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#ifdef __x86_64__
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

// Unnamed, so that nothing but `kernel` is exported: tables in template functions are otherwise unique symbols of the whole
// process, and the second kernel that a process loads would call the first one's tiles.
namespace {
#include "types.h"

// -- configuration: render.py writes these lines
using T = float;
constexpr bool SWAP = false;           // compute C^T = B^T A^T
constexpr bool LEFT_ALONG_K = true;    // the left operand (A, or B^T) is stored with k contiguous
constexpr bool RIGHT_ALONG_K = false;  // the same for the right operand (B, or A^T)
constexpr bool PACK_LEFT = true;
constexpr bool PACK_RIGHT = true;
constexpr int MR = 14, NR = 2;                 // accumulators: MR rows x NR vectors along n (fma, dpbf16), NR columns (dot)
constexpr long MC = 256, KC = 256, NC = 4096;  // cache blocks
constexpr int UNROLL = 1;      // steps of k per loop iteration
constexpr int PREFETCH = 0;    // steps of k that the right operand is fetched ahead; 0: left to the hardware
constexpr int THREADS = 1;
#include "vec_avx512.h"
#include "lanes.h"
#include "tile.h"
#include "pack.h"
#include "micro_fma.h"
using Micro = MicroFma<MR, NR>;
// -- end of configuration
#include "driver.h"
#include "slabs.h"
}  // namespace

extern "C" void kernel(const T *a, const T *b, T *c, long M, long N, long K, long lda, long ldb, long ldc, void *workspace) {
    const Problem whole = SWAP ? Problem{b, a, c, N, M, K, ldb, lda, 1, ldc} : Problem{a, b, c, M, N, K, lda, ldb, ldc, 1};
    compute<Micro>(whole, (char *)workspace);
}
