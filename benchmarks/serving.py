"""Latency of products that arrive at random and queue for one worker: kw.matmul against torch.matmul.

    python benchmarks/serving.py PACK --out results/h200/serving --seconds 120                 a decode-like mix of two language models
    python benchmarks/serving.py PACK --mix hgemm-1000-small --layout nn --out results/h200/serving-small
    python benchmarks/serving.py --out results/h200/serving                                    the summary alone

Requests arrive as a Poisson process. The worker calls them in the order of arrival and waits for each to be done; it spins while nothing is
there. A request's latency runs from its arrival, whether the worker was free or not, to its completion. Rates are shares (`--loads`) of
what torch.matmul serves back to back; beyond what a contender can serve, its latency grows with the length of a block.

A block is `--requests` requests of one rate from an empty queue; all contenders get the same requests at the same times, one block after
another in random order. Percentiles are of all blocks together, ratios and their intervals of percentiles block by block.

Mix `decode`: a projection of Llama-3.1-8B or Qwen2.5-7B (query-key-value and gate-up fused, B stored N x K), as often as a token meets it,
lm_head once a pass, for one of 1 to 128 tokens. A suite's name: its products, equally often.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import random
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import measuring
import numpy as np
import torch
from contenders import TORCH, WrongResult, served, use, verify, warm_up
from engines import LAYERS
from measuring import OURS, Budget, Lines, commands, environment, of_one_place, read, refuse, supervise
from published import command_line, write_summary
from thin_calls import factors

import kernelwright as kw
from kernelwright.evaluate import stats
from kernelwright.problems.problem import TORCH_DTYPES
from kernelwright.problems.suites import LLM_BATCHES, MODELS, suite
from kernelwright.records import Workload
from kernelwright.report.heatmap import _style
from kernelwright.report.svg import WIDTH, Linear, Log, Svg
from kernelwright.targets.target import Bound

TOKENS = tuple(m for m in LLM_BATCHES if m <= 128)
LOADS = (0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1)
PERCENTILES = (50, 95, 99)
CALIBRATIONS = 5
CALLS = {OURS: lambda a, b, c: kw.matmul(a, b, out=c), TORCH: lambda a, b, c: torch.matmul(a, b, out=c)}
Mix = list[tuple[Workload, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path, nargs="?", help="without it nothing is measured")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=120.0, help="all of it, the start of the process included")
    parser.add_argument("--mix", default="decode", help="decode, or a suite of products")
    parser.add_argument("--dtype", default="fp16", choices=["fp16", "bf16"])
    parser.add_argument("--layout", default="nt", help="of a suite's products")
    parser.add_argument("--warmup", action="store_true", help="kw.warmup of the mix's products first")
    parser.add_argument("--loads", type=float, nargs="+", default=list(LOADS))
    parser.add_argument("--requests", type=int, default=2000, help="of a block")
    parser.add_argument("--blocks", type=int, default=20, help="for each load, those of earlier calls counted in")
    parser.add_argument("--hang", type=float, default=90.0, help="a step that takes longer ends the process, seconds")
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()

    raw = args.out / "samples.jsonl"
    if args.inner:
        try:
            measure(args, raw)
        except WrongResult as error:
            refuse(str(error))
        return
    complete = supervise(args.seconds, raw) if args.pack else True
    summarise(raw, args.out)
    sys.exit(0 if complete else 1)


# ------------------------------------------------------------------------------------------------------------- measuring


def measure(args: argparse.Namespace, raw: Path) -> None:
    """Raises contenders.WrongResult: nothing is timed then."""
    budget = Budget(args.seconds, args.hang)
    budget.watch()
    measuring.device()
    pack = use(args.pack)
    mix, (_, before, _) = mix_of(args.mix, args.dtype, args.layout), of_one_place(read(raw))
    if args.warmup:
        warm_up([w for w, _ in mix], budget)
    operands, ours = tensors_of([w for w, _ in mix], budget)
    lines = Lines(raw)
    about = {"mix": args.mix, "products": len(mix), "served_by_a_kernel": sum(ours), "warmup": args.warmup}
    lines.add({"environment": environment(pack=pack, **about), "command": command_line("serving.py")})
    rng = random.Random(time.time_ns())
    draw = partial(rng.choices, operands, weights=[share for _, share in mix])
    capacity = next((x["capacity"] for x in before if "capacity" in x), None)
    if capacity is None:
        capacity = calibrate(draw, args.requests, budget)
        lines.add({"capacity": capacity})
    print(", ".join(f"{name} {us:.1f} us a request back to back" for name, us in capacity.items()), flush=True)
    done = defaultdict(int)
    for line in before:
        done[line.get("load")] += 1
    for number in range(args.blocks):
        for load in args.loads:
            if done[load] > number:
                continue
            mean = capacity[TORCH] * 1e-6 / load
            if budget.left < 2 * mean * args.requests * max(1.0, load):
                budget.close()
                return
            requests, arrivals = draw(k=args.requests), np.cumsum([rng.expovariate(1 / mean) for _ in range(args.requests)]).tolist()
            taken = {}
            for name in rng.sample(list(CALLS), len(CALLS)):
                budget.watch()
                taken[name] = block(CALLS[name], requests, arrivals)
            lines.add({"end": f"{load} {number}", "load": load, "mean_us": mean * 1e6, "latencies": taken})
    budget.close()


def mix_of(name: str, dtype: str, layout: str) -> Mix:
    """Products with how often each is asked for."""
    if name != "decode":
        return [(w.replace(layout=layout), 1.0) for w in suite(name, dtype=dtype)]
    found: Mix = []
    for model in MODELS:
        for projection, (n, k) in model.projections().items() if model.name in LAYERS else ():
            times = 1 if projection == "lm_head" else LAYERS[model.name]
            found += [(Workload(problem="gemm", axes={"M": m, "N": n, "K": k}, dtype=dtype, layout="nt"), float(times)) for m in TOKENS]
    return found


def tensors_of(found: Sequence[Workload], budget: Budget) -> tuple[list[tuple[torch.Tensor, ...]], list[bool]]:
    """(a, b, out) of each product, and whether a kernel of ours is called; each contender was right on them. Products with the same weight
    share it."""
    on, kept = measuring.device(), {}

    def tensor(role: str, *shape: int, dtype: str) -> torch.Tensor:
        key = role, shape, dtype
        if key not in kept:
            kept[key] = torch.randn(shape, dtype=TORCH_DTYPES[dtype], device=on)
        return kept[key]

    operands, ours = [], []
    for w in found:
        budget.watch()
        m, n, k = (w.axes[x] for x in "MNK")
        a = tensor("a", *((m, k) if w.layout[0] == "n" else (k, m)), dtype=w.dtype)
        b = tensor("b", *((k, n) if w.layout[1] == "n" else (n, k)), dtype=w.dtype)
        one = Bound(tensors={"a": a, "b": b, "c": tensor("c", m, n, dtype=w.dtype)}, names={})
        verify(w, [one], CALLS)
        operands.append(factors(w, one))
        ours.append(served(*operands[-1][:2])[0])
    return operands, ours


def calibrate(draw, requests: int, budget: Budget) -> dict[str, float]:
    """Microseconds of a request, back to back, by contender: the median of several blocks in turn."""
    taken: dict[str, list[float]] = {name: [] for name in CALLS}
    for _ in range(CALIBRATIONS):
        chosen = draw(k=requests)
        for name, call in CALLS.items():
            budget.watch()
            taken[name].append(block(call, chosen, [0.0] * requests)[-1] / requests)
    return {name: float(np.median(times)) for name, times in taken.items()}


def block(call, requests: Sequence[tuple[torch.Tensor, ...]], arrivals: Sequence[float]) -> list[float]:
    """Microseconds from each request's arrival (seconds after the start) to its completion."""
    clock, synchronize, latencies = time.perf_counter, torch.cuda.synchronize, []
    gc.disable()
    try:
        synchronize()
        begin = clock()
        for arrival, (a, b, c) in zip(arrivals, requests, strict=True):
            due = begin + arrival
            while clock() < due:
                pass
            call(a, b, c)
            synchronize()
            latencies.append(round((clock() - due) * 1e6, 1))
    finally:
        gc.enable()
    return latencies


