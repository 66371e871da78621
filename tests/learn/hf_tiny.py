"""A tiny random Llama whose words are whole answers, so that one token is one kernel: training is real, and takes seconds on a CPU."""

from __future__ import annotations

from pathlib import Path

HEAD = 'extern "C" void kernel(const float* x, float* y, long rows, long cols, long ld_x, long ld_y) {'


def _kernel(inner: str, loop: str = "") -> str:
    body = f"float v = x[i * ld_x + j], c = v + 3.0f; c = c < 0 ? 0 : c > 6 ? 6 : c; {inner}"
    return f"{HEAD}\n  for (long i = 0; i < rows; i++)\n{loop}    for (long j = 0; j < cols; j++) {{ {body} }}\n}}\n"


STORE = "y[i * ld_y + j] = v * c / 6.0f;"
PLAIN = _kernel(STORE)
FAST = _kernel(STORE, "#pragma omp simd\n")
SLOW = _kernel(f"volatile float z = 0; for (int k = 0; k < 60; k++) z = z + v; {STORE}")
WRONG = _kernel("y[i * ld_y + j] = v * c / 5.0f;")
BROKEN = _kernel("y[i * ld_y + j] = v *;")


def answer(code: str) -> str:
    return f"## Performance analysis\nNone.\n\n## Design\nLoops.\n\n## Code\n```cpp\n{code}```"


ANSWERS = {
    "PLAIN": answer(PLAIN),
    "FAST": answer(FAST),
    "SLOW": answer(SLOW),
    "WRONG": answer(WRONG),
    "BROKEN": answer(BROKEN),
    "CHAT": "Hello!",
}


def write(folder: Path, seed: int = 0) -> Path:
    """Its vocabulary: the answers, and a word for all else."""
    import torch
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_tokens([AddedToken(text, normalized=False) for text in ANSWERS.values()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['content'] }}{% if m['role'] == 'assistant' %}{{ eos_token }}{% else %}\n{% endif %}{% endfor %}"
    )
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        initializer_range=0.2,  # with less its logits cannot differ, whatever its adapters learn
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def chances(folder: Path, messages: list[dict[str, str]]) -> dict[str, float]:
    """How likely each answer is to begin the model's reply."""
    import torch

    from kernelwright.learn import hf_model

    model, tokenizer = hf_model.load(str(folder))
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    with torch.no_grad():
        likely = torch.softmax(model(**tokenizer(text, return_tensors="pt", add_special_tokens=False)).logits[0, -1].float(), -1)
    return {name: float(likely[tokenizer.convert_tokens_to_ids(text)]) for name, text in ANSWERS.items()}
