"""`kernelwright sparse convert | inspect | bench` as a user types them: the first in a process of its own, the others in this one, as the
import of torch takes longer than they do."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from test_cli import kernelwright

from kernelwright.cli import main

files = pytest.importorskip("safetensors.torch")


@pytest.fixture
def typed(monkeypatch, capsys):
    def run(*words: str) -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["kernelwright", "sparse", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=ended.value.code, stdout=out, stderr=err)

    return run


@pytest.fixture
def dense(tmp_path):
    g = torch.Generator().manual_seed(0)
    pruned = torch.randn(64, 256, generator=g).half()
    pruned[torch.rand(64, 256, generator=g) < 0.5] = 0
    files.save_file({"up.weight": pruned, "embed.weight": torch.ones(8, 16)}, tmp_path / "dense.safetensors")
    return tmp_path / "dense.safetensors"


def test_convert_then_inspect(typed, dense, tmp_path):
    out = tmp_path / "sparse.safetensors"
    done = kernelwright("sparse", "convert", str(dense), str(out), home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 matrices compressed" in done.stdout and "embed.weight" in done.stdout and "below the 30%" in done.stdout
    assert out.stat().st_size < 0.7 * dense.stat().st_size

    seen = typed("inspect", str(out), "--json")
    found = json.loads(seen.stdout)
    assert seen.returncode == 0 and found["compressed"] == 1 and found["dense"] == 1
    (up,) = [w for w in found["weights"] if w["name"] == "up.weight"]
    assert up["shape"] == [64, 256] and up["compressed"] and up["bytes_per_weight"] == pytest.approx(1.125, abs=0.02)

    again = typed("convert", str(dense), str(out), "--json")
    assert again.returncode == 2 and "exists already" in json.loads(again.stdout)["error"]
    broken = bytearray(out.read_bytes())
    broken[-1] ^= 1
    out.write_bytes(broken)
    seen = typed("inspect", str(out))
    assert (
        seen.returncode == 2
        and seen.stderr.startswith("kernelwright: ")
        and "damaged" in seen.stderr
        and len(seen.stderr.splitlines()) == 1
    )


def test_bench_measures_what_it_says(typed):
    done = typed("bench", "--shape", "256x512", "--repeats", "1", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["layout"]: row for row in json.loads(done.stdout)["rows"]}
    assert set(rows) == {"bitmask", "quad-bitmap", "three-layer"}
    assert rows["quad-bitmap"]["bytes_per_weight"] <= 1.17
    for row in rows.values():
        assert row["pack_seconds"] > 0 and row["unpack_seconds"] > 0 and set(row["layer_ms"]) == set(row["dense_ms"]) == {"1", "16", "128"}
    table = typed("bench", "--shape", "64x128", "--repeats", "1")
    assert table.returncode == 0 and "quad-bitmap" in table.stdout


def test_bench_refuses_with_a_sentence(typed):
    for words, said in ((["--shape", "64"], "no shape"), (["--dtype", "fp64"], "not timed"), (["--device", "tpu"], "not to be had here")):
        done = typed("bench", *words)
        assert done.returncode == 2 and said in done.stderr, done.stderr
