"""The CPU target: real C++ compiled and run; every way in which it can go wrong is a Verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelwright.evaluate.evaluator import Evaluator
from kernelwright.evaluate.jobs import ALL_RUNGS, Job
from kernelwright.problems import resolve
from kernelwright.records import Candidate, Launch, LaunchPlan, Origin, Outcome, ScalarArg, TensorArg
from kernelwright.targets import cpu, target
from kernelwright.targets.target import CandidateFault

W = resolve("gemm:24x40x16:fp32")
HEADERS = ("cstdlib", "thread", "vector", "fcntl.h", "omp.h", "sys/socket.h", "unistd.h")
HEAD = "".join(f"#include <{name}>\n" for name in HEADERS)
KERNEL = """extern "C" void k(const float* a, const float* b, float* c, long M, long N, long K, long lda, long ldb, long ldc) {
    BEFORE
    for (long i = 0; i < M; i++)
        for (long j = 0; j < N; j++) {
            double sum = 0;
            for (long p = 0; p < K; p++) sum += double(a[i * lda + p]) * b[p * ldb + j];
            c[i * ldc + j] = float(sum);
        }
    AFTER
}
"""
ARGS = (
    *(TensorArg(name=n) for n in "abc"),
    *(ScalarArg(ctype="i64", value=v) for v in ("M", "N", "K", "ld_a", "ld_b", "ld_c")),
)


def kernel(before: str = "", after: str = "", requires: tuple[str, ...] = (), name: str = "k") -> Candidate:
    source = HEAD + KERNEL.replace("BEFORE", before).replace("AFTER", after)
    plan = LaunchPlan(launches=(Launch(kernel=name, args=ARGS),), requires=requires)
    return Candidate(kind="cpu", source=source, plan=plan, origin=Origin(kind="file"))


@pytest.fixture(scope="module")
def evaluator():
    with Evaluator(target("cpu")) as one:
        yield one


def judge(evaluator: Evaluator, candidate: Candidate, **changes) -> tuple[Outcome, str]:
    job = Job(workload=W, **changes)
    (trial,) = evaluator.evaluate([candidate], job, stage="verify", session="test")
    return trial.verdict.outcome, trial.verdict.evidence


def test_a_right_kernel_climbs_the_whole_ladder(evaluator):
    outcome, evidence = judge(evaluator, kernel(), rungs=ALL_RUNGS)
    assert outcome == Outcome.OK, evidence


@pytest.mark.parametrize(
    ("before", "after", "outcome", "words"),
    [
        ("syntax error", "", Outcome.COMPILE_ERROR, "kernel.cpp:9"),
        ("", "c[0] += 1e-3f;", Outcome.WRONG_RESULT, "c[0, 0]"),
        ("", "if (M) ((float*)a)[0] = 3;", Outcome.INPUT_MUTATED, "input a"),
        ("", "c[M * ldc] = 1;", Outcome.OUT_OF_BOUNDS, "outside"),
        ("", "c[-1] = 1;", Outcome.OUT_OF_BOUNDS, "c"),
        ("*(volatile int*)8 = 1;", "", Outcome.CRASH, "SIGSEGV"),
        ("exit(0);", "", Outcome.CRASH, "exited by itself"),
        ("abort();", "", Outcome.CRASH, "SIGABRT"),
        ("std::vector<char> v(1ull << 36, 1);", "", Outcome.OUT_OF_MEMORY, "memory"),
        ("throw 1;", "", Outcome.CRASH, "SIGABRT"),
    ],
)
def test_faults(evaluator, before, after, outcome, words):
    found, evidence = judge(evaluator, kernel(before, after))
    assert found == outcome, evidence
    assert words in evidence


@pytest.mark.parametrize(
    "flag", ["-wrapper", "-fplugin=/tmp/x.so", "-include", "/etc/passwd", "-B.", "@file", "-Wl,-z,x", "-I/root", "-o", "-L.", "x.cpp"]
)
def test_flags_that_name_files_or_programs_are_not_allowed(evaluator, flag):
    outcome, evidence = judge(evaluator, kernel().replace(flags=("-O2", flag)))
    assert outcome == Outcome.COMPILE_ERROR and "is not allowed" in evidence


def test_flags_that_only_change_the_code_reach_the_compiler(evaluator):
    flags = ("-O2", "-DA=1", "-UB", "-fno-math-errno", "-ffp-contract=fast", "-mno-avx512f", "-std=c++20", "-Wall", "-funroll-loops")
    outcome, evidence = judge(evaluator, kernel().replace(flags=flags))
    assert outcome == Outcome.OK, evidence


def test_a_compiler_that_takes_too_long_ends_with_all_that_it_started(tmp_path, monkeypatch):
    compiler = tmp_path / "bin" / "slow"
    compiler.parent.mkdir()
    compiler.write_text("#!/bin/sh\nsleep 377 &\nsleep 377\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(cpu, "compiler", lambda: str(compiler))
    monkeypatch.setattr(cpu, "_COMPILE_SECONDS", 0.5)
    with pytest.raises(CandidateFault, match="longer than"):
        cpu.CpuTarget().compile(kernel(), tmp_path)
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists() and b"sleep\x00377" in p.read_bytes()]


def test_a_hang_is_killed_and_the_next_is_unharmed(evaluator, monkeypatch):
    # the limit is read in the judge, which has its own copy: hang for the real ten seconds
    found, evidence = judge(evaluator, kernel("for (volatile int i = 1; i;) sleep(1);"))
    assert found == Outcome.TIMEOUT, evidence
    assert judge(evaluator, kernel())[0] == Outcome.OK


def test_reading_beyond_an_input_spoils_the_result(evaluator):
    found, evidence = judge(evaluator, kernel("", "c[0] = c[0] + 0 * a[M * lda];"))
    assert found == Outcome.WRONG_RESULT
    assert "computed from bytes outside" in evidence


@pytest.mark.parametrize("threads", ["1", "2"])
def test_openmp_and_threads_of_its_own_work(monkeypatch, threads):
    monkeypatch.setenv("KERNELWRIGHT_THREADS", threads)
    parallel = kernel().source.replace("for (long i = 0", "#pragma omp parallel for num_threads(2)\n    for (long i = 0")
    own = kernel("std::thread([] {}).join();").source
    with Evaluator(target("cpu")) as one:
        for source in (parallel, own):
            candidate = kernel().replace(source=source)
            job = Job(workload=W, rivals=("eager",), modes=("device-warm",))
            (trial,) = one.evaluate([candidate], job, stage="verify", session="test")
            assert trial.verdict.outcome in (Outcome.OK, Outcome.NOISY), trial.verdict.evidence


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        # a thread that goes on after the answer is stopped with its process: what it would write is missing
        ("std::thread([=] { usleep(5000); for (long i = 0; i < M * N; i++) c[i] = 0; }).detach(); return;", "", Outcome.WRONG_RESULT),
        ("if (fork() != -1) c[0] = 0; else c[-1] = 0;", "", Outcome.OUT_OF_BOUNDS),
        ("if (socket(AF_INET, SOCK_STREAM, 0) == -1) c[-1] = 0;", "", Outcome.OUT_OF_BOUNDS),
        ('if (open("/tmp/kernelwright-cheat", O_CREAT | O_WRONLY, 0600) == -1) c[-1] = 0;', "", Outcome.OUT_OF_BOUNDS),
        ("for (int fd = 3; fd < 256; fd++) close(fd);", "", Outcome.CRASH),
        ("static int calls; if (++calls > 3 && calls % 2) return;", "", Outcome.WRONG_RESULT),
    ],
)
def test_what_the_sandbox_denies_is_seen_in_the_candidates_own_words(evaluator, before, after, outcome):
    """A denied call returns -1, and the kernel then writes before its output."""
    found, evidence = judge(evaluator, kernel(before, after), rungs=ALL_RUNGS, rivals=("eager",), modes=("device-warm",))
    assert found == outcome, evidence


def test_a_wrong_function_name_says_what_to_do(evaluator):
    found, evidence = judge(evaluator, kernel(name="nope"))
    assert found == Outcome.LAUNCH_ERROR
    assert 'extern "C"' in evidence


def test_requirements_refuse_with_the_numbers(evaluator):
    found, evidence = judge(evaluator, kernel(requires=("M % 16 == 0",)))
    assert found == Outcome.REFUSED
    assert "M % 16 == 0 (M = 24)" in evidence


def test_a_tail_that_is_skipped_is_found_by_the_shapes_rung(evaluator):
    source = kernel().source.replace("i < M;", "i < (M >= 24 ? M : M / 8 * 8);")
    found, evidence = judge(evaluator, kernel().replace(source=source), rungs=ALL_RUNGS)
    assert found == Outcome.WRONG_RESULT
    assert "shape 1x1x1" in evidence


def test_rows_beyond_the_leading_dimension_are_guarded(evaluator):
    source = kernel().source.replace("c[i * ldc + j]", "c[i * N + j]")
    found, evidence = judge(evaluator, kernel().replace(source=source), rungs=ALL_RUNGS)
    assert found in (Outcome.OUT_OF_BOUNDS, Outcome.WRONG_RESULT)
    assert "padded" in evidence


def test_times_come_with_the_rival_in_the_same_rounds(evaluator):
    job = Job(workload=W, rivals=("eager",), modes=("device-warm", "device-cold", "host-offline"), noise=True)
    (trial,) = evaluator.evaluate([kernel()], job, stage="verify", session="test")
    if trial.verdict.outcome == Outcome.NOISY:
        pytest.skip("the machine is too busy for any undisturbed sample")
    assert trial.verdict.ok, trial.verdict.evidence
    for c in trial.comparisons:
        assert c.low <= c.ratio <= c.high and c.rounds >= 3
