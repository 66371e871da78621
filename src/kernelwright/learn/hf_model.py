"""Language models of the Hugging Face libraries: loading, LoRA, sampling answers, saving.

A model is a folder that `save_pretrained` wrote, a name on the Hub (or in its cache), or a GGUF file, whose weights are de-quantised. Every
stage ends with such a folder, adapters merged, so that any server of such models can load it. Weights are float32 in training and on disk,
unless `bfloat16` is asked for: an update of less than 0.2 % of a weight does not survive rounding to bfloat16, and a merged adapter of
reinforcement learning consists of such. On a GPU products are computed in bfloat16 either way.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernelwright.learn.hf_text import Messages
from kernelwright.propose.proposer import MissingExtra

PLAIN_CHAT = (
    "{% for m in messages %}### {{ m['role'] }}\n{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}### assistant\n{% endif %}"
)
"""For models without a chat template of their own (base models)."""


def require() -> None:
    """Raises MissingExtra."""
    for name in ("transformers", "trl", "peft", "datasets", "accelerate"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise MissingExtra(
                f'training of Hugging Face models needs {name} ({error}); install it with: pip install "kernelwright[train]"'
            ) from None


def load(name: str, weights: str = "float32") -> tuple[Any, Any]:
    """Model and tokenizer, on the CPU. Raises ValueError where there is no such model."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    path, more = Path(name), {}
    if path.suffix == ".gguf":
        more = {"gguf_file": path.name}
        name = str(path.parent)
    dtype = getattr(torch, weights)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **more)
        if more:
            # packed weights cannot be trained; de-quantising happens in float32
            packed = AutoModelForCausalLM.from_pretrained(
                name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True), **more
            )
            model = packed.to(dtype)
        else:
            model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{name} is no model that transformers can load ({reason}); give a folder, a .gguf file or a name on the Hub"
        ) from None
    _agree(tokenizer, model.config)
    tokenizer.padding_side = "left"
    if not tokenizer.chat_template:
        tokenizer.chat_template = PLAIN_CHAT
    return model, tokenizer


def _agree(tokenizer: Any, config: Any) -> None:
    """The config says which tokens end an answer and fill a batch. From a GGUF file transformers 5.17 gives the tokenizer the token that
    begins a message for both: no answer would end before its last allowed token."""
    for name in ("eos_token", "pad_token"):
        own = getattr(config, f"{name}_id", None)
        own = own if isinstance(own, list) or own is None else [own]
        if own and getattr(tokenizer, f"{name}_id") not in own:
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(own[0]))
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token


def context(model: Any, asked: int | None = None) -> int:
    """Tokens of prompt and answer together."""
    own = getattr(model.config, "max_position_embeddings", None) or 2**20
    return min(own, asked or own)


def lora(rank: int) -> Any:
    """Adapters on every linear layer; None for rank 0: all weights are trained then."""
    if not rank:
        return None
    from peft import LoraConfig

    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")


def save(model: Any, tokenizer: Any, folder: Path) -> Path:
    """Adapters are merged first. The folder is replaced as a whole, so that one that is there can be loaded."""
    partial = folder.with_name(f".{folder.name}.partial")
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    return folder


def tokens(tokenizer: Any, messages: Messages) -> int:
    """Of a prompt as the model gets it."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


def computing(model: Any) -> Any:
    """bfloat16 on a GPU; nothing special on a CPU."""
    import torch

    return torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type == "cuda")


@contextmanager
def merged(model: Any) -> Iterator[None]:
    """With its adapters in its weights for the while: apart they are three small products more for each of seven a layer, and launches are
    most of what writing a token costs. Not in bfloat16: what is added and taken off again would leave its rounding behind."""
    import torch

    able = hasattr(model, "merge_adapter") and next(model.parameters()).dtype == torch.float32
    if able:
        model.merge_adapter()
    try:
        yield
    finally:
        if able:
            model.unmerge_adapter()


def sample(
    model: Any, tokenizer: Any, prompts: Sequence[Messages], *, answer_tokens: int, temperature: float, batch: int, seed: int
) -> list[str]:
    """One answer to each prompt, in order. Longest prompts first, so that a batch that does not fit the memory fails at once."""
    import torch

    torch.manual_seed(seed)
    model.eval()
    texts = [tokenizer.apply_chat_template(p, tokenize=False, add_generation_prompt=True) for p in prompts]
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    found = [""] * len(texts)
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        inputs = tokenizer([texts[i] for i in chosen], return_tensors="pt", padding=True, add_special_tokens=False).to(model.device)
        inputs.pop("token_type_ids", None)
        with torch.no_grad(), computing(model):
            ids = model.generate(
                **inputs,
                max_new_tokens=answer_tokens,
                do_sample=temperature > 0,
                **({"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature > 0 else {}),
                pad_token_id=tokenizer.pad_token_id,
                use_cache=True,
            )
        for i, row in zip(chosen, ids[:, inputs["input_ids"].shape[1] :], strict=True):
            found[i] = tokenizer.decode(row, skip_special_tokens=True)
    return found
