"""The launcher's extension: compiled at first use (two seconds of g++) into the build cache, then loaded from there."""

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
from functools import cache
from pathlib import Path
from types import ModuleType

import torch

from kernelwright.settings import SettingsError, settings, writable
from kernelwright.targets.cpu import compiler, compiler_version

SOURCES = ("launcher.cpp", "driver_abi.h")
FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-DPy_LIMITED_API=0x030b0000")
"""The limited API: one binary for Python 3.11 and all later ones."""
LIBRARIES = ("c10", "torch_cpu", "torch_python")
"""Loaded already by whoever has tensors: no path to them is written into the binary."""
_SECONDS = 120


class LauncherUnavailable(RuntimeError):
    """This machine cannot have the launcher; the message is one sentence with the fix."""


@cache
def load() -> ModuleType:
    """The extension. Raises LauncherUnavailable."""
    path = binary()
    loader = importlib.machinery.ExtensionFileLoader("_launcher", str(path))
    spec = importlib.util.spec_from_file_location("_launcher", path, loader=loader)
    try:
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise LauncherUnavailable(f"the launcher at {path} cannot be loaded ({error}); remove it, so that it is built again") from None
    return module


def binary() -> Path:
    """Path of the extension, built if it is not there. Raises LauncherUnavailable."""
    cxx, headers, python = compiler(), Path(torch.__file__).parent / "include", Path(sysconfig.get_path("include"))
    if cxx is None:
        raise LauncherUnavailable("the launcher needs a C++ compiler: install g++ (or clang++), or name one in KERNELWRIGHT_CXX")
    if not (python / "Python.h").is_file():
        raise LauncherUnavailable(f"the launcher needs Python's headers ({python} has no Python.h): install python3-dev")
    here = Path(__file__).parent
    content = [(here / name).read_text() for name in SOURCES]
    # c10's headers are compiled in: of this PyTorch alone
    content += [(headers / "ATen" / "dlpack.h").read_text(), str(torch.__version__), str(torch.version.git_version)]
    content += [compiler_version(), platform.machine(), *FLAGS]
    key = hashlib.sha256("\0".join(content).encode()).hexdigest()[:32]
    try:
        folder = writable(settings().builds)
    except SettingsError as error:
        raise LauncherUnavailable(f"the launcher cannot be built: {error}") from None
    path = folder / f"launcher-{key}.abi3.so"
    if not path.exists():
        _compile([cxx, *options(), str(here / SOURCES[0]), *(f"-l{name}" for name in LIBRARIES)], path)
    return path


def options() -> list[str]:
    """Of the compiler."""
    torch_, python = Path(torch.__file__).parent, sysconfig.get_path("include")
    return [*FLAGS, f"-I{Path(__file__).parent}", f"-I{python}", f"-I{torch_ / 'include'}", f"-L{torch_ / 'lib'}"]


def _compile(command: list[str], path: Path) -> None:
    """The lock only spares processes that start together the same work; the rename makes the file whole without it."""
    with (path.parent / "launcher.lock").open("w") as lock, tempfile.TemporaryDirectory(dir=path.parent, prefix=".launcher-") as folder:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return
        built = Path(folder) / path.name
        try:
            done = subprocess.run([*command, "-o", str(built)], capture_output=True, text=True, timeout=_SECONDS, errors="replace")
        except subprocess.TimeoutExpired:
            raise LauncherUnavailable(f"building the launcher took longer than {_SECONDS} s; set KERNELWRIGHT_CXX to g++") from None
        if done.returncode != 0:
            raise LauncherUnavailable(f"{command[0]} cannot build the launcher; set KERNELWRIGHT_CXX to another g++: {done.stderr[:2000]}")
        os.replace(built, path)
