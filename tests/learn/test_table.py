"""Tables of measured configs: files, and Families whose space is what was measured."""

from __future__ import annotations

import pytest
from made_up_tables import DEVICE, rows_of

from kernelwright.families import family
from kernelwright.learn import table
from kernelwright.learn.table import Listed, Row, TableError
from kernelwright.propose.configs import SearchSpace
from kernelwright.records import Outcome

NAME = "gemm:64x256x96:fp16:nn"


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.xz", ".jsonl.gz"])
def test_a_file_keeps_every_row(tmp_path, suffix):
    rows = rows_of(NAME)
    table.write(tmp_path / f"t{suffix}", DEVICE, rows)
    assert table.read(tmp_path / f"t{suffix}") == (DEVICE, rows)


def test_a_line_that_was_cut_off_is_left_out_and_the_rest_is_kept(tmp_path):
    rows = rows_of(NAME)
    table.write(tmp_path / "t.jsonl", DEVICE, rows)
    whole = (tmp_path / "t.jsonl").read_bytes()
    (tmp_path / "t.jsonl").write_bytes(whole[:-20])
    assert table.read(tmp_path / "t.jsonl")[1] == rows[:-1]


@pytest.mark.parametrize("content", [b"", b"{}\n", b"[1]\n", b"\x00\xff", b'{"format": 1, "device": {"wings": 2}}\n'])
def test_another_file_is_one_sentence(tmp_path, content):
    (tmp_path / "t.jsonl").write_bytes(content)
    with pytest.raises(TableError, match=r"t\.jsonl holds no measurements"):
        table.read(tmp_path / "t.jsonl")
    with pytest.raises(TableError, match="cannot be read"):
        table.read(tmp_path / "none.jsonl")


def test_a_table_that_was_cut_off_is_one_sentence(tmp_path):
    table.write(tmp_path / "t.jsonl.xz", DEVICE, rows_of(NAME))
    (tmp_path / "t.jsonl.xz").write_bytes((tmp_path / "t.jsonl.xz").read_bytes()[:200])
    with pytest.raises(table.TableError, match="was cut off"):
        table.read(tmp_path / "t.jsonl.xz")


def test_the_newest_measurement_of_a_config_counts():
    first, *_ = rows_of(NAME)
    (t,) = table.tables_of([first, first.replace(ratio=9.0)], DEVICE)
    assert [r.ratio for r in t.rows] == [9.0] and t.best == 9.0


def test_a_listed_family_has_what_was_measured_and_nothing_else():
    (t,) = table.tables_of(rows_of(NAME)[::3], DEVICE)
    (listed,) = t.families()
    space = SearchSpace(t.workload, [listed], DEVICE)
    points = list(space.points())
    assert len(points) == len(t.rows) == space.combinations
    assert {table.key_of("scripted", listed.completed(space.config(p))) for p in points} == set(t.by_key)
    assert listed.illegal({"tile": 999, "unroll": 1, "order": "rows"}, t.workload, DEVICE) == "it was not measured"
    candidate = listed.render(space.config(points[0]), t.workload, DEVICE)
    assert space.point("scripted", dict(candidate.origin.config)) == points[0]


def test_choices_that_follow_from_others_are_none():
    """Where a list has as many stages as fit, a step in the tile alone must stay on the list."""
    configs = [{"block_p": p, "block_q": q, "stages": 512 // (p + q)} for p in (64, 128) for q in (64, 128)]
    rows = [Row(workload=NAME, family="gemm_sm90_ring", config=dict(c), outcome=Outcome.OK, ratio=1.0) for c in configs]
    listed = Listed("gemm_sm90_ring", table.tables_of(rows, DEVICE)[0].workload, configs)
    assert listed.listed(listed._workload, DEVICE) == [{"block_p": p, "block_q": q} for p in (64, 128) for q in (64, 128)]
    assert listed.completed({"block_p": 64, "block_q": 128}) == configs[1]
    both = [*configs, configs[0] | {"stages": 2}]  # now they are a choice of their own
    assert len(Listed("gemm_sm90_ring", listed._workload, both).listed(listed._workload, DEVICE)) == 5
    assert family("gemm_sm90_ring").name == listed.name
