"""A Pack in other forms: as sources, and as Hugging Face's `kernels` loads it."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import re
import sys
import warnings
from pathlib import Path

import pytest
import torch
from test_pack import ENV, W, trial

from kernelwright.runtime import engine, export, pack
from kernelwright.runtime.pack import PackError


@pytest.fixture
def saved(tmp_path) -> pack.Pack:
    rows = [trial(tmp_path, n, 10.0, workload=W.replace(axes={"M": n, "N": 8, "K": 2})) for n in (1, 2)]
    return pack.save(tmp_path / "p", rows)


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """What an export switches on stays in its test."""
    monkeypatch.setattr(engine, "_paths", [])
    monkeypatch.setattr(engine, "_engines", {})


def loaded_as_kernels_does(folder: Path):
    """importlib as `kernels` 0.17 uses it: the module's name is the metadata's id."""
    variant = folder / export.VARIANT
    name = json.loads((variant / "metadata.json").read_text())["id"]
    spec = importlib.util.spec_from_file_location(name, variant / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def test_sources_are_the_pack_without_its_builds(saved, tmp_path):
    made = export.sources(saved, tmp_path / "out")
    assert not (made / "builds").exists() and (made / "manifest.json").read_bytes() == (saved.path / "manifest.json").read_bytes()
    assert pack.load(made, built=False).manifest == saved.manifest
    with pytest.raises(PackError, match="lacks 2 of its builds; compile them with `kernelwright pack build"):
        pack.load(made)
    with pytest.raises(PackError, match="exists; choose another place"):
        export.sources(saved, made)
    python = pack.save(tmp_path / "q", [trial(tmp_path, 3, 1.0, kind="python", build=None)])
    with pytest.raises(PackError, match="has no builds"):
        export.sources(python, tmp_path / "r")
    with pytest.raises(PackError, match="was not written"):
        export.sources(saved, "/proc/out")
    assert not list(tmp_path.glob(".*partial"))


def test_the_layout_is_what_kernels_wants(saved, tmp_path):
    (saved.path / "verification.json").write_text("{}")
    made = export.hf_kernels(saved, tmp_path / "out", "hgemm-h200", "the card")
    assert sorted(p.name for p in made.iterdir()) == ["CARD.md", "README.md", "build"] and (made / "CARD.md").read_text() == "the card"
    assert "pip install kernelwright" in (made / "README.md").read_text() and not re.search("NAME|DEVICE", (made / "README.md").read_text())
    variant = made / "build" / "torch-cuda"
    metadata = json.loads((variant / "metadata.json").read_text())
    assert {k: metadata[k] for k in ("name", "version", "license", "python-depends", "backend")} == {
        "name": "hgemm-h200",
        "version": 1,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cuda", "archs": ["9.0a"]},
    }
    assert metadata["id"].isidentifier()
    files = {p.relative_to(variant).as_posix(): p for p in variant.rglob("*") if p.is_file() and p.name != "metadata.json"}
    assert {n: base64.b64decode(d) for n, d in metadata["digest"]["files"].items()} == {
        n: hashlib.sha256(p.read_bytes()).digest() for n, p in files.items()
    }
    assert "pack/verification.json" in files and pack.load(variant / "pack").manifest == saved.manifest


def test_names_and_targets_that_cannot_be(saved, tmp_path):
    for name in ("Hgemm", "h", "1st", "a_b", "", 'a"b', "a-"):
        with pytest.raises(ValueError, match="choose one with --name"):
            export.hf_kernels(saved, tmp_path / "out", name, "")
    cpu = pack.save(tmp_path / "q", [trial(tmp_path, 3, 1.0, environment=ENV.replace(target="cpu"))])
    with pytest.raises(PackError, match="only packs for CUDA devices"):
        export.hf_kernels(cpu, tmp_path / "out", "name", "")
    assert not (tmp_path / "out").exists()


def test_it_serves_through_kernelwright(saved, tmp_path):
    made = export.hf_kernels(saved, tmp_path / "out", "hgemm", "")
    module = loaded_as_kernels_does(made)
    assert engine._paths == [made / export.VARIANT / "pack"]
    a, b = torch.randn(4, 3, dtype=torch.float16), torch.randn(3, 5, dtype=torch.float16)
    assert torch.equal(module.matmul(a, b), a @ b) and torch.equal(module.linear(a, b.t()), a @ b)
    assert torch.equal(module.addmm(b[0], a, b), torch.addmm(b[0], a, b)) and "torch.matmul" in module.explain(a, b)


@pytest.mark.parametrize("spoilt", ["damaged", "newer"])
def test_a_pack_that_is_refused_leaves_all_to_pytorch_with_a_sentence(saved, tmp_path, spoilt):
    made = export.hf_kernels(saved, tmp_path / "out", "hgemm", "")
    inside = made / export.VARIANT / "pack"
    if spoilt == "damaged":
        (inside / saved.entries[0].artifact).write_bytes(b"")
    else:
        content = json.loads((inside / "manifest.json").read_text())
        (inside / "manifest.json").write_text(json.dumps(content | {"format": 99}))
    with pytest.warns(RuntimeWarning, match=r"does not use this pack: .*(is damaged|has format 99)") as said:
        module = loaded_as_kernels_does(made)
    assert len(said) == 1 and "\n" not in str(said[0].message)
    a = torch.randn(2, 2, dtype=torch.float16)
    assert torch.equal(module.matmul(a, a), a @ a) and engine._paths == []


def test_on_another_gpu_all_products_go_to_pytorch(saved, tmp_path, monkeypatch):
    made = export.hf_kernels(saved, tmp_path / "out", "hgemm", "")
    loaded_as_kernels_does(made)
    properties = type("", (), {"major": 9, "minor": 0, "name": "NVIDIA H100", "multi_processor_count": 132})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    with pytest.warns(RuntimeWarning, match=r"made for cuda:sm_90 \(NVIDIA H200\), this device is cuda:sm_90 \(NVIDIA H100\)"):
        assert engine.of(torch.device("cuda:0")) is None


def test_without_kernelwright_it_says_what_to_install(saved, tmp_path, monkeypatch):
    made = export.hf_kernels(saved, tmp_path / "out", "hgemm", "")
    monkeypatch.setitem(sys.modules, "kernelwright", None)
    with pytest.raises(ImportError, match="pip install kernelwright"):
        loaded_as_kernels_does(made)


def test_kernels_itself_loads_it(saved, tmp_path, monkeypatch):
    rust = pytest.importorskip("kernels._rust")  # not `kernels` alone: any folder of that name on the path would do for that
    kernels = pytest.importorskip("kernels")

    made = export.hf_kernels(saved, tmp_path / "out", "hgemm", "")
    variant = made / export.VARIANT
    digest = rust.Digest.hash_variant(rust.DigestAlgorithm.SHA256, variant)
    rust.Metadata.read_from_file(variant / "metadata.json").digest.validate(digest)
    monkeypatch.setattr(torch.version, "cuda", "13.0")  # it asks this which variants suit
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        module = kernels.get_local_kernel(made)
    a = torch.randn(2, 2, dtype=torch.float16)
    assert torch.equal(module.matmul(a, a), a @ a) and Path(module.__file__) == variant / "__init__.py"
