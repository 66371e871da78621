"""Areas of the fuzzer whose input is one text: records, launch plans, candidate files, problems by name and as files."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path

import msgspec
import torch
from fuzzing.engine import ROOT, Area, check
from fuzzing.made import Made

from kernelwright import candidate_file
from kernelwright.archive import Archive
from kernelwright.plan import Names, evaluate, unmet
from kernelwright.problems import kernelbench, problem_of, resolve
from kernelwright.problems.kernelbench_shrink import constants
from kernelwright.records import Candidate, LaunchPlan, Trial, Workload
from kernelwright.report import tables


def records(folder: Path, made: Made) -> Area:

    archive = Archive(folder / "records.db")

    def run(data: bytes) -> None:
        kind = {0: Trial, 1: Workload, 2: Candidate}[len(data) % 5 if len(data) % 5 < 3 else 0]
        record = kind.from_json(data)
        check(kind.from_json(record.to_json()) == record, "a record that was read is another after it was written")
        check(len(record.id) == 16, "an id of 16 digits")
        w = record if isinstance(record, Workload) else getattr(record, "workload", None)
        if w is not None and not w.source:
            problem = problem_of(w)
            problem.tensors(w), problem.cases(w), problem.cost(w), problem.bound(w), problem.variants(w)
        if isinstance(record, Trial):
            archive.append(record)
            tables.result_table([record])
            check(archive.trial(record.id) == record, "a Trial that was appended is not the one that is there")

    seeds = [t.to_json().encode() + b" " * i for t in made.trials for i in range(5)]
    seeds += [t.workload.to_json().encode() + b" " * i for t in made.trials for i in range(5)]
    seeds += [t.candidate.to_json().encode() + b" " * i for t in made.trials for i in range(5)]
    words = b'"axes"|"OK"|NaN|1e999|\\ud800|null|[|}|fp16|"tensor"|WRONG_RESULT|-1|screen'.split(b"|")
    return Area("records", 220, seeds, words, run)


def plans(made: Made) -> Area:

    names = Names({"M": 64, "N": 48, "K": 0, "ld_a": 64, "numel_a": 2**40, "align_a": 16, "sms": 132, "rows": 3, "cols": 5, "ld_b": 8})

    def run(data: bytes) -> None:
        if data[:1] not in b"{[":
            text = data.decode("utf-8", "replace")
            value = evaluate(text, names)
            check(type(value) is int and evaluate(text, names) == value, "an expression is one whole number")
            return
        plan = msgspec.json.decode(data, type=LaunchPlan)
        unmet(plan, names)
        for launch in plan.launches:
            for expr in (*launch.grid, *launch.block, launch.smem, plan.workspace):
                evaluate(expr, names)

    expressions = [
        b"cdiv(M, 128) * (N + K)",
        b"M % 8 == 0 and not K",
        b"min(M, N, 4) << 2",
        b"max(1, K) // 3 - -2",
        b"1 if M else 2",
        b"M ** 9",
    ]
    words = [
        *b"M|N|K|(|)| // | % | << |cdiv(|min(|, |not | and ".split(b"|"),
        b"9" * 30,
        b"lambda:0",
        b"-" * 99,
        b"(" * 90,
        *b"\n|0x|f'{M}'|await M|[M]|M.x|*M|1e9|:=".split(b"|"),
        b"x" * 300,
    ]
    return Area("plans", 220, [*expressions, made.trials[0].candidate.plan.to_json().encode()], words, run)


def candidates(folder: Path, made: Made) -> Area:
    w = made.trials[0].workload

    def run(data: bytes) -> None:
        suffix, _, content = data.partition(b"\n")
        path = folder / ("candidate" + {b".cu": ".cu", b".cpp": ".cpp", b".py": ".py", b".json": ".json"}.get(suffix, ".txt"))
        path.write_bytes(content)
        found = candidate_file.load(path, w, "cuda:sm_90" if suffix == b".cu" else "cpu")
        check(found.from_json(found.to_json()) == found, "a candidate that was read is another after it was written")

    examples = [f".{f.suffix[1:]}\n".encode() + f.read_bytes() for f in sorted((ROOT / "examples").glob("matmul.*"))]
    seeds = [
        *examples,
        b".json\n" + made.trials[0].candidate.to_json().encode(),
        b".py\nclass ModelNew: pass\n",
        b".cu\n/* kernelwright-plan {} */",
    ]
    words = b'/* kernelwright-plan|*/|{|}|"launches"|"args"|\xff\xfe|\x00|"kind": "cuda"|.json\n|.cu\n|[[[[[['.split(b"|")
    return Area("candidate files", 160, seeds, words, run)


def problem_texts() -> Area:

    def run(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        if text.split(":")[0].endswith(".py"):
            return  # files are an area of their own
        w = resolve(text)
        check(resolve(w.name) == w, "the name of a Workload does not lead back to it")

    seeds = [
        b"gemm:512x512x512:fp16:nn",
        b"gemm:1x2x3:fp16:tt:acc=fp16",
        b"linear:64x64x64:bias+gelu",
        b"linear:8x8x8:bf16:alpha=2+beta=0.5+residual",
        b"chain:softmax:1024x1024:fp32",
        b"chain:rotary:4x8",
        b"gemm",
        b"x/y.py",
    ]
    words = (
        (
            ":|x|gemm|linear|chain|fp16|bf16|fp32|nn|acc=|+|gelu|alpha=|beta=|1e400|inf|nan|0|-1|99999999999999999999|٣|"
            "²| |\x00|softmax|kernelbench|residual"
        )
        .encode()
        .split(b"|")
    )
    return Area("problem texts", 120, seeds, words, run)


PROBLEM_FILE = b"""import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))
    def forward(self, x, y):
        return torch.tanh(x * self.weight) + y
rows, cols = 4, 16
def get_inputs():
    return [torch.randn(rows, cols), torch.rand(rows, cols)]
def get_init_inputs():
    return [cols]
"""


def problem_files(folder: Path) -> Area:

    path = folder / "fuzzed.py"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            w = kernelbench.load(path)
            constants(w.source)
            problem = problem_of(w)
            inputs = problem.generate(w, problem.cases(w)[0], torch.Generator().manual_seed(0), "cpu")
            problem.reference(w, inputs)

    words = (
        b"return |[]|None|x|y|self|torch|\n|    |(|)|,|0|-1|999|raise SystemExit|yield x|n, n|.long()|.sum()|.bool()|[0]|"
        b"lambda: 0|Model|get_inputs|1/0|*|@"
    ).split(b"|")
    return Area("problem files", 12, [PROBLEM_FILE], words, run)
