"""Host time of kw.matmul(out=) from Python on the products of a suite, against torch.matmul(out=) and cuBLAS called as thinly.

    python benchmarks/host.py PACK --out results/h200/runtime --seconds 600       measures, then writes the summary; again: goes on
    python benchmarks/host.py --out results/h200/runtime                          the summary alone, of what is there

`offline`: synchronise, clock, one call, synchronise, clock. `server`: the same after an exponential pause (CUDA-L2's two modes).
`enqueue`: a few hundred calls without synchronising, the loop in Python included. `tune` only finds the algorithms of `cublaslt-auto`,
once; the file `tuned.jsonl` can be carried to another run of the same library and GPU.

Contenders: kw.matmul (a kernel of the pack or what torch calls, as it dispatches: there is no other figure for ours), torch.matmul, and,
through thin_calls.cpp with everything prepared, cublasGemmEx (its own choice), cublasLtMatmul with the heuristic's first algorithm and with
the fastest of all that it lists, tuned on cold caches by rivals/cublaslt.py. The thin calls hold three tensors against what was prepared
and nothing else; kw.matmul has all its checks. In each round every contender is sampled once, in random order, ours twice (A/A); each call
takes the operands that have been out of use for longest, of `--sets`. All were right on this product, in this process, before they were
timed.

With `--beside FILE` kernels of others, kept elsewhere, are measured as well, on the products that the file has one for and in all modes;
one whose result is wrong is named as missing. The figures have the file's name.

Products come in a random order that keeps the classes' shares at every point, so a part of the suite is a fair part; a further call starts
with what was measured least. A product's rounds are ROUNDS by class: huge ones need few and would eat the budget.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import measuring
import numpy as np
import torch
from contenders import RIVALS, TORCH, TUNED, Contenders, Tuned, WrongResult, served, sets_of, use, verify
from measuring import (
    AGAIN,
    OURS,
    Budget,
    Lines,
    commands,
    compared,
    enqueued,
    environment,
    hopeless,
    of_one_place,
    read,
    rounds,
    sample,
    supervise,
)
from published import command_line, write_summary
from thin_calls import ThinCalls, factors

import kernelwright as kw
from kernelwright.evaluate import stats
from kernelwright.problems import resolve
from kernelwright.problems.problem import TORCH_DTYPES
from kernelwright.problems.suites import HGEMM, size_class, suite
from kernelwright.records import Candidate, Comparison, Environment, Origin, Outcome, Timing, Trial, Verdict, Workload
from kernelwright.report import heatmap
from kernelwright.report.shapes import Shape, Versus, mean_of
from kernelwright.report.wording import MODE_NAMES, rival_name
from kernelwright.targets.cuda_libraries import cublaslt_version

MODES = ("enqueue", "offline", "server")
ROUNDS = {
    "offline": {"small": 21, "mid": 21, "large": 11, "huge": 5},
    "server": {"small": 5, "mid": 5, "large": 5, "huge": 3},
}
"""Of one visit, by class."""
SETS = 4
ENQUEUED, ENQUEUE_ROUNDS = 200, 40
"""Calls in a row, a fifth of what a stream takes before it blocks; rounds of them."""
ENQUEUE_SHAPES = ((64, 64, 64), (128, 128, 128), (64, 512, 512), (512, 512, 64))
SHORT = {TUNED: "tuned"}
"""In the names of figures."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path, nargs="?", help="without it nothing is measured")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600.0, help="all of it, the start of the process included")
    parser.add_argument("--suite", default=HGEMM)
    parser.add_argument("--dtype", help="another than the suite's own")
    parser.add_argument("--layouts", nargs="+", default=["nn", "nt"])
    parser.add_argument("--limit", type=int, help="only so many products")
    parser.add_argument("--modes", nargs="+", choices=[*MODES, "tune"], default=list(MODES))
    parser.add_argument("--pause", type=float, default=0.010, help="mean pause before a call in mode server, seconds")
    parser.add_argument("--rivals", nargs="+", choices=RIVALS, default=list(RIVALS), help="of the modes offline and enqueue")
    parser.add_argument("--server-rivals", nargs="+", choices=RIVALS, default=[TORCH, TUNED], help="a pause for each in every round")
    parser.add_argument("--sets", type=int, default=SETS)
    parser.add_argument("--hang", type=float, default=90.0, help="a step that takes longer ends the process, seconds")
    parser.add_argument("--tuned", type=Path, help="file of the tuned algorithms (OUT/tuned.jsonl)")
    parser.add_argument("--beside", type=Path, metavar="FILE", help="Python with of(workload name) -> a function of (a, b, out), or None")
    parser.add_argument(
        "--no-summary", action="store_true", help="of a whole suite it takes 15 s of a core, which need not be the device's"
    )
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()

    raw = args.out / "samples.jsonl"
    if args.inner:
        measure(args, raw)
        return
    complete = supervise(args.seconds, raw) if args.pack else True
    wrong = [line["wrong"] for line in read(raw) if "wrong" in line] if args.no_summary else summarise(raw, args.out)
    for sentence in wrong:
        print(f"WRONG: {sentence}", file=sys.stderr)
    sys.exit(0 if complete and not wrong else 1)


