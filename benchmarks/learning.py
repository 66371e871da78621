"""The proof that the kernel model learns: trains it on measured tables, with its ablations, and replays every search on held-out shapes.

    python benchmarks/learning.py --measure 11 --ablation-steps 60 --seeds 10 --minutes 8.5 --out results/h200/learning
        measures, trains and replays on one GPU, in calls of under ten minutes: give it until it prints the figures (planned: three times)
    python benchmarks/learning.py --table results/h200/learning/configs.jsonl.xz --archive archive.db --out results/h200/learning

Beside the run that is reported (prompts with one config of each of two score buckets), reinforcement learning is repeated without
contrast, with exemplars at random, and with islands, each from the same fine-tuned start. Figures are of held-out shapes alone: those whose
table is dense (the whole thinned space), and all. A run goes on where it stopped. `--measure` and the seconds in the summary are of all
calls together.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from published import command_line, write_summary

from kernelwright import rivals
from kernelwright.archive import Archive
from kernelwright.evaluate.evaluator import Evaluator
from kernelwright.families import families_for
from kernelwright.learn import policy_data, table
from kernelwright.learn import policy_evaluate as evaluation
from kernelwright.learn.policy_data import load_corpus, make_corpus, split
from kernelwright.learn.policy_evaluate import AFTER, BEFORE
from kernelwright.learn.policy_model import Size, load
from kernelwright.learn.policy_rl import Contrastive, reinforce
from kernelwright.learn.policy_train import Imitation, imitate
from kernelwright.learn.replay import SHOWN
from kernelwright.loop import screen_job
from kernelwright.propose.policy import PolicyProposer
from kernelwright.records import Outcome
from kernelwright.targets import usable

ABLATIONS = {"no contrast": "none", "random exemplars": "random", "islands": "islands"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=float, help="minutes of benchmarks/learning_table.py first; its table is learnt as well")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of this call; allow one more, which it may take to stop")
    parser.add_argument("--table", type=Path, action="append", default=[], help="measured configs; may be given several times")
    parser.add_argument("--screens", type=Path, help="what tuning measured: learnt as well, held-out shapes left out")
    parser.add_argument("--archive", type=Path, help="archive whose screens are learnt in the same way")
    parser.add_argument("--pretrain-steps", type=int, default=2000)
    parser.add_argument("--sft-steps", type=int, default=800)
    parser.add_argument("--rl-steps", type=int, default=300)
    parser.add_argument("--ablation-steps", type=int, help="of each ablation; the default is --rl-steps, 0 leaves them out")
    parser.add_argument("--workloads", type=int, default=policy_data.RANDOM_WORKLOADS, help="random ones whose legal designs are learnt")
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=evaluation.SEEDS)
    parser.add_argument("--budget", type=int, default=evaluation.BUDGET)
    parser.add_argument("--search", action="append", help="only these searches beside the model; the default is all")
    parser.add_argument("--proposals", type=int, default=8, help="of each held-out shape, measured on the device of the table; 0: none")
    parser.add_argument("--target", default="auto", help="that measures proposals")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--run", type=Path, help="folder of checkpoints and corpus; the default is OUT/run, which need not be kept")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if not (args.table or args.archive or args.measure):
        parser.error("name measured configs with --table, an archive with --archive, or measure some with --measure")

    run, device = args.run or args.out / "run", "cuda" if torch.cuda.is_available() else "cpu"
    run.mkdir(parents=True, exist_ok=True)
    clock = Clock(run / "seconds.json", 60 * args.minutes)
    stage = clock.stage
    if args.measure:
        stage("measure", lambda: measure(args, run, clock))
        args.table.append(args.out / "configs.jsonl.xz")

    def told(name: str):
        def tell(done: int, total: int, numbers: dict[str, float]) -> None:
            print(f"{name} {done}/{total} " + " ".join(f"{k} {v:.4g}" for k, v in numbers.items()), flush=True)
            if done < total:
                clock.check()  # these steps are in the checkpoint

        return tell

    stage("corpus", lambda: corpus_of(args, run))
    corpus = load_corpus(run)
    size = Size(args.width, args.layers, args.width // 32)
    stage("pretrain", lambda: imitate("pretrain", run, corpus, Imitation(args.pretrain_steps), size, told("pretrain"), device))
    stage("sft", lambda: imitate("sft", run, corpus, Imitation(args.sft_steps, rate=3e-4), size, told("sft"), device))
    settings = Contrastive(args.rl_steps)
    stage("rl", lambda: reinforce(run, corpus, settings, told("rl"), device))
    policies = {BEFORE: ("sft", "buckets"), AFTER: ("rl", "buckets")}
    policies |= {name + evaluation.ALONE: at for name, at in policies.items()}
    steps = args.rl_steps if args.ablation_steps is None else args.ablation_steps
    for name, contrast in ABLATIONS.items() if steps else ():
        other = replace(settings, steps=steps, contrast=contrast)
        stage(
            f"rl, {name}",
            lambda other=other: reinforce(run, corpus, other, told(f"rl-{other.contrast}"), device, stage=f"rl-{other.contrast}"),
        )
        policies[f"policy, {name}"] = (f"rl-{contrast}", contrast)
    files = {
        name: (evaluation.write_weights(run, at, {"contrast": c}, run / f"policy-{at}.safetensors"), c)
        for name, (at, c) in policies.items()
    }

    free = stage("proposals", lambda: proposals(files[AFTER][0], args, run, clock))

    def progress(done: int, total: int) -> None:
        if done % max(1, total // 20) == 0:
            print(f"evaluate {done}/{total}", flush=True)
        if done < total:
            clock.check()

    replays = run / "replays.jsonl"
    if replays.exists() and replays.stat().st_mtime < max(path.stat().st_mtime for path in run.glob("*.pt")):
        replays.unlink()  # of models that were trained on since
    names = tuple(args.search) if args.search else evaluation.searches()
    runs = stage(
        "evaluate",
        lambda: evaluation.evaluate(
            run / policy_data.HELD, files, training=run / policy_data.MEASURED, searches=names, seeds=args.seeds, budget=args.budget,
            jobs=args.jobs, kept=replays, told=progress,
        ),
    )  # fmt: skip
    facts, rows = table.read(run / policy_data.HELD)
    dense = {t.workload.name for t in table.tables_of(rows, facts) if len(t.rows) >= evaluation.DENSE}
    figures = {"all": evaluation.summary(runs, args.budget)}
    if dense:
        figures["dense"] = evaluation.summary(
            {name: [r for r in found if r.workload in dense] for name, found in runs.items()}, args.budget
        )
    shown = figures.get("dense") or figures["all"]
    curves = last_line(run / "rl.csv")
    write_summary(
        args.out,
        command_line("learning.py"),
        {"device": facts.name, "trained on": torch.cuda.get_device_name() if device == "cuda" else "CPU"},
        finite({
            "policy_candidates_to_97pct": shown["policy_candidates_to_97pct"],
            "random_candidates_to_97pct": shown["searches"].get("random", {}).get("candidates_to_97pct"),
            "policy_first_within_10pct": shown["policy_first_within_10pct"],
            "rl_gain": shown["rl_gain"],
            "training_seconds": {name: clock.seconds[name] for name in ("pretrain", "sft", "rl")},
            "policy_valid": free.get("valid"),
            "policy_free": free,
            "policy_cheats": curves.get("cheats"),
            "policy_proposal_ms": proposal_ms(files[AFTER][0], facts),
            "parameters": load(files[AFTER][0])[0].parameters_in_all,
            "pipeline_seconds": round(sum(clock.seconds.values())),
            "seconds": clock.seconds,
            "held_out": figures,
        }),
    )  # fmt: skip
    longest = min(args.budget, SHOWN)
    for name, chosen in (("dense", dense), ("all", None)):
        some = {n: [r for r in found if chosen is None or r.workload in chosen] for n, found in runs.items()}
        if any(some.values()):
            title = f"best so far on held-out shapes ({name}), as a share of the best known"
            (args.out / f"curves-{name}.svg").write_text(evaluation.picture(some, longest, title))
    for file in run.glob("*.csv"):
        shutil.copy(file, args.out / f"training-{file.name}")
    about = {"contrast": "buckets", "device": facts.name, "figures": {k: v for k, v in shown.items() if k != "searches"}}
    evaluation.write_weights(run, "rl", about, args.out / "policy.safetensors")
    for name, f in shown["searches"].items():
        print(
            f"{name:24} {f['candidates_to_97pct']:6.1f} candidates to 97 %, first {f['first_share']:.1%}, reached {f['reached_97pct']:.0%}",
            flush=True,
        )


class Clock:
    """Seconds of every stage over all calls, kept in a file; and when this call ends."""

    def __init__(self, path: Path, most: float):
        self._path, self._end = path, time.monotonic() + most
        self.seconds: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}

    @property
    def left(self) -> float:
        return self._end - time.monotonic()

    def check(self) -> None:
        """Raises SystemExit where this call's time is up."""
        if self.left < 0:
            sys.exit("the time of this call is up; the same command goes on from here")

    def stage(self, name: str, work):
        self.check()
        begun = time.monotonic()
        try:
            return work()
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - begun, 1)
            self._path.write_text(json.dumps(self.seconds) + "\n")
            print(f"{name}: {self.seconds[name]} s", flush=True)


