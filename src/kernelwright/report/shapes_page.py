"""The page of a suite of products: figures, heat maps, losses, how to measure it again."""

from __future__ import annotations

from collections.abc import Mapping

from kernelwright.problems.suites import SIZE_CLASSES
from kernelwright.records import Environment
from kernelwright.report import heatmap
from kernelwright.report.html import environment_view, template
from kernelwright.report.numbers import count, interval, ratio, sig3
from kernelwright.report.shapes import Result, Shape, Versus, cause
from kernelwright.report.wording import MODE_NAMES, rival_name


def charts(result: Result) -> list[tuple[str, str, Mapping[Shape, Versus], str]]:
    """(file name, title, what it shows, mode), the headline first; what was not measured is left out."""
    tuned, mode = rival_name(result.tuned), MODE_NAMES[result.mode]
    found = [
        ("own-over-tuned", f"Ours against {tuned}, each in its best layout, {mode}", result.headline, result.mode),
        ("dispatched-over-tuned", f"Dispatched against {tuned}, {mode}", result.dispatched, result.mode),
        ("own-over-exhaustive", f"Ours against {rival_name(result.exhaustive)}, {mode}", result.searched, result.mode),
        ("chain-own-over-tuned", f"Ours against {tuned}, launched dependently", result.chained, result.chain_mode),
    ]
    return [one for one in found if one[2]]


def render(result: Result, *, title: str, command: str, environment: Environment, raw: str, left_out: str = "") -> str:
    """The page. `raw`: file of the raw Trials beside it. `left_out`: what of the archive does not stand here, as a sentence."""
    means, classes = result.means, list(SIZE_CLASSES)
    tuned = rival_name(result.tuned)
    labels = {
        "own_over_tuned": f"ours against {tuned}, best layout of each",
        "dispatched_over_tuned": f"dispatched against {tuned}",
        **{f"own_over_tuned_{x}": f"ours {x} against {tuned} {x}" for x in result.layouts},
        "own_over_exhaustive": f"ours against {rival_name(result.exhaustive)}",
        "dispatched_over_exhaustive": f"dispatched against {rival_name(result.exhaustive)}",
        "own_over_torch": f"ours against {rival_name(result.torch)}",
        "own_over_cuda_l2": f"ours against CUDA-L2 where it adds up in fp32, over {tuned} (measured elsewhere)",
        "own_over_cuda_l2_all": "the same, its kernels that add up in fp16 included",
        "chain_own_over_tuned": f"ours against {tuned}, launched dependently",
        "chain_dispatched_over_tuned": f"dispatched against {tuned}, launched dependently",
    }
    rows = [(label, [means.get(name), *(means.get(f"{name}_{c}") for c in classes)]) for name, label in labels.items() if means.get(name)]
    per_class = [sum(s.size_class == c for s in result.headline) for c in classes]
    return template("shapes.html.j2").render(
        title=title,
        command=command,
        raw=raw,
        lead=_lead(result, environment),
        tiles=_tiles(result),
        caveats=_caveats(result, left_out),
        columns=["all", *classes],
        rows=rows,
        counts=[len(result.headline), *per_class],
        charts=[(name, heatmap.panels(shown, mode, key)) for key, name, shown, mode in charts(result)],
        legend=heatmap.legend("legend"),
        own_losses=result.losses(result.headline),
        dispatched_losses=result.losses(result.dispatched),
        mode=result.mode,
        cause=cause,
        environment=environment_view(environment),
    )


def _lead(result: Result, environment: Environment) -> str:
    overall = result.means.get("own_over_tuned")
    if overall is None:
        return f"No shape has both a verified kernel of ours and a time of {rival_name(result.tuned)}."
    outcomes = [v.c.outcome for v in result.headline.values()]
    return (
        f"{count(len(result.headline), 'shape')} on {environment.device}: {ratio(overall.mean)} the speed of {rival_name(result.tuned)} as "
        f"geometric mean, each in its best layout; {outcomes.count('win')} faster, {outcomes.count('tie')} ties, "
        f"{outcomes.count('loss')} slower, {MODE_NAMES[result.mode]}."
    )


def _tiles(result: Result) -> list[tuple[str, str, str]]:
    """(name, number, note) of the figures at the top."""
    tiles = []
    for name, label in (("own_over_tuned", "ours"), ("dispatched_over_tuned", "dispatched"), ("own_over_exhaustive", "exhaustive search")):
        if mean := result.means.get(name):
            against = result.exhaustive if name == "own_over_exhaustive" else result.tuned
            tiles.append((label, ratio(mean.mean), f"{interval(mean.low, mean.high)} against {rival_name(against)}, {mean.shapes} shapes"))
    worst = min(result.headline.items(), key=lambda pair: pair[1].c.ratio, default=None)
    if worst:
        tiles.append(("worst shape", ratio(worst[1].c.ratio), worst[0].name))
    if result.largest_error is not None:
        tiles.append(("largest error", sig3(result.largest_error), "times the vendor’s own, same inputs"))
    return tiles


def _caveats(result: Result, left_out: str) -> list[str]:
    notes = [left_out] if left_out else []
    if missing := sum(s.own(result.mode) is None for s in result.shapes):
        notes.append(f"{count(missing, 'shape')} without a verified kernel of ours: in no figure.")
    if crossed := sum(not v.same_rounds for v in result.headline.values()):
        notes.append(
            f"On {count(crossed, 'shape')} the rival’s best layout was measured in other rounds than our best kernel: these ratios are of "
            "two medians, not of neighbouring samples."
        )
    if "own_over_cuda_l2" in result.means:
        notes.append(
            f"CUDA-L2’s times are another measurement’s, taken over {rival_name(result.tuned)} there and here; it is an indication only."
        )
    return notes
