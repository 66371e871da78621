"""The only reader of environment variables: where things are kept, which compiler, how many threads, which models.

docs/quick-start.md lists them. Nothing is cached: `settings()` reads the environment on every call, so a change takes effect at once
(and in tests).
"""

from __future__ import annotations

import errno
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit


class SettingsError(ValueError):
    """A variable or folder that cannot be used; the message is one sentence with the fix."""


SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")
"""Processes that we start do not get variables whose names hold one of these words: one may run a candidate, which can read the memory of
the judge that it was forked from, and a compiler can be told to print its environment."""

MAX_THREADS = 1024


@dataclass(frozen=True)
class Llm:
    """Where models are asked, and what may be spent on it."""

    url: str = ""
    """Base URL of an OpenAI-compatible endpoint, or `file:FOLDER` of a transcript; without a slash at the end. Empty: none was named."""
    models: tuple[str, ...] = ()
    key: str = field(default="", repr=False)
    prices: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Dollars for a million tokens of prompt and of answer, by model."""
    tokens: int = 1_000_000
    """Most of one run, prompts and answers together; `dollars` as well."""
    dollars: float = math.inf
    answer_tokens: int = 8192
    """Most of one answer."""
    concurrency: int = 4
    """Calls at one time."""
    seconds: float = 300.0
    """Most of one call."""
    exemplars: str = "buckets"
    """How they are drawn: `buckets`, `islands`, `random`, or `none` of them."""
    prompt: str = "full"
    """Its form: `full`, or `brief` for models with a small context and those that train-hf made."""


@dataclass(frozen=True)
class Settings:
    """What the environment says. `settings()` makes one; by hand: `Settings(home=tmp, archive=tmp / "x.db")`."""

    home: Path
    """Of the build cache (builds/), measured peaks (peaks/), what kw.warmup measured (warmup/), packs compiled here (packs/), calls of
    models (llm/), the judge's log and, unless it is elsewhere, the archive."""
    archive: Path
    """The file of all trials."""
    cxx: str | None = None
    """Name or path of the C++ compiler; None lets the CPU target look for one."""
    threads: int = 1
    disabled: bool = False
    """Products go to torch alone."""
    pack: Path | None = None
    """Serves products without kw.use."""
    policy: Path | None = None
    """Weights of the kernel model; None: those that are shipped."""
    cublaslt_seconds: float = 20.0
    """Of one search of cuBLASLt's whole space of algorithms."""
    llm: Llm = field(default_factory=Llm)

    @property
    def builds(self) -> Path:
        return self.home / "builds"

    @property
    def peaks(self) -> Path:
        return self.home / "peaks"

    @property
    def llm_calls(self) -> Path:
        return self.home / "llm"


