"""Both programs of the proof, on the scripted device: tables are measured, interrupted, completed, then searches are replayed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.learn import table

ROOT = Path(__file__).parents[2]


def run(script: str, *words: str, home: Path) -> str:
    environment = {**os.environ, "KERNELWRIGHT_HOME": str(home), "OMP_NUM_THREADS": "1"}
    command = (sys.executable, str(ROOT / "benchmarks" / script), *words)
    made = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    assert made.returncode == 0, made.stderr
    return made.stdout


@pytest.mark.slow
def test_tables_are_measured_once_and_searches_are_replayed_on_them(tmp_path):
    out, file = tmp_path / "out", tmp_path / "out" / "configs.jsonl.xz"
    words = ("--target", "fake", "--shapes", "1", "--out", str(out))
    run("learning_table.py", *words, "--minutes", "0.05", home=tmp_path)
    _, first = table.read(file)
    assert 0 < len(first) < 2 * 68 + 40 and not (out / "configs.jsonl").exists()
    said = run("learning_table.py", *words, "--minutes", "5", home=tmp_path)
    assert f"176 configs of 3 shapes, {len(first)} measured before" in said
    _, rows = table.read(file)
    assert rows[: len(first)] == first and len({(r.workload, *table.key_of(r.family, r.config)) for r in rows}) == len(rows) == 176
    assert {r.outcome for r in rows} >= {"OK", "WRONG_RESULT", "COMPILE_ERROR"}
    figures = json.loads((out / "table" / "summary.json").read_text())["figures"]
    assert figures["configs"] == figures["of"] == 176

    short = ("--pretrain-steps", "6", "--sft-steps", "4", "--rl-steps", "2", "--workloads", "4", "--width", "32", "--layers", "1")
    run(
        "learning.py",
        "--table",
        str(file),
        *short,
        "--seeds",
        "2",
        "--budget",
        "68",
        "--jobs",
        "1",
        "--target",
        "fake",
        "--proposals",
        "2",
        "--search",
        "random",
        "--out",
        str(out),
        home=tmp_path,
    )
    summary = json.loads((out / "summary.json").read_text())["figures"]
    named = (
        "policy_candidates_to_97pct",
        "random_candidates_to_97pct",
        "policy_first_within_10pct",
        "rl_gain",
        "policy_valid",
        "policy_cheats",
    )
    assert all(summary[name] is not None for name in (*named, "policy_proposal_ms", "pipeline_seconds"))
    free, proposed = summary["policy_free"], table.read(out / "proposals.jsonl.xz")[1]
    assert free["proposals"] == len(proposed) == 2 * 2, "of a dense and a sparse shape"
    assert summary["policy_valid"] == sum(r.outcome == "OK" for r in proposed) / 4 and 0 < free["first_share"] <= 1
    assert {"policy, no contrast", "policy, islands", "policy, random exemplars"} <= set(summary["held_out"]["all"]["searches"])
    assert (out / "curves-all.svg").exists() and (out / "policy.safetensors").stat().st_size < 25 * 2**20