def measure(args: argparse.Namespace, run: Path, clock: Clock) -> None:
    """Until --measure minutes were spent over all calls, or there is no more to measure."""
    missing = 60 * args.measure - clock.seconds.get("measure", 0.0)
    if missing < 10 or (run / policy_data.GUESSED).exists():
        return
    minutes = min(missing, clock.left) / 60
    script = Path(__file__).with_name("learning_table.py")
    subprocess.run([sys.executable, str(script), "--minutes", str(minutes), "--out", str(args.out)], check=True)
    clock.check()


def proposals(path: Path, args: argparse.Namespace, run: Path, clock: Clock) -> dict[str, float]:
    """Nothing was measured and every legal config may be written: what the model proposes first for held-out shapes, measured here. Empty
    where the tables' device is not at hand."""
    facts, rows = table.read(run / policy_data.HELD)
    target, kept = usable(args.target), run / "proposals.jsonl.xz"
    if not args.proposals or target.facts() != facts:
        return {}
    if not kept.exists() or kept.stat().st_mtime < (run / "rl.pt").stat().st_mtime:
        kind = type("Free", (PolicyProposer,), {"model": classmethod(lambda cls: load(path)[0])})
        found: list[table.Row] = []
        with Evaluator(target) as evaluator:
            tables = table.tables_of(rows, facts)
            proposed = {t.workload: kind(t.workload, families_for(t.workload, facts)[0], facts).propose(args.proposals) for t in tables}
            evaluator.builder.want(c for candidates in proposed.values() for c in candidates)
            for w, candidates in proposed.items():
                clock.check()
                job = screen_job(w, target.name, rivals.names_for(w, target.name)[:1])
                trials = evaluator.evaluate(candidates, job, stage="screen", session="proposals", beside=args.proposals)
                found += [row for t in trials if (row := table.row_of(t)) is not None]
        table.write(kept, facts, found)
    _, found = table.read(kept)
    shutil.copy(kept, args.out / kept.name)
    best: dict[str, float] = {}
    for r in (*rows, *found):
        best[r.workload] = max(best.get(r.workload, 0.0), r.ratio)
    first = {r.workload: r.ratio / max(best[r.workload], 1e-9) for r in reversed(found)}
    return {
        "proposals": len(found),
        "valid": statistics.fmean(r.outcome == Outcome.OK for r in found),
        "cheats": statistics.fmean(r.outcome == Outcome.CHEAT for r in found),
        "first_share": statistics.fmean(first.values()),
        "first_within_10pct": statistics.fmean(share >= 0.9 for share in first.values()),
    }


