"""host.py: order, rounds, resume, wrong results, summary and pictures; the CPU stands in for the GPU."""

from __future__ import annotations

import csv
import json
import math
import sys
from types import SimpleNamespace

import pytest

from kernelwright.problems import resolve
from kernelwright.problems.suites import suite
from kernelwright.records import Environment
from made_up import made_up_pack
from made_up import product as made_up_product

ROUNDS = {"offline": 5, "server": 3}
PRODUCTS = tuple(w for w in suite("gemm-small") if max(w.axes.values()) <= 128) + tuple(
    resolve(f"gemm:8x{n}x16:fp32") for n in (8, 16, 24, 32)
)
ENVIRONMENT = Environment(target="cpu", device="made up by a test")


@pytest.fixture
def program(cpu, tmp_path, monkeypatch):
    """host.py in this process: `run(*words)` measures and summarises as its two processes do."""
    import host

    from kernelwright.runtime import engine

    made_up_pack(tmp_path / "pack", "cpu", ENVIRONMENT, [("gemm:16x16x16:fp32", made_up_product())])
    monkeypatch.setattr(engine, "_paths", [])
    monkeypatch.setattr(host, "ENQUEUE_ROUNDS", 4)
    monkeypatch.setattr(host, "ENQUEUE_SHAPES", ((16, 16, 16), (32, 32, 32)))
    monkeypatch.setattr(host, "ROUNDS", {mode: dict.fromkeys(("small", "mid", "large", "huge"), n) for mode, n in ROUNDS.items()})
    monkeypatch.setattr(host, "suite", lambda name, dtype=None: PRODUCTS)
    from fake_cuda import FakeCuda
    from thin_calls import ThinCalls

    cuda = FakeCuda(tmp_path)
    monkeypatch.setattr(host, "ThinCalls", lambda: ThinCalls(cuda.exchange()))
    out = tmp_path / "out"

    def run(*words: str, seconds: float = 60) -> int:
        base = [str(tmp_path / "pack"), "--out", str(out), "--dtype", "fp32", "--pause", "0.0001", *words]

        def inner(*_: object) -> bool:
            monkeypatch.setattr(sys, "argv", ["host.py", *base, "--inner", "--seconds", str(seconds)])
            host.main()
            return True

        monkeypatch.setattr(host, "supervise", inner)
        monkeypatch.setattr(sys, "argv", ["host.py", *base])
        with pytest.raises(SystemExit) as ended:
            host.main()
        return int(ended.value.code or 0)

    return SimpleNamespace(
        run=run,
        host=host,
        cpu=cpu,
        out=out,
        lines=lambda: [json.loads(x) for x in (out / "samples.jsonl").read_text().splitlines()],
        results=lambda: list(csv.DictReader((out / "results.csv").read_text().splitlines())),
        summary=lambda: json.loads((out / "summary.json").read_text()),
    )


BESIDE = """
import torch

def of(name):
    if "8x8x16" in name:
        return lambda a, b, c: torch.mm(a, b, out=c)
    return (lambda a, b, c: c.zero_()) if "8x16x16" in name else None
"""


def test_kernels_of_others_are_measured_beside(program, tmp_path):
    (tmp_path / "theirs.py").write_text(BESIDE)
    assert program.run("--layouts", "nn", "--beside", str(tmp_path / "theirs.py")) == 0
    visits = {x["end"]: x for x in program.lines() if x.get("offline")}
    assert set(visits) == {"gemm:8x8x16:fp32:nn", "gemm:8x16x16:fp32:nn"}, "on what they have something for"
    right, wrong = visits["gemm:8x8x16:fp32:nn"], visits["gemm:8x16x16:fp32:nn"]
    assert len(right["offline"]["theirs"]) == 5 and len(right["server"]["theirs"]) == 3
    assert "theirs" not in wrong["offline"] and "theirs is wrong" in wrong["missing"]["theirs"]
    summary = program.summary()
    assert {"offline_over_theirs", "server_over_theirs"} <= set(summary["figures"]) and not summary["wrong"]
    assert {"theirs", "torch"} <= {row["rival"] for row in program.results()}


def test_a_file_that_offers_nothing_is_refused(program, tmp_path, capsys):
    (tmp_path / "theirs.py").write_text("x = 1")
    assert program.run("--beside", str(tmp_path / "theirs.py")) == 2
    assert "defines no function of(workload name)" in capsys.readouterr().err
    assert program.run("--beside", str(tmp_path / "nowhere.py")) == 2


def test_samples_summary_and_pictures(program, monkeypatch):
    monkeypatch.setattr(program.host, "served", lambda a, b: (True, "a calls kernel b"))
    assert program.run("--limit", "6", "--layouts", "nn", "nt") == 0
    visits = [x for x in program.lines() if x.get("offline")]
    tuned = {x["end"].removeprefix("enqueue ") for x in program.lines() if "end" in x}
    assert len(visits) == 6 and program.cpu.tuned == len(tuned), "each once"
    for visit in visits:
        assert set(visit["offline"]) == {"kw", "kw again", "torch", "cublas", "cublaslt", "cublaslt-auto"}
        assert set(visit["server"]) == {"kw", "kw again", "torch", "cublaslt-auto"}
        assert {len(x) for mode in ROUNDS for x in visit[mode].values()} == {5, 3}
    summary = program.summary()
    figures = summary["figures"]
    wanted = {"enqueue_ratio", "offline_over_torch", "server_over_torch", "offline_over_tuned", "server_over_tuned", "offline_over_cublas"}
    assert wanted | {"offline_over_torch_nn", "offline_over_torch_small", "offline_over_cublaslt"} <= set(figures)
    assert all(math.isfinite(figures[name]) and figures[name] > 0 for name in wanted)
    assert "server_over_cublas" not in figures, "it had no rounds"
    assert figures["products"] == {"enqueue": 4, "offline": 6, "server": 6}
    each = summary["outcomes"]["offline_over_torch"]
    assert each["wins"] + each["ties"] + each["losses"] == 6
    losses = [r for r in program.results() if r["outcome"] == "loss" and r["mode"] != "enqueue"]
    assert sorted(float(r["ratio"]) for r in losses) == [r["ratio"] for r in summary["losses"]]
    picture = (program.out / "offline-over-torch-nn.svg").read_text()
    assert picture.startswith("<svg") and "host time, offline" in picture


