"""benchmarks/sparse_models.py on the CPU: a small Llama decodes with either side's layers, a small model has its quality measured."""

from __future__ import annotations

import argparse
import json

import engines
import pytest
import sparse_models
import torch

from kernelwright.problems.suites import Model, suite

pytest.importorskip("transformers")
TINY = Model("Llama-2-7B", 32, 64, 2, 2, 16, 96, blocks=1)


def test_a_model_decodes_with_both_sides_layers(cpu, monkeypatch, tmp_path):
    monkeypatch.setattr(sparse_models, "SPARSE_MODELS", (TINY,))
    for module in (engines, sparse_models):
        monkeypatch.setattr(module, "STEPS", 1)
    more = {"packs": [], "models": ["Llama-2-7B"], "batches": [1], "context": 16, "layers": None, "engine": "eager", "real": None}
    args = argparse.Namespace(seconds=60.0, hang=60.0, out=tmp_path, dtype="bf16", cell_seconds=2.0, **more)
    raw = tmp_path / "samples.jsonl"
    sparse_models.measure(args, raw)
    cells = [line for line in sparse_models.read(raw) if line.get("samples")]
    assert [line["batch"] for line in cells] == [1] and not any(line["wrong"] or line["failed"] for line in cells)
    assert cells[0]["served"] == {"products": 4, "by_kernels": 0} and cells[0]["joined"] == 2
    (memory,) = [line for line in sparse_models.read(raw) if "peaks" in line]
    assert memory["weights"]["sparse"] < memory["weights"]["dense"] * 3  # records of tiny layers are padding
    count = len(sparse_models.read(raw))
    sparse_models.measure(args, raw)
    assert len(sparse_models.read(raw)) == count + 1, "the environment alone"
    sparse_models.summarise(raw, tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["figures"]["llama_2_7b_decode_b1"] > 0 and summary["cells"][0]["tokens_per_second"] > 0


def test_quality_is_measured_before_and_after_each_method(cpu, monkeypatch, tmp_path):
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, tie_word_embeddings=False
    )
    folder = tmp_path / "real"
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    spelled = type("Spelled", (), {"__call__": lambda self, text: {"input_ids": [ord(c) % 64 for c in text[:4000]]}})
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda folder: spelled())
    monkeypatch.setattr(sparse_models, "SEQUENCE", 64)
    for name in ("CALIBRATION", "HELD_OUT"):
        monkeypatch.setattr(sparse_models, name, 8)
    args = argparse.Namespace(seconds=60.0, hang=60.0, out=tmp_path, packs=[], real=folder)
    sparse_models.measure(args, tmp_path / "samples.jsonl")
    found = {line["method"]: line for line in sparse_models.read(tmp_path / "samples.jsonl") if "perplexity" in line}
    assert list(found) == list(sparse_models.METHODS)
    assert found["magnitude"]["compressed"] == pytest.approx(found["magnitude"]["as_half"], rel=0.01)
    assert found["dense"]["perplexity"] != found["sparsegpt"]["perplexity"]
    sparse_models.summarise(tmp_path / "samples.jsonl", tmp_path)
    assert "perplexity_2_4_magnitude" in json.loads((tmp_path / "summary.json").read_text())["figures"]


def test_the_suite_of_a_model_has_its_joined_layers():
    found = {w.name for w in suite("sparse-llama-2-7b")}
    assert {"spmm:1x12288x4096:fp16:quad-50", "spmm:32x22016x4096:fp16:quad-50:swiglu", "unpack:4096x11008:fp16:quad-50"} <= found
    assert len(suite("sparse-50-three-layer")) == 45
