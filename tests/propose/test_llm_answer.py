"""Answers are data: read strictly, never executed, and what is wrong with one is said in one sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import answer

from kernelwright.families.family import DeviceFacts
from kernelwright.problems import resolve
from kernelwright.propose.llm_answer import ANSWER, CPP, CUDA, PYTHON, SOURCE, AnswerError, languages, read
from kernelwright.records import Origin, Workload

W = resolve("chain:new-gelu:256x256")
ORIGIN = Origin(kind="llm", name="m")
KERNEL = 'extern "C" void kernel() {}\n'
PLAN = """/* kernelwright-plan
{"launches": [{"kernel": "k", "grid": ["cdiv(cols, 128)", 1, 1], "args": [{"type": "tensor", "name": "x"}]}]}
*/
"""


def test_a_cpp_answer():
    found = read(answer(KERNEL), (CPP,), W, ORIGIN)
    assert (found.kind, found.source, found.origin) == ("cpu", KERNEL, ORIGIN)
    assert found.plan is not None and found.plan.launches[0].kernel == "kernel", "the default plan"
    assert read(answer(PLAN + KERNEL), (CPP,), W, ORIGIN).plan.launches[0].kernel == "k"  # type: ignore[union-attr]


def test_a_cuda_answer_states_its_plan():
    found = read(answer(PLAN + "__global__ void k() {}", "cuda"), (CUDA,), W, ORIGIN)
    assert found.kind == "cuda" and found.plan is not None and found.plan.launches[0].grid[0] == "cdiv(cols, 128)"


def test_what_models_wrap_around_is_passed_over():
    text = answer(KERNEL)
    for around in (
        "<think>\n## Code\n```cpp\nint draft;\n```\n</think>\n" + text,
        "Let me see.\n## Code\n```cpp\nint draft;\n```\n</think>\n" + text,
        text.replace("## Design", "## **Design**").replace("```cpp", "```cpp title=kernel.cpp"),
        "Sure, here you are.\n\n" + text + "\nI hope that this helps!",
        text.replace("\n", "\r\n"),
        text.replace("## ", "# "),
        text.replace("## Design", "## 2. Design:"),
        text.replace("## PERF", "## perf").replace("Performance analysis", "PERFORMANCE ANALYSIS"),
        text.replace("One pass.", "As in\n```\n## Code\n```\nabove."),
    ):
        assert read(around, (CPP,), W, ORIGIN).source.strip() == KERNEL.strip()


def test_a_longer_fence_holds_backticks():
    assert "```" in read(answer("// ```\nint x;").replace("```cpp", "````cpp").replace("x;\n```", "x;\n````"), (CPP,), W, ORIGIN).source


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must have the headings"),
        ("I cannot do that.", "it has none"),
        (answer(KERNEL).replace("## Design", "## Idea"), "it has performance analysis, code"),
        (answer(KERNEL) + answer(KERNEL), "each once"),
        (answer(KERNEL).replace("```cpp", "").replace("```", ""), "there are 0"),
        (answer(KERNEL) + "\nOr:\n```cpp\nint y;\n```\n", "there are 2"),
        (answer(KERNEL)[:-6], "never closed"),
        (answer(KERNEL, "python"), "marked 'python'; it must be ```cpp"),
        (answer(KERNEL, ""), "marked ''"),
        (answer("   "), "empty"),
        (answer("int a;\0"), "zero byte"),
        (answer("x" * (SOURCE + 1)), f"at most {SOURCE}"),
        ("x" * (ANSWER + 1), f"at most {ANSWER}"),
        (answer('/* kernelwright-plan {"launches": []} */'), "at least one launch"),
        (answer('/* kernelwright-plan {"launches": [{"kernel": 3}]} */'), "its launch plan is wrong"),
        (answer('/* kernelwright-plan {"launches": [{"kernel": "k", "args": [], "host": "code"}]} */'), "its launch plan is wrong"),
        (answer('#include "/proc/self/environ"\n' + KERNEL), "is not allowed"),
        (answer("#include </etc/passwd>\n" + KERNEL), "is not allowed"),
        (answer('#include "../../secret.h"\n' + KERNEL), "is not allowed"),
        (answer("#include <../secret.h>\n" + KERNEL), "is not allowed"),
        (answer("#define F </etc/passwd>\n  #  include F\n" + KERNEL), "is not allowed"),
        (answer("#include \\\n</etc/passwd>\n" + KERNEL), "is not allowed"),
        (answer("%:include </etc/passwd>\n" + KERNEL), "is not allowed"),
        (answer("#include_next <x>\n" + KERNEL), "is not allowed"),
        (answer("#include /**/ </etc/passwd>\n" + KERNEL), "is not allowed"),
        (answer('#embed "/etc/passwd"\n' + KERNEL), "is not allowed"),
    ],
)
def test_one_sentence_on_what_is_wrong(text, says):
    with pytest.raises(AnswerError, match=says.replace("(", r"\(")) as error:
        read(text, (CPP,), W, ORIGIN)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


def test_cuda_without_a_plan_is_told_so():
    with pytest.raises(AnswerError, match="no launch plan"):
        read(answer(KERNEL, "cuda"), (CUDA,), W, ORIGIN)


def test_allowed_headers():
    source = '#include <immintrin.h>\n#include <sys/types.h> // why\n#include "kernelwright/copy.cuh" /* x */\n' + KERNEL
    assert read(answer(source), (CPP,), W, ORIGIN).source == source


def test_python_is_never_executed(tmp_path):
    mark = tmp_path / "ran"
    found = read(answer(f"open({str(mark)!r}, 'w')\nraise SystemExit", "python"), (CPP, PYTHON), W, ORIGIN)
    assert found.kind == "python" and not mark.exists()


def test_languages_of_each_target():
    file = Workload(problem="kernelbench:x", axes={}, source="...")
    assert languages(W, DeviceFacts(target="cpu")) == (CPP,) and languages(file, DeviceFacts(target="cpu")) == (CPP, PYTHON)
    assert languages(file, DeviceFacts(target="cuda:sm_90")) == (CUDA, PYTHON)
    assert languages(W, DeviceFacts(target="cuda:sm_90")) == (CUDA,) and languages(W, DeviceFacts(target="fake")) == ()


@pytest.mark.parametrize(
    "text",
    ["# " + ":" * 190_000 + "x", "```" + " " * 190_000 + "x", "```\n```\n" * 12_000 + "# a\n" * 25_000, "# code\n" * 28_000],
)
def test_no_answer_keeps_the_parser_busy(text):
    """Patterns took minutes to hours on these, in the process that leads the search."""
    with pytest.raises(AnswerError) as error:
        read(text, (CPP,), W, ORIGIN)
    assert len(str(error.value)) < 500


@given(st.text(alphabet="#`\n\r \0<>/*{}\"'cpode\\" + "## Code```cpp", max_size=400))
def test_any_text_is_a_candidate_or_an_error(text):
    for whole in (text, answer(text)):
        try:
            assert read(whole, (CPP,), W, ORIGIN).kind == "cpu"
        except AnswerError as error:
            assert "\n" not in str(error)
