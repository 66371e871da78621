"""Stage `corpus`: our own verified kernels as text for pretraining, and as answers to prompts for SFT.

They come from the archive; with `render` configs of our Families are drawn, measured and archived first. A kernel is written down in its
compact form, and only where that compiles to the same machine code as what was verified. Nothing of a held-out Workload is written.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kernelwright.archive import Archive
from kernelwright.evaluate.build import Builder
from kernelwright.evaluate.machine_code import code_of
from kernelwright.families import families_for
from kernelwright.learn import reward
from kernelwright.learn.compact import compact
from kernelwright.learn.hf_pool import Pool
from kernelwright.learn.hf_text import Device, answer, better_than, prompt
from kernelwright.learn.retrieval import own_passages
from kernelwright.propose import exemplars, llm_prompt
from kernelwright.propose.configs import SearchSpace
from kernelwright.propose.exemplars import score
from kernelwright.records import Build, Trial, Workload
from kernelwright.targets.target import Target

KERNELS = 24
"""Most kernels of a Workload that are written: beyond that they differ in a number or two."""
DRAWS = 2_000
"""In a space with few legal configs, so many draws without a new one end the drawing."""
BESIDE = 3
"""Times that a kernel is an answer, each beside exemplars drawn anew."""
ALONE = 4
"""One answer in so many is to a prompt without exemplars, as the first of a search is."""


def build(
    folder: Path,
    workloads: Sequence[Workload],
    target: Target,
    archive: Archive,
    device: Device,
    *,
    pool: Pool | None = None,
    render: int = 0,
    held_out: int = 0,
    kernels: int = KERNELS,
    seed: int = 0,
    said: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Writes texts.jsonl, pairs.jsonl, workloads.json and summary.json. `pool` is needed to `render`. Raises ValueError where there is
    nothing to write."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    workloads = sorted(workloads, key=lambda w: w.name)
    held = set(rng.sample(range(len(workloads)), min(held_out, max(0, len(workloads) - 1))))
    parts = {
        "train": [w for i, w in enumerate(workloads) if i not in held],
        "held_out": [w for i, w in enumerate(workloads) if i in held],
    }
    (folder / "workloads.json").write_bytes(msgspec.json.encode(parts))
    if pool is not None and render:
        rendered = [(w, c) for w in workloads for c in _rendered(w, target, render, rng)]
        said(f"measuring {len(rendered)} kernels of {len(workloads)} workloads")
        outcomes = Counter(str(t.verdict.outcome) for t in pool.measure(rendered).values())
        said(", ".join(f"{n} {name}" for name, n in outcomes.items()))
    left_out: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    with Builder(target) as builder, (folder / "texts.jsonl").open("w") as texts, (folder / "pairs.jsonl").open("w") as pairs:
        for passage in own_passages():
            texts.write(json.dumps({"text": f"{passage.source}\n{passage.text}", "source": passage.source}) + "\n")
            counts["passages"] += 1
        for w in parts["train"]:
            trials = [t for t in archive.trials(workload=w) if t.environment.target == target.name and t.candidate.kind != "rival"]
            right = [t for t in _counted(trials) if score(t) is not None]
            chosen = _same_code(builder, _spread(right, kernels), left_out)
            for t in chosen:
                title = f"{w.name} on {device.facts.name or target.name}: {score(t):.2f}"
                texts.write(
                    json.dumps({"text": f"{title}\n{llm_prompt.as_file(t.candidate, w, brief=True)}", "source": t.candidate.id}) + "\n"
                )
            for number, t in enumerate(t for t in chosen for _ in range(BESIDE)):
                slower = [] if number % ALONE == ALONE - 1 else better_than(t, right)
                if (score(t) or 0.0) < _median(right) and slower:
                    continue  # what is written beside measured kernels is an improvement worth learning
                shown = exemplars.choose(slower, rng)
                line = {"prompt": prompt(w, device, shown), "completion": [{"role": "assistant", "content": answer(t, device, shown)}]}
                pairs.write(json.dumps(line | {"workload": w.name, "candidate": t.candidate.id, "reward": score(t)}) + "\n")
                counts["pairs"] += 1
            counts["kernels"] += len(chosen)
            said(f"{w.name}: {len(right)} right, {len(chosen)} written")
    if not counts["kernels"]:
        why = "".join(f"; of {n}: {reason}" for reason, n in left_out.items())
        raise ValueError(
            f"there is no verified kernel for {target.name} in {archive.path} that can be written{why}; let some be drawn with --render, "
            "or run `kernelwright tune`"
        )
    summary = {"target": target.name, **{k: len(v) for k, v in parts.items()}, **counts, "left_out": dict(left_out)}
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    return summary


def workloads_in(folder: Path, part: str) -> list[Workload]:
    """`train` or `held_out`. Raises ValueError where no corpus was made."""
    try:
        return msgspec.json.decode((folder / "workloads.json").read_bytes(), type=dict[str, list[Workload]])[part]
    except FileNotFoundError:
        raise ValueError(f"there is no corpus in {folder}; make one with: kernelwright train-hf corpus") from None


def lines(path: Path) -> list[dict[str, Any]]:
    """Of a file of JSON lines. Raises ValueError where there is none."""
    try:
        return [json.loads(line) for line in path.read_text().splitlines()]
    except FileNotFoundError:
        raise ValueError(f"{path} is not there; make it with: kernelwright train-hf corpus") from None


def _rendered(w: Workload, target: Target, count: int, rng: random.Random) -> Iterator[Any]:
    """Seeds of the Families in turn, then uniform draws."""
    facts = target.facts()
    families, _ = families_for(w, facts)
    if not families:
        return
    space, seen = SearchSpace(w, families, facts), set()
    seeds = [p for f in families for c in f.seeds(w, facts)[: max(1, count // (2 * len(families)))] if (p := space.point(f.name, c))]
    for attempt in range(DRAWS):
        point = seeds[attempt] if attempt < len(seeds) else space.draw(rng)
        if len(seen) >= count:
            return
        if point not in seen and space.legal(point):
            seen.add(point)
            family, config = space.families[point.family], space.config(point)
            yield family.render(config, w, facts).replace(origin=family.origin(config, "train-hf"))


def _counted(trials: Sequence[Trial]) -> list[Trial]:
    """Screens that count, and confirmations of kernels whose screens are not there: published archives have no others."""
    screens = reward.counted(trials)
    known = {t.candidate.id for t in screens}
    return [*screens, *(t for t in trials if t.stage in ("confirm", "replay") and t.candidate.id not in known)]


def _spread(trials: Sequence[Trial], count: int) -> list[Trial]:
    """Up to `count` kernels, each once: the fastest of every bucket first, so that many ways of writing the kernel are among them."""
    buckets = [sorted(bucket, key=lambda t: -(score(t) or 0.0)) for bucket in reversed(exemplars.buckets(trials))]
    ranked = [bucket[i] for i in range(max(map(len, buckets), default=0)) for bucket in buckets if i < len(bucket)]
    return ranked[:count]


def _median(trials: Sequence[Trial]) -> float:
    scores = sorted(score(t) or 0.0 for t in trials)
    return scores[len(scores) // 2] if scores else 0.0


def _same_code(builder: Builder, trials: Sequence[Trial], left_out: Counter[str]) -> list[Trial]:
    """Those whose compact form is the same kernel for the machine."""
    short = {t.candidate.id: t.candidate.replace(source=compact(t.candidate.source)) for t in trials if t.candidate.kind != "python"}
    wanted = [c for t in trials if t.candidate.id in short for c in (t.candidate, short[t.candidate.id])]
    built = {c.id: made for c, made in builder.builds(wanted)}
    found = []
    for t in trials:
        if t.candidate.id not in short:
            found.append(t)
            continue
        whole, brief = built[t.candidate.id], built[short[t.candidate.id].id]
        if not isinstance(whole, Build) or not isinstance(brief, Build):
            left_out["no longer compiles" if not isinstance(whole, Build) else "its compact form does not compile"] += 1
        elif code_of(whole.artifact) != code_of(brief.artifact):
            left_out["its compact form is another kernel"] += 1
        else:
            found.append(t)
    return found
