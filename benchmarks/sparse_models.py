"""Language models with half of their weights pruned: decoding beside dense, memory, and what pruning costs in quality.

    python benchmarks/sparse_models.py PACK... --out results/h200/sparse-models --seconds 540
    python benchmarks/sparse_models.py --real FOLDER --out results/h200/sparse-models --seconds 200
    python benchmarks/sparse_models.py --out results/h200/sparse-models                            the summary alone

Decoding: transformers' Llama with the sizes of Llama-2 7B and 13B and random weights, of each row the smaller half zeros. Greedy steps at
the end of a context as one CUDA graph each, with torch's layers on the pruned dense weights and with SparseLinear ones, q, k and v and gate
and up joined (`sparse.fuse`), in rounds in random order. Logits are held against the dense model's first. Kernels come from the packs;
these make them:

    kernelwright tune sparse-llama-2-7b --target cuda --minutes 10 --rival eager --rival cublaslt-auto --out kernelwright-out
    kernelwright tune sparse-llama-2-13b ...

Quality: a real model of a folder (transformers), perplexity on Python's own documentation (pydoc_data), of which one half serves as
calibration, for dense, each method of `sparse.prune_` at half zeros, and 2:4 by magnitude.

Each line is on disk before the next step begins; a further call goes on with what is missing.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measuring
import numpy as np
import torch
from contenders import TORCH
from engines import STEPS, Cell, Run, clocked, first_line, free, huggingface, made, prepared
from measuring import AGAIN, OURS, Budget, Lines, commands, compared, environment, hopeless, of_one_place, read, supervise
from published import command_line, write_summary
from torch import nn

import kernelwright as kw
from kernelwright import sparse
from kernelwright.problems.suites import SPARSE_MODELS
from kernelwright.rivals.cusparselt import two_of_four
from kernelwright.runtime import pack as packs
from kernelwright.sparse import served
from kernelwright.sparse.fuse import Joined

METHODS = ("dense", "magnitude", "wanda", "sparsegpt", "2:4 magnitude")
SEQUENCE, CALIBRATION, HELD_OUT = 1024, 32, 32
"""Tokens, and sequences."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packs", type=Path, nargs="*", help="the last counts first")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=0.0, help="all of it, the start of the process included; 0: nothing is measured")
    parser.add_argument("--models", nargs="+", choices=[m.name for m in SPARSE_MODELS], default=[m.name for m in SPARSE_MODELS])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 16, 32])
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--dtype", choices=("fp16", "bf16"), default="fp16")
    parser.add_argument("--layers", type=int, help="fewer than the model has")
    parser.add_argument("--engine", choices=("graph", "eager"), default="graph")
    parser.add_argument("--real", type=Path, help="a folder with a real model: its quality, and no decoding")
    parser.add_argument("--cell-seconds", type=float, default=12.0)
    parser.add_argument("--hang", type=float, default=300.0)
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    raw = args.out / "samples.jsonl"
    if args.inner:
        measure(args, raw)
        return
    complete = supervise(args.seconds, raw) if args.seconds else True
    summarise(raw, args.out)
    sys.exit(0 if complete else 1)


def measure(args: argparse.Namespace, raw: Path) -> None:
    budget, lines = Budget(args.seconds, args.hang), Lines(raw)
    budget.watch()
    pack = ", ".join(packs.load(one).manifest.checksum[:16] for one in args.packs)
    for one in args.packs:
        kw.use(one)
    lines.add({"environment": environment(pack=pack, transformers=huggingface().__version__), "command": command_line("sparse_models.py")})
    before = of_one_place(read(raw))[1]
    done = {line["end"] for line in before if "end" in line} | hopeless(before)
    if args.real:
        quality(args.real, lines, done, budget)
    else:
        for name in args.models:
            decoding(name, args, lines, done, budget)
    budget.close()


# -------------------------------------------------------------------------------------------------------------- decoding


