"""`kernelwright train`: every stage by one command, on made-up measurements of the scripted device."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernelwright.cli import app

sys.path.append(str(Path(__file__).parents[1] / "learn"))

from made_up_tables import DEVICE, TRAINING, rows

from kernelwright.learn import policy_data, table

RUN = CliRunner()


@pytest.fixture
def few_workloads(monkeypatch):
    monkeypatch.setattr(policy_data.make_corpus, "__defaults__", (0, 6, *policy_data.make_corpus.__defaults__[2:]))


@pytest.mark.slow
def test_one_command_goes_from_measurements_to_evaluated_weights(tmp_path, few_workloads, monkeypatch):
    table.write(tmp_path / "configs.jsonl.xz", DEVICE, rows())
    command = [
        "train",
        "all",
        "--table",
        str(tmp_path / "configs.jsonl.xz"),
        "--out",
        str(tmp_path / "run"),
        "--width",
        "32",
        "--layers",
        "1",
    ]
    command += ["--steps", "pretrain=12", "--steps", "sft=6", "--steps", "rl=3", "--seeds", "2", "--budget", "12", "--jobs", "1", "--json"]
    made = RUN.invoke(app, command)
    assert made.exit_code == 0, made.output
    said = json.loads(made.stdout)
    assert list(said["stages"]) == ["corpus", "pretrain", "sft", "rl", "evaluate"]
    assert said["stages"]["corpus"]["measured"] == len(TRAINING) * 68 and said["stages"]["rl"]["cheats"] == 0
    figures = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert {"random", "evolve", "neighbours", "policy before RL", "policy after RL"} <= set(figures["searches"])
    assert figures["searches"]["policy after RL"]["shapes"] == 4
    assert (tmp_path / "run" / "evaluation.svg").exists()
    again = RUN.invoke(app, [*command[:1], "rl", *command[2:]])
    assert again.exit_code == 0 and json.loads(again.stdout)["stages"]["rl"] == {}, "it is done already"
    monkeypatch.setenv("KERNELWRIGHT_POLICY", str(tmp_path / "run" / "policy.safetensors"))
    proposed = RUN.invoke(
        app,
        [
            "optimize",
            "gemm:64x64x64:fp16",
            "--target",
            "fake",
            "--proposer",
            "policy",
            "--trials",
            "6",
            "--json",
            "--out",
            str(tmp_path / "o"),
        ],
    )
    assert proposed.exit_code == 0, proposed.output
    assert json.loads(proposed.stdout)["trials"] == 6


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("dream",), "STAGE 'dream' is not known; choose from corpus, pretrain, sft, rl, evaluate, all"),
        (("sft",), "run `kernelwright train pretrain"),
        (("pretrain", "--exemplars", "some"), "--exemplars 'some' is not known"),
        (("pretrain", "--width", "40"), "choose a multiple of 32"),
        (("corpus", "--table", "nothing.jsonl"), "cannot be read"),
    ],
)
def test_what_cannot_be_is_one_sentence(tmp_path, words, sentence, few_workloads):
    table.write(tmp_path / "configs.jsonl.xz", DEVICE, rows())
    if words == ("sft",):
        assert RUN.invoke(app, ["train", "corpus", "--table", str(tmp_path / "configs.jsonl.xz"), "--out", str(tmp_path)]).exit_code == 0
    made = RUN.invoke(app, ["train", *words, "--out", str(tmp_path)])
    assert made.exit_code != 0
    assert sentence in " ".join((str(made.exception) + made.output).replace("│", " ").split())