# ------------------------------------------------------------------------------------------------------------- measuring


def measure(args: argparse.Namespace, raw: Path) -> None:
    budget = Budget(args.seconds, args.hang)
    budget.watch()
    measuring.device()
    pack = use(args.pack)
    lines, before = Lines(raw), read(raw)
    made = Contenders(ThinCalls(), Tuned(args.tuned or args.out / "tuned.jsonl"), args.beside)
    where = environment(pack=pack, cublaslt=cublaslt_version(), pause=args.pause, sets=args.sets)
    lines.add({"environment": where, "command": command_line("host.py")})
    if "enqueue" in args.modes:
        for layout in args.layouts:
            for w in enqueue_products(args.dtype or "fp16", layout):
                if made.has(w) and budget.left > 0 and not any(x.get("enqueue") and x["end"] == f"enqueue {w.name}" for x in before):
                    visit(lines, budget, f"enqueue {w.name}", lambda w=w: enqueue(made, w, args, budget))
    modes = [mode for mode in args.modes if mode != "enqueue"]
    todo = [w for w in plan(args, before, modes) if made.has(w)]
    started = time.monotonic()
    for index, w in enumerate(todo, 1):
        if budget.left <= 0:
            break
        visit(lines, budget, w.name, lambda w=w: sampled(made, w, modes, args, budget))
        if index % 25 == 0 or index == len(todo):
            each = (time.monotonic() - started) / index
            print(
                f"[{index}/{len(todo)}] {each:.2f} s each, {each * (len(todo) - index):.0f} s to go, {budget.left:.0f} s left", flush=True
            )
    budget.close()


def visit(lines: Lines, budget: Budget, name: str, work) -> None:
    """One step between its two lines. A wrong result is a line; what the CUDA context may not survive ends the process."""
    budget.watch()
    lines.add({"start": name})
    try:
        lines.add({"end": name, **work()})
    except WrongResult as error:
        print(error, flush=True)
        lines.add({"end": name, "wrong": str(error)})
    except torch.OutOfMemoryError as error:
        lines.add({"end": name, "failed": str(error).splitlines()[0]})
        torch.cuda.empty_cache()


def plan(args: argparse.Namespace, before: list[dict[str, Any]], modes: list[str]) -> list[Workload]:
    """The products in the order of their visits: what was visited least first, in the spread order; without those that hang, are wrong or
    failed, and without the suite's if there is nothing to measure on them."""
    if not modes:
        return []
    visits: dict[str, int] = defaultdict(int)
    spoiled = hopeless(before)
    for line in before:
        if "wrong" in line or "failed" in line:
            spoiled.add(line["end"])
        elif "end" in line and all(_has(line, mode) for mode in modes):
            visits[line["end"]] += 1
    found = [w.replace(layout=x) for x in args.layouts for w in suite(args.suite, dtype=args.dtype)]
    found = [w for w in spread(found) if w.name not in spoiled]
    return sorted(found, key=lambda w: visits[w.name])[: args.limit]