class Swap:
    """The layers of a model as torch's and as ours, for engines.py."""

    def __init__(self, model: nn.Module):
        self._dense = kept(model)
        done = sparse.convert(model)
        self.bytes = {"dense": done.dense_bytes, "sparse": done.sparse_bytes}
        self.joined = sparse.fuse(model)
        self._sparse = kept(model)
        self.become(False)

    def become(self, ours: bool) -> None:
        for module, kind, children in self._sparse if ours else self._dense:
            module.__class__ = kind
            module._modules.clear()
            module._modules.update(children)

    def drop_dense(self) -> None:
        self.become(True)
        self._dense = []

    def served(self, rows: int) -> dict[str, int]:
        """Products of a step, and how many of them a kernel of the packs does."""
        every = [(m, getattr(m, "turns", False)) for m, _, _ in self._sparse if type(m) in (sparse.SparseLinear, Joined)]
        able = sum(served.crossover(m.compressed, "swiglu" if gated else "") >= rows for m, gated in every)
        return {"products": len(every), "by_kernels": able}


def kept(model: nn.Module) -> list[tuple[nn.Module, type[nn.Module], dict[str, Any]]]:
    return [(module, type(module), dict(module._modules)) for module in model.modules()]


def decoding(name: str, args: argparse.Namespace, lines: Lines, done: set[str], budget: Budget) -> None:
    cells = [Cell(name, args.dtype, "decode", batch, args.context) for batch in args.batches]
    memory = f"memory {name}"
    missing = [cell for cell in cells if f"{cell.name} {args.engine}" not in done]
    if (not missing and memory in done) or budget.left < 5:
        return
    budget.watch()
    one = next(m for m in SPARSE_MODELS if m.name == name)
    model = made(one, args.dtype, args.layers or one.blocks)
    sparse.prune_(model, "magnitude", 0.5, scope="row")
    largest = Cell(name, args.dtype, "decode", max(args.batches), args.context)
    peaks = {"dense": peak(model, largest)}
    budget.watch()
    swap = Swap(model)
    for cell in missing:
        step = f"{cell.name} {args.engine}"
        if budget.left <= 0:
            return
        budget.watch()
        lines.add({"start": step})
        with torch.inference_mode(False), torch.no_grad():
            swap.become(False)
            run = Run(model, cell)
            run.reset()
            reference = run.step().float().clone()
            try:
                engines, logits, failed, wrong = prepared(run, swap, (args.engine,), reference, budget)  # pyright: ignore[reportArgumentType]
                taken = clocked(run, swap, engines, args.cell_seconds, budget) if engines else {}  # pyright: ignore[reportArgumentType]
            except torch.OutOfMemoryError as error:
                logits, failed, wrong, taken = {}, {"all": first_line(error)}, [], {}
        if taken is None:
            return
        line = {"end": step, "model": name, "batch": cell.batch, "engine": args.engine, "served": swap.served(cell.batch)}
        line |= {"joined": len(swap.joined), "logits": logits, "failed": failed, "wrong": wrong}
        lines.add(line | ({"left_out": taken} if isinstance(taken, str) else {"samples": taken}))
        times = {k: f"{np.median(clean(v)) / STEPS / 1e3:.3f} ms" for k, v in taken.items()} if isinstance(taken, dict) else taken
        print(step, line["served"], times, flush=True)
        free()
    budget.watch()
    swap.drop_dense()
    free()
    peaks["sparse"] = peak(model, largest)
    lines.add({"end": memory, "model": name, "weights": swap.bytes, "peaks": peaks, "batch": largest.batch})


def peak(model: nn.Module, cell: Cell) -> int:
    """Bytes that are allocated at most while a step runs; 0 without a GPU."""
    if not torch.cuda.is_available():
        return 0
    free()
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        run = Run(model, cell)
        run.reset()
        run.step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


# --------------------------------------------------------------------------------------------------------------- quality


