"""Compressed weights in safetensors files and Hugging Face folders: written, read, imported, looked into.

In a file the weight `x.weight` is the tensors `x.compressed`, `x.bitmask` ... of `canonical`, all else is as it was. Checkpoints of
compressed-tensors' "sparse-bitmask" have the same names; older ones keep the name of the weight (`x.weight.compressed`)."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelwright.layouts.bits import dtype_name, negative_zeros, raw
from kernelwright.sparse.canonical import NAMES, VERSION, from_canonical, to_canonical
from kernelwright.sparse.compressed import MIN_SPARSITY, Compressed, SparseError, compress
from kernelwright.sparse.linear import SKIP, skipped

METHOD = "kernelwright-sparse"
"""Our `quant_method` in a Hugging Face config."""
_VERSION_KEY = "kernelwright.sparse.version"
_INDEX = "model.safetensors.index.json"


class MissingExtra(ImportError):
    """A library is not installed; the message names the extra that brings it."""


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ImportError:
        raise MissingExtra("safetensors is not installed; run: pip install 'kernelwright[sparse]'") from None
    return safetensors


def save_file(weights: Mapping[str, Tensor | Compressed], path: Path | str) -> None:
    """Writes one safetensors file; a Compressed weight's name ends in "weight". The file appears whole or not at all. Raises SparseError,
    OSError."""
    _write(_entries(weights), Path(path))


def _entries(weights: Mapping[str, Tensor | Compressed]) -> dict[str, Tensor]:
    """The tensors of a file, by name."""
    tensors: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if not isinstance(weight, Compressed):
            tensors[name] = weight.contiguous()
        elif name.rpartition(".")[2] != "weight":
            raise SparseError(f"a compressed tensor's name ends in 'weight', {name!r} does not; keep it dense or rename it")
        else:
            tensors |= {name.removesuffix("weight") + entry: tensor for entry, tensor in to_canonical(weight).items()}
    return tensors


def _write(tensors: Mapping[str, Tensor], path: Path) -> None:
    library, partial = _safetensors(), path.with_name(path.name + ".partial")
    try:
        library.torch.save_file(tensors, partial, metadata={"format": "pt", _VERSION_KEY: str(VERSION)})
        os.replace(partial, path)
    except library.SafetensorError as error:
        raise OSError(f"{path} cannot be written ({error})") from None
    finally:
        partial.unlink(missing_ok=True)


def load_file(path: Path | str) -> dict[str, Tensor | Compressed]:
    """What `save_file` or compressed-tensors wrote, by the weights' names; Compressed in layout "bitmask". Raises SparseError."""
    return dict(read_file(path))


def read_file(path: Path | str) -> Iterator[tuple[str, Tensor | Compressed]]:
    """The same, one weight after the other."""
    library, path = _safetensors(), Path(path)
    if not path.is_file():
        raise SparseError(f"there is no file {path}")
    try:
        with library.safe_open(path, framework="pt") as file:
            version = (file.metadata() or {}).get(_VERSION_KEY, str(VERSION))
            if version != str(VERSION):
                raise SparseError(f"{path} is in version {version} of the format, this kernelwright reads {VERSION}; upgrade it")
            keys = list(file.keys())
            groups: dict[str, dict[str, str]] = {}
            for key in keys:
                prefix, _, last = key.rpartition(".")
                if last in NAMES:
                    groups.setdefault(prefix, {})[last] = key
            groups = {prefix: names for prefix, names in groups.items() if "compressed" in names or "bitmask" in names}
            grouped = {key for names in groups.values() for key in names.values()}
            for key in keys:
                if key not in grouped:
                    yield key, file.get_tensor(key)
            for prefix, names in groups.items():
                whole = prefix if prefix.rpartition(".")[2] == "weight" else f"{prefix}.weight".lstrip(".")
                yield whole, from_canonical({last: file.get_tensor(key) for last, key in names.items()}, f"{whole} in {path}")
    except library.SafetensorError as error:
        raise SparseError(f"{path} is not a whole safetensors file ({error}); copy or write it again") from None


# ------------------------------------------------------------------------------------------------------------------ folders


