"""models.py and engines.py with tiny models on the CPU: every engine, resume, what fails, what is wrong. Without capturing; compiled by
Dynamo alone."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from server import Server

from kernelwright.problems.suites import Model, suite
from kernelwright.records import Environment
from kernelwright.runtime import api, ops  # noqa: F401  (api sets ops.serve as it is imported)
from made_up import made_up_pack
from made_up import product as made_up_product

pytest.importorskip("transformers")

TINY = (Model("Llama-3.1-8B", 64, 128, 4, 2, 16, 100), Model("Qwen2.5-7B", 64, 96, 4, 2, 16, 90))


@pytest.fixture
def program(cpu, tmp_path, monkeypatch):
    import engines
    import measuring
    import models

    from kernelwright.runtime import engine

    made_up_pack(tmp_path / "pack", "cpu", Environment(target="cpu", device="made up"), [("gemm:16x16x16:fp32", made_up_product())])
    monkeypatch.setattr(engine, "_paths", [])
    monkeypatch.setattr(engines, "MODELS", TINY)
    monkeypatch.setattr(engines, "LAYERS", dict.fromkeys((m.name for m in TINY), 2))
    monkeypatch.setattr(engines, "MOST_ROUNDS", 3)
    monkeypatch.setattr(engines, "STEPS", 2)
    monkeypatch.setattr(engines, "COMPILE", {"dynamic": False, "backend": "eager"})
    monkeypatch.setattr(engines, "captured", lambda run, step, pool: step)
    server = Server()
    monkeypatch.setattr(ops, "serve", server)
    out = tmp_path / "out"

    def run(*words: str, seconds: float = 400) -> int:
        base = [str(tmp_path / "pack"), "--out", str(out), "--cell-seconds", "100", *words]

        def inner(*_: object) -> bool:
            monkeypatch.setattr(sys, "argv", ["models.py", *base, "--inner", "--seconds", str(seconds)])
            try:
                models.main()
            except SystemExit as ended:
                return not ended.code
            return True

        monkeypatch.setattr(models, "supervise", inner)
        monkeypatch.setattr(sys, "argv", ["models.py", *base])
        with pytest.raises(SystemExit) as ended:
            models.main()
        return int(ended.value.code or 0)

    return SimpleNamespace(
        run=run,
        models=models,
        engines=engines,
        server=server,
        out=out,
        lines=lambda: measuring.read(out / "samples.jsonl"),
        summary=lambda: json.loads((out / "summary.json").read_text()),
    )


CELLS = ("--cells", "decode:2x16", "prefill:2x8", "--engines", "eager", "graph")


def test_both_models_and_phases(program):
    assert program.run(*CELLS) == 0
    ends = [x for x in program.lines() if "end" in x]
    assert [(x["model"], x["phase"]) for x in ends] == [(m.name, p) for m in TINY for p in ("decode", "prefill")]
    for line in ends:
        assert set(line["samples"]) == {f"{side} {engine}" for side in ("kw", "kw again", "torch") for engine in ("eager", "graph")}
        assert len({len(x) for x in line["samples"].values()}) == 1 and not line["wrong"] and not line["failed"]
        assert set(line["logits"]) == {f"{side} {engine}" for side in ("kw", "torch") for engine in ("eager", "graph")}
        assert line["logits"]["torch graph"] == 0
    asked = set(program.server.calls)
    assert ((2, 64, 64), "") in asked and ((2, 64, 64), "bias") in asked, "Qwen's query has a bias"
    assert ((16, 128, 64), "") in asked and ((2, 100, 64), "") in asked
    assert ((16, 100, 64), "") not in asked, "lm_head: the last tokens alone"
    summary = program.summary()
    assert {"decode_over_eager", "prefill_over_graph", "decode_over_best"} <= set(summary["figures"])
    units = {row["phase"]: row["unit"] for row in summary["cells"]}
    assert units == {"decode": "tokens/s", "prefill": "ms to the first token"}
    assert all(row["value"] > 0 and row["low"] <= row["ratio"] <= row["high"] for row in summary["cells"])


def test_a_second_call_goes_on_and_other_engines_are_another_measurement(program):
    words = ("--models", "Llama-3.1-8B", "--cells", "decode:1x16", "prefill:1x8", "--engines")
    assert program.run(*words, "eager", seconds=-1) == 0
    assert not any("end" in x for x in program.lines())
    assert program.run(*words, "eager") == 0 and program.run(*words, "eager") == 0
    assert program.run(*words[:4], "--engines", "graph") == 0
    assert [x["end"].partition("bf16 ")[2] for x in program.lines() if "end" in x] == [
        "decode:1x16 [eager]", "prefill:1x8 [eager]", "decode:1x16 [graph]"
    ]  # fmt: skip


@pytest.mark.slow
def test_compiled(program, monkeypatch):
    monkeypatch.setattr(program.engines, "LAYERS", {m.name: 1 for m in TINY})
    words = ("--models", "Llama-3.1-8B", "--cells", "decode:1x16", "--engines", "eager", "compile", "compile-graph")
    before = program.server.calls.copy()
    assert program.run(*words) == 0
    (line,) = [x for x in program.lines() if "end" in x]
    assert not line["failed"] and not line["wrong"] and {"kw compile", "torch compile", "kw compile-graph"} <= set(line["logits"])
    assert len(program.server.calls) > len(before)
    assert "decode_over_best_compile" in program.summary()["figures"]


def test_a_wrong_kernel_is_never_timed_and_fails_the_run(program, monkeypatch, capsys):
    def wrong(a, b, out, *rest):
        program.server(a, b, out, *rest)
        out.mul_(1.5)
        return True

    monkeypatch.setattr(ops, "serve", wrong)
    assert program.run("--models", "Llama-3.1-8B", *CELLS) == 1
    assert "WRONG: Llama-3.1-8B bf16 decode:2x16: kw eager differs" in capsys.readouterr().err
    assert not any(x.get("samples") for x in program.lines())


def test_an_engine_that_fails_is_passed_over(program, monkeypatch):
    def captured(run, step, pool):
        raise RuntimeError("cannot capture this\nand more")

    monkeypatch.setattr(program.engines, "captured", captured)
    assert program.run("--models", "Llama-3.1-8B", *CELLS) == 0
    for line in (x for x in program.lines() if "end" in x):
        assert line["failed"]["kw graph"] == "RuntimeError: cannot capture this"
        assert set(line["samples"]) == {"kw eager", "kw again eager", "torch eager"}


def test_an_engine_that_spoils_the_context_is_left_out_by_the_next_process(program, monkeypatch):
    def captured(run, step, pool):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(program.engines, "captured", captured)
    words = ("--models", "Llama-3.1-8B", "--cells", "decode:2x16", "--engines", "eager", "graph")
    assert program.run(*words) == 1, "what would start the next process"
    assert [x["engine"] for x in program.lines() if "spoils" in x] == ["graph"]
    assert program.run(*words) == 0
    (line,) = [x for x in program.lines() if "end" in x]
    assert "illegal memory" in line["failed"]["graph"] and "kw eager" in line["samples"]


def test_no_memory_for_a_cell(program, monkeypatch):
    def build(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")

    monkeypatch.setattr(program.models, "build", build)
    assert program.run("--models", "Llama-3.1-8B", *CELLS) == 0
    assert all("out of memory" in x["failed"]["all"] for x in program.lines() if "end" in x)


def test_the_model_is_torchs_again_and_a_long_cell_is_left_out(program, monkeypatch):
    import measuring

    model = program.engines.build("Llama-3.1-8B", "bf16", 1)
    cell = program.engines.Cell.parse("Llama-3.1-8B", "bf16", "prefill:1x8")
    line = program.engines.measured(model, cell, ["eager"], 0.0, measuring.Budget(100, 100))
    assert "a round takes" in line["left_out"] and not line["logits"], "before anything is prepared"
    assert {type(m) for m in model.modules() if isinstance(m, torch.nn.Linear)} == {torch.nn.Linear}


def test_warm_up_is_of_the_products_of_the_cells_to_come(program, monkeypatch):
    warmed = []
    monkeypatch.setattr(program.models, "warm_up", lambda products, budget: warmed.append({w.name for w in products}))
    words = ("--models", "Qwen2.5-7B", *CELLS, "--warmup")
    assert program.run(*words) == 0 and program.run(*words) == 0, "the second time there is nothing to come"
    (names,) = warmed
    shapes = {(tuple(int(n) for n in name.split(":")[1].split("x")), "bias" if name.startswith("linear") else "") for name in names}
    assert {((2, 64, 64), "bias"), ((16, 32, 64), "bias"), ((16, 96, 64), ""), ((2, 90, 64), "")} <= shapes
    assert ((16, 90, 64), "") not in shapes and program.summary()["environment"]["warmup"] is True


def test_what_was_left_out_is_measured_by_a_call_with_more_time(program):
    words = ("--models", "Qwen2.5-7B", "--cells", "prefill:2x8", "--engines", "eager")
    assert program.run(*words, "--cell-seconds", "0") == 0 and program.summary()["left_out"]
    assert program.run(*words) == 0
    assert not program.summary()["left_out"] and len(program.summary()["cells"]) == 2


def test_the_time_that_ends_in_a_cell_leaves_it_for_the_next_call(program, monkeypatch):
    import measuring

    model = program.engines.build("Llama-3.1-8B", "bf16", 1)
    cell = program.engines.Cell.parse("Llama-3.1-8B", "bf16", "prefill:1x8")
    assert program.engines.measured(model, cell, ["eager"], 100.0, measuring.Budget(0, 100)) is None


def test_cells_that_nobody_can_read(program, capsys):
    assert program.run("--cells", "decode") == 1
    assert "'decode' is no cell" in capsys.readouterr().err


def test_the_suites_hold_every_layer_of_every_cell(monkeypatch, cpu):
    """Which workloads the named `tune` commands cover, from transformers' own modules."""
    import engines
    import models
    from transformers import AutoModelForCausalLM

    import kernelwright.problems.suites as suites

    transformers = engines.huggingface()
    for name, of in suites.UNFUSED.items():
        model = next(m for m in suites.MODELS if m.name == of)
        with torch.device("meta"):
            made = AutoModelForCausalLM.from_config(engines.config_of(transformers, model, 1))
        have = {(w.axes["M"], w.axes["N"], w.axes["K"], w.epilogue) for w in suite(name)}
        for text in models.CELLS:
            cell = engines.Cell.parse(of, "bf16", text)
            if cell.tokens > max(suites.PREFILL_TOKENS):
                continue
            for layer, module in made.named_modules():
                if isinstance(module, torch.nn.Linear):
                    m = cell.batch if layer == "lm_head" else cell.tokens
                    assert (m, *module.weight.shape, "bias" if module.bias is not None else "") in have, f"{layer} of {text}"
