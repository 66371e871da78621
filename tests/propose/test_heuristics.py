from __future__ import annotations

import pytest
from toy_family import Toy

from kernelwright.families.family import DeviceFacts
from kernelwright.propose import heuristics, make
from kernelwright.propose.heuristics import available, ranked_tiles, tile_configs
from kernelwright.records import Workload

H200 = DeviceFacts(target="cuda:sm_90", name="NVIDIA H200", sms=132, smem_per_block=232448)
A100 = DeviceFacts(target="cuda:sm_80", name="NVIDIA A100-SXM4-80GB", sms=108)
GEMM = Workload(problem="gemm", axes={"M": 512, "N": 1024, "K": 16384}, dtype="fp16", layout="nn")

needs_library = pytest.mark.skipif(not available(), reason="nvidia-matmul-heuristics is not installed")


class Tiled(Toy):
    def from_tile(self, bm, bn, bk, stages, split_k, w, device):
        return {"bm": bm, "bn": bn, "stages": stages, "order": "row", "split": split_k, "vector": True}


@needs_library
@pytest.mark.parametrize("device", [H200, A100])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_tiles_are_plausible(device, layout, dtype):
    tiles = ranked_tiles(GEMM.replace(layout=layout, dtype=dtype), device)
    assert len(tiles) == len(set(tiles)) >= 4
    for t in tiles:
        assert t.bm % 8 == t.bn % 8 == t.bk % 8 == 0 and min(t.stages, t.split_k, t.cluster_m, t.cluster_n) >= 1


@needs_library
def test_hopper_gets_clusters_and_split_k_and_ampere_no_cluster():
    """512 x 1024 fills a fraction of 132 SMs, so K = 16384 should be split."""
    tiles = ranked_tiles(GEMM, H200)
    assert any(t.cluster_m * t.cluster_n > 1 for t in tiles) and any(t.split_k > 1 for t in tiles)
    assert all(t.cluster_m * t.cluster_n == 1 for t in ranked_tiles(GEMM, A100))


@needs_library
def test_where_it_does_not_apply_there_are_no_tiles():
    assert ranked_tiles(GEMM, DeviceFacts(target="cpu")) == []
    assert ranked_tiles(GEMM, DeviceFacts(target="cuda:sm_75", name="Tesla T4")) == []
    assert ranked_tiles(GEMM.replace(problem="chain:softmax"), H200) == []
    assert ranked_tiles(GEMM.replace(axes={"M": 0, "N": 8, "K": 8}), H200) == []
    assert ranked_tiles(GEMM.replace(dtype="bf16", accumulate="fp16"), H200) == []
    assert ranked_tiles(GEMM, DeviceFacts(target="cuda:sm_90")) != [], "an unnamed Hopper counts as an H100"


@needs_library
def test_a_family_that_takes_tiles_is_seeded_by_them():
    assert tile_configs(Toy(), GEMM, H200) == []
    configs = tile_configs(Tiled(), GEMM, H200)
    assert len(configs) >= 2 and len({str(c) for c in configs}) == len(configs)
    space = Tiled().space(GEMM, H200)
    usable = [c for c in configs if all(c[k] in space[k] for k in space) and not Tiled().illegal(c, GEMM, H200)]
    first = make("random", GEMM, [Tiled()], H200).propose(len(usable))
    assert [c.origin.config for c in first] == usable, "tiles come before the family's own seeds"


def test_without_the_library_there_are_no_tiles(monkeypatch):
    monkeypatch.setattr(heuristics, "find_spec", lambda name: None)
    heuristics._library.cache_clear()
    try:
        assert not available() and ranked_tiles(GEMM, H200) == []
        assert len(make("random", GEMM, [Tiled()], H200).propose(3)) == 3
    finally:
        heuristics._library.cache_clear()
