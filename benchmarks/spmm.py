"""Products with pruned weights beside dense ones: ours, three-layer, the best of several dense calls, cuSPARSELt.

    python benchmarks/spmm.py --out results/h200/sparse --seconds 540
    python benchmarks/spmm.py --out results/h200/sparse                        the summary alone

A step is a weight (M x K, a percentage of zeros, the smallest of each row) with a number of rows of X, N. Kernels that the families would
try first, and some of random configs, are run a few times while there is time; the fastest of spmm_quad and spmm_quad_sm90, the fastest of
spmm_three_layer and all rivals then meet in rounds in random order, device time cold: CUDA graphs over 16 copies of the weight, each used
once, behind an emptied L2.
A kernel counts if its result, on 1,024 columns of Y, is as near to the float64 one as `kernelwright verify` asks for. cuSPARSELt multiplies
with another weight (2:4), comes last and is shown, not compared.

Each step's line is on disk before the next begins; a further call goes on with what is missing, and a step that took the process down
twice is passed over. Steps come in the order of their importance: 50 % first. `--outside` is a table (CSV) with the columns m, k, n, name,
us of times measured elsewhere on the same device: figures over_NAME_nN.

summary.json: over_dense_n8 ... geometric means over the shapes at 50 % of the fastest dense call's time over our fastest kernel's;
chain_... the same with dependent launches one behind the other; three_... for three-layer; ..._60, ..._70 for more zeros; best_... with
dense where it is faster, as a pack serves.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import os
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measuring import STARTS, Budget, Lines, commands, environment, hopeless, of_one_place, read, refuse, supervise
from published import command_line, write_summary

from kernelwright import rivals
from kernelwright.evaluate.build import Builder
from kernelwright.evaluate.verify import compare, expect
from kernelwright.families import Config, DeviceFacts, Family
from kernelwright.families.spmm import Streams, ThreeLayer, Tiles
from kernelwright.layouts import quad_bitmap, three_layer
from kernelwright.problems import problem_of, resolve
from kernelwright.problems.spmm import kernel_facts
from kernelwright.problems.suites import SPARSE_LAYERS, SPARSE_ROWS
from kernelwright.records import Candidate, Verdict, Workload
from kernelwright.targets import usable
from kernelwright.targets.target import Bound, CandidateFault, Contender, DeviceLost, TargetUnavailable

DENSE = ("eager", "cublas", "cublas-nn", "cublaslt-auto", "cublaslt-auto-swapped")
INEXACT = "cusparselt"
OURS, THREE = "ours", "three"
FAMILIES: dict[str, tuple[Family, ...]] = {OURS: (Streams(), Tiles()), THREE: (ThreeLayer(),)}
LAYOUT = {OURS: "quad", THREE: "three"}
ZEROS = (50, 60, 70)
MORE_ZEROS = ((28672, 8192), (8192, 8192), (4096, 4096))
"""Shapes that are measured with more than half of the weights zeros."""
Sample = Callable[..., float]
ROUNDS = 9
DRAWN, MORE = 200, 12
SCREENS = 2
HOPELESS = 2.0
"""Times the model's least: what it says takes longer is not tried."""
COPIES = 16
"""Of a weight, each used once a sample, behind an emptied L2: nothing of it is there, whatever order lines leave the L2 in."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=0.0, help="all of it, the start of the process included; 0: nothing is measured")
    parser.add_argument("--rows", type=int, nargs="+", default=list(SPARSE_ROWS), help="N")
    parser.add_argument("--shapes", nargs="+", default=[f"{m}x{k}" for m, k in SPARSE_LAYERS], help="MxK, the most important first")
    parser.add_argument("--outside", type=Path)
    parser.add_argument("--hang", type=float, default=120.0, help="a step that takes longer ends the process, seconds")
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    raw = args.out / "samples.jsonl"
    if args.inner:
        measure(args, raw)
        return
    complete = supervise(args.seconds, raw) if args.seconds else True
    summarise(raw, args.out, args.outside)
    sys.exit(0 if complete else 1)


# ------------------------------------------------------------------------------------------------------------- measuring


def measure(args: argparse.Namespace, raw: Path) -> None:
    budget, lines = Budget(args.seconds, args.hang), Lines(raw)
    budget.watch()
    shapes = [tuple(map(int, text.split("x"))) for text in args.shapes]
    weights = [(zeros, m, k) for zeros in ZEROS for m, k in shapes if zeros == ZEROS[0] or (m, k) in MORE_ZEROS]
    lines.add({"environment": environment(), "command": command_line("spmm.py")})
    before = of_one_place(read(raw))[1]
    ended = {line["end"] for line in before if "end" in line}
    done = ended | hopeless(before)
    fatal = sum(line.get("start", "").endswith(INEXACT) and line["start"] not in ended for line in before) >= STARTS
    missing = {(z, m, k): [n for n in args.rows if step_of(z, m, k, n) not in done] for z, m, k in weights}
    count = sum(map(len, missing.values()))
    try:
        opened = Kernels()
    except TargetUnavailable as error:
        refuse(str(error))
    with opened as kernels:
        todo = [one for one in missing.items() if one[1]]
        for i, ((zeros, m, k), rows) in enumerate(todo):
            if budget.left > 5:
                budget.watch()
                for one in todo[i + (i > 0) : i + 2]:  # the next are compiled while these are measured
                    kernels.want(*one)
                weight = Weight(kernels.device.torch_device, m, k, zeros, kernels.facts.l2_bytes)
                for n in rows:
                    if budget.left <= 2:
                        break
                    budget.watch()
                    lines.add({"start": step_of(zeros, m, k, n)})
                    lines.add(step(kernels, weight, n, budget.left / max(1, count)))
                    count -= 1
                    alone = f"{step_of(zeros, m, k, n)} {INEXACT}"
                    # behind all others, and no more once it took the process down: each start costs seconds of everything else
                    if alone not in done and not fatal:
                        lines.add({"start": alone})
                        lines.add({"end": alone, "of": step_of(zeros, m, k, n)} | inexact(kernels, weight, n))
    budget.close()


def step_of(zeros: int, m: int, k: int, n: int) -> str:
    return f"{n}x{m}x{k} {zeros} %"


def workload(weight: tuple[int, int, int], n: int, side: str) -> Workload:
    zeros, m, k = weight
    return resolve(f"spmm:{n}x{m}x{k}:{LAYOUT[side]}-{zeros}")


def tried(family: Family, w: Workload, facts: DeviceFacts) -> list[Config]:
    """The seeds, and of random configs those that the family's model expects the most of."""
    seeds, space, rng = list(family.seeds(w, facts)), family.space(w, facts), random.Random(0)
    drawn = [{name: rng.choice(values) for name, values in space.items()} for _ in range(DRAWN)]
    legal = {str(c): c for c in drawn if c not in seeds and family.illegal(c, w, facts) is None}
    return seeds + sorted(legal.values(), key=lambda c: family.estimate(c, w, facts) or 0.0)[:MORE]


