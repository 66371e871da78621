"""Do the statistics hold? Simulated measurements with noise like that of the devices, judged by the code that judges real ones.

    python benchmarks/statistics_hold.py [--runs 4000] [--searches 100] [--out results/statistics] [--plot docs/statistics.svg]

A measurement is a table of times, rounds by contenders, whose true medians are known. Its noise has five parts: a drift of the clock that
all contenders of a round share, bursts that last some rounds and hit samples in them at random, heavy tails, a throttling step in some
round, and a clock that counts in steps. Their levels are fitted to the raw samples that the repository publishes (`trials.jsonl.*`): see
`fit`. Intervals, ties and wins are then those of `evaluate.stats` and `records.Comparison`, and rounds end as `evaluate.timing` ends them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from published import command_line

from kernelwright.archive import reading
from kernelwright.evaluate.stats import comparison, converged, noise_floor, ratio_interval
from kernelwright.loop import SCREEN_ROUNDS, SCREEN_TOLERANCE, Budget
from kernelwright.records import Comparison

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = (5, 7, 9, 12, 16, 20, 25)
SCREEN = (3, SCREEN_ROUNDS, SCREEN_TOLERANCE)
"""Least rounds, most rounds, and the relative width of the interval that ends them: `loop.screen_job`."""
CONFIRM = (9, Budget.confirm_rounds, 0.01)
"""The same of `loop.confirm`."""
FINALISTS = Budget.finalists


@dataclass(frozen=True)
class Noise:
    """Levels, as standard deviations of the logarithm of a time unless said otherwise."""

    name: str
    own: float
    """Of one sample, apart from what its round shares."""
    shared: float
    """Of a round: drift, a random walk drawn back to its middle."""
    keep: float
    """Share of the drift that lasts to the next round."""
    tail: float
    """Share of samples that are disturbed."""
    tail_size: float
    """Mean of what a disturbance adds, exponential."""
    burst: float
    """Chance of a round to begin a burst; it lasts 3 rounds on average and disturbs a third of the samples in them."""
    throttle: float
    """Chance of a measurement to meet one step of the clock, 3 to 15 % slower from some place in some round on, or until there."""
    quantum: float
    """Step of the clock over the time that it measures."""

    def sample(self, g: np.random.Generator, runs: int, rounds: int, contenders: int) -> np.ndarray:
        """Times of (runs, rounds, contenders) whose true median is 1 up to a factor that contenders share."""
        shape = (runs, rounds, contenders)
        log = g.normal(size=shape) * self.own
        drift = np.zeros((runs, rounds))
        drift[:, 0] = g.normal(size=runs) * self.shared
        for i in range(1, rounds):
            drift[:, i] = self.keep * drift[:, i - 1] + g.normal(size=runs) * self.shared * (1 - self.keep**2) ** 0.5
        disturbed = np.full(shape, self.tail)
        left = np.zeros(runs)
        for i in range(rounds):
            left = np.where(g.random(runs) < self.burst, g.geometric(1 / 3, runs), left - 1)
            disturbed[:, i] += (left > 0)[:, None] / 3
        log += (g.random(shape) < disturbed) * g.exponential(self.tail_size, shape)
        # the step comes between two samples, in the order in which the round's contenders are measured, which is random
        order = np.argsort(g.random(shape), axis=2).argsort(axis=2)
        at = g.random(runs) * rounds * contenders
        later = (np.arange(rounds)[None, :, None] * contenders + order) >= at[:, None, None]
        turn = np.where((g.random(runs) < 0.5)[:, None, None], later, ~later)
        step = np.where(g.random(runs) < self.throttle, g.uniform(0.03, 0.15, runs), 0.0)
        times = np.exp(log + drift[:, :, None] + turn * step[:, None, None])
        return np.maximum(self.quantum, np.round(times / self.quantum) * self.quantum) if self.quantum else times


# ---------------------------------------------------------------------------------------------------------------- levels


def published(folder: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """(device and mode, candidate's samples, rival's samples) of each published comparison whose rounds are all there."""
    for path in sorted(folder.glob("*/*/trials.jsonl.*")):
        groups: dict[tuple, list[tuple[str, np.ndarray]]] = {}
        with reading(path) as lines:
            for line in lines:
                trial = json.loads(line)
                if trial["stage"] != "confirm":
                    continue
                for timing in trial.get("timings", []):
                    key = (json.dumps(trial["workload"]), trial["session"], timing["mode"])
                    groups.setdefault(key, []).append((trial["candidate"]["kind"], np.asarray(timing["samples"])))
        for (_, _, mode), rows in groups.items():
            for kind, mine in rows:
                for other, theirs in rows:
                    if kind != "rival" and other == "rival" and len(mine) == len(theirs) >= 9:
                        yield f"{path.parent.parent.name} {mode}", mine, theirs


def fit(folder: Path) -> tuple[list[Noise], dict[str, int]]:
    """One Noise for each device and mode, from medians over its comparisons: `own` from the spread of log ratios inside rounds, over
    sqrt(2); `shared` from what the candidate's own spread has beside it; `tail` and `burst` from deviations beyond four robust standard
    deviations, and how often two follow each other; `quantum` from the smallest step between samples."""
    measured: dict[str, list[tuple[float, ...]]] = {}
    for name, mine, theirs in published(folder):
        log, ratio = np.log(mine), np.log(theirs / mine)
        spread, inside = _spread(log), _spread(ratio) / 2**0.5
        far = np.abs(ratio - np.median(ratio)) > 4 * max(_spread(ratio), 1e-6)
        beyond = np.abs(ratio - np.median(ratio))[far]
        both = float((far[1:] & far[:-1]).sum()) / max(1, int(far[:-1].sum()))
        steps = np.diff(np.unique(mine))
        quantum = float(steps.min() / np.median(mine)) if len(steps) and len(steps) < 0.9 * len(mine) else 0.0
        measured.setdefault(name, []).append(
            (spread, inside, float(far.mean()), float(beyond.mean()) if far.any() else np.nan, both, quantum, _lag(log))
        )
    noises = []
    for name, rows in sorted(measured.items()):
        table = np.asarray(rows)
        spread, inside = np.median(table[:, 0]), np.median(table[:, 1])
        tail = float(table[:, 2].mean())
        size = float(np.nan_to_num(np.nanmedian(table[:, 3]), nan=4 * inside)) if tail else 0.0
        noises.append(
            Noise(
                name=name,
                own=float(inside),
                shared=float(max(0.0, spread**2 - inside**2) ** 0.5),
                keep=float(np.clip(np.mean(table[:, 6]) + 1 / 15, 0.0, 0.95)),
                tail=tail / 2,
                tail_size=size,
                burst=float(tail * np.mean(table[:, 4]) / 2),
                throttle=0.05,
                quantum=float(np.median(table[:, 5])),
            )
        )
    return noises, {name: len(rows) for name, rows in measured.items()}


def _spread(x: np.ndarray) -> float:
    """Robust standard deviation."""
    return float(1.4826 * np.median(np.abs(x - np.median(x))))


def _lag(x: np.ndarray) -> float:
    return float(np.corrcoef(x[1:], x[:-1])[0, 1]) if x[1:].std() > 0 and x[:-1].std() > 0 else 0.0


def hard(noise: Noise) -> Noise:
    """Worse than any device that was measured: everything disturbed three times as often, throttling in every other measurement."""
    return replace(noise, name=f"{noise.name}, hard", tail=min(0.3, 3 * noise.tail), burst=min(0.2, 3 * noise.burst + 0.02), throttle=0.5)


# ------------------------------------------------------------------------------------------------------------ experiments


def coverage(noise: Noise, g: np.random.Generator, runs: int, rounds: int) -> float:
    """Share of intervals that hold the true ratio, which is 1: contenders have the same noise."""
    t = noise.sample(g, runs, rounds, 2)
    return sum(low <= 1 <= high for _, low, high in map(ratio_interval, t[:, :, 1] / t[:, :, 0])) / runs


def rounds_until(ratios: np.ndarray, least: int, most: int, tolerance: float) -> int:
    """After how many rounds a measurement ends: its interval is narrow, or there are no more."""
    for n in range(least, most):
        median, low, high = ratio_interval(ratios[:n])
        if converged(low, high, median, tolerance):
            return n
    return most


def confirmed(times: np.ndarray) -> Comparison:
    """Of one run's (rounds, [candidate, the candidate again, rival]), ended as soon as the interval is narrow."""
    n = rounds_until(times[:, 2] / times[:, 0], *CONFIRM)
    found = comparison("same", "device-cold", times[:n, 2] / times[:n, 0], 1.0, noise_floor(times[:n, 1] / times[:n, 0]))
    assert found is not None
    return found