def child_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that we start: ours without its secrets, with some variables set."""
    kept = {name: value for name, value in os.environ.items() if not any(word in name.upper() for word in SECRETS)}
    return {**kept, **changes}


def replace_environment(environment: Mapping[str, str]) -> None:
    """Of the calling process, for the code that runs in it from now on."""
    os.environ.clear()
    os.environ.update(environment)


_FOR_ANSWERS = (
    *("PATH", "LANG", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "PYTHONPATH", "VIRTUAL_ENV"),
    *("CPLUS_INCLUDE_PATH", "LIBRARY_PATH"),  # where a toolkit's headers and libraries are that came as wheels
)


def answer_environment(folder: str) -> dict[str, str]:
    """The environment of a candidate's process: nothing of the user's that is not needed to compute, homes and caches in `folder`."""
    kept = {name: os.environ[name] for name in _FOR_ANSWERS if name in os.environ}
    if "PYTHONPATH" in kept:  # it works in another folder
        kept["PYTHONPATH"] = os.pathsep.join(os.path.abspath(p) for p in kept["PYTHONPATH"].split(os.pathsep) if p)
    caches = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH")
    return {**kept, **dict.fromkeys(caches, folder), "OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "PYTHONDONTWRITEBYTECODE": "1"}


def visible_gpu(index: int) -> str:
    """What CUDA_VISIBLE_DEVICES must be for a process that is to see that one of the GPUs visible here."""
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return visible[index] if index < len(visible) else str(index)


def settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Reads the environment. An empty variable counts as unset. Raises SettingsError."""
    env = os.environ if environ is None else environ
    home = _folder(env)
    archive = env.get("KERNELWRIGHT_ARCHIVE", "").strip()
    pack = env.get("KERNELWRIGHT_PACK", "").strip()
    policy = env.get("KERNELWRIGHT_POLICY", "").strip()
    return Settings(
        home=home,
        archive=_expand("KERNELWRIGHT_ARCHIVE", archive) if archive else home / "archive.db",
        cxx=env.get("KERNELWRIGHT_CXX", "").strip() or None,
        threads=_whole(env, "KERNELWRIGHT_THREADS", Settings.threads, MAX_THREADS),
        disabled=_switch("KERNELWRIGHT_DISABLE", env.get("KERNELWRIGHT_DISABLE", "").strip()),
        pack=_expand("KERNELWRIGHT_PACK", pack) if pack else None,
        policy=_expand("KERNELWRIGHT_POLICY", policy) if policy else None,
        cublaslt_seconds=_positive(env, "KERNELWRIGHT_CUBLASLT_SECONDS", Settings.cublaslt_seconds, "seconds"),
        llm=_llm(env),
    )


def _folder(env: Mapping[str, str]) -> Path:
    if text := env.get("KERNELWRIGHT_HOME", "").strip():
        return _expand("KERNELWRIGHT_HOME", text)
    # The XDG base directory specification: a relative XDG_CACHE_HOME is invalid and must be ignored.
    if (cache := env.get("XDG_CACHE_HOME", "")) and os.path.isabs(cache):
        return Path(cache) / "kernelwright"
    return _expand("KERNELWRIGHT_HOME", "~/.cache/kernelwright")


def _expand(name: str, text: str) -> Path:
    """An absolute path: worker processes run in other folders than the user's."""
    if "\0" in text:
        raise SettingsError(f"{name} holds a zero byte; set it to a path")
    try:
        return Path(os.path.abspath(Path(text).expanduser()))
    except RuntimeError:
        raise SettingsError(f"{name}={text!r} names a home folder that does not exist; set {name} to an absolute path") from None


