"""`kernelwright audit`: does every known cheat get caught, and no honest kernel refused?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelwright.cli.common import NO_KERNEL, Json, TargetName, console, emit, open_target

if TYPE_CHECKING:
    from kernelwright.evaluate.corpus import Finding

HERE = Path("tests/cheats")


def register(app: typer.Typer) -> None:
    @app.command(epilog="Example: kernelwright audit --target cpu")
    def audit(
        corpus: Annotated[
            Path | None, typer.Option(help="A folder of cheats; the default is tests/cheats of the checkout that this is run in.")
        ] = None,
        target: TargetName = "auto",
        honest: Annotated[int, typer.Option(min=0, help="Honest kernels that must not be refused.")] = 100,
        json_output: Json = False,
    ) -> None:
        """Run cheats, then honest kernels, through the judge; exit with 1 if a cheat passes or an honest kernel is refused."""
        from kernelwright.cli.progress import steps
        from kernelwright.evaluate.corpus import audit_of, auditor, summary, suspects

        folder = corpus or _of_the_checkout()
        if not folder.is_dir():
            raise ValueError(f"there is no folder {folder}; name one with --corpus")
        device = open_target(target)
        screen = console(json_output)
        cheats, kernels = suspects(folder, device, honest)
        with auditor(device) as evaluator, steps(screen, "audit") as told:
            found: list[Finding] = []
            for finding in audit_of(evaluator, (*cheats, *kernels)):
                found.append(finding)
                told(len(found), len(cheats) + len(kernels))
                if not finding.right:
                    screen.print(f"{finding.what}: {finding.name}: {finding.outcome}: {finding.evidence}", markup=False)
        if json_output:
            emit({"target": device.name, "corpus": str(folder), **summary(found)})
        else:
            show(screen, found)
        if not all(f.right for f in found):
            raise typer.Exit(NO_KERNEL)


def _of_the_checkout() -> Path:
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / HERE).is_dir():
            return folder / HERE
    raise ValueError(
        "the corpus of cheats is part of the source: run this in a checkout of kernelwright, or name a folder of cheats with --corpus"
    )


def show(screen: Any, found: Sequence[Finding]) -> None:
    from rich.table import Table

    from kernelwright.evaluate.corpus import summary

    said = summary(found)
    table = Table("kind", "caught", "verdicts", box=None, pad_edge=False)
    kinds: dict[str, list[Finding]] = {}
    for f in found:
        if not f.honest:
            kinds.setdefault(f.kind, []).append(f)
    for kind, ones in sorted(kinds.items()):
        verdicts = Counter(f.outcome for f in ones)
        table.add_row(kind, f"{sum(f.right for f in ones)}/{len(ones)}", ", ".join(f"{n} {name}" for name, n in verdicts.most_common()))
    screen.print(table)
    harmless = f", of which {said['harmless']} let through because they gain nothing" if said["harmless"] else ""
    screen.print(f"caught {said['caught'] + said['harmless']} of {said['cheats']} cheats{harmless}")
    noisy = f"; {said['noisy']} were right but could not be timed on this busy machine" if said["noisy"] else ""
    screen.print(f"{len(said['false_alarms'])} false alarms in {said['honest']} honest kernels{noisy}")
