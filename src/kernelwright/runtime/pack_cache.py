"""Packs that lack builds (exported as sources, say), compiled once into the user's cache.

Compiling is the search side's work, which serving does not import: it is the command `kernelwright pack build`, in a process of its own,
on a copy. So a pack in a folder that cannot be written is served as well, and a compiler that dies takes no user's process with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import kernelwright
from kernelwright.runtime import pack as packs
from kernelwright.runtime.pack import Pack, PackError
from kernelwright.settings import SettingsError, child_environment, settings, writable


def built(pack: Pack) -> Pack:
    """The same, or where it lacks builds a copy with them, which is made if there is none yet; standard error says how far it is. Raises
    PackError."""
    unbuilt = pack.unbuilt()
    if not unbuilt:
        return pack
    place = settings().home / "packs" / pack.manifest.checksum[:32]
    try:
        writable(place.parent)
    except SettingsError as error:
        raise PackError(
            f"the pack {pack.path} lacks {len(unbuilt)} of its builds, and there is no place to compile them: {error}"
        ) from None
    # processes that start together compile it once; what is there is whole without the lock
    with (place.parent / f"{place.name}.lock").open("w") as lock:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(PackError):
            return packs.load(place)
        print(f"kernelwright: compiling {len(unbuilt)} kernels of {pack.path}, once", file=sys.stderr, flush=True)
        with packs.whole(place) as folder:
            shutil.copytree(pack.path, folder, dirs_exist_ok=True)
            _build(pack, folder)
    return packs.load(place)


def _build(pack: Pack, folder: Path) -> None:
    command = [sys.executable, "-m", "kernelwright", "pack", "build", str(folder), "--json"]
    home = Path(kernelwright.__file__).parent.parent  # as it was found here, however that was
    paths = os.pathsep.join([str(home), *filter(None, sys.path)])
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, errors="replace", env=child_environment({"PYTHONPATH": paths}))
    try:
        found = json.loads(done.stdout)
    except ValueError:
        found = {}
    if done.returncode != 0 or "other" not in found:
        why = found.get("error") or f"`kernelwright pack build` ended with {done.returncode}"
        raise PackError(f"the pack {pack.path} lacks builds, and they cannot be compiled here: {why}")
    if found["other"]:
        said = f"{len(found['other'])} kernels of the pack {pack.path} came out otherwise than they were measured, with another compiler"
        warnings.warn(f"{said}; prove them with `kernelwright pack verify`", RuntimeWarning, stacklevel=5)