def _whole(env: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = env.get(name, "").strip()
    if text and not (text.isascii() and text.isdigit() and len(text) < 20 and 1 <= int(text) <= most):
        raise SettingsError(f"{name}={text!r} cannot be used; set it to an integer from 1 to {most}")
    return int(text) if text else default


def _switch(name: str, text: str) -> bool:
    if text not in ("", "0", "1"):
        raise SettingsError(f"{name}={text!r} is no switch; set it to 1 or 0")
    return text == "1"


def _positive(env: Mapping[str, str], name: str, default: float, unit: str) -> float:
    text = env.get(name, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        value = math.nan
    if not text or 0 < value < math.inf:
        return value
    raise SettingsError(f"{name}={text!r} cannot be used; set it to {unit} above 0")


def _llm(env: Mapping[str, str]) -> Llm:
    models, prices = _models(env.get("KERNELWRIGHT_LLM_MODELS", ""))
    dollars = _positive(env, "KERNELWRIGHT_LLM_DOLLARS", Llm.dollars, "dollars")
    if unpriced := [m for m in models if m not in prices and dollars < math.inf]:
        raise SettingsError(
            f"KERNELWRIGHT_LLM_DOLLARS limits the money, but the price of {unpriced[0]} is not known; write {unpriced[0]}=IN/OUT in "
            "KERNELWRIGHT_LLM_MODELS, dollars per million tokens"
        )
    exemplars = _one_of(env, "KERNELWRIGHT_LLM_EXEMPLARS", ("buckets", "islands", "random", "none"), "way of drawing")
    prompt = _one_of(env, "KERNELWRIGHT_LLM_PROMPT", ("full", "brief"), "form of a prompt")
    key = env.get("KERNELWRIGHT_LLM_KEY", "").strip()
    if not (key.isascii() and key.isprintable()):
        raise SettingsError("KERNELWRIGHT_LLM_KEY holds characters that no key has; copy it again")
    return Llm(
        url=_url(env.get("KERNELWRIGHT_LLM_URL", "").strip()),
        models=models,
        key=key,
        prices=prices,
        tokens=_whole(env, "KERNELWRIGHT_LLM_TOKENS", Llm.tokens, 10**12),
        dollars=dollars,
        answer_tokens=_whole(env, "KERNELWRIGHT_LLM_ANSWER_TOKENS", Llm.answer_tokens, 10**6),
        concurrency=_whole(env, "KERNELWRIGHT_LLM_CONCURRENCY", Llm.concurrency, 256),
        seconds=_positive(env, "KERNELWRIGHT_LLM_SECONDS", Llm.seconds, "seconds"),
        exemplars=exemplars,
        prompt=prompt,
    )


def _one_of(env: Mapping[str, str], name: str, known: tuple[str, ...], what: str) -> str:
    """The first is the default."""
    text = env.get(name, "").strip() or known[0]
    if text not in known:
        raise SettingsError(f"{name}={text!r} is no {what}; set it to {', '.join(known[:-1])} or {known[-1]}")
    return text


def _models(text: str) -> tuple[tuple[str, ...], dict[str, tuple[float, float]]]:
    """`a, b=1.25/10`: the names in order, and the prices of those that have one."""
    names, prices = [], {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, price = (p.strip() for p in part.partition("="))
        names.append(name)
        if equals:
            try:
                tokens_in, tokens_out = (float(p) for p in price.split("/"))
            except ValueError:
                tokens_in = tokens_out = math.nan
            if not name or not (0 <= tokens_in < math.inf and 0 <= tokens_out < math.inf):
                raise SettingsError(
                    f"KERNELWRIGHT_LLM_MODELS: {part!r} is not NAME or NAME=IN/OUT, dollars per million tokens as in b=1.25/10"
                )
            prices[name] = (tokens_in, tokens_out)
    return tuple(dict.fromkeys(names)), prices


def _url(text: str) -> str:
    if not text:
        return ""
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https", "file") or (parts.scheme != "file" and not parts.hostname):
        raise SettingsError(
            "KERNELWRIGHT_LLM_URL is no base URL; set it to one like http://localhost:8000/v1, or to file:FOLDER of a transcript"
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        # it is stored with every call
        raise SettingsError("KERNELWRIGHT_LLM_URL may hold no user, password or query; put the key into KERNELWRIGHT_LLM_KEY")
    return text.rstrip("/")


def writable(path: Path, variable: str = "KERNELWRIGHT_HOME") -> Path:
    """Makes the folder `path` where needed and proves that a file can be written there.

    `variable` is what the user would change. A permission bit proves nothing (root, read-only mounts, quotas, a full disk), so this
    writes a page and removes it.
    Raises SettingsError.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path, prefix=".probe-") as probe:
            probe.write(b"\0" * 4096)
            probe.flush()
    except OSError as error:
        raise SettingsError(f"{reason(error, path)}; set {variable} to a folder that can be written") from None
    return path


def reason(error: OSError, path: Path) -> str:
    """Why a file or folder could not be written, as a clause: `the disk that holds /x is full`."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"the disk that holds {path} is full"
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return f"{path} is read-only for this user"
        case errno.ENOTDIR | errno.EEXIST:
            return f"{path} cannot be a folder because a file is in its way"
        case _:
            return f"{path} cannot be written ({os.strerror(error.errno) if error.errno else error})"
