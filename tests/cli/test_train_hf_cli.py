"""`kernelwright train-hf` as a user types it: the corpus, and requests that cannot be met. Training: tests/learn/test_hf_train.py."""

from __future__ import annotations

import importlib.util
import json

import pytest
from test_cli import kernelwright


def test_a_corpus_is_made_once(tmp_path):
    run, problem = tmp_path / "run", "chain:hardswish:8x64"
    command = ("train-hf", "corpus", "--out", str(run), "--target", "cpu", "--json")
    none = kernelwright(*command, home=tmp_path)
    assert none.returncode == 2 and "let some be drawn with --render" in json.loads(none.stdout)["error"]
    two = ("--workload", problem, "--workload", "chain:silu-mul:8x64")
    done = kernelwright(*command, *two, "--render", "2", "--held-out", "1", home=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["corpus"]
    assert found["train"] == found["held_out"] == 1 and 1 <= found["kernels"] <= 2 and found["pairs"] >= 1
    assert len((run / "corpus" / "pairs.jsonl").read_text().splitlines()) == found["pairs"]
    again = kernelwright(*command, home=tmp_path)
    assert json.loads(again.stdout)["corpus"] == found | {"done": "earlier"}
    anew = kernelwright(*command, *two, "--fresh", home=tmp_path)
    assert json.loads(anew.stdout)["corpus"]["held_out"] == 0, "written anew: nothing is held out this time"
    # what was measured for it is in the archive, with its reward
    rewards = json.loads(kernelwright("archive", "rewards", problem, "--json", home=tmp_path).stdout)
    ((title, rows),) = rewards.items()
    assert title.startswith(f"{problem}:fp32 on ") and len(rows) == 2 and all(r["reward"] > 0 for r in rows if r["outcome"] == "OK")
    assert [r["reward"] for r in rows] == sorted((r["reward"] for r in rows), reverse=True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tune",), "STAGE 'tune' is not known; choose from corpus, pretrain, sft, keep, grpo, evaluate, all"),
        (("grpo", "--exemplars", "best"), "--exemplars 'best' is not known"),
        (("sft", "--steps", "sft=none"), "write one like 300, or sft=300 for one stage"),
        (("sft", "--steps", "-5"), "is not a number in range"),
        (("sft", "--batch", "all=4"), "--batch 'all' is not known"),
        (("evaluate", "--part", "test"), "choose from train, held_out"),
    ],
)
def test_wrong_requests_get_one_sentence(tmp_path, arguments, said):
    done = kernelwright("train-hf", *arguments, "--out", str(tmp_path / "run"), home=tmp_path)
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1


def test_what_is_missing_is_named(tmp_path):
    done = kernelwright("train-hf", "sft", "--out", str(tmp_path / "run"), "--model", "somewhere", home=tmp_path)
    assert done.returncode == 2 and len(done.stderr.splitlines()) >= 1
    if importlib.util.find_spec("trl") is None:
        assert 'pip install "kernelwright[train]"' in done.stderr
    else:
        assert "make it with: kernelwright train-hf corpus" in done.stderr
        done = kernelwright("train-hf", "sft", "--out", str(tmp_path / "run"), home=tmp_path)
        assert "no stage before sft has made a model" in done.stderr
