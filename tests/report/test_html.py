"""The page as a reader gets it: complete, self-contained, escaped, small, and as plain about losses as about wins."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest
from fake_trials import (
    EVIDENCE,
    GELU,
    GELU_COST,
    PEAKS,
    bench_run,
    candidate,
    comparison,
    failed_trial,
    ok_trial,
    optimize_run,
    rival_trial,
)

from kernelwright.records import Candidate, Environment, Origin, Outcome, Verdict, Workload
from kernelwright.report.html import LIMIT, render, write
from kernelwright.report.wording import CHAIN_NOTE

COMMAND = "kernelwright optimize chain:new-gelu:1024x1024"
VOID = {"meta", "br", "link", "hr", "img", "input"}


class Page(HTMLParser):
    """Checks nesting while it reads, and keeps the text and the attributes."""

    def __init__(self, html: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.ids: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def page(trials, **changes) -> tuple[str, Page]:
    costs = {GELU.name: GELU_COST}
    html = render(trials, **{"title": "new-gelu", "command": COMMAND, "target_peaks": PEAKS, "costs": costs, **changes})
    assert len(html.encode()) <= LIMIT
    return html, Page(html)


def check_self_contained(html: str, read: Page) -> None:
    """Nothing is loaded from anywhere, links stay within the page, SVGs are well-formed and say what they show."""
    assert "script" not in read.tags
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(read.tags)
    for tag, name, value in read.attributes:
        assert not name.startswith("on"), f"{tag} has a handler {name}"
        if name in ("href", "src", "xlink:href", "action"):
            assert value.startswith("#") and value[1:] in read.ids, value
    assert "@import" not in html and "url(" not in html
    assert set(re.findall(r"https?://[^\"'\s<]+", html)) <= {"http://www.w3.org/2000/svg"}
    assert len(read.ids) == len(set(read.ids))
    svgs = re.findall(r"<svg.*?</svg>", html, re.S)
    for svg in svgs:
        root = ElementTree.fromstring(svg)
        names = [child.tag.rpartition("}")[2] for child in root]
        assert names[:2] == ["title", "desc"]
        assert "nan" not in svg.lower().replace("nondeterministic", "").partition("</desc>")[2].split("<title>")[0]
        width, height = (float(v) for v in root.attrib["viewBox"].split()[2:])
        for circle in root.iter("{http://www.w3.org/2000/svg}circle"):
            assert 0 <= float(circle.attrib["cx"]) <= width and 0 <= float(circle.attrib["cy"]) <= height


def test_an_optimize_run_is_told_whole():
    trials = optimize_run()
    html, read = page(trials)
    check_self_contained(html, read)
    winner = next(t for t in trials if t.stage == "confirm")
    assert "5.20x faster than torch eager (95 % interval 5.10–5.30)" in read.text
    assert "1.56x faster than torch.compile (max-autotune)" in read.text
    assert "Verified on 12 checks" in read.text
    assert "AMD EPYC 7763 64-Core Processor, 1 thread" in read.text
    assert f"kernelwright replay {winner.id}" in read.text
    assert COMMAND in read.text
    assert "inductor-fast-math is not compared: wrong result: case wide" in read.text
    for mode in ("device-cold", "device-warm", "host-offline", "host-server"):
        assert mode in read.text
    for outcome in {t.verdict.outcome for t in trials} - {Outcome.OK}:
        assert outcome.value in read.text and EVIDENCE[outcome] in read.text
    for rung in ("adversarial", "memory", "repeat", "after-timing", "shapes"):
        assert rung in read.text
    assert "g++ 12.2.0" in read.text and "2.13.0" in read.text and "bench-01" in read.text
    assert "new_gelu" in read.text and "cols % 8 == 0" in read.text and "Registers" in read.text
    assert html.count("<svg") == 6, "four modes, the search curve, the roofline"


def test_a_loss_is_said_in_the_headline():
    _, read = page(optimize_run(best=2.1))
    assert "2.10x faster than torch eager" in read.text
    assert "slower than torch.compile (max-autotune): 0.630x its speed" in read.text
    header = read.text.partition("against the strongest rival")[0]
    assert "▼ slower" in header and "▲" not in header


def test_a_tie_is_not_sold_as_a_win():
    rng = random.Random(0)
    trial = ok_trial(GELU, 100, 100, rng, rivals={"eager": 1.01}, stage="confirm")
    trial = trial.replace(comparisons=(comparison("eager", "device-cold", 1.01, 101, half=0.003, noise=0.02),))
    _, read = page([trial])
    assert "a tie with torch eager: 1.01x" in read.text and "noise floor 0.980–1.02" in read.text
    assert "= tie" in read.text and "faster than torch eager" not in read.text


def test_a_run_in_which_everything_failed():
    rng = random.Random(0)
    html, read = page([failed_trial(GELU, outcome, rng, i) for i, outcome in enumerate(EVIDENCE)])
    check_self_contained(html, read)
    assert "nothing verified. 12 candidates tried" in read.text
    assert "kernelwright replay" not in read.text
    for outcome, evidence in EVIDENCE.items():
        assert outcome.value in read.text and evidence in read.text


def test_a_winner_that_fails_its_confirmation_does_not_win():
    rng = random.Random(0)
    liar, honest = (ok_trial(GELU, us, 1000, rng, number=i) for i, us in enumerate((10, 500)))
    caught = failed_trial(GELU, Outcome.NONDETERMINISTIC, rng).replace(candidate=liar.candidate, stage="confirm")
    confirmed = honest.replace(stage="confirm")
    _, read = page([liar, honest, caught, confirmed])
    assert "2.00x faster than torch eager" in read.text and f"kernelwright replay {confirmed.id}" in read.text


def test_a_screened_winner_carries_a_caveat():
    rng = random.Random(0)
    _, read = page([ok_trial(GELU, 500, 1000, rng)])
    assert "screened but not measured again" in read.text


@pytest.mark.parametrize("peaks", [None, PEAKS])
def test_small_runs(peaks):
    rng = random.Random(0)
    for trials in (
        [],
        [ok_trial(GELU, 500, 1000, rng)],
        [ok_trial(GELU, 500, 1000, rng, rivals={}, stage="confirm")],
        [rival_trial(GELU, "eager", 1000, rng)],
        [rival_trial(GELU, "eager", 1000, rng, Verdict(outcome=Outcome.WRONG_RESULT, evidence="off by 3"))],
        [failed_trial(GELU, Outcome.CRASH, rng)],
        [ok_trial(GELU, 500, 1000, rng, stage="verify", modes=(), rivals={})],
        [
            ok_trial(
                GELU, 500, 1000, rng, build=None, sensors={}, created="", session="", environment=Environment(target="fake", device="fake")
            )
        ],
    ):
        html, read = page(trials, target_peaks=peaks, costs=None)
        check_self_contained(html, read)


def test_a_workload_without_work():
    """An axis of size 0: no arithmetic, no roofline, no division by it."""
    rng = random.Random(0)
    empty = Workload(problem="gemm", axes={"M": 0, "N": 8, "K": 0}, dtype="fp32", layout="nn")
    html, read = page([ok_trial(empty, 2.0, 2.1, rng)], costs=None)
    check_self_contained(html, read)
    assert "gemm 0x8x0 fp32 nn" in read.text


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}\"'><!-- </style>"


def test_nothing_that_a_candidate_or_user_wrote_becomes_markup():
    rng = random.Random(0)
    origin = Origin(kind="llm", name=HOSTILE, config={HOSTILE: HOSTILE}, proposer=HOSTILE)
    hostile = candidate(rng, source=f"// {HOSTILE}\nint f() {{ return '<'; }} /* </code></pre> */ \"<b>\"", origin=origin, flags=(HOSTILE,))
    won = ok_trial(GELU, 500, 1000, rng, rivals={HOSTILE: 1.0, "eager": 1.2}, candidate=hostile, stage="confirm")
    won = won.replace(
        rivals={HOSTILE + "2": Verdict(outcome=Outcome.CRASH, evidence=HOSTILE)},
        environment=Environment(target="cpu", device=HOSTILE, facts={HOSTILE: HOSTILE}, versions={HOSTILE: HOSTILE}, host=HOSTILE),
        session=HOSTILE,
    )
    lost = failed_trial(GELU, Outcome.COMPILE_ERROR, rng, evidence=HOSTILE)
    other = Workload(problem=HOSTILE, axes={"n": 3}, dtype="fp32")
    for trials in ([won, lost], [won, lost, ok_trial(other, 5, 10, rng, candidate=hostile)]):
        html, read = page(trials, title=HOSTILE, command=HOSTILE)
        check_self_contained(html, read)
        assert HOSTILE in "".join(read.words), "it is shown, as text"
        assert "<b>" not in html.replace("<b>{{", "") or read.tags.count("b") == html.count("<b>")
        assert "49" not in read.text.partition(HOSTILE)[0], "candidates' text is not a template"


def test_control_and_bidirectional_characters_are_shown():
    rng = random.Random(0)
    source = "int a; /* \u202e } \u2066 if (admin) */ \x1b[31m\x00"
    trial = ok_trial(GELU, 500, 1000, rng, candidate=candidate(rng, source=source), stage="confirm")
    failed = failed_trial(GELU, Outcome.COMPILE_ERROR, rng, evidence="\x1b[1merror\x1b[0m:\tno\r\n")
    html, read = page([trial, failed])
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e\u2066]", html)
    assert "<U+202E>" in read.text and "<U+001B>" in read.text
    ElementTree.fromstring(re.findall(r"<svg.*?</svg>", html, re.S)[0])


def test_five_hundred_trials_stay_small():
    html, read = page(optimize_run(500, failures=0.1))
    check_self_contained(html, read)
    assert "more verified trial" in read.text


def test_size_holds_for_long_words_everywhere():
    rng = random.Random(0)
    long = "x" * 4000
    origin = Origin(kind="llm", name=long, config={f"{long}{i}": long for i in range(10)})
    source = "\n".join(f"float v{i} = {i}.0f; // {long[:80]}" for i in range(5000))
    trials = [
        ok_trial(GELU, 500 + i, 1000, rng, candidate=candidate(rng, source=source + str(i), origin=origin), number=i) for i in range(60)
    ]
    trials += [failed_trial(GELU, Outcome.COMPILE_ERROR, rng, i, evidence=f"{i} {long}") for i in range(300)]
    html, read = page(trials, title=long, command=long)
    check_self_contained(html, read)
    assert "in the archive" in read.text, "what is left out is said"


def test_a_bench_names_its_losses():
    trials, costs = bench_run(40)
    html, read = page(trials, costs=costs)
    check_self_contained(html, read)
    assert "40 workloads on AMD EPYC" in read.text
    assert "as geometric mean; 27 wins, 6 ties, 5 losses, 2 without a verified candidate" in read.text
    losses = html.partition('id="losses"')[2].partition("</section>")[0]
    assert losses.count("▼ slower") == 5 and losses.count("✕ nothing verified") == 2
    assert "rmsnorm 384x4096 fp32" in losses and "0.611x" in losses
    assert "Worst: 0.611x on chain:rmsnorm:384x4096:fp32" in read.text


def test_a_suite_of_a_thousand_workloads_stays_small_and_keeps_every_loss():
    trials, costs = bench_run(1000)
    html, read = page(trials, costs=costs)
    check_self_contained(html, read)
    losses = html.partition('id="losses"')[2].partition("</section>")[0]
    counted = re.search(r"(\d+) losses", read.text)
    assert counted and losses.count("▼ slower") == int(counted[1]) > 100


def test_the_file_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    target = tmp_path / "reports" / "run.html"
    path = write(target, optimize_run(5), title="t", command=COMMAND, costs={GELU.name: GELU_COST})
    assert path == target and target.read_text(encoding="utf-8").startswith("<!doctype html>")
    before = target.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        write(target, [], title="t", command=COMMAND)
    assert target.read_bytes() == before
    assert [p.name for p in target.parent.iterdir()] == ["run.html"]


def test_peaks_of_another_form_are_refused():
    with pytest.raises(ValueError, match=r"targets\.target\.Peaks"):
        render([], title="t", command="c", target_peaks={"bandwidth": 1e9})


def test_a_file_problem_is_not_run(tmp_path):
    """A report reads an archive that may come from anyone."""
    proof = tmp_path / "ran"
    source = f"open({str(proof)!r}, 'w')\n"
    w = Workload(problem="kernelbench:evil", axes={}, source=source)
    page([ok_trial(w, 5, 10, random.Random(0))], costs=None)
    assert not proof.exists()


def test_python_and_rival_candidates_have_no_plan():
    rng = random.Random(0)
    python = Candidate(kind="python", source="import torch\n# <i>\nclass ModelNew: pass\n", origin=Origin(kind="llm", name="m"))
    html, read = page([ok_trial(GELU, 5, 10, rng, candidate=python, build=None, stage="confirm")])
    check_self_contained(html, read)
    assert "ModelNew" in read.text and "Launch plan" not in read.text


def test_the_headline_mode_is_the_one_that_was_searched():
    rng = random.Random(0)
    screens = [ok_trial(GELU, 500 + i, 1000, rng, modes=("device-warm",), number=i) for i in range(5)]
    confirmed = ok_trial(GELU, 500, 1000, rng, modes=("device-warm", "device-cold"), stage="confirm", number=9)
    _, read = page([*screens, confirmed])
    assert "against the strongest rival, device time, warm cache" in read.text
    _, read = page([*screens, confirmed], mode="device-cold")
    assert "against the strongest rival, device time, cold cache" in read.text


def test_a_chain_stands_in_a_column_beside_the_headline_and_is_explained():
    rng = random.Random(0)
    modes = ("device-cold", "device-chain")
    confirmed = ok_trial(GELU, 500, 1000, rng, rivals={}, modes=modes, stage="confirm").replace(
        comparisons=(comparison("eager", "device-cold", 1.5, 750), comparison("eager", "device-chain", 1.9, 750))
    )
    _, read = page([confirmed])
    assert "1.50x faster than torch eager" in read.text, "the headline is that of launches that wait"
    assert "device-cold device-chain" in read.text and CHAIN_NOTE in read.text
    other = ok_trial(GELU.replace(axes={"rows": 8, "cols": 8}), 500, 1000, rng, modes=("device-cold",), stage="confirm")
    _, read = page([confirmed, other])
    assert "In a chain, vs strongest" in read.text and "1.90x" in read.text and CHAIN_NOTE in read.text
    _, read = page([other])
    assert "device-chain" not in read.text


def test_a_mode_without_a_rival_says_so_and_what_the_others_say():
    """On a busy machine every sample of a rival may be disturbed in one mode and not in another."""
    rng = random.Random(0)
    trial = ok_trial(GELU, 500, 1000, rng, modes=("device-warm", "host-server"), stage="confirm")
    trial = trial.replace(comparisons=tuple(c for c in trial.comparisons if c.mode == "host-server"))
    _, read = page([trial])
    assert "no rival could be compared in device time, warm cache. In host time, server (random pauses): slower than" in read.text
    assert "● no rival measured" in read.text and "against the strongest rival" not in read.text


def test_devices_are_not_mixed():
    rng = random.Random(0)
    slow, slower = (ok_trial(GELU, us, 1000, rng, number=i) for i, us in enumerate((500, 600)))
    elsewhere = ok_trial(GELU, 5, 10, rng, environment=Environment(target="cuda:sm_90", device="NVIDIA H200"))
    _, read = page([slow, slower, elsewhere])
    assert "2.00x faster than torch eager" in read.text
    assert "Left out, since times of different devices do not compare: 1 trial on cuda:sm_90 NVIDIA H200" in read.text
