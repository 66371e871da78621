"""Extensions of Python in C++, above all the launcher: compiled at first use (two seconds of g++) into the build cache, then loaded from
there."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

import torch

from kernelwright.settings import SettingsError, settings, writable
from kernelwright.targets.cpu import compiler, compiler_version

SOURCE = Path(__file__).parent / "launcher.cpp"
"""It includes the headers beside it."""
FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-DPy_LIMITED_API=0x030b0000")
"""The limited API: one binary for Python 3.11 and all later ones."""
LIBRARIES = ("c10", "torch_cpu", "torch_python")
"""Loaded already by whoever has tensors: no path to them is written into the binary."""
_SECONDS = 120


class LauncherUnavailable(RuntimeError):
    """This machine cannot have the launcher; the message is one sentence with the fix."""


@cache
def load() -> ModuleType:
    """The launcher. Raises LauncherUnavailable."""
    return extension(binary())


def binary() -> Path:
    """Path of the launcher, built if it is not there. Raises LauncherUnavailable."""
    return built(SOURCE, LIBRARIES)


def extension(path: Path) -> ModuleType:
    """What `built` made, as the module `_STEM` of its source. Raises LauncherUnavailable."""
    stem = path.name.rpartition("-")[0]
    loader = importlib.machinery.ExtensionFileLoader(f"_{stem}", str(path))
    spec = importlib.util.spec_from_file_location(f"_{stem}", path, loader=loader)
    try:
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise LauncherUnavailable(f"the {stem} at {path} cannot be loaded ({error}); remove it, so that it is built again") from None
    return module


def built(source: Path, libraries: Sequence[str] = ()) -> Path:
    """Path of an extension in the build cache, compiled there if this source, the headers beside it, PyTorch, compiler and flags are new.
    Raises LauncherUnavailable."""
    stem, cxx, headers, python = source.stem, compiler(), Path(torch.__file__).parent / "include", Path(sysconfig.get_path("include"))
    if cxx is None:
        raise LauncherUnavailable(f"the {stem} needs a C++ compiler: install g++ (or clang++), or name one in KERNELWRIGHT_CXX")
    if not (python / "Python.h").is_file():
        raise LauncherUnavailable(f"the {stem} needs Python's headers ({python} has no Python.h): install python3-dev")
    content = [path.read_text() for path in (source, *sorted(source.parent.glob("*.h")))]
    # c10's headers are compiled in: of this PyTorch alone
    content += [(headers / "ATen" / "dlpack.h").read_text(), str(torch.__version__), str(torch.version.git_version)]
    content += [compiler_version(), platform.machine(), *FLAGS]
    key = hashlib.sha256("\0".join(content).encode()).hexdigest()[:32]
    try:
        folder = writable(settings().builds)
    except SettingsError as error:
        raise LauncherUnavailable(f"the {stem} cannot be built: {error}") from None
    path = folder / f"{stem}-{key}.abi3.so"
    if not path.exists():
        _compile(stem, [cxx, *options(), str(source), *(f"-l{name}" for name in libraries)], path)
    return path


def options() -> list[str]:
    """Of the compiler."""
    torch_, python = Path(torch.__file__).parent, sysconfig.get_path("include")
    return [*FLAGS, f"-I{python}", f"-I{torch_ / 'include'}", f"-L{torch_ / 'lib'}"]


def _compile(stem: str, command: list[str], path: Path) -> None:
    """The lock only spares processes that start together the same work; the rename makes the file whole without it."""
    with (path.parent / f"{stem}.lock").open("w") as lock, tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{stem}-") as folder:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return
        built = Path(folder) / path.name
        try:
            done = subprocess.run([*command, "-o", str(built)], capture_output=True, text=True, timeout=_SECONDS, errors="replace")
        except subprocess.TimeoutExpired:
            raise LauncherUnavailable(f"building the {stem} took longer than {_SECONDS} s; set KERNELWRIGHT_CXX to g++") from None
        if done.returncode != 0:
            raise LauncherUnavailable(f"{command[0]} cannot build the {stem}; set KERNELWRIGHT_CXX to another g++: {done.stderr[:2000]}")
        os.replace(built, path)