# --------------------------------------------------------------------------------------------------------------- summary


def summarise(raw: Path, out: Path) -> None:
    where, lines, others = of_one_place(read(raw))
    by_load: dict[float, list[dict]] = defaultdict(list)
    for line in lines:
        if "load" in line:
            by_load[line["load"]].append(line)
    if not by_load:
        print(f"{raw} has no samples yet")
        return
    capacity = next(x["capacity"] for x in lines if "capacity" in x)
    figures: dict[str, Any] = {"capacity_over_torch": capacity[TORCH] / capacity[OURS]}
    table = [row(load, blocks) for load, blocks in sorted(by_load.items())]
    for r in table:
        figures |= {f"p{p}_over_torch_at_{r['load']:g}": r["over_torch"][f"p{p}"]["ratio"] for p in PERCENTILES}
    write_summary(
        out,
        commands(lines),
        where,
        figures,
        back_to_back_us=capacity,
        rates=table,
        of_other_devices_or_versions=others,
    )
    (out / "latency.svg").write_text(picture(table))
    for r in table:
        ours, theirs = r[OURS], r[TORCH]
        said = "   ".join(f"p{p} {ours[f'p{p}']:.0f} / {theirs[f'p{p}']:.0f}" for p in PERCENTILES)
        print(f"{r['load']:4.2f} of torch's capacity, {r['per_second']:8.0f} a second:  {said} us, ours / torch")
    print(out / "summary.json")