def test_a_second_call_goes_on_with_what_was_measured_least(program):
    words = ("--modes", "offline", "--layouts", "nn", "--rivals", "torch", "cublaslt-auto")
    assert program.run(*words, "--limit", "3") == 0
    first = [x["end"] for x in program.lines() if x.get("offline")]
    assert program.run(*words, "--limit", "3") == 0
    both = [x["end"] for x in program.lines() if x.get("offline")]
    assert len(set(both)) == 6 and both[:3] == first
    assert program.run(*words) == 0
    every = [x["end"] for x in program.lines() if x.get("offline")]
    new = {w.name for w in PRODUCTS} - set(both)
    assert len(new) > 2 and sorted(every[6 : 6 + len(new)]) == sorted(new), "first those that have nothing"
    assert program.cpu.tuned == len(PRODUCTS), "no product is tuned twice"
    figures = program.summary()["figures"]
    assert figures["products"]["offline"] == len(PRODUCTS)
    row = next(r for r in program.results() if r["product"] == first[0])
    assert int(row["rounds"]) == 2 * ROUNDS["offline"], "both visits count"


def test_a_wrong_result_is_never_timed_and_fails_the_run(program, monkeypatch, capsys):
    import contenders

    right = contenders.Contenders._rival

    def wrong_on_some(self, name, w, sets):
        call = right(self, name, w, sets)
        if name != "cublas" or w.axes["M"] != 64:
            return call

        def off(a, b, c):
            call(a, b, c)
            c[-1, -1] += 3

        return off

    monkeypatch.setattr(contenders.Contenders, "_rival", wrong_on_some)
    words = ("--modes", "offline", "--layouts", "nn")
    assert program.run(*words) == 1
    assert "WRONG: cublas is wrong on gemm:64x64x" in capsys.readouterr().err
    spoiled = [x["end"] for x in program.lines() if "wrong" in x]
    assert len(spoiled) == 1 and not any(x["end"] in spoiled and "offline" in x for x in program.lines() if "end" in x)
    assert len(program.summary()["wrong"]) == 1
    assert program.run(*words, "--limit", "2") == 1, "it stays wrong"
    assert len([x for x in program.lines() if "wrong" in x]) == 1, "and is not tried again"


def test_what_hangs_is_passed_over_and_times_of_another_gpu_are_left_out(program):
    names = [w.name for w in program.host.spread(w.replace(layout="nn") for w in PRODUCTS)]
    words = ("--modes", "offline", "--layouts", "nn", "--rivals", "torch", "--limit", "2")
    assert program.run(*words) == 0
    with (program.out / "samples.jsonl").open("a") as file:
        file.write((json.dumps({"start": names[2]}) + "\n") * 2)
        file.write('{"end": "torn')
    assert program.run(*words) == 0
    ends = [x.get("end") for x in _whole(program.out / "samples.jsonl") if "offline" in x]
    assert ends == [names[0], names[1], names[3], names[4]]
    assert program.summary()["hung_or_crashed"] == [names[2]]
    lines = (program.out / "samples.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    first["environment"]["device"] = "another GPU"
    (program.out / "samples.jsonl").write_text("\n".join([json.dumps(first), *lines[1:]]) + "\n")
    assert program.run(*words[:-2], "--limit", "0") == 0
    assert program.summary()["of_other_devices_or_versions"] == 2 and program.summary()["figures"]["products"]["offline"] == 2


def _whole(path):
    from measuring import read

    return read(path)


def test_no_time_left_is_no_error(program):
    assert program.run("--modes", "offline", seconds=-1) == 0
    assert not any("end" in x for x in program.lines())


def test_every_beginning_of_the_order_has_all_layouts_and_classes(cpu):
    import host

    every = [w.replace(layout=x) for x in ("nn", "nt") for w in suite("hgemm-1000")]
    order = host.spread(every)
    assert set(order) == set(every) and order == host.spread(every)
    beginning = order[:200]
    count = {c: sum(host.class_of(w) == c for w in beginning) for c in ("small", "mid", "large", "huge")}
    assert all(abs(count[c] - share / 5) < 8 for c, share in {"small": 123, "mid": 335, "large": 376, "huge": 166}.items())
    assert abs(sum(w.layout == "nn" for w in beginning) - 100) < 8


def test_only_tuning(program):
    assert program.run("--modes", "tune", "--layouts", "nt", "--limit", "3") == 0
    tuned = [json.loads(x) for x in (program.out / "tuned.jsonl").read_text().splitlines()]
    assert len(tuned) == 3 == program.cpu.tuned and all(len(x["algorithm"]) == 8 for x in tuned)
    assert program.run("--modes", "offline", "--layouts", "nt", "--limit", "3") == 0
    assert program.cpu.tuned == 3


def test_a_part_of_the_rivals_in_a_second_visit(cpu):
    import host

    visits = [{"kw": [1.0, 2.0], "torch": [3.0, 4.0]}, {"kw": [5.0], "cublas": [6.0]}]
    assert host.joined(visits) == {"kw": [1.0, 2.0, 5.0], "torch": [3.0, 4.0, None], "cublas": [None, None, 6.0]}