@dataclass(frozen=True)
class WeightReport:
    """One matrix of a checkpoint."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    sparsity: float
    negative_zeros: float
    """Part of the weights that are -0.0 and count as values."""
    bytes_per_weight: float
    compressed: bool
    why: str = ""
    """Why it is dense."""


def inspect(path: Path | str) -> Iterator[WeightReport]:
    """Every matrix of a file or folder, whose checksums are checked on the way."""
    for file in files_of(Path(path)):
        for name, weight in read_file(file):
            if isinstance(weight, Compressed) or weight.ndim == 2:
                yield report(name, weight)


def convert_checkpoint(
    source: Path | str,
    target: Path | str,
    *,
    min_sparsity: float = MIN_SPARSITY,
    skip: Sequence[str] = SKIP,
    negative_zero: str = "keep",
    told: Callable[[WeightReport], None] = lambda _: None,
) -> list[WeightReport]:
    """Writes a checkpoint (one .safetensors file or a Hugging Face folder, dense or in compressed-tensors' "sparse-bitmask") with its
    sparse matrices compressed. A folder's other files are copied, and its config.json says how to load it. Returns, and tells one by one,
    what became of each matrix. Raises SparseError where no matrix could be compressed, and for a target that is there already."""
    source, target = Path(source), Path(target)
    from kernelwright.sparse.hf import linear_layers  # which imports this module

    files = files_of(source)
    if target.exists():
        raise SparseError(f"{target} exists already; name another target or remove it")
    config = _foreign(_read_json(source / "config.json")) if (source / "config.json").is_file() else None
    fits = linear_layers(source) if config is not None else lambda _: True
    target.parent.mkdir(parents=True, exist_ok=True)
    reports: list[WeightReport] = []
    placed: dict[str, str] = {}
    size = 0
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as beside:
        made = Path(beside) / target.name
        made.mkdir()
        for file in files:
            out: dict[str, Tensor | Compressed] = {}
            for name, weight in read_file(file):
                out[name], said = _compress(name, weight, min_sparsity, skip, negative_zero, fits)
                if said:
                    reports.append(said)
                    told(said)
            tensors = _entries(out)
            _write(tensors, made / file.name)
            placed.update(dict.fromkeys(tensors, file.name))
            size += sum(tensor.nbytes for tensor in tensors.values())
        if not any(r.compressed for r in reports):
            if other := next((r for r in reports if r.sparsity >= min_sparsity and min(r.shape)), None):
                raise SparseError(f"no matrix of {source} was compressed; {other.name}, for example: {other.why}")
            raise SparseError(f"no matrix of {source} has {min_sparsity:.0%} zeros; prune the model first (kernelwright.sparse.prune_)")
        if source.is_file():
            os.replace(made / source.name, target)
            return reports
        for other in source.iterdir():
            if other.is_file() and other.suffix != ".safetensors" and other.name not in (_INDEX, "config.json"):
                shutil.copy2(other, made)
        if (source / _INDEX).is_file():
            index = {"metadata": {"total_size": size}, "weight_map": placed}
            (made / _INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
        if config is not None:
            modules = sorted(r.name.removesuffix(".weight") for r in reports if r.compressed)
            config["quantization_config"] = {"quant_method": METHOD, "format_version": VERSION, "modules": modules}
            (made / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        made.rename(target)
    return reports


def files_of(path: Path) -> list[Path]:
    """The safetensors files of a checkpoint. Raises SparseError."""
    if path.is_file():
        return [path]
    if (path / _INDEX).is_file():
        if not isinstance(placed := _read_json(path / _INDEX).get("weight_map"), dict):
            raise SparseError(f"{path / _INDEX} has no weight_map; copy or write it again")
        return [path / name for name in sorted(set(placed.values()))]
    if found := sorted(path.glob("*.safetensors")):
        return found
    raise SparseError(f"{path} is neither a .safetensors file nor a folder with any; name a checkpoint")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text())
    except ValueError as error:
        raise SparseError(f"{path} is not JSON ({error}); copy or write it again") from None
    if not isinstance(read, dict):
        raise SparseError(f"{path} is no JSON object; copy or write it again")
    return read


def report(name: str, weight: Tensor | Compressed, why: str = "") -> WeightReport:
    dtype, total = dtype_name(weight.dtype), max(1, weight.shape[0] * weight.shape[1])
    if isinstance(weight, Compressed):
        negative = int(negative_zeros(weight.parts["values"]).sum())
        return WeightReport(name, weight.shape, dtype, weight.sparsity, negative / total, weight.bytes_per_weight, True)
    negative = int(negative_zeros(weight).sum()) if weight.is_floating_point() else 0
    zeros = total - int(torch.count_nonzero(raw(weight)))
    return WeightReport(name, tuple(weight.shape), dtype, zeros / total, negative / total, float(weight.element_size()), False, why)


def _compress(
    name: str, weight: Tensor | Compressed, min_sparsity: float, skip: Sequence[str], negative_zero: str, fits: Callable[[str], bool]
):
    """(what to write, what to say)"""
    if not fits(name.removesuffix(".weight")):  # a loader would find no place for what is compressed
        dense = weight.to_dense() if isinstance(weight, Compressed) else weight
        return dense, report(name, dense, "no nn.Linear of its name is in the model") if dense.ndim == 2 else None
    if isinstance(weight, Compressed):
        return weight, report(name, weight)
    if weight.ndim != 2 or name.rpartition(".")[2] != "weight" or not weight.is_floating_point():
        return weight, None
    if skipped(name.rpartition(".")[0], skip):
        return weight, report(name, weight, "skipped by name")
    try:
        made = compress(weight, "bitmask", min_sparsity=min_sparsity, negative_zero=negative_zero)
    except SparseError as error:
        return weight, report(name, weight, str(error))
    return made, report(name, made)


def _foreign(config: dict) -> dict:
    """A config.json without what it says of a compression that we read; raises for one that we do not."""
    for key in ("quantization_config", "compression_config", "sparsity_config"):
        said = config.pop(key, None)
        if not said or said.get("quant_method") == METHOD:
            continue
        if said.get("config_groups") or said.get("quant_method") not in (None, "compressed-tensors"):
            raise SparseError("this checkpoint's weights are quantized, which is not supported; convert the unquantized model")
        form = (said.get("sparsity_config") or said).get("format")
        if form not in (None, "dense", "sparse-bitmask"):
            raise SparseError(f"this checkpoint's weights are in the format {form!r}; only 'dense' and 'sparse-bitmask' can be read")
    return config