def ties(noise: Noise, g: np.random.Generator, runs: int) -> tuple[float, float]:
    """(share of ties, share of intervals that hold 1) of two identical kernels, rounds ended as a confirmation ends them."""
    found = [confirmed(t) for t in noise.sample(g, runs, CONFIRM[1], 3)]
    return sum(c.outcome == "tie" for c in found) / runs, sum(c.low <= 1 <= c.high for c in found) / runs


def search(noise: Noise, g: np.random.Generator, candidates: int) -> tuple[bool, bool, float]:
    """(a win is published, the best screen alone would be a win, ratio of that screen): equal candidates are screened against a rival that
    is as fast, the best three are confirmed in fresh rounds beside it, and the fastest of them is reported."""
    screens = noise.sample(g, candidates, SCREEN_ROUNDS, 2)
    rows = screens[:, :, 1] / screens[:, :, 0]
    ratios = np.array([np.median(row[: rounds_until(row, *SCREEN)]) for row in rows])
    best = int(ratios.argmax())
    _, low, _ = ratio_interval(rows[best])
    # finalists share rounds: contenders are the finalists, the first of them again, the rival
    times = noise.sample(g, 1, CONFIRM[1], FINALISTS + 2)[0]
    lead = confirmed(times[:, [0, FINALISTS, FINALISTS + 1]])
    n = lead.rounds
    medians = np.median(times[:n, :FINALISTS], axis=0)
    fastest = int(medians.argmin())
    noise_of_lead = (lead.noise_low, lead.noise_high)
    reported = comparison("same", "device-cold", times[:n, FINALISTS + 1] / times[:n, fastest], 1.0, noise_of_lead)
    assert reported is not None
    return reported.outcome == "win", low > 1, float(ratios[best])


