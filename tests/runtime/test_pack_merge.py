"""Packs into one: which evidence wins, what is refused, and that the result is a Pack like any other."""

from __future__ import annotations

import hashlib

import pytest
from test_pack import ENV, W, trial

from kernelwright.records import Comparison
from kernelwright.runtime import pack
from kernelwright.runtime.pack import PackError, seal
from kernelwright.runtime.pack_merge import merge

NT = W.replace(layout="nt")


def saved(folder, name: str, *trials, screens=()):
    return pack.save(folder / name, list(trials), screens)


def interval(t, low: float):
    return t.replace(comparisons=tuple(c.replace(low=low) for c in t.comparisons))


def test_two_layouts_become_one_pack(tmp_path):
    nn = [trial(tmp_path, 1, 10.0), trial(tmp_path, 2, 5.0, workload=W.replace(dtype="bf16"))]
    nt = [trial(tmp_path, 1, 11.0, workload=NT), trial(tmp_path, 3, 7.0, workload=NT.replace(dtype="bf16"), rivals={"cublas": 0.5})]
    one, two = saved(tmp_path, "nn", *nn), saved(tmp_path, "nt", *nt)
    made = merge([one.path, two.path], tmp_path / "both")
    loaded = pack.load(made.path)
    assert loaded.manifest == made.manifest and loaded.manifest.environment == ENV
    assert [e.workload for e in loaded.entries] == [t.workload for t in nn + nt]
    assert [(e.evidence, e.rival) for e in loaded.entries] == [(e.evidence, e.rival) for e in one.entries + two.entries]
    assert set(loaded.kernels()) == {nn[0].candidate.id, nn[1].candidate.id}, "that of the Workload that a rival serves does not ship"
    assert loaded.times().kernels[nn[0].candidate.id] == ((0, 10.0), (2, 11.0))
    files = {f.relative_to(made.path).as_posix() for f in made.path.rglob("*") if f.is_file()} - {"manifest.json"}
    assert files == set(loaded.manifest.files)


def test_of_a_workload_in_both_the_one_that_was_shown_to_be_further_ahead_ships(tmp_path):
    fast_clock = trial(tmp_path, 1, 8.0, rivals={"eager": 1.2, "cublas-nt": 0.9})
    ahead = trial(tmp_path, 2, 10.0, rivals={"eager": 1.4})
    wide = interval(trial(tmp_path, 3, 10.0, rivals={"eager": 1.5}), 1.1)
    vendor = trial(tmp_path, 4, 9.0, rivals={"cublas": 0.9})
    tie = interval(trial(tmp_path, 5, 9.0, rivals={"cublas": 1.01}), 0.98)
    alone = trial(tmp_path, 6, 1.0).replace(comparisons=())
    packs = {t.candidate.id: saved(tmp_path, f"p{i}", t).path for i, t in enumerate((fast_clock, ahead, wide, vendor, tie, alone))}

    def ships(*trials) -> str:
        (tmp_path / "out").mkdir(exist_ok=True)
        entry = merge([packs[t.candidate.id] for t in trials], tmp_path / "out").entries[0]
        return entry.rival or entry.candidate

    for pair, best in (
        ((fast_clock, ahead), ahead),
        ((wide, fast_clock), fast_clock),
        ((vendor, fast_clock), fast_clock),
        ((alone, wide), wide),
    ):
        assert ships(*pair) == ships(*pair[::-1]) == best.candidate.id
    assert ships(tie, vendor) == ships(vendor, tie) == "cublas"
    again = saved(tmp_path, "again", interval(trial(tmp_path, 7, 1.0, rivals={"eager": 1.4}), 1.4))
    assert merge([packs[ahead.candidate.id], again.path], tmp_path / "out").entries[0].candidate == ahead.candidate.id, (
        "the first of equals"
    )


