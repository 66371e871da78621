"""The Families of gemm_sm90 as proposers meet them: what they refuse, whether their seeds are legal, what they render."""

from __future__ import annotations

import pytest

from kernelwright.families.family import DeviceFacts
from kernelwright.families.gemm_sm90 import limits
from kernelwright.families.gemm_sm90.family import Persistent, Ring, Tiny, WholeK
from kernelwright.problems import resolve

H200 = DeviceFacts(target="cuda:sm_90", sms=132, smem_per_block=227 * 1024, l2_bytes=50 * 2**20)
FAMILIES = [Persistent(), Ring(), WholeK(), Tiny()]
SHAPES = [
    "64x64x64",
    "64x64x8192",
    "256x1024x256",
    "512x512x512",
    "1000x24x520",
    "1024x1024x16384",
    "64x12288x1024",
    "8192x8192x8192",
    "16384x16384x64",
]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("shape", SHAPES)
def test_seeds_are_legal_distinct_and_render(family, shape: str, layout: str):
    w = resolve(f"gemm:{shape}:fp16:{layout}")
    assert family.refuses(w, H200) is None
    seeds = family.seeds(w, H200)
    assert len({str(sorted(c.items())) for c in seeds}) == len(seeds)
    for config in seeds:
        assert family.illegal(config, w, H200) is None
        candidate = family.render(config, w, H200)
        assert candidate.plan is not None and candidate.origin.name == family.name
        assert ('#include "operands.cuh"' not in candidate.source and "wgmma" in candidate.source) or family.name.endswith("tiny")


def test_some_family_has_seeds_for_every_shape():
    for shape in SHAPES:
        w = resolve(f"gemm:{shape}:bf16:tn")
        assert any(f.seeds(w, H200) for f in FAMILIES)


@pytest.mark.parametrize(
    ("text", "device", "words"),
    [
        ("chain:softmax:8x8", H200, "matrices"),
        ("gemm:64x64x64:fp32", H200, "fp16 and bf16"),
        ("gemm:64x64x63:fp16", H200, "16 bytes"),
        ("gemm:0x64x64:fp16", H200, "empty"),
        ("gemm:64x64x64:fp16", DeviceFacts(target="cuda:sm_80"), "Hopper"),
    ],
)
def test_what_it_refuses(text: str, device: DeviceFacts, words: str):
    for family in FAMILIES:
        assert words in (family.refuses(resolve(text), device) or "")


def test_a_bad_config_is_told_what_is_wrong():
    w = resolve("gemm:512x512x512:fp16")
    for family in FAMILIES:
        good = next(iter(family.seeds(w, H200)), None)
        if good is None:
            continue
        assert "lacks" in (family.illegal({k: v for k, v in good.items() if k != "block_p"}, w, H200) or "")
        assert "not a choice" in (family.illegal(good | {"colour": 3}, w, H200) or "")
        assert "not among" in (family.illegal(good | {"block_p": 65}, w, H200) or "")


@pytest.mark.parametrize(
    ("shape", "family", "tiles"),
    [  # what was fastest on an H200, by some margin
        ("1024x1024x8192", FAMILIES[1], {(64, 128, 1), (128, 64, 1)}),
        ("64x64x8192", FAMILIES[2], {(64, 8, 8), (64, 16, 8), (64, 16, 16), (64, 8, 16)}),
        ("512x512x512", FAMILIES[2], {(64, 32, 1)}),
        ("4096x64x64", FAMILIES[2], {(64, 32, 1), (128, 16, 1)}),
    ],
)
def test_the_first_seed_has_a_tile_that_won(shape: str, family, tiles: set[tuple[int, int, int]]):
    first = family.seeds(resolve(f"gemm:{shape}:fp16:nt"), H200)[0]
    assert (first["block_p"], first["block_q"], first["split_k"]) in tiles


def test_a_group_of_multiprocessors_holds_whole_clusters_only():
    assert [limits.resident_clusters(n, 132) for n in (1, 2, 4, 8, 16)] == [132, 66, 30, 15, 7]
    assert limits.resident_clusters(16, 10) == 1


@pytest.mark.parametrize("family", FAMILIES[:2], ids=lambda f: f.name)
def test_a_suggested_tile_becomes_the_nearest_legal_config(family):
    w = resolve("gemm:4096x4096x4096:fp16:nn")
    config = family.from_tile(128, 256, 64, 4, 1, w, H200)
    assert config is not None and family.illegal(config, w, H200) is None
    assert (config["block_p"], config["block_q"], config["split_k"]) == (128, 256, 1)
    odd = family.from_tile(96, 100, 32, 40, 1, w, H200)
    assert odd is not None and odd["block_p"] in (64, 128) and odd["block_q"] in (96, 112, 128)
    assert family.from_tile(128, 128, 64, 4, 8, resolve("gemm:4096x4096x64:fp16:nn"), H200) is None, "one step of K in eight parts"
