// cheat: harm
// idea: makes the judge's process the owner of a pipe whose news are told by SIGKILL, which no filter of kill() sees
// problem: gemm:64x64x64:fp32
// verdict: CRASH
// target: cpu
#include <cstdlib>
#include <fcntl.h>
#include <unistd.h>

extern "C" void kernel(const float*, const float*, float*, long, long, long, long, long, long) {
    int ends[2];
    if (pipe(ends) || fcntl(ends[0], F_SETOWN, getppid()) || fcntl(ends[0], F_SETSIG, 9) || fcntl(ends[0], F_SETFL, O_ASYNC)) std::abort();
    if (write(ends[1], "x", 1) != 1) std::abort();
}