def _has(line: dict[str, Any], mode: str) -> bool:
    """Whether a visit came far enough to be one."""
    return mode in line if mode == "tune" else len(line.get(mode, {}).get(OURS, ())) >= stats.LEAST_ROUNDS


def spread(found: Iterable[Workload]) -> list[Workload]:
    """A random order, the same every time, in which each layout and class has its share of every beginning."""
    groups: dict[tuple[str, str], list[Workload]] = defaultdict(list)
    for w in found:
        groups[w.layout, class_of(w)].append(w)
    rng, placed = random.Random(0), []
    for group in groups.values():
        rng.shuffle(group)
        placed += [((i + rng.random()) / len(group), w.name, w) for i, w in enumerate(group)]
    return [w for *_, w in sorted(placed, key=lambda one: one[:2])]


def class_of(w: Workload) -> str:
    return size_class(2.0 * w.axes["M"] * w.axes["N"] * w.axes["K"])


def sampled(made: Contenders, w: Workload, modes: list[str], args: argparse.Namespace, budget: Budget) -> dict[str, Any]:
    """The line of one visit: by mode, the samples of each contender in microseconds, a position being a round."""
    started = time.monotonic()
    wanted = list(dict.fromkeys([*args.rivals, *(args.server_rivals if "server" in modes else ())]))
    if modes == ["tune"]:
        wanted = [TUNED]
    sets = sets_of(w, args.sets)
    contenders, missing = made.of(w, sets, wanted)
    verify(w, sets, contenders)
    operands = [factors(w, one) for one in sets]
    line: dict[str, Any] = {"class": class_of(w), "calls": served(*operands[0][:2])[1], "missing": missing}
    for mode in modes:
        if mode == "tune":
            line["tune"] = TUNED not in missing
            continue
        wanted = (*(args.server_rivals if mode == "server" else args.rivals), made.beside)
        names = [OURS, *(name for name in wanted if name in contenders)]
        entrants = {name: contenders[name] for name in names} | {AGAIN: contenders[OURS]}
        count = ROUNDS[mode][class_of(w)]
        line[mode] = rounds(entrants, operands, count, budget, partial(sample, pause=args.pause) if mode == "server" else sample)
    return line | {"seconds": round(time.monotonic() - started, 3)}


def enqueue_products(dtype: str, layout: str) -> list[Workload]:
    """Small ones, and the smallest of the suite's that kw.matmul has cuBLASLt do."""
    sizes = [Workload(problem="gemm", axes=dict(zip("MNK", s, strict=True)), dtype=dtype, layout=layout) for s in ENQUEUE_SHAPES]
    every = (w.replace(dtype=dtype, layout=layout) for w in suite(HGEMM))
    left = (w for w in sorted(every, key=lambda w: w.axes["M"] * w.axes["N"] * w.axes["K"]) if not _ours(w))
    return [*sizes, *islice(left, 1)]


def _ours(w: Workload) -> bool:
    (m, n, k), dtype, on = w.axes.values(), TORCH_DTYPES[w.dtype], measuring.device()
    a = torch.empty((m, k) if w.layout[0] == "n" else (k, m), dtype=dtype, device=on)
    b = torch.empty((k, n) if w.layout[1] == "n" else (n, k), dtype=dtype, device=on)
    return served(a if w.layout[0] == "n" else a.t(), b if w.layout[1] == "n" else b.t())[0]


