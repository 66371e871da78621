from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from kernelwright.records import (
    Build,
    Candidate,
    Comparison,
    Environment,
    Launch,
    LaunchPlan,
    Origin,
    Outcome,
    TensorArg,
    Timing,
    Trial,
    Verdict,
    Workload,
)
from kernelwright.runtime import pack
from kernelwright.runtime.pack import PackError
from kernelwright.runtime.pack_format import encode

W = Workload(problem="gemm", axes={"M": 4, "N": 8, "K": 2}, dtype="fp16", layout="nn")
ENV = Environment(target="cuda:sm_90", device="NVIDIA H200", versions={"nvrtc": "13.0"})


def trial(folder: Path, n: int, median: float, *, rivals: dict[str, float] | None = None, **fields) -> Trial:
    """A confirmed Trial of kernel n with its cubin in `folder`; `rivals` are ratios by name."""
    cubin = folder / f"{n}.cubin"
    cubin.write_bytes(b"cubin %d" % n)
    kind = fields.pop("kind", "cuda")
    candidate = Candidate(
        kind=kind,
        source="cublas" if kind == "rival" else f"__global__ void k{n}() {{}}",
        plan=LaunchPlan(launches=(Launch(kernel=f"k{n}", args=(TensorArg(name="a"),)),)),
        flags=("-DN=1",),
        origin=Origin(kind="rival" if kind == "rival" else "family", name="gemm_sm90", config={"bm": n}),
    )
    comparisons = tuple(
        Comparison(
            rival=name,
            mode="device-cold",
            ratio=ratio,
            low=ratio,
            high=ratio,
            rival_us=median * ratio,
            noise_low=1.0,
            noise_high=1.0,
            rounds=9,
        )
        for name, ratio in (rivals or {"eager": 2.0}).items()
    )
    return Trial(
        **{
            "workload": W,
            "candidate": candidate,
            "verdict": Verdict(outcome=Outcome.OK),
            "environment": ENV,
            "build": None if kind == "rival" else Build(key=f"key{n}", artifact=str(cubin), compiler="nvrtc", arch="sm_90a"),
            "timings": (Timing(mode="device-cold", samples=(median,), median=median, low=median, high=median),),
            "comparisons": comparisons,
            "stage": "confirm",
            **fields,
        }
    )


def failure(t: Trial, outcome: Outcome) -> Trial:
    return t.replace(verdict=Verdict(outcome=outcome), timings=(), comparisons=(), stage="replay")


def test_what_was_saved_comes_back(tmp_path):
    best, slower = trial(tmp_path, 1, 10.0), trial(tmp_path, 2, 11.0)
    other = trial(tmp_path, 3, 5.0, workload=W.replace(dtype="bf16"))
    pack.save(tmp_path / "p", [slower, best, other])
    loaded = pack.load(tmp_path / "p")
    entry = loaded.entry(W)
    assert entry is not None and loaded.candidate(entry) == best.candidate
    artifact = loaded.artifact(entry)
    assert artifact is not None and artifact.read_bytes() == b"cubin 1" and artifact.is_relative_to(tmp_path / "p")
    assert entry.evidence.trials == (best.id, slower.id) and entry.evidence.comparisons == best.comparisons
    assert [e.workload for e in loaded.entries] == [W, other.workload]
    assert loaded.entry(W.replace(layout="nt")) is None
    assert entry.workload.name == "gemm:4x8x2:fp16:nn", "the axes keep their order"
    assert sorted(p.name for p in tmp_path.iterdir() if "p" in p.name.split(".")) == ["p"]
    info = loaded.info()
    assert (info["workloads"], info["own kernels"], info["device"]) == (2, 2, "NVIDIA H200")
    assert json.dumps(info) and "2.00 x eager" in str(info["entries"])


