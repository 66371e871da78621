"""CARD.md: figures by size class from a pack's evidence, worked out by hand."""

from __future__ import annotations

from pathlib import Path

from kernelwright.records import Comparison, Environment, Outcome, Workload
from kernelwright.report.card import LISTED, card
from kernelwright.runtime.pack import Entry, Manifest, Pack
from kernelwright.runtime.pack_format import Evidence


def entry(m: int, *ratios: tuple[str, float], rival: str = "", layout: str = "nn") -> Entry:
    """A product of m x 64 x 64."""
    compared = tuple(
        Comparison(rival=r, mode="device-cold", ratio=x, low=x * 0.99, high=x * 1.01, rival_us=x, noise_low=0.99, noise_high=1.01, rounds=9)
        for r, x in ratios
    )
    evidence = Evidence(trials=("t",), mode="device-cold", median=1.0, outcome=Outcome.OK, comparisons=compared)
    w = Workload(problem="gemm", axes={"M": m, "N": 64, "K": 64}, dtype="fp16", layout=layout)
    return Entry(workload=w, rival=rival, candidate="" if rival else "c", kind="" if rival else "cuda", evidence=evidence)


def written(*entries: Entry, **fields: object) -> str:
    environment = Environment(target="cuda:sm_90", device="NVIDIA H200", versions={"compiler": "NVRTC 13.0"}, facts={"SMs": 132})
    files = {"times.json": "0" * 64}
    manifest = Manifest(created="2026-11-30", environment=environment, entries=entries, files=files, checksum="f" * 64, **fields)  # pyright: ignore[reportArgumentType]
    return card(Pack(Path("p"), manifest), "hgemm", "none")


def row(text: str, kind: str, size: str) -> list[str]:
    (found,) = (line for line in text.splitlines() if line.startswith(f"| {kind} | {size} |"))
    return [cell.strip() for cell in found.strip("|").split("|")][2:]


def test_means_are_against_the_strongest_rival_that_could_serve():
    text = written(
        entry(64, ("eager", 4.0), ("cublas", 2.0), ("cublas-nt", 1.0)),
        entry(128, ("eager", 8.0)),
        entry(2**20, ("cublas", 0.5), rival="cublas"),
        entry(64, ("eager", 3.0), layout="nt"),
    )
    shapes, serve, pack, ours, any_storage, worst, losses = row(text, "gemm fp16 nn", "small")
    assert (shapes, serve, worst, losses) == ("2", "2", "2.00x", "0")
    assert pack.startswith("4.00x (") and ours == pack and any_storage.startswith("2.83x (")
    shapes, serve, pack, ours, *_ = row(text, "gemm fp16 nn", "all")
    assert (shapes, serve) == ("3", "2") and pack.startswith("2.52x (") and ours.startswith("4.00x ("), "the library's share counts as 1"
    assert row(text, "gemm fp16 nn", "large")[:4] == ["1", "0", "1.00x (1.00–1.00)", "–"]
    assert row(text, "gemm fp16 nt", "all")[0] == "1" and "| gemm fp16 nn | mid |" not in text
    assert "small below 2^27" in text


def test_losses_are_counted_and_the_worst_listed():
    text = written(*(entry(64 * n, ("cublas", 0.5 + n / 1000)) for n in range(1, LISTED + 4)), entry(8, ("cublas", 1.0)))
    assert row(text, "gemm fp16 nn", "all")[-2:] == ["0.501x", str(LISTED + 3)]
    listed = [line for line in text.splitlines() if line.startswith("- gemm:")]
    assert len(listed) == LISTED and "gemm:64x64x64:fp16:nn: 0.501x" in listed[0] and "- and 3 more" in text


def test_provenance():
    text = written(entry(64), rebuilt={"builds/x.cubin": "NVRTC 13.3"})
    for said in ("NVIDIA H200 (cuda:sm_90)", "compiler: NVRTC 13.0", "SMs: 132", "f" * 64, "1 builds are not those measured", "NVRTC 13.3"):
        assert said in text
    assert row(text, "gemm fp16 nn", "all")[2:] == ["–", "–", "–", "–", "0"], "nothing was measured beside it"