def enqueue(made: Contenders, w: Workload, args: argparse.Namespace, budget: Budget) -> dict[str, Any]:
    """By contender, microseconds of ENQUEUED calls in a row: the host's part alone, as the GPU's queue takes them all."""
    sets = sets_of(w, args.sets)
    contenders, missing = made.of(w, sets, args.rivals)
    verify(w, sets, contenders)
    operands = [factors(w, one) for one in sets]
    ours, said = served(*operands[0][:2])
    # loops of their own for the two functions that users call: a lambda around them would hide a part of the difference
    loops = {name: _loop(call) for name, call in contenders.items()} | {OURS: _kw_loop, AGAIN: _kw_loop}
    if TORCH in loops:
        loops[TORCH] = _torch_loop
    taken = rounds(loops, [(operands * (ENQUEUED // len(operands)),)], ENQUEUE_ROUNDS, budget, enqueued)
    return {"enqueue": taken, "ours": ours, "calls": said, "missing": missing}


def _kw_loop(operands) -> None:
    matmul = kw.matmul
    for a, b, c in operands:
        matmul(a, b, out=c)


def _torch_loop(operands) -> None:
    matmul = torch.matmul
    for a, b, c in operands:
        matmul(a, b, out=c)


def _loop(call):
    def loop(operands) -> None:
        for a, b, c in operands:
            call(a, b, c)

    return loop


# --------------------------------------------------------------------------------------------------------------- summary


def summarise(raw: Path, out: Path) -> list[str]:
    """Writes summary.json, results.csv and the heat maps of what is there. Returns what was found wrong."""
    where, lines, others = of_one_place(read(raw))
    if not any("end" in line for line in lines):
        print(f"{raw} has no samples yet")
        return []
    wrong = {line["end"]: line["wrong"] for line in lines if "wrong" in line}
    ends = [line for line in lines if "end" in line and line["end"] not in wrong]
    visits: dict[str, dict[str, list[dict]]] = {mode: defaultdict(list) for mode in MODES}
    for line in ends:
        for mode in MODES:
            if line.get(mode):
                visits[mode][line["end"].removeprefix("enqueue ")].append(line)
    found = {
        mode: {name: compared(joined([v[mode] for v in same]), mode) for name, same in products.items()}
        for mode, products in visits.items()
    }
    calls = {line["end"]: line["calls"] for line in ends if "calls" in line}
    figures, intervals, outcomes = {}, {}, {}
    ours = {name for name, same in visits["enqueue"].items() if same[-1]["ours"]}
    for key, members in (("enqueue_ratio", ours), ("enqueue_ratio_of_the_library", set(visits["enqueue"]) - ours)):
        mean = mean_of([1 / c.ratio for name, cs in found["enqueue"].items() if name in members and (c := cs.get(TORCH))])
        if mean:
            figures[key], intervals[key] = mean.mean, {"low": mean.low, "high": mean.high, "products": mean.shapes}
    for mode in ("offline", "server"):
        for rival in dict.fromkeys((*RIVALS, *(name for cs in found[mode].values() for name in cs))):
            every = {resolve(name): c for name, cs in found[mode].items() if (c := cs.get(rival))}
            key = f"{mode}_over_{SHORT.get(rival, rival)}"
            for suffix, chosen in parts(every).items():
                if mean := mean_of([c.ratio for c in chosen]):
                    figures[key + suffix] = mean.mean
                    intervals[key + suffix] = {"low": mean.low, "high": mean.high, "products": mean.shapes}
            if every:
                counts = stats.summarise(every.values())
                outcomes[key] = {
                    **{name: getattr(counts, name) for name in ("wins", "ties", "losses", "worst")},
                    "noise": [float(np.median([getattr(c, f"noise_{end}") for c in every.values()])) for end in ("low", "high")],
                }
                if rival in (TORCH, TUNED):
                    pictures(
                        out, key, mode, rival, every, {name: joined([v[mode] for v in same]) for name, same in visits[mode].items()}, calls
                    )
    results = {mode: rows(products, visits[mode], mode) for mode, products in found.items()}
    losses = [row for mode in ("offline", "server") for row in results[mode] if row["outcome"] == "loss"]
    write_summary(
        out,
        commands(lines),
        where,
        figures | {"products": {mode: len(products) for mode, products in found.items()}},
        intervals=intervals,
        outcomes=outcomes,
        losses=sorted(losses, key=lambda row: row["ratio"]),
        calls_a_kernel=sum(" calls kernel " in said for name, said in calls.items() if not name.startswith("enqueue ")),
        wrong=list(wrong.values()),
        failed={line["end"]: line["failed"] for line in lines if "failed" in line},
        hung_or_crashed=sorted(hopeless(lines)),
        missing={line["end"]: line["missing"] for line in ends if line.get("missing")},
        of_other_devices_or_versions=others,
        enqueue=results["enqueue"],
    )
    every = [row for mode in MODES for row in results[mode]]
    with (out / "results.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, every[0] if every else ["product"])
        table.writeheader()
        table.writerows(every)
    for key, value in figures.items():
        inside = intervals[key]
        said = f"{value:.3f}  [{inside['low']:.3f}, {inside['high']:.3f}]  {inside['products']} products"
        print(f"{key:32} {said}  {_counts(outcomes.get(key))}")
    print(out / "summary.json")
    return list(wrong.values())


def _counts(o: Mapping[str, Any] | None) -> str:
    return f"{o['wins']} wins, {o['ties']} ties, {o['losses']} losses, worst {o['worst']:.2f}" if o else ""


def joined(visits: list[dict[str, list]]) -> dict[str, list]:
    """The rounds of several visits; who was not there has no sample in them."""
    names = dict.fromkeys(name for visit in visits for name in visit)
    return {name: [x for visit in visits for x in visit.get(name, [None] * len(visit[OURS]))] for name in names}


def parts(every: Mapping[Workload, Comparison]) -> dict[str, list[Comparison]]:
    """All of them, each layout, each class, by what is added to a figure's name."""
    found: dict[str, list[Comparison]] = {"": list(every.values())}
    for w, c in every.items():
        for suffix in (f"_{w.layout}", f"_{class_of(w)}"):
            found.setdefault(suffix, []).append(c)
    return found


def rows(products: Mapping[str, Mapping[str, Comparison]], visits: Mapping[str, list[dict]], mode: str) -> list[dict]:
    """One for each product and rival. Microseconds of one call."""
    calls, table = ENQUEUED if mode == "enqueue" else 1, []
    for name, cs in products.items():
        mine = [x for x in joined([v[mode] for v in visits[name]])[OURS] if x]
        for rival, c in cs.items():
            table.append(
                {
                    "product": name,
                    "class": class_of(resolve(name)),
                    "mode": mode,
                    "rival": rival,
                    "ratio": round(c.ratio, 4),
                    "low": round(c.low, 4),
                    "high": round(c.high, 4),
                    "outcome": c.outcome,
                    "noise_low": round(c.noise_low, 4),
                    "noise_high": round(c.noise_high, 4),
                    "rounds": c.rounds,
                    "us": round(float(np.median(mine)) / calls, 3),
                    "rival_us": round(c.rival_us / calls, 3),
                    "kernel": " calls kernel " in visits[name][-1]["calls"],
                }
            )
    return table


def pictures(
    out: Path,
    key: str,
    mode: str,
    rival: str,
    every: Mapping[Workload, Comparison],
    samples: Mapping[str, Mapping[str, list]],
    calls: Mapping[str, str],
) -> None:
    """One heat map for each layout."""
    candidate = Candidate(kind="rival", source="kw.matmul", origin=Origin(kind="rival", name="kw.matmul"))
    for layout in dict.fromkeys(w.layout for w in every):
        shown = {}
        for w, c in every.items():
            if w.layout != layout:
                continue
            mine = [x for x in samples[w.name][OURS] if x]
            middle = float(np.median(mine))
            timing = Timing(mode=f"host-{mode}", samples=tuple(mine), median=middle, low=min(mine), high=max(mine))
            trial = Trial(
                workload=w,
                candidate=candidate,
                verdict=Verdict(outcome=Outcome.OK, evidence="right before it was timed"),
                environment=Environment(target="cuda", device=""),
                timings=(timing,),
                comparisons=(c,),
                stage="confirm",
            )
            sizes = (w.axes["M"], w.axes["N"], w.axes["K"])
            shown[Shape(sizes, {layout: [trial]})] = Versus(trial, c, serves="" if " calls kernel " in calls[w.name] else "torch.matmul")
        title = f"kw.matmul against {rival_name(rival)}, {layout}, {MODE_NAMES[f'host-{mode}']}"
        (out / f"{key.replace('_', '-')}-{layout}.svg").write_text(heatmap.picture(shown, f"host-{mode}", title))


if __name__ == "__main__":
    main()
