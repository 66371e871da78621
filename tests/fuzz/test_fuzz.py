"""A short run of the fuzzer, the same inputs every time, and that it finds what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from fuzzing import engine

import fuzz

FAST = (
    "records",
    "plans",
    "candidate files",
    "problem texts",
    "problem files",
    "pack manifests",
    "pack files",
    "archives",
    "imports",
    "environment",
)


@pytest.fixture(scope="module")
def areas():
    with engine.prepared() as folder:
        yield {a.name: a for a in fuzz.areas(folder)}


@pytest.mark.parametrize("name", FAST)
def test_malformed_input_is_refused_in_one_sentence(areas, name):
    area = areas[name]
    fuzzer = engine.Fuzzer([area], seed=1)
    fuzzer.fuzz({"problem files": 15, "archives": 40, "pack files": 40}.get(name, 200))
    assert not fuzzer.faults, next(iter(fuzzer.faults.values()))
    assert area.inputs >= 15 and len(area.corpus) >= 2


def test_every_verb_ends_with_a_sentence(areas):
    fuzzer = engine.Fuzzer([areas["command line"]], seed=1)
    fuzzer.fuzz(70)
    assert not fuzzer.faults, next(iter(fuzzer.faults.values()))


@pytest.mark.parametrize(
    ("error", "is_fault"),
    [
        (KeyError("x"), True),
        (ValueError("give a number"), False),
        (ValueError(""), True),
        (AssertionError("no"), True),
        (OSError("gone"), False),
    ],
)
def test_what_counts_as_a_fault(error, is_fault):
    def run(data: bytes) -> None:
        raise error

    area = engine.Area("made up", 1, [b"x"], [b"y"], run)
    with engine.prepared():
        fuzzer = engine.Fuzzer([area], seed=0)
        fuzzer.fuzz(5)
    assert bool(fuzzer.faults) == is_fault and area.inputs == 5


def test_a_hang_is_a_fault(monkeypatch):
    monkeypatch.setattr(engine, "HANG_SECONDS", 0.2)

    def run(data: bytes) -> None:
        try:
            while True:
                pass
        except Exception:
            pass

    with engine.prepared():
        fuzzer = engine.Fuzzer([engine.Area("made up", 1, [b"x"], [], run)], seed=0)
        fuzzer.fuzz(1)
    assert [f.kind for f in fuzzer.faults.values()] == ["Hang"]


def test_the_same_seed_gives_the_same_inputs():
    seen: list[list[bytes]] = [[], []]
    for inputs in seen:
        area = engine.Area("made up", 1, [b'{"a": [1, "x"]}', b"M * 2"], [b"N"], inputs.append)
        with engine.prepared():
            engine.Fuzzer([area], seed=7).fuzz(300)
    assert seen[0] == seen[1] and len(set(seen[0])) > 150
