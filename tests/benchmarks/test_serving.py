"""serving.py: arrivals, queueing, what both contenders meet, resume, summary; a clock that is told what a call takes."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from kernelwright.problems import resolve
from kernelwright.records import Environment
from made_up import made_up_pack
from made_up import product as made_up_product


class FakeTime:
    """Every look takes 1 us; calls take what they say."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self) -> float:
        self.now += 1e-6
        return self.now

    time_ns = staticmethod(lambda: 1)


@pytest.fixture
def program(cpu, tmp_path, monkeypatch):
    import measuring
    import serving

    from kernelwright.runtime import engine

    made_up_pack(tmp_path / "pack", "cpu", Environment(target="cpu", device="made up"), [("gemm:16x16x16:fp32", made_up_product())])
    monkeypatch.setattr(engine, "_paths", [])
    clock, out = FakeTime(), tmp_path / "out"
    seen = {"kw": [], "torch": []}
    monkeypatch.setattr(serving, "time", clock)
    right = dict(serving.CALLS)

    def taking(name, us):
        def call(a, b, c):
            if c[0, 0].isnan():  # when verified
                right[name](a, b, c)
            seen[name].append((clock.now, a.data_ptr(), c.data_ptr()))
            clock.now += us * 1e-6

        return call

    monkeypatch.setattr(serving, "CALLS", {"kw": taking("kw", 20), "torch": taking("torch", 40)})
    mix = [(resolve(f"gemm:{m}x16x16:fp32:nt"), 1.0) for m in (1, 8)] + [(resolve("gemm:32x48x16:fp32:nt"), 2.0)]
    monkeypatch.setattr(serving, "mix_of", lambda *_: mix)

    def run(*words: str, seconds: float = 1e6) -> int:
        base = [str(tmp_path / "pack"), "--out", str(out), "--requests", "400", "--blocks", "3", "--loads", "0.5", "0.9", "1.5", *words]

        def inner(*_: object) -> bool:
            monkeypatch.setattr(sys, "argv", ["serving.py", *base, "--inner", "--seconds", str(seconds)])
            serving.main()
            return True

        monkeypatch.setattr(serving, "supervise", inner)
        monkeypatch.setattr(sys, "argv", ["serving.py", *base])
        with pytest.raises(SystemExit) as ended:
            serving.main()
        return int(ended.value.code or 0)

    return SimpleNamespace(
        run=run,
        out=out,
        seen=seen,
        lines=lambda: measuring.read(out / "samples.jsonl"),
        summary=lambda: json.loads((out / "summary.json").read_text()),
    )


def test_queueing_theory_at_known_service_times(program):
    """The mean wait of an M/D/1 queue is load / (2 (1 - load)) of a service."""
    assert program.run("--blocks", "8") == 0
    summary = program.summary()
    assert summary["figures"]["capacity_over_torch"] == pytest.approx(2, rel=0.05)
    rates = {r["load"]: r for r in summary["rates"]}
    assert rates[0.5]["per_second"] == pytest.approx(0.5 / 40e-6, rel=0.05)
    assert rates[0.5]["torch"]["mean"] == pytest.approx(40 * (1 + 0.5 / (2 * 0.5)), rel=0.1)
    assert rates[0.5]["kw"]["mean"] == pytest.approx(20 * (1 + 0.25 / (2 * 0.75)), rel=0.1), "half the load"
    assert rates[0.9]["over_torch"]["p99"]["ratio"] > rates[0.5]["over_torch"]["p99"]["ratio"] > 2
    assert rates[1.5]["torch"]["p99"] > 4000 > rates[1.5]["kw"]["p99"], "beyond saturation the queue grows"
    assert all(r["over_torch"]["p50"]["low"] <= r["over_torch"]["p50"]["ratio"] <= r["over_torch"]["p50"]["high"] for r in rates.values())
    picture = (program.out / "latency.svg").read_text()
    assert picture.startswith("<svg") and "torch p99" in picture


def test_both_get_the_same_requests_and_a_second_call_goes_on(program):
    assert program.run() == 0
    blocks = [x for x in program.lines() if "load" in x]
    assert [x["end"] for x in blocks] == [f"{load} {n}" for n in range(3) for load in (0.5, 0.9, 1.5)]
    assert len(program.seen["kw"]) == len(program.seen["torch"])
    assert [x[1:] for x in program.seen["kw"]] == [x[1:] for x in program.seen["torch"]]
    counts = np.unique([x[2] for x in program.seen["kw"]], return_counts=True)[1]
    assert max(counts) == pytest.approx(sum(counts) / 2, rel=0.1), "its share is two of four"
    assert program.run("--blocks", "4") == 0
    later = [x["end"] for x in program.lines() if "load" in x][len(blocks) :]
    assert later == ["0.5 3", "0.9 3", "1.5 3"]
    assert sum("capacity" in x for x in program.lines()) == 1, "the rates stay"


def test_without_time_for_a_block_there_is_none(program):
    assert program.run(seconds=0.01) == 0
    assert not any("load" in x for x in program.lines())


def test_a_wrong_result_is_not_timed(program, monkeypatch, capsys):
    import serving

    monkeypatch.setattr(serving, "CALLS", serving.CALLS | {"kw": lambda a, b, c: c.fill_(0)})
    assert program.run() == 2
    assert "kw is wrong" in capsys.readouterr().err


def test_the_decode_mix():
    import serving

    mix = dict(serving.mix_of("decode", "fp16", "nt"))
    assert mix[resolve("gemm:8x28672x4096:fp16:nt")] == 32 and mix[resolve("gemm:128x128256x4096:fp16:nt")] == 1
    assert max(w.axes["M"] for w in mix) == 128 and len(mix) == 2 * 5 * len(serving.TOKENS)
    small = serving.mix_of("hgemm-1000-small", "bf16", "nn")
    assert len(small) == 123 and {(w.dtype, w.layout, share) for w, share in small} == {("bf16", "nn", 1.0)}


def test_warm_up_is_of_the_mix(program, monkeypatch):
    import serving

    warmed = []
    monkeypatch.setattr(serving, "warm_up", lambda products, budget: warmed.extend(w.name for w in products))
    assert program.run("--warmup") == 0
    assert warmed == ["gemm:1x16x16:fp32:nt", "gemm:8x16x16:fp32:nt", "gemm:32x48x16:fp32:nt"]
    assert program.summary()["environment"]["warmup"] is True
