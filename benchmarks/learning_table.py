"""Measures tables of configs on one GPU: what searches are replayed on and the kernel model learns from (benchmarks/learning.py).

    python benchmarks/learning_table.py --minutes 12 --out results/h200/learning
    python benchmarks/learning_table.py --target fake --minutes 1 --out /tmp/table        a rehearsal on the scripted device

24 training and 8 held-out shapes are measured on all of a thinned space, 40 further held-out ones on a random part of it. The whole space
of gemm_sm90 has millions of legal configs for one shape. Thinned means: the tiles, clusters, splits and operand orders below, each scheme's
other choices by the rule of its menu (as many stages as fit), and no config that its Family's model puts beyond SLOWEST times the fastest:
leaving those out makes random search better than it is. 330 to 920 configs a shape are left, 22,950 in all.

Every measurement is one line of `configs.jsonl` at once, and what is there is not measured again, so the same command goes on after an
interruption. Every shape has a first turn, then the held-out ones are completed, then training shapes take turns; a shape's configs are in
random order. Wherever it ends, every table is a uniform sample. The end writes `configs.jsonl.xz`.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
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
from kernelwright.learn.policy_data import Split, split
from kernelwright.loop import screen_job
from kernelwright.records import Candidate, Workload
from kernelwright.targets import usable

SLOWEST = 4.0
SPARSE_CONFIGS = 40
"""Of each shape that is measured sparsely."""
TURN = 200
"""Configs of one shape before the next shape's turn: opening a shape's buffers takes as long as some screens."""
BESIDE = 8
"""Configs of one Job: they share the rounds' inputs and the rival's samples, as in `kernelwright tune`."""
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
    """What is still to be measured."""

    def __init__(self, parts: Split, device: DeviceFacts, known: set[tuple]):
        self._known = known
        self._configs: dict[Workload, list[tuple[Family, Config]]] = {
            w: thinned(w, device)[: SPARSE_CONFIGS if w in parts.sparse else None] for part in parts for w in part
        }
        self._parts = parts
        self.total = sum(map(len, self._configs.values()))
        self.known = sum(not self._new(w, *one) for w, configs in self._configs.items() for one in configs)

    def __iter__(self) -> Iterator[tuple[Workload, list[tuple[Family, Config]]]]:
        """What is known has its place all the same: an interrupted run goes on in the same order."""
        _, held_out, sparse = self._parts
        for w, start in [*((w, 0) for w in (*held_out, *sparse)), *self._turns(self._parts.train, 1)]:
            yield from self._batch(w, start)
        for w in held_out:
            for start in range(TURN, len(self._configs[w]), TURN):
                yield from self._batch(w, start)
        for w, start in self._turns(self._parts.train)[len(self._parts.train) :]:
            yield from self._batch(w, start)

    def _turns(self, workloads: Sequence[Workload], most: int = 10**6) -> list[tuple[Workload, int]]:
        longest = max((len(self._configs[w]) for w in workloads), default=0)
        return [(w, start) for start in range(0, longest, TURN)[:most] for w in workloads]

    def _batch(self, w: Workload, start: int) -> Iterator[tuple[Workload, list[tuple[Family, Config]]]]:
        if batch := [(f, c) for f, c in self._configs[w][start : start + TURN] if self._new(w, f, c)]:
            yield w, batch

    def _new(self, w: Workload, family: Family, config: Config) -> bool:
        return (w.name, *table.key_of(family.name, config)) not in self._known


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
    parts = Split(*(part[: args.shapes] for part in parts))
    args.out.mkdir(parents=True, exist_ok=True)
    raw, done = args.out / "configs.jsonl", args.out / "configs.jsonl.xz"
    if not raw.exists():
        facts, rows = table.read(done) if done.exists() else (device, [])
        if facts != device:
            parser.error(f"{done} was measured on another device ({facts.name}); name another folder with --out")
        table.write(raw, device, rows)
    _, rows = table.read(raw)
    table.write(raw, device, rows)  # without a line that was cut off
    turns = Turns(parts, device, {(r.workload, *table.key_of(r.family, r.config)) for r in rows})
    print(f"{turns.total} configs of {sum(map(len, parts))} shapes, {turns.known} measured before", flush=True)
    batches = list(turns)
    if args.count:
        for w, found in Counter(w.name for w, batch in batches for _ in batch).items():
            print(f"{w}: {found}", flush=True)
        return
    deadline, outcomes = started + 60 * args.minutes, Counter[str](str(r.outcome) for r in rows)
    with Evaluator(target, builder=Builder(target)) as evaluator, raw.open("ab") as lines:
        rendered: dict[int, list[Candidate]] = {}

        def candidates(i: int) -> list[Candidate]:
            if i not in rendered:
                w, batch = batches[i]
                rendered[i] = [f.render(c, w, device).replace(origin=f.origin(c, "table")) for f, c in batch]
                evaluator.builder.want(rendered[i])
            return rendered[i]

        for first in range(min(AHEAD, len(batches))):
            candidates(first)  # compiled while the judge opens the device
        environment, measured, told = evaluator.environment, 0, 0.0
        for i, (w, batch) in enumerate(batches):
            for ahead in range(i, min(i + AHEAD, len(batches))):
                candidates(ahead)
            job = screen_job(w, target.name, rivals.names_for(w, target.name)[:1])
            try:
                for trial in evaluator.evaluate(candidates(i), job, stage="screen", session="table", beside=BESIDE):
                    outcomes[str(trial.verdict.outcome)] += 1
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
                print(f"{turns.known + measured}/{turns.total}  {rate:.1f}/s  {dict(outcomes)}  {deadline - told:.0f} s left", flush=True)
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
        "seconds of the last call": round(time.monotonic() - started),
        "of it measured": measured,
    }
    write_summary(args.out / "table", command_line("learning_table.py"), environment, figures)
    raw.unlink()
    print(f"{done}: {len(rows)} configs of {len(shapes)} shapes", flush=True)


if __name__ == "__main__":
    main()