def test_few_kernels_ship_where_they_are_almost_as_fast(tmp_path):
    other = W.replace(dtype="bf16")
    best, near, shared = trial(tmp_path, 1, 10.0), trial(tmp_path, 2, 10.1), trial(tmp_path, 2, 5.0, workload=other)
    assert len(pack.save(tmp_path / "p", [near, best, shared]).kernels()) == 2
    saved = pack.save(tmp_path / "p", [near, best, shared], tolerance=0.02)
    assert set(saved.kernels()) == {near.candidate.id} and {e.workload for e in saved.entries} == {W, other}
    entry = saved.entry(W)
    assert entry is not None and entry.evidence.median == 10.1 and set(entry.evidence.trials) == {best.id, near.id}
    vendor = trial(tmp_path, 4, 10.05, kind="rival")
    entry = pack.save(tmp_path / "p", [near, best, shared, vendor], tolerance=0.02).entry(W)
    assert entry is not None and entry.rival == "cublas", "faster than the kernel that ships, if not than the best"


def test_the_strongest_rival_ships_where_ours_is_slower(tmp_path):
    slow = trial(tmp_path, 1, 10.0, rivals={"eager": 2.0, "cublaslt": 0.9, "cublas": 0.95})
    entry = pack.save(tmp_path / "p", [slow]).entry(W)
    assert entry is not None and (entry.rival, entry.sources, entry.artifact) == ("cublaslt", (), "")
    loaded = pack.load(tmp_path / "p")
    assert loaded.info()["vendor kernels"] == 1 and "our best was" in str(loaded.info()["entries"])
    with pytest.raises(ValueError, match="served by the rival cublaslt"):
        loaded.candidate(entry)
    vendor = trial(tmp_path, 2, 9.0, kind="rival")
    ours = trial(tmp_path, 3, 10.0)
    entry = pack.save(tmp_path / "q", [ours, vendor]).entry(W)
    assert entry is not None and entry.rival == "cublas"


def test_a_rival_with_operands_stored_otherwise_never_ships(tmp_path):
    ours = trial(tmp_path, 1, 10.0, rivals={"eager": 2.0, "cublas-nt": 0.8})
    entry = pack.save(tmp_path / "p", [ours]).entry(W)
    assert entry is not None and entry.rival == "" and entry.candidate == ours.candidate.id


def test_only_confirmed_and_never_convicted_candidates_ship(tmp_path):
    lucky = trial(tmp_path, 1, 1.0, stage="screen")
    cheat, noisy, right = trial(tmp_path, 2, 2.0), trial(tmp_path, 3, 3.0), trial(tmp_path, 4, 4.0)
    trials = [lucky, cheat, noisy, right, failure(cheat, Outcome.CHEAT), failure(noisy, Outcome.NOISY)]
    entry = pack.save(tmp_path / "p", trials).entry(W)
    assert entry is not None and entry.candidate == noisy.candidate.id
    for none in ([], [lucky], [failure(right, Outcome.CRASH)]):
        with pytest.raises(PackError, match="no confirmed right candidate"):
            pack.save(tmp_path / "q", none)
    assert not (tmp_path / "q").exists()


def test_a_pack_is_for_one_device(tmp_path):
    here, there = trial(tmp_path, 1, 1.0), trial(tmp_path, 2, 1.0, environment=ENV.replace(device="NVIDIA H100"))
    with pytest.raises(PackError, match="of several"):
        pack.save(tmp_path / "p", [here, there.replace(workload=W.replace(dtype="bf16"))])
    saved = pack.save(tmp_path / "p", [here])
    saved.check("cuda:sm_90", "NVIDIA H200")
    for other in (("cuda:sm_90", "NVIDIA H100"), ("cpu", "EPYC")):
        with pytest.raises(PackError, match=r"was made for cuda:sm_90 \(NVIDIA H200\), this device is"):
            saved.check(*other)


