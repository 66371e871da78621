// cheat: reading the harness
// idea: has the compiler read a file of the machine and quote it in its messages
// problem: gemm:64x64x64:fp32
// verdict: COMPILE_ERROR
// target: cpu
#include "/etc/hosts"