class Kernels:
    """The device, and what the families would try first, compiled in the background."""

    def __init__(self):
        self.target = usable("cuda")
        self.facts, self.device = self.target.facts(), self.target.open()
        self.builder = Builder(self.target, max(1, len(os.sched_getaffinity(0)) - 2))  # cores for this process, which enqueues ahead
        self.of: dict[tuple[str, str], list[Candidate]] = {}
        self.built: dict[str, Any] = {}

    def want(self, weight: tuple[int, int, int], rows: Sequence[int]) -> None:
        for n in rows:
            for side, families in FAMILIES.items():
                w = workload(weight, n, side)
                able = [family for family in families if family.refuses(w, self.facts) is None]
                by_family = [[(f.estimate(c, w, self.facts) or 0.0, f, c) for c in tried(f, w, self.facts)] for f in able]
                # by turns: should the time not suffice for all, each family has had its best
                every = [one for turn in itertools.zip_longest(*by_family) for one in turn if one is not None]
                most = HOPELESS * min((us for us, *_ in every), default=0.0)
                self.of[w.name, side] = [f.render(c, w, self.facts) for us, f, c in every if us <= most]
                self.builder.want(self.of[w.name, side])

    def __enter__(self) -> Kernels:
        self.builder.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.builder.__exit__(*error)

    def builds(self, w: Workload, side: str) -> list[tuple[Candidate, Any]]:
        """Those that compile."""
        asked = self.of[w.name, side]
        for candidate, build in self.builder.builds([c for c in asked if c.id not in self.built]):
            self.built[candidate.id] = build
        return [(c, self.built[c.id]) for c in asked if not isinstance(self.built[c.id], Verdict)]


