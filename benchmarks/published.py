"""What every folder of `results/` holds, written the same way by each benchmark."""

from __future__ import annotations

import datetime
import json
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kernelwright.archive import compressing
from kernelwright.records import Environment, Trial


def command_line(script: str) -> str:
    """What was typed to make the results, folders by their last name; not what `measuring.supervise` adds to it."""
    typed = sys.argv[1 : sys.argv.index("--inner")] if "--inner" in sys.argv else sys.argv[1:]
    return "python " + shlex.join([f"benchmarks/{script}", *(Path(a).name if a.startswith("/") else a for a in typed)])


def write_summary(
    out: Path, command: str, environment: Environment | Mapping[str, Any], figures: Mapping[str, Any], **more: object
) -> None:
    """summary.json: {command, date, environment, figures}, and whatever else is given."""
    out.mkdir(parents=True, exist_ok=True)
    summary = {
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "environment": msgspec.to_builtins(environment),
        "figures": figures,
        **more,
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")


def write_trials(out: Path, trials: Iterable[Trial], name: str = "trials.jsonl.gz") -> None:
    """What `kernelwright archive import` reads, compressed as the name says."""
    with open(out / name, "wb") as raw, compressing(raw, Path(name).suffix) as lines:
        lines.writelines(t.to_json().encode() + b"\n" for t in trials)
