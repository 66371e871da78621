"""Publishes a suite of products that `kernelwright tune` measured: figures, heat maps, losses, raw trials.

    python benchmarks/hgemm.py ~/.cache/kernelwright/archive.db --out results/h200/hgemm-1000
    python benchmarks/hgemm.py archive.db --outside rivals.csv --pack kernelwright-out/pack-hgemm-1000 --out results/h200/hgemm-1000

Nothing is measured here. All confirmed trials of the suite count, in whatever layouts it was tuned; of a suite that is half done, the half.
`--outside` is a table with the columns m_n_k, cublaslt_tuned_us and cuda_l2_us, measured together elsewhere, and accumulate (fp32, fp16),
without which all of its kernels count as fp32.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from pathlib import Path

from published import command_line, write_summary, write_trials

from kernelwright.archive import Archive
from kernelwright.loop import headline_mode
from kernelwright.problems.suites import suite
from kernelwright.records import Environment, Trial, Workload
from kernelwright.report import heatmap, html, shapes_page
from kernelwright.report.shapes import Outside, Result, Shape, Versus, cause, shapes_of
from kernelwright.runtime import pack
from kernelwright.runtime.kernel_set import cover


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--suite", default="hgemm-1000", help="a suite of products; its shapes count in every layout")
    parser.add_argument("--dtype", help="another than the suite's own")
    parser.add_argument("--tuned", default="cublaslt-auto", help="the rival behind the figures' `tuned`")
    parser.add_argument("--exhaustive", default="cublaslt-all", help="the rival behind `exhaustive`")
    parser.add_argument("--outside", type=Path, help="a table of CUDA-L2's times")
    parser.add_argument("--pack", type=Path, help="dispatch as this pack does; otherwise every shape's fastest is called")
    parser.add_argument("--raw", default="trials.jsonl.gz", help="file name of the raw trials; .xz takes a tenth of .gz or less")
    parser.add_argument("--measured-by", default="", help="the command that filled the archive, for summary.json")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    trials, environment, left_out = confirmed(args.archive, suite(args.suite, dtype=args.dtype))
    if not trials:
        sys.exit(f"{args.archive} holds no confirmed trial of {args.suite}; make some with: kernelwright tune {args.suite}")
    result = Result(
        shapes_of(trials),
        headline_mode(environment.target),
        tuned=args.tuned,
        exhaustive=args.exhaustive,
        served=served_by(args.pack) if args.pack else None,
        outside=outside(args.outside) if args.outside else {},
    )
    command = command_line("hgemm.py")
    args.out.mkdir(parents=True, exist_ok=True)
    write_summary(
        args.out,
        command,
        environment,
        result.figures() | {"kernels_within_1_percent": kernel_counts(trials, result.mode)},
        own_losses=rows(result.losses(result.headline), result.mode),
        dispatched_losses=rows(result.losses(result.dispatched), result.mode),
        results=rows(list(result.headline.items()), result.mode),
        measured_by=args.measured_by,
    )
    for name, title, shown, mode in shapes_page.charts(result):
        (args.out / f"{name}.svg").write_text(heatmap.picture(shown, mode, title))
    page = shapes_page.render(
        result,
        title=" ".join(filter(None, (args.suite, args.dtype))),
        command=command,
        environment=environment,
        raw=args.raw,
        left_out=left_out,
    )
    html.save(args.out / "report.html", page)
    write_trials(args.out, trials, args.raw)
    for name, mean in result.means.items():
        print(f"{name:36} {mean.mean:.3f}  [{mean.low:.3f}, {mean.high:.3f}]  {mean.shapes} shapes")
    print(f"{args.out / 'report.html'}")


def confirmed(path: Path, workloads: tuple[Workload, ...]) -> tuple[list[Trial], Environment, str]:
    """Trials of the suite's shapes in any layout; of several devices or versions, whose times do not compare, those of the one with the
    most. Also a sentence on what is left out."""
    if not path.is_file():
        sys.exit(f"there is no archive {path}; name the file that `kernelwright doctor` shows")
    wanted = {w.replace(layout="") for w in workloads}
    with Archive(path) as archive:
        members = [w for w in archive.workloads() if w.replace(layout="") in wanted]
        found = [t for w in members for stage in ("confirm", "replay") for t in archive.trials(workload=w, stage=stage)]
    places = Counter((t.environment.device, tuple(sorted(t.environment.versions.items()))) for t in found)
    if not places:
        return [], Environment(target="", device=""), ""
    here = places.most_common(1)[0][0]
    kept = [t for t in found if (t.environment.device, tuple(sorted(t.environment.versions.items()))) == here]
    others = len(found) - len(kept)
    said = f"Left out, since times of other devices or versions do not compare: {others} trials." if others else ""
    return kept, kept[-1].environment, said


def kernel_counts(trials: list[Trial], mode: str) -> dict[str, int]:
    """By layout: how few of our kernels serve every shape within 1 % of its fastest confirmed one, as `tune` counts them."""
    times: dict[str, dict[Workload, dict[str, float]]] = {}
    for t in trials:
        if t.candidate.kind != "rival" and t.verdict.ok and t.timing(mode):
            times.setdefault(t.workload.layout, {}).setdefault(t.workload, {})[t.candidate.id] = t.median(mode)
    return {layout: len(cover(measured, 0.01)) for layout, measured in sorted(times.items())}


def served_by(path: Path) -> dict[Workload, str]:
    return {e.workload: e.rival or e.candidate for e in pack.load(path).entries}


def outside(path: Path) -> dict[tuple[int, int, int], Outside]:
    """By M, N, K; rows without both times are passed over."""
    with path.open(newline="") as file:
        table = csv.DictReader(file)
        columns = {"m_n_k", "cublaslt_tuned_us", "cuda_l2_us"}
        if missing := sorted(columns - set(table.fieldnames or ())):
            sys.exit(f"{path} lacks the column {missing[0]}; it needs {', '.join(sorted(columns))}")
        found = {}
        for row in table:
            if row["cublaslt_tuned_us"] and row["cuda_l2_us"]:
                m, n, k = map(int, row["m_n_k"].split("_"))
                over = float(row["cuda_l2_us"]) / float(row["cublaslt_tuned_us"])
                found[m, n, k] = Outside(over, row.get("accumulate") or "fp32")
    return found


def rows(found: list[tuple[Shape, Versus]], mode: str) -> list[dict]:
    table = []
    for s, v in found:
        timing = v.trial.timing(mode)
        table.append(
            {
                "shape": s.name,
                "class": s.size_class,
                "layout": v.trial.workload.layout,
                "ratio": v.c.ratio,
                "low": v.c.low,
                "high": v.c.high,
                "outcome": v.c.outcome,
                "us": timing.median if timing else None,
                "rival": v.c.rival,
                "rival_us": v.c.rival_us,
                "serves": v.serves or "own",
                "cause": cause(v.trial),
                "trial": v.trial.id,
            }
        )
    return table


if __name__ == "__main__":
    main()