def test_every_flipped_byte_is_found(tmp_path):
    pack.save(tmp_path / "p", [trial(tmp_path, 1, 1.0)])
    for file in sorted(p for p in (tmp_path / "p").rglob("*") if p.is_file()):
        good = file.read_bytes()
        for at in {0, len(good) // 3, len(good) // 2, len(good) - 2}:
            file.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            with pytest.raises(PackError, match=r"damaged|not a pack|newer|not the one") as error:
                pack.load(tmp_path / "p")
            assert "\n" not in str(error.value)
        file.unlink()
        with pytest.raises(PackError, match=r"lacks|is not a pack"):
            pack.load(tmp_path / "p")
        file.write_bytes(good)
    pack.load(tmp_path / "p")


def test_other_formats_and_paths_outside(tmp_path):
    saved = pack.save(tmp_path / "p", [trial(tmp_path, 1, 1.0)])
    manifest = tmp_path / "p" / "manifest.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "format": 3, "new field": 1}))
    with pytest.raises(PackError, match="has format 3, this kernelwright knows 2; upgrade"):
        pack.load(tmp_path / "p")
    for name in ("../secret", "/etc/passwd"):
        manifest.write_bytes(encode(saved.manifest.replace(files={name: "0" * 64})))
        with pytest.raises(PackError, match="names a file outside"):
            pack.load(tmp_path / "p")
    manifest.write_bytes(encode(saved.manifest.replace(files={})))
    with pytest.raises(PackError, match="has no checksum for the files"):
        pack.load(tmp_path / "p")
    other = saved.entries[0].replace(flags=("-DN=2",))
    manifest.write_bytes(encode(saved.manifest.replace(entries=(other,))))
    with pytest.raises(PackError, match="is not the one measured"):
        pack.load(tmp_path / "p")
    for text in ("", "[]", '{"format": 1}', '{"format": 2}', "\xff", json.dumps({**content, "kernels": {}})):
        manifest.write_bytes(text.encode("latin1"))
        with pytest.raises(PackError, match="is damaged"):
            pack.load(tmp_path / "p")


def test_format_1_is_still_read(tmp_path):
    both = [trial(tmp_path, 1, 10.0), trial(tmp_path, 2, 5.0, workload=W.replace(dtype="bf16"), rivals={"cublas": 0.5})]
    saved = pack.save(tmp_path / "p", both)
    manifest = tmp_path / "p" / "manifest.json"
    old = {name: getattr(saved.manifest, name) for name in ("kernelwright", "created", "environment", "files")}
    entries = [msgspec.to_builtins(e) for e in saved.entries]
    for e in entries:
        e["source"] = "".join(e.pop("sources"))
    content = {"format": 1, **msgspec.to_builtins(old), "entries": entries, "checksum": ""}
    content = {k: content[k] for k in ("format", "kernelwright", "created", "environment", "entries", "files", "checksum")}
    order = ("workload", "rival", "candidate", "kind", "source", "artifact", "plan", "flags", "origin", "evidence")
    content["entries"] = [{k: e[k] for k in order} for e in entries]
    digest = hashlib.sha256(msgspec.json.encode(content)).hexdigest()
    manifest.write_text(json.dumps(content | {"checksum": digest}, indent=1))
    loaded = pack.load(tmp_path / "p")
    assert loaded.manifest.format == 1 and loaded.entries == saved.entries and loaded.candidate(loaded.entries[0]) == both[0].candidate
    manifest.write_text(json.dumps(content | {"checksum": digest, "created": "yesterday"}))
    with pytest.raises(PackError, match="was changed or damaged"):
        pack.load(tmp_path / "p")
    manifest.write_text(json.dumps(content | {"checksum": digest}))
    assert pack.add_times(tmp_path / "p", both).manifest.format == 2, "written anew"
    assert pack.load(tmp_path / "p").entries == saved.entries


def test_the_manifest_loses_nothing_and_says_nothing_twice(tmp_path):
    comparisons = tuple(
        Comparison(rival=r, mode=m, ratio=1.1 + n / 7, low=1 / 3, high=2.0, rival_us=10 / 3, noise_low=f, noise_high=1.1, rounds=n)
        for m, f in (("device-cold", 0.99), ("device-warm", 0.98)) for n, r in ((25, "eager"), (25, "cublas"), (7, "cublaslt"))
    )  # fmt: skip
    one = trial(tmp_path, 1, 10.0).replace(comparisons=comparisons)
    many = [one.replace(workload=W.replace(axes={"M": m, "N": 8, "K": 2})) for m in range(1, 51)]
    loaded = pack.load(pack.save(tmp_path / "p", many).path)
    assert [e.evidence.comparisons for e in loaded.entries] == [comparisons] * 50
    text = (tmp_path / "p" / "manifest.json").read_text()
    assert text.count('"launches"') == text.count("gemm_sm90") == 1 and text.count("0.99,") == 100
    assert max(map(len, text.splitlines())) < 1500, "an entry a line"


def test_what_sources_share_is_stored_once(tmp_path):
    template = "".join(f"// line {i} of a template that is the same for all\n" for i in range(50))

    def source(n: int, end: str = "\n") -> str:
        return f"{template}constexpr int n = {n};\r\n{template}// the end{end}"

    first = trial(tmp_path, 0, 1.0)
    texts = [source(1), source(2), source(3, end=""), "// another\n" + source(4), "", "x"]
    trials = []
    for n, text in enumerate(texts):
        t = trial(tmp_path, n, 1.0, workload=W.replace(axes={"M": n + 1, "N": 8, "K": 2}))
        trials.append(t.replace(candidate=first.candidate.replace(source=text, flags=(f"-DN={n}",))))
    loaded = pack.load(pack.save(tmp_path / "p", trials).path)
    assert [loaded.candidate(e).source for e in loaded.entries] == texts
    assert (
        loaded.entries[0].sources[0] == loaded.entries[1].sources[0] == loaded.entries[2].sources[0] and len(loaded.entries[3].sources) == 1
    )
    assert sum(f.stat().st_size for f in (tmp_path / "p" / "sources").iterdir()) < sum(map(len, texts)) - 1.5 * len(template)


def test_a_pack_without_its_builds_says_what_to_run(tmp_path):
    saved = pack.save(tmp_path / "p", [trial(tmp_path, 1, 1.0)])
    (tmp_path / "p" / saved.entries[0].artifact).unlink()
    with pytest.raises(PackError, match="lacks 1 of its builds; compile them with `kernelwright pack build"):
        pack.load(tmp_path / "p")
    assert list(pack.load(tmp_path / "p", built=False).unbuilt()) == [saved.entries[0].artifact]


def test_places(tmp_path):
    one, two = trial(tmp_path, 1, 2.0), trial(tmp_path, 2, 1.0)
    pack.save(tmp_path / "p", [one])
    pack.save(tmp_path / "p", [two])  # replaces the older pack
    assert {p.name for p in (tmp_path / "p" / "sources").iterdir()} == {f"{two.candidate.id}.cu"}
    (tmp_path / "empty").mkdir()
    pack.save(tmp_path / "empty", [one])
    pack.save(tmp_path / "deep" / "er", [one])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    (tmp_path / "file").write_text("")
    for taken in ("mine", "file"):
        with pytest.raises(PackError, match="exists and is not a pack"):
            pack.save(tmp_path / taken, [one])
    with pytest.raises(PackError, match="was not written"):
        pack.save("/proc/p", [one])
    for nothing in ("none", "file", "mine"):
        with pytest.raises(PackError, match="is not a pack"):
            pack.load(tmp_path / nothing)
    assert not [p for p in tmp_path.rglob("*.partial")] and not [p for p in tmp_path.rglob("*.old")]


def test_a_missing_build_is_told_and_an_older_pack_stays(tmp_path):
    one = trial(tmp_path, 1, 1.0)
    pack.save(tmp_path / "p", [one])
    (tmp_path / "1.cubin").unlink()
    with pytest.raises(PackError, match=r"no longer in the cache .* `kernelwright replay"):
        pack.save(tmp_path / "p", [one])
    assert pack.load(tmp_path / "p").entry(W) is not None
    assert os.listdir(tmp_path) == ["p"]


def test_import_is_light():
    code = """
import sys, kernelwright.runtime.pack
bad = [m for m in sys.modules if m == 'torch' or m.startswith(('kernelwright.propose', 'kernelwright.evaluate', 'kernelwright.archive'))]
assert not bad, bad
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_kernel_that_serves_many_workloads_is_stored_once(tmp_path):
    one = trial(tmp_path, 1, 10.0)
    many = [one.replace(workload=W.replace(axes={"M": m, "N": 8, "K": 2})) for m in range(1, 6)]
    saved = pack.load(pack.save(tmp_path / "p", many).path)
    assert len(saved.entries) == 5 and {saved.candidate(e) for e in saved.entries} == {one.candidate}
    for folder in ("sources", "builds"):
        assert len(os.listdir(tmp_path / "p" / folder)) == 1
