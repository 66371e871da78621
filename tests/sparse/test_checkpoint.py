"""Files: written and read back, damaged and newer ones refused, compressed-tensors' imported, folders converted."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
import torch
from masks import KINDS, weight

from kernelwright import sparse
from kernelwright.sparse import checkpoint
from kernelwright.sparse.canonical import from_canonical, to_canonical

safetensors = pytest.importorskip("safetensors")
torch_files = pytest.importorskip("safetensors.torch")


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn])
def test_round_trip(tmp_path, kind, dtype):
    w = weight(kind, 37, 131).to(dtype)
    dense = torch.randn(5)
    sparse.save_file({"a.b.weight": sparse.compress(w, "bitmask", min_sparsity=0), "bias": dense}, tmp_path / "x.safetensors")
    back = sparse.load_file(tmp_path / "x.safetensors")
    assert set(back) == {"a.b.weight", "bias"} and torch.equal(back["bias"], dense)
    assert same(back["a.b.weight"].to_dense(), w) and back["a.b.weight"].nonzeros == int(
        (w.view(torch.uint8).view(37, 131, -1).any(2)).sum()
    )


def test_what_is_in_the_file(tmp_path):
    """The documented bytes, worked out here with numpy alone."""
    w = weight("random", 6, 21)
    sparse.save_file({"weight": sparse.compress(w)}, tmp_path / "x.safetensors")
    with safetensors.safe_open(tmp_path / "x.safetensors", framework="np") as file:
        got = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        assert file.metadata() == {"format": "pt", "kernelwright.sparse.version": "1"}
    plain = w.numpy()
    kept = plain.view(np.uint16) != 0
    assert np.array_equal(got["compressed"], plain[kept]) and got["compressed"].dtype == np.float16
    assert np.array_equal(got["bitmask"], np.packbits(kept, axis=1, bitorder="little"))
    assert got["shape"].tolist() == [6, 21]
    assert got["row_offsets"].tolist() == [int(kept[:i].sum()) for i in range(6)]
    digest = hashlib.sha256(b"float16 6 21\n" + got["bitmask"].tobytes() + got["compressed"].tobytes()).digest()
    assert got["checksum"].tobytes() == b"\1" + digest


def test_compressed_tensors_checkpoints_are_read(tmp_path):
    """Their entries, as their compressor writes them: no checksum; older ones keep the weight's name; -0.0 is not stored."""
    w = weight("random", 10, 30, torch.bfloat16)
    w[0, :3] = -0.0
    kept = (w != 0).numpy()
    entries = {
        "compressed": w[w != 0],
        "bitmask": torch.from_numpy(np.packbits(kept, axis=-1, bitorder="little")),
        "shape": torch.tensor([10, 30]),
        "row_offsets": torch.from_numpy(np.cumsum(kept.sum(1)) - kept.sum(1)),
    }
    for prefix in ("model.q_proj.", "model.q_proj.weight."):
        torch_files.save_file({prefix + name: t for name, t in entries.items()}, tmp_path / "x.safetensors")
        (name, back), *more = sparse.load_file(tmp_path / "x.safetensors").items()
        assert name == "model.q_proj.weight" and not more and torch.equal(back.to_dense(), w)


def damaged(**changes):
    return {**to_canonical(sparse.compress(weight("random", 10, 30))), **changes}


def test_damage_is_found_with_and_without_a_checksum():
    whole = damaged()
    assert from_canonical(whole).verify(weight("random", 10, 30))
    flipped, past, moved = whole["bitmask"].clone(), whole["bitmask"].clone(), whole["row_offsets"].clone()
    flipped[0, 0] ^= 3 if int(flipped[0, 0]) & 3 in (1, 2) else 255  # as many bits set, or more
    past[0, 3] |= 128
    moved[3] += 1
    value = whole["compressed"].clone()
    value[7] += 1
    newer = whole["checksum"].clone()
    newer[0] = 2
    for change, said in (
        ({"bitmask": flipped}, "damaged"),
        ({"bitmask": past}, "damaged"),
        ({"compressed": value}, "its checksum is wrong"),
        ({"compressed": whole["compressed"].to(torch.bfloat16)}, "its checksum is wrong"),
        ({"compressed": whole["compressed"][1:]}, "bits are set for"),
        ({"shape": torch.tensor([30, 10])}, "do not belong together"),
        ({"shape": torch.tensor([10, 29])}, "past its last column|checksum"),
        ({"shape": torch.tensor(5)}, "not that of a matrix"),
        ({"shape": torch.tensor([torch.nan, 30.0])}, "not that of a matrix"),
        ({"row_offsets": moved}, "row_offsets do not fit"),
        ({"checksum": newer}, "in version 2 of the format, this kernelwright reads 1; upgrade it"),
    ):
        with pytest.raises(sparse.SparseError, match=said):
            from_canonical({**whole, **change})
    del whole["bitmask"]
    with pytest.raises(sparse.SparseError, match="bitmask is missing"):
        from_canonical(whole)


