from __future__ import annotations

import pytest

from kernelwright.archive import Archive
from kernelwright.learn.retrieval import PASSAGE, Index, Passage, kernel_passages, own_passages, words
from kernelwright.records import Candidate, Launch, LaunchPlan, Origin, Outcome, Verdict, Workload


def test_words_split_identifiers():
    assert words("cp_async_wait<2> TensorMap HGMMA loads2") == ["cp", "async", "wait", "2", "tensor", "map", "hgmma", "load", "2"]
    assert words("class pass gas") == ["class", "pass", "gas"], "no plurals"


def test_rare_words_count_more_and_length_is_evened_out():
    index = Index([Passage("a", "the tile " * 50), Passage("b", "the wgmma tile"), Passage("c", "the the the"), Passage("d", "the")])
    assert index.search("the wgmma", 4)[0].source == "b"
    assert {p.source for p in index.search("tile", 4)} == {"a", "b"}
    assert index.search("nothing of that", 4) == [] and Index([]).search("x", 3) == []
    short = Index([Passage("long", "swizzle " + "filler " * 400), Passage("short", "swizzle once")])
    assert short.search("swizzle", 1)[0].source == "short"


@pytest.mark.parametrize(
    ("query", "source"),
    [
        ("wait for cp_async group", "device/copy.cuh"),
        ("wgmma descriptor swizzle", "device/wgmma.cuh"),
        ("mbarrier arrive expect transaction bytes", "device/barrier.cuh"),
        ("tanh rational function", "families/chain_cpu/vecmath.h"),
        ("normalised error bound of a chain", "docs/verification.md"),
    ],
)
def test_our_own_texts_are_found(query, source):
    assert source in " ".join(p.source for p in Index(own_passages()).search(query, 3))


def test_passages_are_short_and_not_empty():
    assert all(0 < len(p.text) <= PASSAGE for p in own_passages()) and len(own_passages()) > 50


def test_archived_kernels_the_same_problem_first(tmp_path):
    from test_reward import trial

    def kernel(w: Workload, text: str, ratio: float, **fields):
        plan = LaunchPlan(launches=(Launch(kernel="k", args=()),))
        return trial(ratio, workload=w, candidate=Candidate(kind="cpu", source=text, plan=plan, origin=Origin(kind="llm")), **fields)

    mine, near, far = (Workload(problem=p, axes={"M": m}) for p, m in (("chain:a", 1), ("chain:a", 2), ("chain:b", 3)))
    with Archive(tmp_path / "a.db") as archive:
        archive.append(kernel(far, "far", 2.0))
        archive.append(kernel(near, "slow", 2.0))
        archive.append(kernel(near, "x" * 5000 + "fast", 3.0))
        archive.append(kernel(near, "wrong", 0, outcome=Outcome.WRONG_RESULT, verdict=Verdict(outcome=Outcome.WRONG_RESULT)))
        archive.append(kernel(mine, "mine", 9.0))
        found = list(kernel_passages(archive, mine, "cpu"))
        assert list(kernel_passages(archive, mine, "cuda:sm_90")) == []
    assert [p.text[-4:] for p in found] == ["fast", "far"] and len(found[0].text) == PASSAGE
    assert "3.00x of eager" in found[0].source
