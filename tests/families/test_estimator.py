"""Many configs on many products at once: what a Family says of each alone."""

from __future__ import annotations

import numpy as np
import pytest

from kernelwright.families import DeviceFacts, family
from made_up_products import product

H200 = DeviceFacts(target="cuda:sm_90", sms=132, smem_per_block=227 * 1024)
SHAPES = [(64, 64, 64), (192, 4096, 512), (4096, 2048, 8192)]


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("name", ["gemm_sm90_persistent", "gemm_sm90_ring", "gemm_sm90_tiny", "gemm_sm90_whole_k", "gemm_sm80"])
def test_an_estimator_says_what_the_estimates_say(name, layout):
    one, like = family(name), product(256, 256, 256, layout)
    configs = list(one.seeds(like, H200)) or list(family(name).seeds(product(64, 64, 64, "nt"), H200))
    axes = {a: np.array([[shape[i]] for shape in SHAPES]) for i, a in enumerate("MNK")}
    found = one.estimator(configs, like, H200)(axes)
    assert found.shape == (len(SHAPES), len(configs))
    expected = [[one.estimate(c, product(*shape, layout), H200) for c in configs] for shape in SHAPES]
    assert found == pytest.approx(np.array(expected))
    # an axis may differ from config to config
    longer = one.estimator(configs, like, H200)(axes | {"K": np.maximum(axes["K"], [[1024] * len(configs)])})
    assert (longer >= found - 1e-9).all() and (longer[0] > found[0]).any()


def test_without_a_model_there_is_no_number():
    one, w = family("gemm_cpu"), product(64, 64, 64).replace(dtype="fp32")
    configs = list(one.seeds(w, DeviceFacts(target="cpu", threads=4, isa=frozenset(("avx2", "fma")))))[:2]
    found = one.estimator(configs, w, DeviceFacts(target="cpu"))({a: np.array([[64], [128]]) for a in "MNK"})
    assert found.shape == (2, len(configs)) and np.isnan(found).all()
