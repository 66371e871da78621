"""`kernelwright pack`: save winners, look into a pack, prove its kernels again."""

from __future__ import annotations

import enum
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from kernelwright.cli.common import (
    BAD_REQUEST,
    NO_KERNEL,
    Dtype,
    Json,
    Layouts,
    TargetName,
    console,
    emit,
    open_archive,
    open_target,
    workloads_of,
)

NOTE_SECONDS = 300.0
"""Of silence of the judge, which shares the device with the sanitizers' processes."""
ENTRIES = 12
"""Printed by `pack info`: one published pack has 2,000."""


class Form(enum.StrEnum):
    """What a pack is exported to."""

    sources = "sources"
    hf_kernels = "hf-kernels"


app = typer.Typer(help="Winners as a folder of sources, builds and evidence.", no_args_is_help=True)


@app.command(epilog="Example: kernelwright pack save my-pack chains")
def save(
    path: Annotated[Path, typer.Argument(help="Folder to make.")],
    what: Annotated[str, typer.Argument(help="A suite or problem whose confirmed winners are kept.")],
    target: TargetName = "auto",
    dtype: Dtype = None,
    layout: Layouts = None,
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="How much slower than its best own kernel a workload may be for a smaller set (0.01: 1 %).")
    ] = 0.0,
    json_output: Json = False,
) -> None:
    """Keep the best confirmed kernel of each workload in the archive; builds that are no longer in the cache are made again, which needs no
    GPU."""
    from kernelwright.cli.progress import steps
    from kernelwright.evaluate.pack_build import save_pack
    from kernelwright.targets import target as target_of

    name = target_of(target).name
    workloads = workloads_of(what, dtype, layouts=layout or ())
    with open_archive() as archive:
        trials = [
            t for w in workloads for t in archive.trials(workload=w, stage="confirm") if t.environment.target == name and t.verdict.ok
        ]
        if not trials:
            console(json_output).print(f"nothing confirmed for {what} on {name} yet; run: kernelwright tune {what} --target {name}")
            raise typer.Exit(BAD_REQUEST)
        screens = (t for w in workloads for t in archive.trials(workload=w, stage="screen"))
        with steps(console(json_output), "compiling") as told:
            save_pack(path, trials, screens, tolerance, told)
    _print(path, json_output)


@app.command(epilog="Example: kernelwright pack info my-pack")
def info(path: Annotated[Path, typer.Argument(help="A pack's folder.")], json_output: Json = False) -> None:
    """Check every file of a pack against its checksum, and list what it holds."""
    _print(path, json_output)


@app.command(epilog="Example: kernelwright pack times my-pack")
def times(path: Annotated[Path, typer.Argument(help="A pack's folder, made on this kind of device.")], json_output: Json = False) -> None:
    """Add what the archive measured of a pack's kernels and the rivals beside them, which decides and predicts what serves."""
    from kernelwright.runtime import pack

    loaded = pack.load(path, built=False)
    with open_archive() as archive:
        # rivals' Trials are left out: the kernels' own hold the times of all rivals beside them
        trials = [t for e in loaded.entries for t in archive.trials(workload=e.workload) if t.candidate.kind != "rival"]
    seen = pack.add_times(path, trials).times()
    said = {"kernels": len(seen.kernels), "measured": sum(map(len, seen.kernels.values())), "workloads": len(loaded.entries)}
    if json_output:
        emit(said)
    else:
        console(False).print(f"{said['measured']} times of {said['kernels']} kernels on {said['workloads']} workloads", markup=False)


@app.command(epilog="Example: kernelwright pack build my-pack")
def build(
    path: Annotated[Path, typer.Argument(help="A pack's folder; no GPU is needed.")],
    json_output: Json = False,
) -> None:
    """Compile what a pack lacks from its sources, ahead of time: one that was exported as sources, or lost builds."""
    from kernelwright.cli.progress import steps
    from kernelwright.evaluate.pack_build import build_pack

    screen = console(json_output)
    with steps(screen, "compiling") as told:
        found = build_pack(path, told)
    if json_output:
        emit({"same": found.same, "other": found.other, "compilers": found.compilers, "measured with": found.measured})
    else:
        screen.print(found.sentence, markup=False)


@app.command(epilog="Example: kernelwright pack merge pack-nn pack-nt --out pack-both")
def merge(
    paths: Annotated[list[Path], typer.Argument(help="Packs of one kind of device, measured with the same versions.")],
    out: Annotated[Path, typer.Option(help="Folder to make.")],
    json_output: Json = False,
) -> None:
    """Make one pack of several; of one, write it anew in today's format. Of a workload in more than one pack, what was shown to be
    further ahead of the library ships."""
    from kernelwright.runtime.pack_merge import merge as merged

    made = merged(paths, out)
    said = {"path": str(made.path), "workloads": len(made.entries), "kernels": len(made.kernels())}
    if json_output:
        emit(said)
    else:
        console(False).print(f"{said['path']}: {said['workloads']} workloads, {said['kernels']} kernels; prove it with "
                             f"`kernelwright pack verify {out}`", markup=False)  # fmt: skip


