"""`benchmarks/kernelbench.py`: what it asks the verb, and what stays of earlier calls."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def kernelbench(monkeypatch):
    spec = importlib.util.spec_from_file_location("kernelwright_kernelbench", ROOT / "benchmarks" / "kernelbench.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_levels_of_earlier_calls_stay_and_the_verb_gets_what_was_asked(kernelbench, tmp_path, monkeypatch):
    asked = []

    def ran(command, **_):
        asked.append(command)
        board = {"finished": True, "problems": [], "degenerate": {}, "skipped": [], "entrants": [], "claims": [], "differences": []}
        return subprocess.CompletedProcess(command, 0, json.dumps(board | {"device": "a GPU", "environment": {"versions": {"torch": "2"}}}))

    monkeypatch.setattr(kernelbench.subprocess, "run", ran)
    monkeypatch.setattr(sys, "argv", ["benchmarks/kernelbench.py"])
    (tmp_path / "summary.json").write_text(json.dumps({"figures": {"level 2": {"finished": True}}}))
    path = str(ROOT / "examples" / "kernelbench")
    options = ["--path", path, "--out", str(tmp_path), "--levels", "1", "--sample", "2", "--target", "cpu"]
    assert kernelbench.main([*options, "--mode", "device-warm", "--patience", "90", "--no-lint", "--no-operators"]) == 0
    found = json.loads((tmp_path / "summary.json").read_text())
    assert found["figures"].keys() == {"level 1", "level 2"} and found["environment"]["versions"] == {"torch": "2"}
    words = " ".join(asked[0])
    assert "--mode device-warm" in words and "--patience 90.0" in words and words.endswith("--no-lint --no-operators")


def test_a_larger_sample_holds_the_smaller(kernelbench, tmp_path):
    options = ["--path", str(ROOT / "examples" / "kernelbench"), "--out", str(tmp_path), "--target", "cpu", "--sample"]
    small, large = (kernelbench.sample("1", kernelbench._options([*options, n])) for n in ("2", "5"))
    assert len(small) == 2 and set(small) < set(large)