def experiments(noises: list[Noise], runs: int, searches: int, seed: int = 0, candidates: int = 1000) -> dict:
    """All figures; the same seed gives the same."""
    g = np.random.default_rng(seed)
    covered = {n.name: {str(r): coverage(n, g, runs, r) for r in ROUNDS} for n in noises}
    identical = {n.name: ties(n, g, runs) for n in noises}
    found = {n.name: [search(n, g, candidates) for _ in range(searches)] for n in noises}
    every = [v for row in covered.values() for v in row.values()]
    won = [s[0] for rows in found.values() for s in rows]
    return {
        "ci_coverage": {"lowest": min(every), "highest": max(every), "mean": float(np.mean(every)), "by_noise_and_rounds": covered},
        "ci_coverage_when_rounds_end_early": {n: c for n, (_, c) in identical.items()},
        "ties_of_identical": {"lowest": min(t for t, _ in identical.values()), "by_noise": {n: t for n, (t, _) in identical.items()}},
        "false_wins_of_best_of_1000": {
            "share": float(np.mean(won)),
            "searches": len(won),
            "by_noise": {n: float(np.mean([s[0] for s in rows])) for n, rows in found.items()},
            "if_the_screen_were_reported": {n: float(np.mean([s[1] for s in rows])) for n, rows in found.items()},
            "best_screen_ratio": {n: float(np.median([s[2] for s in rows])) for n, rows in found.items()},
        },
    }


# ------------------------------------------------------------------------------------------------------------------ output


def plot(summary: dict) -> str:
    """Coverage over rounds, one line for each noise, as SVG."""
    rows = summary["ci_coverage"]["by_noise_and_rounds"]
    left, top, width, height = 60, 40, 520, 260
    low, high = 0.90, 1.0

    def x(rounds: float) -> float:
        return left + width * (rounds - ROUNDS[0]) / (ROUNDS[-1] - ROUNDS[0])

    def y(share: float) -> float:
        return top + height * (high - share) / (high - low)

    out = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 370" font-family="sans-serif" font-size="12" fill="#222">',
        '<rect width="640" height="370" fill="#fff"/>',
        f'<text x="{left}" y="20">Share of 95 % intervals that hold the true ratio, by rounds; a line for each noise</text>',
        f'<rect x="{left}" y="{y(0.97):.1f}" width="{width}" height="{y(0.93) - y(0.97):.1f}" fill="#e6f0e6"/>',
    ]
    for percent in range(90, 101):
        at = y(percent / 100)
        out.append(f'<line x1="{left}" x2="{left + width}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{percent} %</text>')
    for rounds in ROUNDS:
        out.append(f'<text x="{x(rounds):.1f}" y="{top + height + 18}" text-anchor="middle">{rounds}</text>')
    for name, row in rows.items():
        points = " ".join(f"{x(int(r)):.1f},{y(min(high, max(low, v))):.1f}" for r, v in row.items())
        colour = "#b33" if name.endswith("hard") else "#36c"
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-opacity="0.6"><title>{name}</title></polyline>')
    out.append(f'<text x="{left}" y="{top + height + 42}" fill="#36c">noise fitted to published samples</text>')
    out.append(f'<text x="{left + 220}" y="{top + height + 42}" fill="#b33">the same, disturbed three times as often</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=4000, help="measurements for each noise and number of rounds")
    parser.add_argument("--searches", type=int, default=100, help="searches of 1,000 candidates for each noise")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "statistics")
    parser.add_argument("--plot", type=Path, default=ROOT / "docs" / "statistics.svg")
    a = parser.parse_args()
    fitted, counts = fit(ROOT / "results")
    noises = [n for level in fitted for n in (level, hard(level))]
    summary = {
        "command": command_line("statistics_hold.py"),
        "runs": a.runs,
        "seed": a.seed,
        "noise": [asdict(n) | {"comparisons": counts.get(n.name)} for n in noises],
        **experiments(noises, a.runs, a.searches, a.seed),
    }
    a.out.mkdir(parents=True, exist_ok=True)
    (a.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    a.plot.write_text(plot(summary))
    wins = summary["false_wins_of_best_of_1000"]
    print(f"intervals hold the true ratio in {summary['ci_coverage']['lowest']:.1%} to {summary['ci_coverage']['highest']:.1%} of runs")
    print(f"two identical kernels are a tie in at least {summary['ties_of_identical']['lowest']:.1%}")
    print(f"the best of 1,000 equal candidates is reported as a win in {wins['share']:.2%} of {wins['searches']} searches")


if __name__ == "__main__":
    main()
