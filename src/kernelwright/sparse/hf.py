"""Hugging Face transformers: `save_pretrained`, `from_pretrained` and the quantizer class that lets AutoModel load what they write.

transformers asks the quantizer registered under config.json's `quant_method` to prepare the model before weights are loaded (linear
layers become places for the canonical tensors) and to finish it afterwards (each becomes a SparseLinear). Its documentation: "Contribute
new quantization method"."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kernelwright.layouts import quad_bitmap
from kernelwright.sparse.canonical import NAMES, VERSION, blank, from_canonical
from kernelwright.sparse.checkpoint import METHOD, MissingExtra
from kernelwright.sparse.compressed import SparseError
from kernelwright.sparse.fuse import Joined
from kernelwright.sparse.linear import SparseLinear, revert


class _Place(nn.Module):
    """Where a linear layer's canonical tensors are put while a model is loaded."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        for name, empty in blank(linear.weight.dtype, linear.weight.device).items():
            self.register_buffer(name, empty)
        self.bias = linear.bias
        self.shape_of_layer = (linear.out_features, linear.in_features)

    def filled(self, name: str, dtype: torch.dtype) -> SparseLinear:
        if not self.get_buffer("shape").numel():
            raise SparseError(f"{name} is not in the checkpoint, though its config says so; copy or write it again")
        weight = from_canonical({entry: self._buffers[entry] for entry in NAMES}, name)  # pyright: ignore[reportArgumentType]
        if weight.shape != self.shape_of_layer:
            raise SparseError(f"{name} is {weight.shape} in the checkpoint and {self.shape_of_layer} in the model: its config is another's")
        if weight.dtype != dtype:
            weight = weight.cast(dtype)
        return SparseLinear(weight.as_layout(quad_bitmap.NAME if dtype.itemsize == 2 else weight.layout), self.bias)


def save_pretrained(model: Any, path: Path | str, **options: Any) -> None:
    """Writes a transformers model with its SparseLinear layers in the canonical form; options are those of the model's own method. Raises
    SparseError."""
    if not _sparse_modules(model):
        raise SparseError("this model has no SparseLinear; run kernelwright.sparse.convert(model) first, or its own save_pretrained")
    announce(model)
    model.save_pretrained(path, **options)


def announce(model: Any) -> None:
    """Lets a transformers model's own save_pretrained write what from_pretrained loads: without our quantizer its config would not say how,
    and the layers would be loaded with random weights. A model that was reverted is saved dense. Raises SparseError."""
    config_class, quantizer_class = register()
    theirs = getattr(model, "hf_quantizer", None)
    if theirs is None:
        model.config.quantization_config = config_class(_sparse_modules(model))
        model.hf_quantizer = quantizer_class(model.config.quantization_config)
    elif not isinstance(theirs, quantizer_class):
        raise SparseError(f"this model is quantized ({type(theirs).__name__}), and its config can name one method; convert a dense model")


def linear_layers(folder: Path) -> Callable[[str], bool]:
    """Whether a name is that of an nn.Linear in the model that a folder's config.json describes; all are where that cannot be known.
    Checkpoints have other matrices (GPT-2's Conv1D), and names that a model does not (experts that transformers joins)."""
    try:
        import transformers

        config = transformers.AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            model = getattr(transformers, (config.architectures or [""])[0])(config)
    except Exception:  # a model of another library, or of the folder's own code, which is not run
        return lambda _: True
    return lambda name: (own := _own_name(model, name)) is not None and isinstance(model.get_submodule(own), nn.Linear)


def from_pretrained(path: Path | str, model_class: Any = None, **options: Any) -> Any:
    """Loads it, by the class that its config names or `model_class` (AutoModelForCausalLM ...)."""
    register()
    import transformers

    if model_class is None:
        config = transformers.AutoConfig.from_pretrained(path)
        model_class = getattr(transformers, (config.architectures or [""])[0], None)
        if model_class is None:
            raise SparseError(f"the config of {path} names no architecture that transformers has; pass model_class")
    return model_class.from_pretrained(path, **options)


