"""Measures tables of configs on one GPU: what searches are replayed on and the kernel model learns from (benchmarks/learning.py).

    python benchmarks/learning_table.py --minutes 12 --out results/h200/learning
    python benchmarks/learning_table.py --target fake --minutes 1 --out /tmp/table        a rehearsal on the scripted device

24 training and 8 held-out shapes are measured on all of a thinned space, 40 further held-out ones on a random part of it. The whole space
of gemm_sm90 has millions of legal configs for one shape. Thinned means: the tiles, clusters, splits and operand orders below, each scheme's
other choices by the rule of its menu (as many stages as fit), and no config that its Family's model puts beyond SLOWEST times the fastest:
leaving those out makes random search better than it is. 330 to 920 configs a shape are left, 21,350 in all.

Every measurement is one line of `configs.jsonl` at once, and what is there is not measured again, so the same command goes on after an
interruption. Shapes take turns, and a shape's configs are in random order: wherever it ends, every table is a uniform sample. The end
writes `configs.jsonl.xz`.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from published import command_line, write_summary

from kernelwright import rivals
from kernelwright.evaluate.build import Builder
from kernelwright.evaluate.evaluator import Evaluator, JudgeError
from kernelwright.families import families_for
from kernelwright.families.family import Config, DeviceFacts, Family
from kernelwright.families.gemm_sm90.family import Scheme, _menu
from kernelwright.learn import table
from kernelwright.learn.policy_data import split
from kernelwright.loop import screen_job
from kernelwright.records import Candidate, Workload
from kernelwright.targets import usable

SLOWEST = 4.0
SPARSE_CONFIGS = 40
"""Of each shape that is measured sparsely."""
TURN = 200
"""Configs of one shape before the next shape's turn: opening a shape's buffers takes as long as some screens."""
AHEAD = 3
"""Turns that are compiled ahead of the device."""
THINNED: dict[str, dict[str, tuple]] = {
    "gemm_sm90_persistent": {"split_k": (1, 2, 4), "raster": ("p",)},
    "gemm_sm90_ring": {
        "block_q": (16, 32, 64, 96, 128, 192, 256), "block_k": (64,), "cluster_q": (1,), "split_k": (1, 2, 4, 8, 16),
    },
    "gemm_sm90_whole_k": {"block_q": (8, 16, 32, 64, 128), "block_k": (64, 128), "split_k": (1, 2, 4, 8, 16)},
    "gemm_sm90_tiny": {"block_k": (32, 64, 128)},
}  # fmt: skip
"""Values that are kept of the schemes' menus; of choices that are not named all."""


def thinned(w: Workload, device: DeviceFacts) -> list[tuple[Family, Config]]:
    """In a random order, the same every time."""
    found: list[tuple[Family, Config, float]] = []
    for family in families_for(w, device)[0]:
        for config in _configs(family, w, device):
            if family.illegal(config, w, device) is None:
                found.append((family, config, family.estimate(config, w, device) or 0.0))
    fastest = min((us for *_, us in found), default=0.0)
    kept = [(family, config) for family, config, us in found if us <= SLOWEST * fastest]
    random.Random(w.name).shuffle(kept)
    return kept


def _configs(family: Family, w: Workload, device: DeviceFacts) -> Sequence[Config]:
    if isinstance(family, Scheme):
        keep = THINNED[family.name]
        return [c for c in _menu(family.scheme, w.layout, device)[0] if all(c[key] in values for key, values in keep.items())]
    if family.name == "scripted":  # the rehearsal's
        from itertools import product

        space = family.space(w, device)
        return [dict(zip(space, values, strict=True)) for values in product(*space.values())]
    return ()