class Weight:
    """Half of it zeros, the smallest of each row; dense and in both layouts, in copies that are each used once a sample."""

    def __init__(self, on: str, m: int, k: int, zeros: int, l2_bytes: int):
        self.key = (zeros, m, k)
        self.enough = 1 + math.ceil(4 * l2_bytes / (m * k))
        """Copies for who must prepare each before every sample."""
        dense = torch.randn(m, k, device=on, dtype=torch.float32).mul_(k**-0.5).half()
        for rows in dense.split(2048):
            size = rows.abs().float()
            rows.masked_fill_(size <= size.kthvalue(max(1, round(k * zeros / 100)), dim=1, keepdim=True).values, 0)
        packed = {
            OURS: quad_bitmap.pack(dense, expected=round(32 * (100 - zeros) / 100)),
            THREE: three_layer.pack(dense),
        }
        self.bytes_per_weight = {side: parts["records"].numel() / (m * k) for side, (parts, _) in packed.items()}
        self.dense = dense
        self.copies = [
            {
                side: {
                    "w": own,
                    "records": parts["records"].clone().view(torch.int32),
                    "offsets": parts["offsets"].clone(),
                    "facts": torch.tensor(kernel_facts(facts), dtype=torch.int32, device=on),
                }
                for side, (parts, facts) in packed.items()
            }
            for _ in range(COPIES)
            for own in [dense.clone()]
        ]

    def bounds(self, n: int, sms: int) -> tuple[dict[str, list[Bound]], dict[str, Workload]]:
        """For each side the sets of buffers; X, W and Y of a set are the same for both."""
        _, m, k = self.key
        found: dict[str, list[Bound]] = {side: [] for side in FAMILIES}
        workloads = {side: workload(self.key, n, side) for side in FAMILIES}
        for copy in self.copies:
            w = copy[OURS]["w"]
            x, y = torch.randn(n, k, device=w.device).half(), torch.empty(n, m, dtype=torch.float16, device=w.device)
            for side, tensors in copy.items():
                names = dict(problem_of(workloads[side]).names(workloads[side], sms))
                found[side].append(Bound(tensors={"x": x, **tensors, "y": y}, names=names))
        return found, workloads