@functools.cache
def register() -> tuple[Any, Any]:
    """Makes the quantizer known to transformers, once; returns its config class and itself. Raises MissingExtra."""
    try:
        from transformers.quantizers.auto import register_quantization_config, register_quantizer
        from transformers.quantizers.base import HfQuantizer
        from transformers.utils.quantization_config import QuantizationConfigMixin
    except ImportError:
        raise MissingExtra("transformers is not installed, or too old; run: pip install 'kernelwright[sparse]'") from None

    @register_quantization_config(METHOD)
    class SparseConfig(QuantizationConfigMixin):
        def __init__(self, modules: list[str] | tuple[str, ...] = (), format_version: int = VERSION, **_: Any) -> None:
            if format_version != VERSION:
                raise SparseError(
                    f"this model is in version {format_version} of the sparse format, this kernelwright reads {VERSION}; upgrade it"
                )
            self.quant_method = METHOD  # pyright: ignore[reportAttributeAccessIssue]
            self.modules = list(modules)
            self.format_version = format_version

    @register_quantizer(METHOD)
    class SparseQuantizer(HfQuantizer):
        quantization_config: Any  # a SparseConfig
        requires_calibration = True  # it loads what was pruned and saved, it does not prune while loading

        def _process_model_before_weight_loading(self, model, **_: Any):
            mine = {name: _own_name(model, name) for name in self.quantization_config.modules}
            for name, own in mine.items():
                if own is None or not isinstance(layer := model.get_submodule(own), nn.Linear):
                    what = f"the checkpoint has a sparse weight for {name}, which is no nn.Linear in {type(model).__name__}"
                    raise SparseError(f"{what}; name the model's class, or convert the checkpoint again")
                parent, last = _parent(model, own)
                setattr(parent, last, _Place(layer))
            self.quantization_config.modules = list(mine.values())
            return model

        def _process_model_after_weight_loading(self, model, **_: Any):
            for name in self.quantization_config.modules:
                parent, last = _parent(model, name)
                setattr(parent, last, getattr(parent, last).filled(f"{name}.weight", model.dtype))
            return model

        def param_needs_quantization(self, model, param_name: str, **_: Any) -> bool:
            """True lets the loader take a tensor of a size that the config does not tell."""
            parent, last = _parent(model, param_name)
            return isinstance(parent, _Place) and last in NAMES

        def get_new_dtype(self, converter, param, dtype):
            """Values are cast after their checksum was checked, not before."""
            if any(name.endswith(".compressed") for name in converter.source_patterns):
                return None
            return super().get_new_dtype(converter, param, dtype)

        def get_state_dict_and_metadata(self, model):
            if modules := _sparse_modules(model):
                self.quantization_config.modules = modules
            elif hasattr(model.config, "quantization_config"):  # reverted since it was loaded
                del model.config.quantization_config
            return None, {}

        def is_serializable(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
            return True

        @property
        def is_trainable(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
            return False

        @property
        def is_compileable(self) -> bool:
            return True

        def _dequantize(self, model, dtype=None):
            revert(model)
            return model

    for made in (SparseConfig, SparseQuantizer):  # pickle looks for them in this module
        made.__qualname__ = made.__name__
    return SparseConfig, SparseQuantizer


def __getattr__(name: str) -> Any:
    if name in ("SparseConfig", "SparseQuantizer"):
        return next(made for made in register() if made.__name__ == name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _sparse_modules(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, SparseLinear) and not isinstance(module, Joined)]


def _own_name(model: Any, name: str) -> str | None:
    """A checkpoint's layer in this model: names may be those with or without a head (`model.layers.0`, `layers.0`), as transformers
    has it for other weights; None where there is no such module."""
    prefix = f"{model.base_model_prefix}."
    for own in (name, prefix + name, name.removeprefix(prefix)):
        try:
            model.get_submodule(own)
        except AttributeError:
            continue
        return own
    return None


def _parent(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, last = name.rpartition(".")
    return model.get_submodule(path), last
