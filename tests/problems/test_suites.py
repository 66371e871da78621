from __future__ import annotations

import pytest

from kernelwright.problems import ProblemError, problem_of, resolve
from kernelwright.problems.suites import LLM_SHAPES, SIZE_CLASSES, SUITES, labels, suite


@pytest.mark.parametrize("name", SUITES)
def test_every_workload_can_be_typed_and_has_a_problem(name):
    workloads = suite(name)
    assert len(set(workloads)) == len(workloads) > 0
    for w in workloads[:: max(1, len(workloads) // 40)]:
        assert resolve(w.name) == w
        assert problem_of(w).tensors(w)


def test_sizes_of_the_suites():
    assert len(suite("hgemm-1000")) == 1000
    classes = [suite(f"hgemm-1000-{name}") for name in SIZE_CLASSES]
    assert [len(c) for c in classes] == [123, 335, 376, 166]
    assert set().union(*classes) == set(suite("hgemm-1000"))
    assert len(suite("gemm-dozen")) == 12
    assert len(suite("gemm-small")) == 20
    assert len(suite("chains")) == 12
    assert {w.dtype for w in suite("chains-llm")} == {"fp16", "bf16"}


def test_a_suite_in_another_dtype():
    assert {w.dtype for w in suite("llm-shapes", dtype="fp16")} == {"fp16"}


def test_projections_carry_the_names_of_their_models():
    w = resolve("gemm:16x4096x4096:bf16:nt")
    assert w in suite("llm-shapes")
    assert labels(w) == ("Llama-3.1-8B o", "Mistral-7B-v0.3 o")
    assert labels(resolve("gemm:16x4096x4096:bf16:nn")) == labels(resolve("chain:softmax")) == ()
    assert all(labels(w) for w in suite("llm-shapes"))


def test_known_projections():
    """From the models' config.json files: query heads + 2 x key-value heads, times the size of a head."""
    shapes = {(model, layer): (n, k) for model, layer, n, k in LLM_SHAPES}
    assert shapes["Llama-3.1-70B", "qkv"] == (10240, 8192)
    assert shapes["Qwen2.5-7B", "gate_up"] == (37888, 3584)
    assert shapes["Qwen3-32B", "o"] == (5120, 8192)
    assert shapes["Gemma-2-9B", "qkv"] == (8192, 3584)
    assert shapes["DeepSeek-V3", "q_b"] == (24576, 1536)


def test_linear_layers_as_transformers_computes_them():
    llama, qwen = suite("llama-3.1-8b"), suite("qwen2.5-7b", dtype="fp16")
    assert {(w.axes["N"], w.axes["K"]) for w in llama} == {
        (4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336), (128256, 4096)
    }  # fmt: skip
    biased = {(w.axes["N"], w.axes["K"]) for w in qwen if w.epilogue == "bias"}
    assert biased == {(3584, 3584), (512, 3584)} and {w.problem for w in llama} == {"gemm"}
    assert resolve("gemm:1x3584x3584:fp16:nt") in qwen, "the output projection has none"
    assert {w.axes["M"] for w in llama if w.axes["N"] == 128256} == {1, 8, 32, 128}


def test_an_unknown_suite_lists_the_known_ones():
    with pytest.raises(ProblemError, match="unknown suite 'hgemm'; known are hgemm-1000"):
        suite("hgemm")