def quality(folder: Path, lines: Lines, done: set[str], budget: Budget) -> None:
    transformers, on = huggingface(), measuring.device()
    ids = transformers.AutoTokenizer.from_pretrained(folder)(documentation())["input_ids"]
    sequences = torch.tensor(ids[: len(ids) // SEQUENCE * SEQUENCE]).view(-1, SEQUENCE)
    half = len(sequences) // 2
    calibration, held_out = sequences[:half][:CALIBRATION], sequences[half:][:HELD_OUT]
    for method in METHODS:
        step = f"quality {folder.name} {method}"
        if step in done or budget.left < 5:
            continue
        budget.watch()
        lines.add({"start": step})
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(on).eval()
        if method == "2:4 magnitude":
            for layer_name, layer in model.named_modules():
                if type(layer) is nn.Linear and not layer_name.endswith("lm_head"):
                    layer.weight.data.copy_(two_of_four(layer.weight.data))
        elif method != "dense":
            sparse.prune_(model, method, 0.5, [x[None].to(on) for x in calibration] if method != "magnitude" else None)
        found: dict[str, Any] = {"end": step, "model": folder.name, "method": method, "perplexity": perplexity(model, held_out, on)}
        if method == "magnitude":  # the same model with compressed layers, in 16 bits
            found["as_half"] = perplexity(model.half() if on != "cpu" else model.bfloat16(), held_out[:8], on)
            sparse.convert(model)
            sparse.fuse(model)
            found["compressed"] = perplexity(model, held_out[:8], on)
        lines.add(found)
        print(found, flush=True)
        del model
        free()


def documentation() -> str:
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


@torch.no_grad()
def perplexity(model: nn.Module, sequences: torch.Tensor, on: str) -> float:
    total, count = 0.0, 0
    for batch in sequences.split(4):
        ids = batch.to(on)
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
        total += float(nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum"))
        count += ids[:, 1:].numel()
    return round(math.exp(total / count), 4)


# --------------------------------------------------------------------------------------------------------------- summary


def summarise(raw: Path, out: Path) -> None:
    where, lines, others = of_one_place(read(raw))
    ends = [line for line in lines if "end" in line]
    figures: dict[str, float] = {}
    table: list[dict[str, Any]] = []
    for line in ends:
        if line.get("samples"):
            row = row_of(line)
            table.append(row)
            if row["ratio"] is not None:
                figures[f"{line['model']} decode b{line['batch']}".lower().replace("-", "_").replace(" ", "_")] = round(row["ratio"], 4)
        elif "perplexity" in line:
            figures[f"perplexity_{line['method']}".replace(" ", "_").replace(":", "_")] = line["perplexity"]
        elif "peaks" in line:
            table.append({key: line[key] for key in ("end", "weights", "peaks", "batch")})
    wrong = [sentence for line in ends for sentence in line.get("wrong", ())]
    failed = {line["end"]: line["failed"] for line in ends if line.get("failed")}
    more = {"cells": table, "wrong": wrong, "failed": failed, "hung_or_crashed": sorted(hopeless(lines)), "lines_of_other_places": others}
    more["quality"] = [line for line in ends if "perplexity" in line]
    write_summary(out, commands(lines) or command_line("sparse_models.py"), where, figures, **more)
    for name, value in figures.items():
        print(f"{name:40} {value}")
    for sentence in wrong:
        print(f"WRONG: {sentence}", file=sys.stderr)


def row_of(line: dict[str, Any]) -> dict[str, Any]:
    engine, samples = line["engine"], line["samples"]
    three = {side: samples[f"{side} {engine}"] for side in (OURS, AGAIN, TORCH)}
    c = compared(three, "decode").get(TORCH)

    def tokens(side: str) -> float:
        return round(line["batch"] * STEPS / float(np.median(clean(three[side]))) * 1e6, 1)

    row = {key: line[key] for key in ("end", "model", "batch", "served", "joined", "logits")}
    row |= {"ratio": c.ratio if c else None, "low": c.low if c else None, "high": c.high if c else None}
    return row | {"tokens_per_second": tokens(OURS), "dense_tokens_per_second": tokens(TORCH)}


def clean(samples: Sequence[float | None]) -> list[float]:
    return [x for x in samples if x]


if __name__ == "__main__":
    main()
