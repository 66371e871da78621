"""Prefill and decode of language models with and without kw.accelerate: eager, CUDA graphs, torch.compile.

    python benchmarks/models.py PACK... --out results/h200/models/bf16 --seconds 300 --engines eager graph
    python benchmarks/models.py PACK... --out results/h200/models/bf16 --seconds 300 --engines graph compile --cells decode:1x512
    python benchmarks/models.py --out results/h200/models/bf16                             the summary alone

Models have random weights: transformers' Llama with the sizes of Llama-3.1-8B, its Qwen2 with those of Qwen2.5-7B. A cell is a model, a
type, a phase and BATCHxLENGTH: `prefill`, LENGTH tokens of each sequence up to the first new token (milliseconds); `decode`, STEPS greedy
steps at the end of a context of LENGTH (tokens a second). Cells come in the order of CELLS; each one's line is on disk before the next
begins, a further call goes on with what is missing, an engine that fails (no memory, compilation) is named in the line and passed over.

In a round every engine of engines.py (eager, graph, compile, compile-graph) is sampled once with torch's layers and once with ours (and
once more: A/A), in random order. An engine whose logits are wrong is not timed.

What the packs must hold: products nt in the model's type, of each projection for each number of tokens (BATCH in decode, BATCH x LENGTH in
prefill), a bias included. These suites are that:

    kernelwright tune results/h200/models/layers.txt --target cuda --minutes 4 --rival eager --rival cublaslt --rival cublaslt-auto
    python benchmarks/models.py kernelwright-out/pack-layers --warmup --out results/h200/models/bf16

(layers.txt: both models, bf16, at most 4,096 tokens. The suites llama-3.1-8b and qwen2.5-7b go up to 65,536, take `--dtype fp16`, and make
a pack each.) A pack of another suite serves by prediction, by what `--warmup` measures first with its kernels, or leaves the
layers to torch: each line says how many it served. A device is served from one pack, the last one named that fits it.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measuring
import numpy as np
import torch
from contenders import TORCH, use, warm_up
from engines import BOUND, ENGINES, LAYERS, Cell, Spoiled, build, first_line, free, huggingface, measured, products
from measuring import AGAIN, OURS, Budget, Lines, commands, compared, environment, hopeless, of_one_place, read, refuse, supervise
from published import command_line, write_summary

from kernelwright.report.shapes import mean_of

CELLS = [
    "decode:1x512",
    "prefill:1x512",
    "decode:32x512",
    "decode:8x512",
    "decode:128x512",
    "prefill:1x2048",
    "prefill:8x512",
    "prefill:8x2048",
    "prefill:32x512",
    "prefill:128x512",
    "prefill:32x2048",
    "prefill:128x2048",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packs", type=Path, nargs="*", help="without one nothing is measured; the last that fits serves")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=480.0, help="all of it, the start of the process included")
    parser.add_argument("--models", nargs="+", choices=list(LAYERS), default=list(LAYERS))
    parser.add_argument("--dtypes", nargs="+", choices=list(BOUND), default=["bf16"])
    parser.add_argument("--cells", nargs="+", default=list(CELLS), help="PHASE:BATCHxLENGTH, the most important first")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--layers", type=int, help="fewer than the model has")
    parser.add_argument("--warmup", action="store_true", help="kw.warmup of each model's products before its first cell")
    parser.add_argument("--cell-seconds", type=float, default=12.0, help="of a cell's rounds; one that needs four times that is left out")
    parser.add_argument("--hang", type=float, default=300.0, help="a step that takes longer ends the process, seconds")
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()

    raw = args.out / "samples.jsonl"
    if args.inner:
        measure(args, raw)
        return
    complete = supervise(args.seconds, raw) if args.packs else True
    wrong = summarise(raw, args.out)
    sys.exit(0 if complete and not wrong else 1)


# ------------------------------------------------------------------------------------------------------------- measuring


def measure(args: argparse.Namespace, raw: Path) -> None:
    budget = Budget(args.seconds, args.hang)
    budget.watch()
    measuring.device()
    packs = ", ".join([use(pack) for pack in args.packs])
    try:
        cells = [Cell.parse(model, dtype, text) for model in args.models for dtype in args.dtypes for text in args.cells]
    except ValueError as error:
        refuse(str(error))
    lines = Lines(raw)
    about = {} if args.layers is None else {"layers": args.layers}
    where = environment(pack=packs, transformers=huggingface().__version__, warmup=args.warmup, **about)
    lines.add({"environment": where, "command": command_line("models.py")})
    before = of_one_place(read(raw))[1]
    done = {line["end"] for line in before if "end" in line and "left_out" not in line} | hopeless(before)
    loaded: tuple[object, Any] = (None, None)
    for cell in cells:
        name = f"{cell.name} [{' '.join(args.engines)}]"
        if name in done:
            continue
        if budget.left <= 0:
            break
        budget.watch()
        lines.add({"start": name})
        spoilers = {line["engine"]: line["error"] for line in before if line.get("spoils") == name}
        try:
            if loaded[0] != (cell.model, cell.dtype):
                loaded = (None, None)
                free()
                loaded = (cell.model, cell.dtype), build(cell.model, cell.dtype, args.layers)
                if args.warmup:
                    same = [c for c in cells if (c.model, c.dtype) == loaded[0] and f"{c.name} [{' '.join(args.engines)}]" not in done]
                    warm_up(products(loaded[1], same), budget)
            engines = [engine for engine in args.engines if engine not in spoilers]
            line = measured(loaded[1], cell, engines, args.cell_seconds, budget)
        except Spoiled as error:
            lines.add({"spoils": name, "engine": error.engine, "error": str(error)})
            raise SystemExit(3) from None  # the context may be gone: the next process goes on without that engine
        except torch.OutOfMemoryError as error:
            line = {"failed": {"all": first_line(error)}}
        if line is None:
            lines.add({"stopped": name})
            break
        line["failed"] = line["failed"] | spoilers
        about = {"cell": cell.name, "phase": cell.phase, "model": cell.model, "tokens": cell.tokens, "batch": cell.batch}
        lines.add({"end": name, **about, **line})
        print(f"{name}: {_said(line)}  ({budget.left:.0f} s left)", flush=True)
        free()
    budget.close()


def _said(line: dict[str, Any]) -> str:
    taken = {name: [x for x in each if x] for name, each in (line.get("samples") or {}).items() if AGAIN not in name}
    times = ", ".join(f"{name} {np.median(each) / 1e3 / line['steps']:.2f} ms" for name, each in taken.items() if each)
    return "; ".join(filter(None, (times, line.get("served", ""), line.get("left_out", ""), str(line.get("failed") or ""))))


# --------------------------------------------------------------------------------------------------------------- summary


def summarise(raw: Path, out: Path) -> list[str]:
    """Writes summary.json. Returns what was wrong."""
    where, lines, others = of_one_place(read(raw))
    ends = list({line["end"]: line for line in lines if "end" in line}.values())  # what was left out may have been measured since
    if not ends:
        print(f"{raw} has no cells yet")
        return []
    table = [row for line in ends if line.get("samples") for row in rows(line)]
    groups: dict[str, list[float]] = defaultdict(list)
    for row in table:
        groups[f"{row['phase']}_over_{row['against'].replace('-', '_').replace(' ', '_')}"].append(row["ratio"])
    means = {key: mean_of(found) for key, found in groups.items()}
    wrong = [sentence for line in ends for sentence in line.get("wrong", ())]
    write_summary(
        out,
        commands(lines),
        where,
        {key: mean.mean for key, mean in means.items() if mean},
        intervals={key: {"low": m.low, "high": m.high, "cells": m.shapes} for key, m in means.items() if m},
        losses=sorted((row for row in table if row["outcome"] == "loss"), key=lambda row: row["ratio"]),
        wrong=wrong,
        failed={line["end"]: line["failed"] for line in ends if line.get("failed")},
        left_out={line["end"]: line["left_out"] for line in ends if "left_out" in line},
        hung_or_crashed=sorted(hopeless(lines)),
        graph_breaks={line["end"]: line["graph_breaks"] for line in ends if "graph_breaks" in line},
        served={line["end"]: line["served"] for line in ends if "served" in line},
        logits={line["end"]: line["logits"] for line in ends if "logits" in line},
        of_other_devices_or_versions=others,
        cells=table,
    )
    for row in table:
        said = f"{row['ratio']:.3f}x [{row['low']:.3f}, {row['high']:.3f}] {row['outcome']}"
        print(f"{row['cell']:36} {row['engine']:14} over {row['against']:20} {said:34} {row['value']:.4g} {row['unit']}")
    for sentence in wrong:
        print(f"WRONG: {sentence}", file=sys.stderr)
    print(out / "summary.json")
    return wrong


def rows(line: dict[str, Any]) -> list[dict[str, Any]]:
    """Ours over torch's layers with each engine; our fastest engine over torch.compile (the faster of its two) and over torch's fastest."""
    samples = line["samples"]
    engines = [name for name in ENGINES if f"{OURS} {name}" in samples]
    pairs = [(name, name, name) for name in engines]

    def fastest(side: str, names: Sequence[str]) -> str:
        return min(names, key=lambda name: np.median([x for x in samples[f"{side} {name}"] if x] or [np.inf]))

    best = fastest(OURS, engines)
    if compiled := [name for name in engines if name.startswith("compile")]:
        pairs.append((best, fastest(TORCH, compiled), "best compile"))
    pairs.append((best, fastest(TORCH, engines), "best"))
    found = []
    for ours, theirs, against in pairs:
        three = {OURS: samples[f"{OURS} {ours}"], AGAIN: samples[f"{AGAIN} {ours}"], TORCH: samples[f"{TORCH} {theirs}"]}
        c = compared(three, line["phase"]).get(TORCH)
        if c is None:
            continue
        us = float(np.median([x for x in samples[f"{OURS} {ours}"] if x]))
        decode = line["phase"] == "decode"
        found.append(
            {
                "cell": line["cell"],
                "phase": line["phase"],
                "engine": ours,
                "against": against,
                "torch_engine": theirs,
                "ratio": c.ratio,
                "low": c.low,
                "high": c.high,
                "outcome": c.outcome,
                "rounds": c.rounds,
                "value": line["batch"] * line["steps"] / us * 1e6 if decode else us / 1e3,
                "torch_value": line["batch"] * line["steps"] / c.rival_us * 1e6 if decode else c.rival_us / 1e3,
                "unit": "tokens/s" if decode else "ms to the first token",
            }
        )
    return found


if __name__ == "__main__":
    main()
