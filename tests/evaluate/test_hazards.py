"""What racecheck reports of an mbarrier's own instructions is no hazard; everything else stays one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kernelwright.evaluate import hazards
from kernelwright.evaluate.sanitized import FOUND, Sanitizer
from kernelwright.evaluate.watched import SAID, Request, Watched
from kernelwright.problems import resolve
from kernelwright.records import Build, Candidate, Launch, LaunchPlan, Origin, Outcome, TensorArg, Verdict
from kernelwright.targets.cuda import CudaTarget
from kernelwright.targets.sass import instructions
from made_up import product

SOURCE = """
#include <kernelwright/barrier.cuh>
extern "C" __global__ void k(float* x) {
    __shared__ unsigned long long bar;
    const unsigned at = unsigned(__cvta_generic_to_shared(&bar));
    if (threadIdx.x == 0) {
        kw::barrier_init(at, 1);
        kw::fence_barrier_init();
        kw::barrier_expect(at, 0);
    }
    __syncthreads();
    kw::barrier_wait(at, 0);
    x[threadIdx.x] = 1;
}"""


@pytest.fixture(scope="module")
def cubin(tmp_path_factory) -> Build:
    plan = LaunchPlan(launches=(Launch(kernel="k", args=(TensorArg(name="c"),)),))
    candidate = Candidate(kind="cuda", source=SOURCE, plan=plan, origin=Origin(kind="file"))
    return CudaTarget("sm_90").compile(candidate, tmp_path_factory.mktemp("built"))


def offset(cubin: Build, word: str) -> int:
    return next(at for at, text in instructions(cubin.artifact)["k"].items() if word in text)


def report(*sides: int, severity: str = "Warning", kernel: str = "k(float *)") -> str:
    first, *others = (f"{kernel}+0x{side:x}" for side in sides)
    lines = [f"========= {severity}: Race reported between Write access at {first}"]
    return "\n".join([*lines, *(f"=========     and Read access at {other} [256 hazards]" for other in others)]) + "\n========= \n"


def output(*reports: str) -> str:
    warned = sum("Warning" in r for r in reports)
    plural = "s" if len(reports) > 1 else ""
    counted = f"({len(reports) - warned} errors, {warned} warnings)"
    return (
        "========= COMPUTE-SANITIZER\n"
        + "".join(reports)
        + f"========= RACECHECK SUMMARY: {len(reports)} hazard{plural} displayed {counted}\n"
    )


def test_the_initialisation_by_one_thread_is_compiled_to_the_form_in_question(cubin: Build):
    assert instructions(cubin.artifact)["k"][offset(cubin, "SYNCS.EXCH")].startswith(("@!UP", "@UP"))


def test_a_warning_about_an_mbarrier_is_no_hazard(cubin: Build):
    init, arrival, wait = (offset(cubin, word) for word in ("SYNCS.EXCH", "SYNCS.ARRIVE", "SYNCS.PHASECHK"))
    warned = hazards.warnings(output(report(init, arrival), report(init, arrival, wait), report(init, arrival)))
    assert warned == {(("k", init), ("k", arrival)), (("k", init), ("k", arrival), ("k", wait))}
    assert hazards.no_hazard(warned, cubin.artifact)


def test_other_instructions_stay_a_hazard(cubin: Build):
    init, arrival, store = (offset(cubin, word) for word in ("SYNCS.EXCH", "SYNCS.ARRIVE", "STG"))
    for sides in ((init, store), (store, arrival), (arrival, arrival), (init, arrival, store), (init, 0x7FF0)):
        assert not hazards.no_hazard(hazards.warnings(output(report(*sides))), cubin.artifact), sides
    assert not hazards.no_hazard(hazards.warnings(output(report(init, arrival, kernel="other"))), cubin.artifact)
    good = report(init, arrival)
    assert not hazards.no_hazard(hazards.warnings(output(good, report(store, store))), cubin.artifact)


def test_what_is_no_warning_or_not_understood_is_none(cubin: Build):
    good, bad = report(16, 32), report(16, 32, severity="Error")
    assert hazards.warnings(output(good))
    for said in (
        output(bad),
        output(good, bad),
        good,  # cut off before its summary
        output(good, good).replace("2 hazards", "3 hazards").replace("2 warnings", "3 warnings"),
        output(good).replace("k(float *)+0x20", "somewhere"),
        output(good).replace("0 errors", "1 errors"),
        "",
    ):
        assert hazards.warnings(said) == frozenset(), said


PLAYED = f"""#!{sys.executable}
# plays racecheck and child: what is reported of a kernel stands in its source
import json, sys
kernels = json.load(open(sys.argv[-1]))["kernels"]
reports = []
for index, kernel in enumerate(kernels):
    source = kernel["candidate"]["source"]
    print("{SAID}" + json.dumps({{"index": index, "verdict": {{"outcome": "OK", "evidence": "5 shapes"}}}}), flush=True)
    if "MBARRIER" in source:
        reports.append(MBARRIER)
    if "RACE" in source and not ("TOGETHER" in source and len(kernels) == 1):
        reports.append(RACE)
for one in reports:
    print(one)
print(f"========= RACECHECK SUMMARY: {{len(reports)}} hazards displayed (0 errors, {{len(reports)}} warnings)")
sys.exit({FOUND} if reports else 0)
"""


def racecheck(folder: Path, cubin: Build, *behaviours: str) -> list[Verdict]:
    played = report(offset(cubin, "SYNCS.EXCH"), offset(cubin, "SYNCS.ARRIVE")), report(offset(cubin, "STG"), offset(cubin, "STG"))
    path = folder / "compute-sanitizer"
    path.write_text(PLAYED.replace("(MBARRIER)", f"({played[0]!r})").replace("(RACE)", f"({played[1]!r})"))
    path.chmod(0o755)
    workloads = (resolve("gemm:8x8x8:fp32"),)
    kernels = (product(f"/* {index} {what} */") for index, what in enumerate(behaviours))
    request = Request(target="cpu", kernels=tuple(Watched(candidate=c, build=cubin, workloads=workloads) for c in kernels))
    return Sanitizer(str(path)).run("racecheck", request)


@pytest.mark.parametrize("behaviours", [("MBARRIER",), ("", "MBARRIER", ""), ("MBARRIER", "MBARRIER")])
def test_such_kernels_pass_alone_and_among_others(tmp_path, cubin: Build, behaviours):
    verdicts = racecheck(tmp_path, cubin, *behaviours)
    assert all(v.ok for v in verdicts)
    assert [("no hazard" in v.evidence) for v in verdicts] == ["MBARRIER" in what for what in behaviours]


def test_a_race_beside_them_is_found(tmp_path, cubin: Build):
    verdicts = racecheck(tmp_path, cubin, "", "MBARRIER", "RACE", "MBARRIER RACE")
    assert [v.outcome for v in verdicts] == ["OK", "OK", Outcome.NONDETERMINISTIC, Outcome.NONDETERMINISTIC]


def test_a_race_that_does_not_come_again_is_not_explained_by_them(tmp_path, cubin: Build):
    verdicts = racecheck(tmp_path, cubin, "MBARRIER", "RACE TOGETHER")
    assert [v.outcome for v in verdicts] == [Outcome.NONDETERMINISTIC] * 2
    assert all("in none of them alone" in v.evidence for v in verdicts)