class Turns:
    """What is still to be measured, shape after shape."""

    def __init__(self, workloads: Sequence[tuple[Workload, int]], device: DeviceFacts, known: set[tuple]):
        """`workloads` with how many configs of each at most, 0 for all."""
        self.left: list[tuple[Workload, list[tuple[Family, Config]]]] = []
        self.total = self.known = 0
        for w, most in workloads:
            configs = thinned(w, device)
            configs = configs[:most] if most else configs
            todo = [(f, c) for f, c in configs if (w.name, *table.key_of(f.name, c)) not in known]
            self.total += len(configs)
            self.known += len(configs) - len(todo)
            self.left.append((w, todo))

    def __iter__(self) -> Iterator[tuple[Workload, list[tuple[Family, Config]]]]:
        start = 0
        while any(len(todo) > start for _, todo in self.left):
            for w, todo in self.left:
                if batch := todo[start : start + TURN]:
                    yield w, batch
            start += TURN


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="auto")
    parser.add_argument("--minutes", type=float, default=12.0, help="of this run; begins nothing after")
    parser.add_argument("--shapes", type=int, help="only the first so many of each part, for a rehearsal")
    parser.add_argument("--count", action="store_true", help="only say how many configs each shape has")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    target, started = usable(args.target), time.monotonic()
    device, parts = target.facts(), split()
    n = args.shapes
    wanted = [*((w, 0) for w in (*parts.train[:n], *parts.held_out[:n])), *((w, SPARSE_CONFIGS) for w in parts.sparse[:n])]
    args.out.mkdir(parents=True, exist_ok=True)
    raw, done = args.out / "configs.jsonl", args.out / "configs.jsonl.xz"
    if not raw.exists():
        facts, rows = table.read(done) if done.exists() else (device, [])
        if facts != device:
            parser.error(f"{done} was measured on another device ({facts.name}); name another folder with --out")
        table.write(raw, device, rows)
    _, rows = table.read(raw)
    table.write(raw, device, rows)  # without a line that was cut off
    turns = Turns(wanted, device, {(r.workload, *table.key_of(r.family, r.config)) for r in rows})
    print(f"{turns.total} configs of {len(wanted)} shapes, {turns.known} measured before", flush=True)
    if args.count:
        for w, todo in turns.left:
            print(f"{w.name}: {len(todo)}", flush=True)
        return
    deadline, outcomes = started + 60 * args.minutes, {}
    batches = list(turns)
    with Evaluator(target, builder=Builder(target)) as evaluator, raw.open("ab") as lines:
        environment = evaluator.environment
        rendered: dict[int, list[Candidate]] = {}

        def candidates(i: int) -> list[Candidate]:
            if i not in rendered:
                w, batch = batches[i]
                rendered[i] = [f.render(c, w, device).replace(origin=f.origin(c, "table")) for f, c in batch]
                evaluator.builder.want(rendered[i])
            return rendered[i]

        measured, told = 0, 0.0
        for i, (w, batch) in enumerate(batches):
            for ahead in range(i, min(i + AHEAD, len(batches))):
                candidates(ahead)
            job = screen_job(w, target.name, rivals.names_for(w, target.name)[:1])
            try:
                for trial in evaluator.evaluate(candidates(i), job, stage="screen", session="table"):
                    outcomes[str(trial.verdict.outcome)] = outcomes.get(str(trial.verdict.outcome), 0) + 1
                    measured += 1
                    if (row := table.row_of(trial)) is not None:
                        lines.write(row.to_json().encode() + b"\n")
                        lines.flush()
                    if time.monotonic() > deadline:
                        break
            except JudgeError as error:
                print(f"{w.name}: {error}", flush=True)
            del rendered[i], batch
            if time.monotonic() - told > 10:
                told = time.monotonic()
                rate = measured / (told - started)
                print(f"{turns.known + measured}/{turns.total}  {rate:.1f}/s  {outcomes}  {deadline - told:.0f} s left", flush=True)
            if time.monotonic() > deadline:
                break
    _, rows = table.read(raw)
    table.write(done, device, rows)
    shapes = {t.workload.name: len(t.rows) for t in table.tables_of(rows, device)}
    figures = {
        "configs": len(rows),
        "of": turns.total,
        "shapes": shapes,
        "outcomes": outcomes,
        "seconds": round(time.monotonic() - started),
    }
    write_summary(args.out / "table", command_line("learning_table.py"), environment, figures)
    raw.unlink()
    print(f"{done}: {len(rows)} configs of {len(shapes)} shapes", flush=True)


if __name__ == "__main__":
    main()
