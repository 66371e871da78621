"""Answers as people keep them: files, folders, KernelBench runs, CUDA-L1's lines; and what becomes of their claims."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelwright.bench.answers import AnswersError, read
from kernelwright.bench.claims import differences, summaries
from kernelwright.bench.results import Claim, Facts, Fault, Result, Store
from kernelwright.bench.tasks import kernelbench
from kernelwright.problems import ProblemError
from kernelwright.records import Comparison, Environment

EXAMPLES = Path(__file__).parents[2] / "examples"
TASKS = kernelbench("1", EXAMPLES / "kernelbench", "fp32")


def test_a_level_in_the_order_of_its_numbers(tmp_path):
    folder = tmp_path / "KernelBench" / "level2"
    folder.mkdir(parents=True)
    source = TASKS[0].workload.source
    for name in ("10_Ten.py", "2_Two.py", "__init__.py", "1_One_more_.py"):
        (folder / name).write_text(source)
    found = kernelbench("2", tmp_path, "bf16")
    assert [(t.number, t.name, t.group) for t in found] == [(1, "One more", "fusion"), (2, "Two", "fusion"), (10, "Ten", "fusion")]
    assert found[0].workload.dtype == "bf16" and found[2].key == "2/10"
    (folder / "2_Again.py").write_text(source)
    with pytest.raises(ProblemError, match="two problems with the number 2"):
        kernelbench("2", tmp_path, "fp32")
    with pytest.raises(ProblemError, match="no checkout"):
        kernelbench("1", tmp_path, "fp32")
    with pytest.raises(ProblemError, match="kernelbench:1, not kernelbench:9"):
        kernelbench("9", tmp_path, "fp32")
    with pytest.raises(ProblemError, match="--path"):
        kernelbench("1", None, "fp32")


def test_level_4_without_transformers_is_said_in_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "level4").mkdir()
    (tmp_path / "level4" / "1_model.py").write_text("import transformers\n")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (task,) = kernelbench("4", tmp_path, "fp32")
    assert task.skipped == "dependency" and "pip install transformers" in task.why


def test_a_folder_names_its_answers_after_the_problems():
    e = read(f"mine={EXAMPLES / 'kernelbench-answers' / 'right'}", TASKS)
    assert e.name == "mine" and sorted(e.answers) == ["1/1", "1/2", "1/3"]
    assert e.answers["1/2"][0].suffix == ".cpp" and "answer none of these" in e.notes[0], "level 2 is not asked"
    level2 = read(str(EXAMPLES / "kernelbench-answers" / "right"), kernelbench("2", EXAMPLES / "kernelbench", "fp32"))
    assert sorted(level2.answers) == ["2/2"] and level2.name == "right"


def test_samples_and_what_is_wrong(tmp_path):
    (tmp_path / "3.py").write_text("a")
    (tmp_path / "3_softmax_sample_2.py").write_text("b")
    assert [(a.sample, a.text) for a in read(str(tmp_path), TASKS).answers["1/3"]] == [(0, "a"), (2, "b")]
    (tmp_path / "3_again.py").write_text("c")
    with pytest.raises(AnswersError, match="twice"):
        read(str(tmp_path), TASKS)
    with pytest.raises(AnswersError, match="does not say which problem"):
        (tmp_path / "nameless.py").write_text("c")
        read(str(tmp_path / "nameless.py"), TASKS)
    assert list(read(str(tmp_path / "nameless.py"), TASKS[2:3]).answers) == ["1/3"]
    assert list(read(str(tmp_path / "3.py"), TASKS).answers) == ["1/3"]
    for path, words in (("nowhere", "does not exist"), ("notes.txt", "is no answer")):
        (tmp_path / "notes.txt").write_text("x")
        with pytest.raises(AnswersError, match=words):
            read(str(tmp_path / path), TASKS)


@pytest.fixture
def run_folder(tmp_path):
    folder = tmp_path / "greedy"
    folder.mkdir()
    for problem, sample in ((1, 0), (1, 1), (3, 0), (99, 0)):
        (folder / f"level_1_problem_{problem}_sample_{sample}_kernel.py").write_text(f"# {problem} {sample}")
    good = {"compiled": True, "correctness": True, "runtime": 0.5, "runtime_stats": {"mean": 0.5}, "metadata": {"hardware": "H100"}}
    bad = {
        "compiled": True,
        "correctness": False,
        "runtime": -1.0,
        "metadata": {"max_difference": "3", "correctness_issue": "Output mismatch"},
    }
    results = {"1": [good | {"sample_id": 0, "ref_runtime": 1.0}, good | {"sample_id": 1}], "3": [bad | {"sample_id": 0}]}
    (folder / "eval_results.json").write_text(json.dumps(results))
    return folder


def test_a_kernelbench_run(run_folder, tmp_path):
    e = read(str(run_folder), TASKS)
    assert e.form == "KernelBench run" and [a.sample for a in e.answers["1/1"]] == [0, 1]
    first, second, wrong = e.answers["1/1"][0].claim, e.answers["1/1"][1].claim, e.answers["1/3"][0].claim
    assert first.speedups == {"eager": 2.0} and first.correct
    assert second.speedups == {} and second.runtime_ms == 0.5, "without the reference's time there is no ratio to claim"
    assert wrong.correct is False and not wrong.speedups and "mismatch" in wrong.note
    assert any("for other problems" in n for n in e.notes)
    times = tmp_path / "baseline.json"
    times.write_text(json.dumps({"level1": {"1_Square.py": {"mean": 3.0}}}))
    assert read(str(run_folder), TASKS, times).answers["1/1"][1].claim.speedups == {"eager": 6.0}


@pytest.mark.parametrize("form", ["one dict", "by sample"])
def test_older_forms_of_its_results(run_folder, form):
    entry = {"compiled": True, "correctness": True, "runtime": 0.5, "ref_runtime": 2.0}
    value = entry if form == "one dict" else {"0": entry}
    (run_folder / "eval_results.json").write_text(json.dumps({"1": value}))
    assert read(str(run_folder), TASKS).answers["1/1"][0].claim.speedups == {"eager": 4.0}
    (run_folder / "eval_results.json").write_text("[")
    assert any("no readable" in n for n in read(str(run_folder), TASKS).notes)


def test_cuda_l1s_lines(tmp_path):
    file = tmp_path / "a100.json"
    reference = TASKS[0].workload.source
    lines = [
        {"level_id": 1, "task_id": 1, "ref_code": f"# a comment\n{reference}", "custom_code": "class ModelNew: 1", "score_default": 3.5}
        | {"score_torch_compile_default": 2.5, "score_cuda_graph": None, "score_cudnn": "n/a"},
        {"level_id": 1, "task_id": 2, "ref_code": "other", "custom_code": "class ModelNew: 2", "score_default": 2.0},
        {"level_id": 1, "task_id": 3, "ref_code": "", "custom_code": None, "score_default": None},
        {"level_id": 2, "task_id": 1, "custom_code": "x"},
    ]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")
    e = read(f"CUDA-L1={file}", TASKS)
    assert e.form == "CUDA-L1" and sorted(e.answers) == ["1/1", "1/2"]
    assert e.answers["1/1"][0].claim.speedups == {"eager": 3.5, "compile": 2.5} and not e.answers["1/1"][0].claim.note
    assert "another version" in e.answers["1/2"][0].claim.note
    assert any("no code" in n for n in e.notes) and any("1 lines are for other" in n for n in e.notes)


def compared(ratio: float, rival: str = "eager") -> Comparison:
    interval = {"low": ratio * 0.98, "high": ratio * 1.02, "noise_low": 0.99, "noise_high": 1.01}
    return Comparison(rival=rival, mode="device-warm", ratio=ratio, rival_us=10.0, rounds=9, **interval)


def result(task: str, status: str = "correct", measured: float | None = None, claimed: float | None = None, **fields) -> Result:
    return Result(
        suite="kernelbench:1",
        task=task,
        workload=task,
        entrant="e",
        status=status,  # pyright: ignore[reportArgumentType]
        mode="device-warm",
        comparisons=(compared(measured),) if measured else (),
        claim=Claim(source="CUDA-L1", speedups={"eager": claimed} if claimed else {}, correct=True),
        **fields,
    )


def test_why_claims_differ():
    zeros = Facts(task=TASKS[5], workload="d", faults=(Fault(rule="zeros-pass", severity="error", text="zeros pass"),))
    found = differences(
        [
            result("a", measured=2.0, claimed=2.05),
            result("b", measured=1.0, claimed=3.0, work="flags only", work_why="the same 1 operators"),
            result("c", "wrong", claimed=9.0, outcome="WRONG_RESULT", evidence="normalised error 7"),
            result("d", measured=1.5, claimed=120.0),
            result("f", "skipped", claimed=2.0, skipped="memory", evidence="too large"),
            result("g", measured=4.0, claimed=2.0),
            result("h", "wrong", outcome="CRASH", evidence="it died"),
        ],
        {"d": zeros},
    )
    by_task = {d.task: d for d in found}
    assert {t: d.verdict for t, d in by_task.items()} == {
        "a": "reproduced", "b": "smaller", "c": "refused", "d": "smaller", "f": "not measured", "g": "larger", "h": "refused"
    }  # fmt: skip
    assert by_task["a"].reasons == () and "no kernel of its own" in by_task["b"].reasons[0]
    assert "WRONG_RESULT" in by_task["c"].reasons[0] and "allclose" in by_task["c"].reasons[1]
    assert "zeros-pass" in by_task["d"].reasons[0] and by_task["d"].factor == 80.0
    assert "memory" in by_task["f"].reasons[0] and by_task["h"].rival == ""
    (s,) = summaries(found)
    assert (s.claims, s.both, s.counts["smaller"]) == (6, 4, 2)
    assert s.measured == pytest.approx((2.0 * 1.0 * 1.5 * 4.0) ** 0.25) and s.arithmetic == pytest.approx((2.05 + 3 + 9 + 120 + 2 + 2) / 6)


def test_a_store_goes_on_after_a_line_that_was_cut_off(tmp_path):
    store, here = Store(tmp_path / "r.jsonl"), Environment(target="cpu", device="x", versions={"torch": "1"})
    store.append(result("a", measured=2.0).replace(asked="q", environment=here, outcome="OK"))
    with store.path.open("ab") as file:
        file.write(b'{"type": "answer", "task"')
    again = Store(store.path)
    assert again.unreadable == 1
    again.append(result("b", measured=2.0).replace(asked="q", environment=here, outcome="OK"))
    third = Store(store.path)
    assert len(third.results) == 2 and third.unreadable == 1
    key = result("a").replace(asked="q").key
    assert third.known(key, here) is not None
    assert third.known(key, here.replace(versions={"torch": "2"})) is None, "another version is another measurement"
    assert third.known(result("a").replace(asked="other").key, here) is None
    third.append(result("c", "skipped", skipped="dependency").replace(asked="q", environment=here))
    assert third.known(result("c").replace(asked="q").key, here) is None, "what was missing may be there now"