def test_every_damaged_byte_of_a_file_is_found(tmp_path):
    path = tmp_path / "x.safetensors"
    sparse.save_file({"weight": sparse.compress(weight("random", 4, 16))}, path)
    whole = path.read_bytes()
    begin = 8 + int.from_bytes(whole[:8], "little")
    for i in range(begin, len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 16]) + whole[i + 1 :])
        with pytest.raises(sparse.SparseError):
            sparse.load_file(path)
    for cut in (0, 7, begin - 1, begin + 5, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(sparse.SparseError, match="not a whole safetensors file"):
            sparse.load_file(path)


def test_newer_files_and_missing_ones_are_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    torch_files.save_file({"weight": torch.ones(1)}, path, metadata={"kernelwright.sparse.version": "2"})
    with pytest.raises(sparse.SparseError, match="in version 2 of the format, this kernelwright reads 1; upgrade it"):
        sparse.load_file(path)
    with pytest.raises(sparse.SparseError, match="there is no file"):
        sparse.load_file(tmp_path / "none")
    with pytest.raises(sparse.SparseError, match="name ends in 'weight'"):
        sparse.save_file({"kernel": sparse.compress(weight("random", 4, 16))}, path)
    with pytest.raises(OSError, match="cannot be written"):
        sparse.save_file({"x": torch.ones(1)}, tmp_path / "no" / "folder")
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


@pytest.fixture
def folder(tmp_path):
    """A sharded Hugging Face folder with two sparse matrices."""
    source = tmp_path / "dense"
    source.mkdir()
    first = {"a.weight": weight("rows", 40, 64), "a.bias": torch.ones(40).half()}
    second = {"b.weight": weight("random", 16, 40, seed=2), "norm.weight": torch.ones(40).half(), "lm_head.weight": weight("rows", 9, 40)}
    second["embedding.weight"], second["nothing.weight"] = weight("full", 9, 40), torch.empty(0, 40)
    torch_files.save_file(first, source / "model-00001-of-00002.safetensors")
    torch_files.save_file(second, source / "model-00002-of-00002.safetensors")
    places = {**dict.fromkeys(first, "model-00001-of-00002.safetensors"), **dict.fromkeys(second, "model-00002-of-00002.safetensors")}
    (source / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
    (source / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (source / "tokenizer.json").write_text("{}")
    return source, first | second


def test_convert_a_folder(folder, tmp_path):
    source, tensors = folder
    target, told = tmp_path / "sparse", []
    reports = sparse.convert_checkpoint(source, target, told=told.append)
    assert told == reports and {r.name: r.compressed for r in reports} == {
        "a.weight": True,
        "b.weight": True,
        "lm_head.weight": False,
        "embedding.weight": False,
        "nothing.weight": False,
    }
    assert {r.name: r.why for r in reports}["lm_head.weight"] == "skipped by name"
    back = {}
    for file in checkpoint.files_of(target):
        back |= sparse.load_file(file)
    assert set(back) == set(tensors)
    for name, t in tensors.items():
        assert same(back[name].to_dense() if isinstance(back[name], sparse.Compressed) else back[name], t)
    config = json.loads((target / "config.json").read_text())
    assert config == {
        "model_type": "llama",
        "quantization_config": {"quant_method": "kernelwright-sparse", "format_version": 1, "modules": ["a", "b"]},
    }
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert index["weight_map"]["a.compressed"] == "model-00001-of-00002.safetensors" and "a.weight" not in index["weight_map"]
    assert (target / "tokenizer.json").read_text() == "{}"
    found = {r.name: r for r in sparse.inspect(target)}
    assert found["a.weight"].sparsity == 0.5 and found["a.weight"].compressed and not found["embedding.weight"].compressed
    again = sparse.convert_checkpoint(target, tmp_path / "again")  # what is compressed stays so
    assert {r.name for r in again if r.compressed} == {"a.weight", "b.weight"}
    with pytest.raises(sparse.SparseError, match="exists already"):
        sparse.convert_checkpoint(source, target)


def test_convert_a_file_and_leave_nothing_behind_when_it_cannot_be_done(folder, tmp_path):
    source, tensors = folder
    sparse.convert_checkpoint(source / "model-00001-of-00002.safetensors", tmp_path / "a.safetensors")
    assert same(sparse.load_file(tmp_path / "a.safetensors")["a.weight"].to_dense(), tensors["a.weight"])
    before = set(tmp_path.iterdir())
    with pytest.raises(sparse.SparseError, match="prune the model first"):
        sparse.convert_checkpoint(source, tmp_path / "none", min_sparsity=0.9)
    with pytest.raises(sparse.SparseError, match="prune the model first"):
        sparse.convert_checkpoint(source / "model-00001-of-00002.safetensors", tmp_path / "none", min_sparsity=0.9)
    with pytest.raises(sparse.SparseError, match=r"neither a \.safetensors file nor a folder with any"):
        sparse.convert_checkpoint(tmp_path / "nowhere", tmp_path / "none")
    for name, text, said in (
        ("config.json", "{oops", r"config\.json is not JSON"),
        ("config.json", "[1]", r"config\.json is no JSON object"),
        ("model.safetensors.index.json", "", r"index\.json is not JSON"),
        ("model.safetensors.index.json", '{"metadata": {}}', "has no weight_map"),
    ):
        was = (source / name).read_text()
        (source / name).write_text(text)
        with pytest.raises(sparse.SparseError, match=said):
            sparse.convert_checkpoint(source, tmp_path / "none")
        (source / name).write_text(was)
    assert set(tmp_path.iterdir()) == before


def test_checkpoints_of_compressed_tensors_are_converted_or_refused(folder, tmp_path):
    source, tensors = folder
    entries = to_canonical(sparse.compress(tensors["a.weight"]))
    del entries["checksum"]
    theirs = {f"a.{name}": t for name, t in entries.items()} | {"a.bias": tensors["a.bias"]}
    torch_files.save_file(theirs, source / "model-00001-of-00002.safetensors")

    def config(said):
        (source / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": said}))

    for said, why in (
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {}}}, "weights are quantized"),
        ({"quant_method": "gptq"}, "weights are quantized"),
        ({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}}, "format 'sparse-24-bitmask'"),
    ):
        config(said)
        with pytest.raises(sparse.SparseError, match=why):
            sparse.convert_checkpoint(source, tmp_path / "out")
    config({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-bitmask", "global_sparsity": 0.5}})
    sparse.convert_checkpoint(source, tmp_path / "out")
    back = sparse.load_file(tmp_path / "out" / "model-00001-of-00002.safetensors")
    assert same(back["a.weight"].to_dense(), tensors["a.weight"])
    assert json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]["quant_method"] == "kernelwright-sparse"


def test_negative_zeros_are_counted_and_dropped_on_request(tmp_path):
    w = weight("random", 20, 64)
    masked = torch.randn(20, 64).half() * (w != 0)
    torch_files.save_file({"a.weight": masked}, tmp_path / "x.safetensors")
    (found,) = sparse.inspect(tmp_path / "x.safetensors")
    assert found.negative_zeros == pytest.approx(0.25, abs=0.05) and found.sparsity + found.negative_zeros == pytest.approx(0.5, abs=0.05)
    (done,) = sparse.convert_checkpoint(tmp_path / "x.safetensors", tmp_path / "y.safetensors", negative_zero="drop")
    assert done.compressed and done.negative_zeros == 0
    assert torch.equal(sparse.load_file(tmp_path / "y.safetensors")["a.weight"].to_dense(), masked)