def row(load: float, blocks: list[dict]) -> dict[str, Any]:
    found = {"load": load, "per_second": 1e6 / blocks[0]["mean_us"], "blocks": len(blocks)}
    for name in CALLS:
        every = np.concatenate([b["latencies"][name] for b in blocks])
        found[name] = {f"p{p}": float(np.percentile(every, p)) for p in PERCENTILES} | {"mean": float(every.mean())}
    found["over_torch"] = {}
    for p in PERCENTILES:
        each = [float(np.percentile(b["latencies"][TORCH], p) / np.percentile(b["latencies"][OURS], p)) for b in blocks]
        found["over_torch"][f"p{p}"] = dict(zip(("ratio", "low", "high"), stats.ratio_interval(each), strict=True))
    return found


def picture(table: Sequence[Mapping[str, Any]]) -> str:
    """Latency over rate: the median and the 99th percentile of both."""
    left, right, top, bottom = 52, WIDTH - 110, 40, 300
    values = [r[name][p] for r in table for name in CALLS for p in ("p50", "p99")]
    across = Linear(0.0, 1.05 * max(r["per_second"] for r in table), left, right)
    up = Log(min(values) / 1.1, max(values) * 1.1, bottom, top)
    said = f"{len(table)} rates; the numbers are in summary.json"
    svg = Svg(WIDTH, bottom + 40, "Latency of products that arrive at random", said, "latency")
    svg.add("style", text=_style())
    svg.text(6, 16, "µs from arrival to completion, lower is better", "strong")
    for tick in up.ticks():
        svg.line(left, up(tick), right, up(tick), "grid")
        svg.text(left - 6, up(tick) + 4, f"{tick:g}", "tick", anchor="end")
    for tick in across.ticks(5):
        svg.text(across(tick), bottom + 16, f"{tick:g}", "tick", anchor="middle")
    svg.text((left + right) / 2, bottom + 32, "requests a second", "tick", anchor="middle")
    for name, line, css, mark in ((OURS, "whisker", "mark win", "dot"), (TORCH, "rival-line", "rival", "square")):
        for p in ("p50", "p99"):
            points = [(across(r["per_second"]), up(r[name][p])) for r in table]
            for one, other in itertools.pairwise(points):
                svg.line(*one, *other, line)
            for (x, y), r in zip(points, table, strict=True):
                svg.mark(mark, x, y, 3, css, f"{name} {p} at {r['per_second']:.0f} a second: {r[name][p]:.0f} us")
            x, y = points[-1]
            svg.text(x + 8, y + 4, f"{name} {p}", "tick")
    return str(svg)


if __name__ == "__main__":
    main()
