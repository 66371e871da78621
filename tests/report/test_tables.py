from __future__ import annotations

import io
import random
import subprocess
import sys

from fake_trials import GELU, GELU_COST, PEAKS, bench_run, comparison, failed_trial, ok_trial, optimize_run
from rich.console import Console

from kernelwright.records import Outcome
from kernelwright.report.tables import failure_counts, failure_line, markdown, result_table
from kernelwright.report.wording import CHAIN_NOTE

COSTS = {GELU.name: GELU_COST}


def shown(table, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table)
    return console.file.getvalue().splitlines()  # pyright: ignore[reportAttributeAccessIssue]


def test_one_workload_fits_a_terminal_of_80_columns():
    lines = shown(result_table(optimize_run(), target_peaks=PEAKS, costs=COSTS, modes=("device-cold",)))
    assert len(lines) == 2 + 5, "title, header, a row for each rival: nothing is folded"
    assert "chain:new-gelu:1024x1024:fp32" in lines[0]
    first = lines[2].split()
    assert first[:3] == ["device-cold", "675", "12.4"]
    assert "(96 %)" in lines[2] and "compile-max" in lines[2] and "1.56x (1.53–1.59)" in lines[2] and "▲ faster" in lines[2]


def test_losses_and_ties_are_marked():
    rng = random.Random(0)
    trial = ok_trial(GELU, 100, 100, rng, rivals={}, modes=("device-cold",), stage="confirm").replace(
        comparisons=(
            comparison("eager", "device-cold", 0.8, 80),
            comparison("compile", "device-cold", 1.005, 100.5),
            comparison("onednn", "device-cold", 1.5, 150),
        )
    )
    text = markdown([trial])
    row = text.splitlines()[2]
    assert "▼ 0.800x" in row and "= 1.00x" in row and "▲ 1.50x" in row
    assert row.rstrip(" |").endswith("▼ slower"), "the result is that against the strongest rival"


def test_a_chain_has_its_own_row_and_a_sentence():
    modes = ("device-cold", "device-chain")
    trial = ok_trial(GELU, 100, 150, random.Random(0), rivals={"eager": 1.0}, modes=modes, stage="confirm")
    text = "\n".join(shown(result_table([trial]), 200))
    assert "device-cold" in text and "device-chain" in text and CHAIN_NOTE[:60] in text
    lines = markdown([trial]).splitlines()
    assert [line.split("|")[2].strip() for line in lines[2:4]] == list(modes) and lines[-1] == CHAIN_NOTE
    assert CHAIN_NOTE not in markdown([trial], modes=("device-cold",))


def test_markdown_is_a_table_with_every_workload():
    trials, costs = bench_run(12)
    lines = markdown(trials, costs=costs, modes=("device-cold",), target_peaks=PEAKS).splitlines()
    assert len(lines) == 2 + 12
    assert len({line.count("|") for line in lines}) == 1 and len({len(line) for line in lines}) == 1
    assert any("✕ nothing verified: 2 wrong result, 1 crash" in line for line in lines)
    assert "GFLOP/s" in "".join(lines) and "GB/s" in "".join(lines)


def test_pipes_do_not_break_the_markdown():
    rng = random.Random(0)
    trial = ok_trial(GELU, 100, 100, rng, rivals={"a|b": 1.0}, modes=("device-cold",))
    assert "vs a\\|b" in markdown([trial]).splitlines()[0]


def test_several_workloads_and_no_markup_from_names():
    trials, costs = bench_run(10)
    text = "\n".join(shown(result_table(trials, costs=costs), 160))
    assert "nothing verified" in text and "device-warm" in text
    rng = random.Random(0)
    odd = ok_trial(GELU.replace(problem="chain:[red]x[/red]"), 100, 100, rng, modes=("device-cold",), rivals={"[bold]r": 1.0})
    text = "\n".join(shown(result_table([odd, *optimize_run(3)]), 200))
    assert "[red]x[/red]" in text


def test_empty_and_failed_runs():
    rng = random.Random(0)
    assert markdown([]).startswith("| workload")
    assert shown(result_table([]))
    failed = [failed_trial(GELU, o, rng) for o in (Outcome.CRASH, Outcome.TIMEOUT, Outcome.TIMEOUT)]
    assert failure_counts(failed) == {"TIMEOUT": 2, "CRASH": 1}
    assert failure_line(failed) == "2 timeout, 1 crash"
    assert "nothing verified: 2 timeout, 1 crash" in "\n".join(shown(result_table(failed), 120))
    assert failure_counts(optimize_run(1, failures=0.0)) == {}


def test_neither_torch_nor_rich_is_imported_with_the_module():
    code = "import sys, kernelwright.report.tables, kernelwright.report.html; print({'torch', 'rich'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "set()"