def step(kernels: Kernels, weight: Weight, n: int, seconds: float) -> dict[str, Any]:
    """The line of a step; `us`: contender to its samples, microseconds a launch."""
    zeros, m, k = weight.key
    device = kernels.device
    bounds, workloads = weight.bounds(n, kernels.facts.sms)
    faults: dict[str, str] = {}
    sample = partial(sampled, COPIES)
    drawn = [one.tensors["x"].clone() for one in bounds[OURS]]
    contenders = vendors(DENSE, device, workloads[OURS], bounds[OURS], sample, faults)
    for one, x in zip(bounds[OURS], drawn, strict=True):  # tuning cuBLASLt draws operands of its own
        one.tensors["x"].copy_(x), one.tensors["w"].copy_(weight.dense)
    rest = Budget(max(2.0, seconds), 600.0)
    configs = {}
    for side in FAMILIES:
        times = []
        for candidate, build in kernels.builds(workloads[side], side):
            if rest.left < (0.25 if side == THREE else 0.5) * seconds and times:
                break
            try:
                contender = device.load(candidate, build, workloads[side], bounds[side])
                us = [us for us in (sample(contender) for _ in range(SCREENS)) if not math.isnan(us)]
                times.append((min(us, default=math.inf), len(times), candidate, contender))
            except DeviceLost:
                raise
            except CandidateFault as fault:
                faults[str(candidate.origin.config)] = fault.evidence[:200]
        times.sort()
        for _, _, candidate, contender in times:
            if wrong := wrongness(workloads[side], bounds[side][0], contender):
                faults[f"{candidate.origin.name} {candidate.origin.config}"] = wrong
                continue
            contenders[side], configs[side] = contender, {"family": candidate.origin.name, **candidate.origin.config}
            break
        for _, _, _, contender in times:
            if contender is not contenders.get(side):
                contender.close()
    us = rounds(contenders, sample, rest)
    chain = {f"{side} chain": [sample(contenders[side], "device-chain") for _ in range(5)] for side in FAMILIES if side in contenders}
    for contender in contenders.values():
        contender.close()
    line = {"end": step_of(zeros, m, k, n), "zeros": zeros, "m": m, "k": k, "n": n, "copies": len(weight.copies), "us": us | chain}
    line |= {"configs": configs, "faults": faults, "bytes_per_weight": weight.bytes_per_weight}
    best = min((statistics.median(v) for name, v in us.items() if name in DENSE), default=math.nan)
    said = {name: f"{statistics.median(v):.2f}" for name, v in us.items()}
    print(line["end"], said, f"{best / statistics.median(us[OURS]):.2f}x" if us.get(OURS) else "", faults or "", flush=True)
    return line


def inexact(kernels: Kernels, weight: Weight, n: int) -> dict[str, Any]:
    """cuSPARSELt's times by themselves, or why there are none."""
    faults: dict[str, str] = {}
    bounds, workloads = weight.bounds(n, kernels.facts.sms)
    sample = partial(sampled, COPIES)
    found = vendors((INEXACT,), kernels.device, workloads[OURS], bounds[OURS][: weight.enough], sample, faults)
    us = {name: [round(sample(contender), 3) for _ in range(5)] for name, contender in found.items()}
    for contender in found.values():
        contender.close()
    return {"us": us, "faults": faults}


def vendors(
    names: Sequence[str], device: Any, w: Workload, sets: Sequence[Bound], sample: Sample, faults: dict[str, str]
) -> dict[str, Contender]:
    found: dict[str, Contender] = {}
    for name in names:
        try:
            runs, setup = rivals.load(name, w, sets)
            contender = device.load_trusted(runs, setup, sets)
            sample(contender)
            found[name] = contender
        except DeviceLost:
            raise
        except (CandidateFault, RuntimeError) as fault:  # a library's refusal, or PyTorch's of a capture
            faults[name] = str(getattr(fault, "evidence", fault))[:200]
    return found


def sampled(launches: int, contender: Contender, mode: str = "device-cold") -> float:
    """Microseconds of a launch."""
    return contender.sample(mode, launches)[0]


def rounds(contenders: Mapping[str, Contender], sample: Sample, budget: Budget) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for turn in range(ROUNDS):
        if turn >= 3 and budget.left < 0:
            break
        random.shuffle(order)
        for name in order:
            us = sample(contenders[name])
            if not math.isnan(us):
                taken[name].append(round(us, 3))
    return {name: samples for name, samples in taken.items() if samples}


def wrongness(w: Workload, one: Bound, contender: Contender) -> str | None:
    """Runs on the first set and holds a random part of Y against the float64 product."""
    one.tensors["y"].fill_(math.nan)
    contender.run(0)
    problem = problem_of(w)
    of_inputs, pick = problem.sample_rows(w, {"y": one.tensors["y"]})
    part = pick({"y": one.tensors["y"]})
    rows = problem.rows_workload(w, part)
    judged = compare(problem, rows, expect(problem, rows, of_inputs(dict(one.tensors))), part)
    return None if judged.passed else f"wrong: {judged.note}"


