"""`kernelwright replay TRIAL`: measure a recorded claim again."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelwright.cli.common import NO_KERNEL, Json, TargetName, console, emit, open_archive, open_target


def register(app: typer.Typer) -> None:
    @app.command(epilog="Example: kernelwright replay 3f2a91c0")
    def replay(
        trial: Annotated[str, typer.Argument(help="Id of a trial, or its first digits.")],
        target: TargetName = "",
        json_output: Json = False,
    ) -> None:
        """Verify and time the kernel of a trial again, beside the same rivals, and print both results."""
        from kernelwright.evaluate.evaluator import Evaluator
        from kernelwright.loop import replay_job

        with open_archive() as archive:
            old = archive.trial(trial)
            device = open_target(target or old.environment.target)
            with Evaluator(device) as evaluator:
                built = list(evaluator.builder.builds([old.candidate]))
                found = list(evaluator.evaluate_built(built, replay_job(old, device.name), stage="replay", session=""))
            for one in found:
                archive.append(one)
        new = found[0]
        pairs = []
        for c in new.comparisons:
            was = old.comparison(c.rival, c.mode)
            pairs.append(
                {
                    "rival": c.rival,
                    "mode": c.mode,
                    "now": {"ratio": c.ratio, "low": c.low, "high": c.high},
                    "then": {"ratio": was.ratio, "low": was.low, "high": was.high} if was else None,
                }
            )
        same_device = new.environment.device == old.environment.device
        if json_output:
            emit(
                {
                    "problem": old.workload.name,
                    "verdict": new.verdict.outcome,
                    "evidence": new.verdict.evidence,
                    "trial": new.id,
                    "replayed": old.id,
                    "same_device": same_device,
                    "ratios": pairs,
                }
            )
        else:
            show(console(False), old, new, pairs, same_device)
        if not new.verdict.ok:
            raise typer.Exit(NO_KERNEL)


def show(screen, old, new, pairs: list[dict], same_device: bool) -> None:
    from rich.table import Table

    screen.print(f"{old.workload.name}, {old.candidate.label}: {new.verdict.outcome}, {new.verdict.evidence}", markup=False)
    if not same_device:
        screen.print(f"recorded on {old.environment.device}, replayed on {new.environment.device}: the ratios need not agree")
    table = Table("rival", "mode", "then", "now", box=None, pad_edge=False)
    for p in pairs:
        then, now = p["then"], p["now"]
        table.add_row(p["rival"], p["mode"], interval(then) if then else "not measured", interval(now))
    screen.print(table)
    screen.print(f"trial {new.id}")


def interval(found: dict) -> str:
    return f"{found['ratio']:.2f}x ({found['low']:.2f} to {found['high']:.2f})"
