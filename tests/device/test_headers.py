"""Every function of the device headers compiles for sm_80 and sm_90, alone and to the instruction it names."""

from __future__ import annotations

import nvrtc_helper
import pytest

COPY = r"""
#include "kernelwright/copy.cuh"
extern "C" __global__ void probe(const char* from, char* to, int valid) {
    extern __shared__ char smem[];
    unsigned at = kw::shared_address(smem) + threadIdx.x * 16;
    kw::cp_async<16>(at, from + threadIdx.x * 16);
    kw::cp_async<8>(at + 8192, from + threadIdx.x * 16);
    kw::cp_async_partial<4>(at + 16384, from + threadIdx.x * 16, valid);
    kw::cp_async_or_zero<16>(at + 24576, from + threadIdx.x * 16, valid > int(threadIdx.x));
    kw::cp_async_16_hint(at + 32768, from, valid > 7, valid > 3 ? kw::evict_first_policy() : kw::evict_last_policy());
    kw::cp_async_commit();
    kw::cp_async_wait<0>();
    __syncthreads();
    unsigned four[4], two[2], one[1];
    kw::load_global_or_zero(four, from + 32768 + threadIdx.x * 16, valid > 11);
    kw::load_global_or_zero(two, from + 40960 + threadIdx.x * 8, valid > 12);
    kw::load_global_or_zero(one, from + 49152 + threadIdx.x * 4, valid > 13);
    kw::store_global_if(to + 16384 + threadIdx.x * 16, four, valid > 14);
    kw::store_global_if(to + 24576 + threadIdx.x * 8, two, valid > 15);
    kw::store_global_if(to + 32768 + threadIdx.x * 4, one, valid > 16);
    kw::store_global_16(to + threadIdx.x * 16, kw::load_shared_16(at ^ 16));
    kw::store_global_16(to + 8192 + threadIdx.x * 16, kw::load_global_16(from + 4096));
}
"""
MATRIX = r"""
#include "kernelwright/copy.cuh"
#include "kernelwright/mma.cuh"
#include "kernelwright/numeric.cuh"
#include "kernelwright/pdl.cuh"
extern "C" __global__ void probe(float* out) {
    extern __shared__ char smem[];
    unsigned at = kw::shared_address(smem) + threadIdx.x * 16, a[4], r[4], b[2], h[2] = {0u, 0u};
    kw::grid_dependency_wait();
    kw::ldmatrix_x4(a, at);
    kw::ldmatrix_x4_trans(r, at + 512);
    b[0] = r[0], b[1] = r[1];
    float d[4] = {}, e[4] = {};
    kw::mma_f16_f32(d, a, b);
    kw::mma_bf16_f32(e, a, b);
    kw::mma_f16_f16(h, a, b);
    kw::mma_sp_f16_f32<0>(d, a, r, b[0]);
    kw::mma_sp_bf16_f32<1>(e, a, r, b[1]);
    kw::launch_dependents();
#if __CUDA_ARCH__ >= 900
    kw::stmatrix_x4(at + 1024, h[0], h[1], a[0], a[1]);
    __syncthreads();
    h[0] ^= kw::load_shared_4(at + 1024);
#endif
    float low, high;
    kw::unpack2<kw::f16>(h[0], low, high);
    out[threadIdx.x] = d[0] + e[1] + low + high + __uint_as_float(kw::pack2<kw::bf16>(d[2], d[3]) ^ kw::pack2<kw::f16>(e[2], e[3]));
}
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_copies(arch: str) -> None:
    sass = nvrtc_helper.disassemble(nvrtc_helper.compile(COPY, arch).cubin)
    for instruction in ("LDGSTS.E.BYPASS.LTC128B.128", "LDGSTS.E.LTC128B.64", "LDGDEPBAR", "DEPBAR.LE", "LDS.128", "STG.E.128"):
        assert instruction in sass, instruction
    assert "LDGSTS.E.LTC128B.ZFILL" in sass


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_matrix_instructions(arch: str) -> None:
    sass = nvrtc_helper.disassemble(nvrtc_helper.compile(MATRIX, arch).cubin)
    for instruction in (
        "LDSM.16.M88.4",
        "LDSM.16.MT88.4",
        "HMMA.16816.F32 ",
        "HMMA.16816.F32.BF16",
        "HMMA.16816.F16",
        "HMMA.SP.16832.F32 ",
        "HMMA.SP.16832.F32.BF16",
    ):
        assert instruction in sass, instruction
    newer = ("STSM.16.M88.4", "ACQBULK", "PREEXIT")  # stmatrix, griddepcontrol.wait, griddepcontrol.launch_dependents
    for instruction in newer:
        assert (instruction in sass) == (arch == "sm_90"), instruction
