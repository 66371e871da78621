"""A compact source is the same kernel: it compiles to the same machine code."""

from __future__ import annotations

import random
import re

import pytest

from kernelwright.evaluate.build import build
from kernelwright.evaluate.machine_code import code_of
from kernelwright.families import families_for
from kernelwright.learn.compact import compact, without_comments
from kernelwright.problems import resolve
from kernelwright.propose.configs import SearchSpace
from kernelwright.targets import target
from kernelwright.targets.target import TargetUnavailable

KERNEL = """// a kernel
#include <cmath>
#define TWICE(x) (2 * (x))  // used
#define UNUSED 1
struct Pair { int a; int b; };
struct Lonely { int a; };
using Number = float;
constexpr int first = 3, second = TWICE(first);
static int helper(int i) { return i + second; }  /* called */
static int forgotten(int i) { return helper(i); }
Pair operator+(Pair x, Pair y) { return {x.a + y.a, x.b + y.b}; }
Lonely operator+(Lonely x, Lonely y) { return {x.a + y.a}; }
const char* text = "// no comment { ; ";

extern "C" void kernel(Number* y, long n) {
    Pair p{1, 2};
    for (long i = 0; i < n; i++) y[i] = helper(p.a) + text[0];  // all
}
"""


def test_what_no_kernel_uses_is_left_out():
    short = compact(KERNEL)
    assert "Lonely" not in short and "forgotten" not in short and "UNUSED" not in short and "a kernel" not in short
    for kept in ("TWICE", "Pair operator+", "using Number", "second", '"// no comment { ; "', "#include <cmath>"):
        assert kept in short
    assert compact(short) == short


def test_what_stands_between_conditions_stays():
    source = "#if A\nint f() { return g(); }\n#endif\nint g() { return 1; }\nint h() { return 2; }\n" + 'extern "C" int k() { return 0; }\n'
    assert [bool(re.search(rf"int {name}\(", compact(source))) for name in "fghk"] == [True, True, False, True]


def test_comments_in_quotes_are_none():
    assert without_comments('a("/*"); // b\n  c("*/");/* d\n e */f();\n') == 'a("/*");\nc("*/"); f();'


@pytest.mark.parametrize(
    ("name", "dtype", "where"),
    [
        ("chain:softmax:64x256", "fp32", "cpu"),
        ("chain:new-gelu:64x256", "fp16", "cpu"),
        ("gemm:64x64x64", "fp32", "cpu"),
        ("chain:layernorm:64x256", "fp16", "cuda:sm_90"),
        ("chain:silu-mul:64x256", "fp32", "cuda:sm_90"),
        ("gemm:256x512x512", "fp16", "cuda:sm_90"),
    ],
)
def test_kernels_of_ours_compile_to_the_same_code(name, dtype, where):
    w, one, rng = resolve(name, dtype=dtype), target(where), random.Random(name)
    try:
        for family in families_for(w, one.facts())[0]:
            space = SearchSpace(w, [family], one.facts())
            point = next(p for p in iter(lambda space=space: space.draw(rng), None) if space.legal(p))
            whole = family.render(space.config(point), w, one.facts())
            short = whole.replace(source=compact(whole.source))
            assert len(short.source) < 0.75 * len(whole.source)
            code = code_of(build(one, whole).artifact)
            assert sum(map(len, code.values())) > 1000 and code_of(build(one, short).artifact) == code, family.name
    except TargetUnavailable as reason:
        pytest.skip(str(reason))


def test_another_kernel_is_another_code():
    w, cpu = resolve("chain:hardswish:16x64"), target("cpu")
    family = families_for(w, cpu.facts())[0][0]
    whole = family.render(family.seeds(w, cpu.facts())[0], w, cpu.facts())
    changed = whole.replace(source=whole.source.replace("+ 3.0f", "+ 3.5f"))
    assert changed.id != whole.id and code_of(build(cpu, changed).artifact) != code_of(build(cpu, whole).artifact)


def test_what_is_no_elf_file_is_named(tmp_path):
    path = tmp_path / "x.so"
    for content in (b"", b"MZ", b"\x7fELF\x02" + b"\xff" * 70):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"x\.so"):
            code_of(path)