# ------------------------------------------------------------------------------------------------------------- summary


def summarise(raw: Path, out: Path, outside: Path | None) -> None:
    where, lines, others = of_one_place(read(raw))
    steps = {line["end"]: line for line in lines if "zeros" in line}
    for line in lines:
        if line.get("of") in steps:
            steps[line["of"]]["us"] |= line["us"]
            steps[line["of"]]["faults"] |= line["faults"]
    table = [row_of(line) for line in steps.values()]
    figures: dict[str, float] = {}
    for zeros in sorted({row["zeros"] for row in table}):
        for n in sorted({row["n"] for row in table}):
            end = f"n{n}" + ("" if zeros == ZEROS[0] else f"_{zeros}")
            rows = [row for row in table if (row["zeros"], row["n"]) == (zeros, n)]
            for figure, ratio in (
                ("over_dense", "ratio"),
                ("chain", "chain_ratio"),
                ("three", "three_ratio"),
                ("cusparselt", "cusparselt_ratio"),
            ):
                figures |= mean(f"{figure}_{end}", [row[ratio] for row in rows if row.get(ratio)])
            figures |= mean(f"best_{end}", [max(1.0, row["ratio"]) for row in rows if row.get("ratio")])
            figures[f"shapes_{end}"] = len(rows)
    for side in FAMILIES:
        sizes = [line["bytes_per_weight"][side] for line in steps.values() if line["zeros"] == ZEROS[0]]
        if sizes:
            figures[f"bytes_per_weight_{side}"] = round(max(sizes), 4)
    for (name, n), found in sorted(elsewhere(outside, table).items()):
        figures |= mean(f"over_{name}_n{n}", found)
    faults = {line["end"]: line["faults"] for line in steps.values() if line["faults"]}
    more = {"results": table, "faults": faults, "hung_or_crashed": sorted(hopeless(lines)), "lines_of_other_places": others}
    write_summary(out, commands(lines) or command_line("spmm.py"), where, figures, **more)
    for name, value in figures.items():
        print(f"{name:32} {value}")


def row_of(line: Mapping[str, Any]) -> dict[str, Any]:
    us = {name: statistics.median(samples) for name, samples in line["us"].items()}
    dense = {name: us[name] for name in DENSE if name in us}
    row: dict[str, Any] = {key: line[key] for key in ("zeros", "m", "k", "n", "configs")}
    row["us"] = {name: round(value, 2) for name, value in us.items()}
    if not dense:
        return row
    row["dense"] = min(dense, key=dense.__getitem__)
    for figure, name in (("ratio", OURS), ("chain_ratio", f"{OURS} chain"), ("three_ratio", THREE), ("cusparselt_ratio", INEXACT)):
        if name in us:
            row[figure] = round(min(dense.values()) / us[name], 4)
    return row


def mean(name: str, ratios: Iterable[float]) -> dict[str, float]:
    found = list(ratios)
    return {name: round(math.exp(statistics.fmean(map(math.log, found))), 4)} if found else {}


def elsewhere(path: Path | None, table: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], list[float]]:
    """Others' times over ours, by name and N, at half zeros."""
    ours = {(r["m"], r["k"], r["n"]): r["us"].get(OURS) for r in table if r["zeros"] == ZEROS[0]}
    found: dict[tuple[str, int], list[float]] = {}
    if path is not None:
        with path.open(newline="") as file:
            for line in csv.DictReader(file):
                m, k, n = (int(line[x]) for x in "mkn")
                if us := ours.get((m, k, n)):
                    found.setdefault((line["name"], n), []).append(float(line["us"]) / us)
    return found


if __name__ == "__main__":
    main()
