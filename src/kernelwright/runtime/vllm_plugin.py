"""vLLM's plug-in hook (entry point group `vllm.general_plugins`): its unquantised linear layers, computed by kw.linear.

vLLM calls `register` in each of its processes. Nothing changes unless a pack is named there by KERNELWRIGHT_PACK, so that having
kernelwright installed alters no vLLM; VLLM_PLUGINS chooses plug-ins as usual. What is replaced is
`vllm.model_executor.layers.linear.UnquantizedLinearMethod.apply(self, layer, x, bias=None)`, which on NVIDIA GPUs is
torch.nn.functional.linear(x, layer.weight, bias), and so is kw.linear where no kernel of ours serves; ROCm and CPUs have another there and
keep it. In vLLM's compiled graph our operator stands in place of a product, so its passes that rewrite products (async tensor
parallelism) leave these alone. The logits (UnquantizedEmbeddingMethod) and mixtures of experts stay vLLM's.
"""

from __future__ import annotations

import importlib
import inspect
import logging
from types import ModuleType

from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from kernelwright.runtime import api, engine, ops
from kernelwright.settings import settings

log = logging.getLogger(__name__)
SIGNATURE = ["self", "layer", "x", "bias"]


def register() -> None:
    """Serves vLLM's layers in this process, once however often it is called. Where it cannot, it says why in the log and does nothing."""
    if why := _serve_layers():
        log.info("kernelwright leaves vLLM's linear layers as they are: %s", why)


def _serve_layers() -> str:
    """Empty, or why not."""
    if settings().disabled:
        return "KERNELWRIGHT_DISABLE=1"
    if not engine.used():
        return "no pack is used; set KERNELWRIGHT_PACK to one"
    try:
        linear, platforms = (importlib.import_module(f"vllm.{name}") for name in ("model_executor.layers.linear", "platforms"))
    except ImportError as error:
        return f"vLLM has no such module ({error})"
    method = getattr(linear, "UnquantizedLinearMethod", None)
    if method is None or not inspect.isfunction(original := vars(method).get("apply")):
        return "this vLLM has no UnquantizedLinearMethod.apply"
    if original.__module__ == __name__:
        return ""
    if (found := list(inspect.signature(original).parameters)) != SIGNATURE:
        return f"UnquantizedLinearMethod.apply takes {', '.join(found)} in this vLLM, not {', '.join(SIGNATURE)}"
    if not platforms.current_platform.is_cuda():
        return "this platform has products of its own"
    if _batch_invariant(linear):
        return "results that do not depend on the batch are wanted (VLLM_BATCH_INVARIANT)"

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        weight = layer.weight
        if isinstance(weight, Tensor) and weight.dtype in ops.HALF and weight.dtype == x.dtype:
            if type(weight) not in ops.PLAIN and not is_dynamo_compiling():  # vLLM's own classes only say how a weight is loaded
                weight = weight.detach().as_subclass(Tensor)
            return api.linear(x, weight, bias)
        return original(self, layer, x, bias)

    method.apply = apply
    log.info("kernelwright serves vLLM's unquantised linear layers from %s", ", ".join(map(str, engine.used())))
    return ""


def _batch_invariant(linear: ModuleType) -> bool:
    """Whether this vLLM is asked for it, by a function in older versions and a variable of vllm.envs in newer ones."""
    if asked := getattr(linear, "vllm_is_batch_invariant", None):
        return asked()
    return getattr(getattr(linear, "envs", None), "VLLM_BATCH_INVARIANT", False)
