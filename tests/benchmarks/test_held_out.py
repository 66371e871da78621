"""The script that asks a pack about products it was not tuned for, run as a user does, on made-up times of real kernels."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kernelwright.archive import Archive
from made_up_kernels import GRID, trials

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from tree import grow  # noqa: E402


@pytest.mark.slow
def test_decisions_about_held_out_shapes_are_judged_by_what_the_archive_measured(tmp_path):
    with Archive(tmp_path / "archive.db") as archive:
        for w in GRID:
            if max(w.axes.values()) <= 512:
                best, *others = trials(w)
                for t in (best, *(t.replace(stage="screen") for t in others)):
                    archive.append(t)
    words = (sys.executable, str(ROOT / "benchmarks" / "dispatch.py"), str(tmp_path / "archive.db"), "--out", str(tmp_path / "out"))
    made = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert set(summary) == {"command", "date", "environment", "figures", "losses"}
    assert set(summary["figures"]) == {"random half", "inside the grid", "edge of the grid"}
    half = {who: sizes["all"] for who, sizes in summary["figures"]["random half"].items()}
    assert {f["decisions"] for f in half.values()} == {3 * 32}
    assert half["library"]["dispatched_over_vendor"] == 1 and half["library"]["losses"] == 0
    assert half["best"]["regret"] <= half["predictor, measured"]["regret"] < half["library"]["regret"]
    assert half["predictor"]["dispatched_over_vendor"] < 0.9 and half["predictor"]["within_2_spreads"] > 0.8
    for f in half.values():
        assert f["regret"] >= 0 and f["best_over_vendor"] <= f["dispatched_over_vendor"] * (1 + 1e-9)
    # everything is measured here, so nothing is left out
    assert half["nearest"]["unmeasured"] == 0


def test_without_archives_there_is_one_sentence(tmp_path):
    words = (sys.executable, str(ROOT / "benchmarks" / "dispatch.py"), str(tmp_path / "none.db"), "--out", str(tmp_path / "out"))
    made = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert made.returncode == 1 and "there is no archive" in made.stderr and not (tmp_path / "out").exists()


def test_a_tree_finds_the_cuts():
    x = np.array([[float(a), float(b)] for a in range(8) for b in range(8)])
    labels = np.where(x[:, 0] < 4, 0, np.where(x[:, 1] < 2, 1, 2))
    root = grow(x, labels)

    def ask(point):
        node = root
        while not isinstance(node, list):
            feature, limit, low, high = node
            node = low if point[feature] <= limit else high
        return node[0]

    assert [ask(p) for p in x] == labels.tolist()
    assert grow(x[:5], labels[:5]) == [0], "too few to cut"