def finite(figures: Any) -> Any:
    """JSON has no infinity: a search that was not there within its budget has no number of candidates."""
    if isinstance(figures, dict):
        return {name: finite(value) for name, value in figures.items()}
    return None if isinstance(figures, float) and not math.isfinite(figures) else figures


def corpus_of(args: argparse.Namespace, run: Path) -> None:
    if (run / policy_data.GUESSED).exists():
        return
    rows, screens, device = [], [], None
    for path in args.table:
        device, read = table.read(path)
        rows += read
    if args.archive:
        with Archive(args.archive) as archive:
            device = device or table.device_in(archive)
            screens += table.from_archive(archive, device)
    if args.screens:
        screens += table.read(args.screens)[1]
    assert device is not None

    def told(done: int, total: int) -> None:
        if done % 500 == 0:
            print(f"corpus {done}/{total}", flush=True)

    make_corpus(run, device, rows or screens, workloads=args.workloads, told=told, screens=screens)


def last_line(path: Path) -> dict[str, float]:
    """Of a stage's curves."""
    lines = path.read_text().splitlines()
    return dict(zip(lines[0].split(","), map(float, lines[-1].split(",")), strict=True))


def proposal_ms(path: Path, device, batch: int = 8, batches: int = 4) -> float:
    """Milliseconds of a proposal on this machine's CPU, in batches as the loop's: the median over held-out shapes, of so many batches."""
    model = load(path)[0]
    kind = type("Timed", (PolicyProposer,), {"model": classmethod(lambda cls: model)})
    found = []
    for w in split().sparse[:: max(1, len(split().sparse) // 8)]:
        able = families_for(w, device)[0]
        proposer = kind(w, able, device)
        begun = time.perf_counter()
        made = [candidate for _ in range(batches) for candidate in proposer.propose(batch)]
        found.append(1e3 * (time.perf_counter() - begun) / max(1, len(made)))
    return statistics.median(found)


if __name__ == "__main__":
    main()
