"""The only reader of environment variables: where things are kept, which compiler, how many threads.

Nothing is cached: `settings()` reads the environment on every call, so a change takes effect at once (and in tests).
"""

from __future__ import annotations

import errno
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class SettingsError(ValueError):
    """A variable or folder that cannot be used; the message is one sentence with the fix."""


@dataclass(frozen=True)
class Variable:
    """One environment variable, as `doctor` and the docs list it."""

    name: str
    default: str
    meaning: str


VARIABLES = (
    Variable(
        "KERNELWRIGHT_HOME",
        "$XDG_CACHE_HOME/kernelwright or ~/.cache/kernelwright",
        "folder of the build cache (builds/), measured peaks (peaks/) and the archive (archive.db)",
    ),
    Variable("KERNELWRIGHT_ARCHIVE", "archive.db in the home folder", "file of the archive of all trials"),
    Variable("KERNELWRIGHT_CXX", "the first of g++, clang++, c++ that is found", "C++ compiler of the CPU target and the launcher"),
    Variable("KERNELWRIGHT_THREADS", "1", "threads that kernels and rivals use on the CPU target"),
    Variable("KERNELWRIGHT_DISABLE", "0", "1: kw.matmul and the models it serves call torch alone"),
    Variable("KERNELWRIGHT_PACK", "none", "folder of a pack that is used without kw.use, after those named with it; vLLM needs it"),
    Variable("KERNELWRIGHT_CUBLASLT_SECONDS", "20", "most seconds of one search of the rival cublaslt-all"),
)

MAX_THREADS = 1024


@dataclass(frozen=True)
class Settings:
    """What the environment says. `settings()` makes one; by hand: `Settings(home=tmp, archive=tmp / "x.db")`."""

    home: Path
    archive: Path
    cxx: str | None = None
    """Name or path of the C++ compiler; None lets the CPU target look for one."""
    threads: int = 1
    disabled: bool = False
    """Products go to torch alone."""
    pack: Path | None = None
    """Serves products without kw.use."""
    cublaslt_seconds: float = 20.0
    """Of one search of cuBLASLt's whole space of algorithms."""

    @property
    def builds(self) -> Path:
        return self.home / "builds"

    @property
    def peaks(self) -> Path:
        return self.home / "peaks"


def child_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that we start: ours, with some variables set, and without what looks like a secret: a candidate can read
    the memory of the judge that it was forked from."""
    kept = {name: value for name, value in os.environ.items() if not any(word in name.upper() for word in _SECRETS)}
    return {**kept, **changes}


_SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")


def replace_environment(environment: Mapping[str, str]) -> None:
    """Of the calling process, for the code that runs in it from now on."""
    os.environ.clear()
    os.environ.update(environment)


_FOR_ANSWERS = ("PATH", "LANG", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "PYTHONPATH", "VIRTUAL_ENV")


def answer_environment(folder: str) -> dict[str, str]:
    """The environment of a candidate's process: nothing of the user's that is not needed to compute, homes and caches in `folder`."""
    kept = {name: os.environ[name] for name in _FOR_ANSWERS if name in os.environ}
    if "PYTHONPATH" in kept:  # it works in another folder
        kept["PYTHONPATH"] = os.pathsep.join(os.path.abspath(p) for p in kept["PYTHONPATH"].split(os.pathsep) if p)
    caches = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH")
    return {**kept, **dict.fromkeys(caches, folder), "OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "PYTHONDONTWRITEBYTECODE": "1"}


def settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Reads the environment. An empty variable counts as unset. Raises SettingsError."""
    env = os.environ if environ is None else environ
    home = _folder(env)
    archive = env.get("KERNELWRIGHT_ARCHIVE", "").strip()
    pack = env.get("KERNELWRIGHT_PACK", "").strip()
    return Settings(
        home=home,
        archive=_expand("KERNELWRIGHT_ARCHIVE", archive) if archive else home / "archive.db",
        cxx=env.get("KERNELWRIGHT_CXX", "").strip() or None,
        threads=_threads(env.get("KERNELWRIGHT_THREADS", "").strip()),
        disabled=_switch("KERNELWRIGHT_DISABLE", env.get("KERNELWRIGHT_DISABLE", "").strip()),
        pack=_expand("KERNELWRIGHT_PACK", pack) if pack else None,
        cublaslt_seconds=_seconds(env.get("KERNELWRIGHT_CUBLASLT_SECONDS", "").strip()),
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


def _threads(text: str) -> int:
    if not text:
        return 1
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:8]) <= MAX_THREADS):
        raise SettingsError(f"KERNELWRIGHT_THREADS={text!r} is not a number of threads; set it to an integer from 1 to {MAX_THREADS}")
    return int(text)


def _switch(name: str, text: str) -> bool:
    if text not in ("", "0", "1"):
        raise SettingsError(f"{name}={text!r} is no switch; set it to 1 or 0")
    return text == "1"


def _seconds(text: str) -> float:
    try:
        seconds = float(text or "20")
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise SettingsError(f"KERNELWRIGHT_CUBLASLT_SECONDS={text!r} is not a time; set it to seconds above 0")
    return seconds


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
