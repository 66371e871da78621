// The tensor map a kernel takes as `const __grid_constant__ CUtensorMap`. NVRTC has no <cuda.h>, which declares it elsewhere; the tag
// must be this one, because the CUDA C++ library forward-declares `CUtensorMap_st`.
#pragma once

struct alignas(64) CUtensorMap_st {
    unsigned long long opaque[16];
};
typedef CUtensorMap_st CUtensorMap;
