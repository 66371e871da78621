"""What all stages of training share: a folder with checkpoints, and curves as CSV, as SVG, and in TensorBoard where it is installed."""

from __future__ import annotations

import csv
import os
import pickle
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from kernelwright.learn.policy_model import Policy, PolicyError, Size
from kernelwright.learn.policy_vocabulary import Vocabulary
from kernelwright.report.lines import Line, chart

STAGES = ("pretrain", "sft", "rl")


class Checkpoint:
    """One stage's state, replaced whole. Every step draws from a generator of its own (seed, stage, step), so this is all of it."""

    def __init__(self, folder: Path, stage: str, settings: Mapping[str, Any]):
        self.path, self.stage, self.settings = folder / f"{stage}.pt", stage, dict(settings)

    def save(self, policy: Policy, optimizer: torch.optim.Optimizer, step: int) -> None:
        state = {
            "settings": self.settings,
            "size": asdict(policy.size),
            "spaces": policy.vocabulary.spaces,
            "policy": policy.state_dict(),
            "optimizer": optimizer.state_dict(),
            "step": step,
        }
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}.partial")
        torch.save(state, partial)
        partial.replace(self.path)

    def resume(self, policy: Policy, optimizer: torch.optim.Optimizer) -> int:
        """Steps that are done, with policy and optimizer as they were then; 0 without a file. Raises PolicyError where the file was begun
        with other settings."""
        if not self.path.exists():
            return 0
        state = _read(self.path)
        if state["settings"] != self.settings:
            changed = sorted(k for k in self.settings if state["settings"].get(k) != self.settings[k])
            raise PolicyError(
                f"{self.path} was begun with another {', '.join(changed)}; train into another folder, or begin anew with --fresh"
            )
        if state["size"] != asdict(policy.size) or state["spaces"] != policy.vocabulary.spaces:
            raise PolicyError(
                f"{self.path} holds a model of another size or corpus; train into another folder, or begin this stage anew with --fresh"
            )
        policy.load_state_dict(state["policy"])
        optimizer.load_state_dict(state["optimizer"])
        return state["step"]


def trained(folder: Path, stage: str, device: torch.device | str = "cpu") -> Policy:
    """The model as a stage left it. Raises PolicyError where the stage has not run, or not to its end."""
    path = folder / f"{stage}.pt"
    if not path.exists():
        raise PolicyError(f"{path} is not there; run `kernelwright train {stage} --out {folder}` first")
    state = _read(path)
    if (done := state["step"]) < (steps := state["settings"]["steps"]):
        raise PolicyError(f"{path} was stopped after {done} of {steps} steps; run the stage to its end first")
    policy = Policy(Vocabulary(state["spaces"]), Size(**state["size"])).to(device)
    policy.load_state_dict(state["policy"])
    return policy


def _read(path: Path) -> dict[str, Any]:
    """On the CPU: who takes weights and moments moves them; AdamW's counts of steps must stay there, or every step waits for the GPU."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not {"settings", "size", "spaces", "policy", "optimizer", "step"} <= state.keys():
            raise ValueError("it is no checkpoint")
    except (OSError, RuntimeError, EOFError, ValueError, LookupError, AttributeError, pickle.UnpicklingError) as error:
        why = " ".join(str(error).split())[:100]
        raise PolicyError(f"{path} cannot be read ({why}); remove it and run its stage again") from None
    return state


class Curves:
    """A line of numbers for every so many steps, in `STAGE.csv`; lines past the step that training resumes from are taken back."""

    def __init__(self, folder: Path, stage: str, resumed: int):
        self.path, self.stage = folder / f"{stage}.csv", stage
        self.rows: list[dict[str, float]] = []
        if resumed and self.path.exists():
            with self.path.open(newline="") as file:
                kept = [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]
            self.rows = [row for row in kept if row["step"] <= resumed]
        self.path.unlink(missing_ok=True)
        for row in self.rows:
            self._append(row)
        self._board = _board(folder / "tensorboard" / stage)

    def add(self, step: int, **numbers: float) -> None:
        row = {"step": float(step), **numbers}
        self.rows.append(row)
        self._append(row)
        if self._board is not None:
            for name, value in numbers.items():
                self._board.add_scalar(f"{self.stage}/{name}", value, step)

    def _append(self, row: Mapping[str, float]) -> None:
        new = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            if new:
                writer.writeheader()
            writer.writerow({key: f"{value:.6g}" for key, value in row.items()})

    def draw(self) -> None:
        """One picture for each number: their scales have nothing in common."""
        for name in self.rows[0] if self.rows else ():
            if name not in ("step", "seconds"):
                points = [(row["step"], row[name]) for row in self.rows if name in row]
                line = Line([x for x, _ in points], [y for _, y in points])
                self.path.with_name(f"{self.stage}-{name.replace(' ', '-')}.svg").write_text(
                    chart(f"{self.stage}: {name}", "step", {name: line}, f"{self.stage}-{name}")
                )
        if self._board is not None:
            self._board.flush()


def _board(folder: Path) -> Any:
    """A TensorBoard writer, or None where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))