def test_times_count_in_units_of_the_library_beside_the_entry_that_ships(tmp_path):
    slower, other = trial(tmp_path, 1, 12.0, rivals={"eager": 1.5}), trial(tmp_path, 2, 20.0, rivals={"eager": 1.0})
    theirs, ours = trial(tmp_path, 2, 10.0, rivals={"eager": 1.5}), trial(tmp_path, 3, 5.0, rivals={"eager": 3.0})
    elsewhere = trial(tmp_path, 1, 3.0, workload=NT), trial(tmp_path, 2, 4.0, workload=W.replace(dtype="bf16"))
    one = saved(tmp_path, "one", slower, other, elsewhere[0])  # the library takes 18 us there
    two = saved(tmp_path, "two", ours, theirs, elsewhere[1])  # and 15 us here
    seen = merge([one.path, two.path], tmp_path / "out").times().kernels
    at = 0  # W
    assert dict(seen[ours.candidate.id])[at] == 5.0, "it ships"
    assert dict(seen[theirs.candidate.id])[at] == 10.0, "beside what ships; that of the other pack does not count"
    assert dict(seen[slower.candidate.id])[at] == 12.0 * 15 / 18


def test_what_does_not_go_together_is_refused_in_a_sentence(tmp_path):
    one = saved(tmp_path, "one", trial(tmp_path, 1, 1.0))

    def other(**changes):
        return saved(tmp_path, "other", trial(tmp_path, 2, 1.0, workload=NT, environment=ENV.replace(**changes))).path

    for said, path in (
        ("different devices, NVIDIA H200 .* NVIDIA H100", lambda: other(device="NVIDIA H100")),
        ("different versions .nvrtc 13.0 and 13.1, torch none and 2", lambda: other(versions={"nvrtc": "13.1", "torch": "2"})),
    ):
        with pytest.raises(PackError, match=said) as error:
            merge([one.path, path()], tmp_path / "out")
        assert "\n" not in str(error.value)
    warm = trial(tmp_path, 2, 1.0, workload=NT)
    warm = warm.replace(timings=tuple(t.replace(mode="device-warm") for t in warm.timings), comparisons=())
    with pytest.raises(PackError, match="different modes, device-cold and device-warm"):
        merge([one.path, saved(tmp_path, "other", warm).path], tmp_path / "out")
    again = pack.load(one.path)
    twin = saved(tmp_path, "twin", trial(tmp_path, 1, 1.0, workload=NT))
    (twin.path / twin.entries[0].artifact).write_bytes(b"made by another")
    seal(
        twin.path,
        twin.manifest.replace(files=twin.manifest.files | {twin.entries[0].artifact: hashlib.sha256(b"made by another").hexdigest()}),
    )
    with pytest.raises(PackError, match="is another file in"):
        merge([again.path, twin.path], tmp_path / "out")
    (one.path / one.entries[0].artifact).write_bytes(b"")
    with pytest.raises(PackError, match="is damaged"):
        merge([one.path, twin.path], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("")
    with pytest.raises(PackError, match="exists and is not a pack"):
        merge([twin.path], tmp_path / "thesis")


def test_header_libraries_must_be_one(tmp_path):
    calls = '#include "kernelwright/barrier.cuh"\n__global__ void k() {}'
    made = []
    for n, w in ((1, W), (2, NT)):
        t = trial(tmp_path, n, 1.0, workload=w)
        made.append(saved(tmp_path, f"p{n}", t.replace(candidate=t.candidate.replace(source=calls))))
    one, two = made
    header = "sources/kernelwright/barrier.cuh"
    assert header in merge([one.path, two.path], tmp_path / "out").manifest.files
    plain = saved(tmp_path, "plain", trial(tmp_path, 3, 1.0, workload=W.replace(dtype="bf16")))
    assert header not in merge([one.path, plain.path], tmp_path / "out").manifest.files
    (two.path / header).write_bytes(b"// another")
    seal(two.path, two.manifest.replace(files=two.manifest.files | {header: hashlib.sha256(b"// another").hexdigest()}))
    with pytest.raises(PackError, match="different header libraries"):
        merge([one.path, two.path], tmp_path / "out")


def test_one_pack_is_written_anew(tmp_path):
    t = trial(tmp_path, 1, 2.0)
    assert isinstance(t.comparisons[0], Comparison)
    one = saved(tmp_path, "one", t)
    assert merge([one.path], tmp_path / "out").manifest.replace(created="", checksum="") == one.manifest.replace(created="", checksum="")