@app.command(epilog="Example: kernelwright pack export my-pack hub/hgemm --format hf-kernels --name hgemm")
def export(
    path: Annotated[Path, typer.Argument(help="A pack's folder.")],
    out: Annotated[Path, typer.Argument(help="Folder to make.")],
    to: Annotated[Form, typer.Option("--format", help="sources: without the builds, smaller; hf-kernels: for Hugging Face's kernels.")],
    name: Annotated[str, typer.Option(help="Of the kernel on the hub; the default is OUT's.")] = "",
    json_output: Json = False,
) -> None:
    """Write a pack in another form."""
    from kernelwright.report.card import card
    from kernelwright.runtime import export as exports
    from kernelwright.runtime import pack

    if to is Form.sources:
        made = exports.sources(pack.load(path, built=False), out)
    else:
        loaded = pack.load(path)
        named = name or out.resolve().name
        made = exports.hf_kernels(loaded, out, named, card(loaded, named, _verification(loaded)))
    size = sum(f.stat().st_size for f in made.rglob("*") if f.is_file())
    if json_output:
        emit({"path": str(made), "format": to.value, "bytes": size})
    else:
        console(False).print(f"{made}: {size / 1e6:.1f} MB", markup=False)


@app.command(epilog="Example: kernelwright pack verify kernelwright-out/pack-hgemm-1000")
def verify(
    path: Annotated[Path, typer.Argument(help="A pack's folder, made on this kind of device.")],
    limit: Annotated[int | None, typer.Option(min=1, help="Most workloads of each kernel, the smallest first; the default is all.")] = None,
    random: Annotated[int, typer.Option(min=0, help="Random shapes of each kernel, of those that its plan accepts.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the random shapes.")] = 0,
    sanitize: Annotated[bool, typer.Option(help="Run compute-sanitizer's memcheck and racecheck on CUDA kernels.")] = True,
    json_output: Json = False,
) -> None:
    """Prove every kernel of a pack again, as it ships: whole ladder, random shapes, machine code, sanitizers. Leaves verification.json."""
    from kernelwright.cli.progress import proving
    from kernelwright.evaluate.audit import Extent, verify_pack
    from kernelwright.evaluate.evaluator import Evaluator
    from kernelwright.evaluate.verification import FILE
    from kernelwright.runtime import pack

    loaded = pack.load(path)
    device = open_target(loaded.manifest.environment.target)
    screen = console(json_output)

    def told(k) -> None:
        if k.failures:
            where = ", ".join(f"{f.where}: {f.outcome}" for f in k.failures)
            screen.print(f"FAILED {k.name}/{k.candidate[:8]}: {where}", markup=False)

    try:
        with Evaluator(device, note_seconds=NOTE_SECONDS) as evaluator, proving(screen) as progress:
            found = verify_pack(loaded, device, evaluator, Extent(limit, random, seed, sanitize), told, progress)
    except KeyboardInterrupt:
        screen.print(f"the pack {path} is as valid as before", markup=False)
        raise
    where = loaded.path / FILE
    if json_output:
        import msgspec

        emit(msgspec.to_builtins(found) | {"failed": len(found.failed), "not_run": found.not_run, "file": str(where)})
    else:
        _show(screen, found, where)
    if found.failed:
        raise typer.Exit(NO_KERNEL)


def _show(screen, found, where: Path) -> None:
    from rich.table import Column, Table

    from kernelwright.records import Outcome

    table = Table(Column("kernel", no_wrap=True), "workloads", "tails", "random", "cases", "tools", "result", box=None, pad_edge=False)
    for k in found.kernels:
        said = [f"{t.name} {t.outcome}" for t in k.tools if t.outcome not in ("", Outcome.OK)]
        if not_run := sum(not t.outcome for t in k.tools):
            said.append(f"{not_run} not run")
        counts = (f"{k.workloads} of {k.serves}", f"{k.tails}", f"{k.random}", f"{k.cases}")
        table.add_row(f"{k.name}/{k.candidate[:8]}", *counts, ", ".join(said) or "OK", "FAILED" if k.failures else "right")
    screen.print(table)
    for k in found.failed:
        for f in k.failures:
            screen.print(f"{k.name}/{k.candidate[:8]}, {f.where}: {f.outcome}, {f.evidence}", markup=False)
    for tool, said in found.tools.items():
        screen.print(f"{tool}: {said}", markup=False)
    sums = [f"{len(found.kernels)} kernels", f"{sum(k.workloads for k in found.kernels)} workloads"]
    sums += [f"{sum(k.random for k in found.kernels)} random shapes", f"{sum(k.cases for k in found.kernels)} cases"]
    sums += [f"{len(found.failed)} kernels failed", f"{found.not_run} runs of a tool not made"]
    if found.rivals:
        sums.append(f"{found.rivals} workloads served by a rival, nothing of ours to verify there")
    screen.print("; ".join(sums))
    screen.print(f"verification: {where}", markup=False)


def _print(path: Path, json_output: bool) -> None:
    from kernelwright.runtime import pack

    loaded = pack.load(path)
    info = loaded.info() | {"verification": _verification(loaded, f"none; run: kernelwright pack verify {path}")}
    if json_output:
        emit(info)
    else:
        screen = console(False)
        for key, value in info.items():
            if key != "entries":
                screen.print(f"{key}: {value}", markup=False)
        entries = loaded.described()
        screen.print("entries:")
        for name, words in islice(entries.items(), ENTRIES):
            screen.print(f"  {name}: {words}", markup=False)
        if len(entries) > ENTRIES:
            screen.print(f"  and {len(entries) - ENTRIES} more, all with --json", markup=False)


def _verification(pack, else_: str = "none") -> str:
    from kernelwright.evaluate.verification import verification

    if (found := verification(pack)) is None:
        return else_
    return f"{len(found.kernels)} kernels, {len(found.failed)} failed, {found.not_run} runs of a tool not made, {found.created}"
