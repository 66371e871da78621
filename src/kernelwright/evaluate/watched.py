"""Kernels in a process of their own that one of NVIDIA's tools watches: what the sanitizers and the profiler have in common."""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernelwright.records import Build, Candidate, Record, Workload
from kernelwright.settings import child_environment
from kernelwright.targets.nvrtc import toolkit_folders
from kernelwright.targets.processes import kill_group

SAID = "kernelwright-watched "
"""Before the child's line of result for a kernel: without it the kernel has not run to its end, whatever the exit code says."""


class Watched(Record, frozen=True, kw_only=True):
    """One kernel with its shapes."""

    candidate: Candidate
    build: Build
    workloads: tuple[Workload, ...]


class Request(Record, frozen=True, kw_only=True):
    """What the child runs."""

    target: str
    kernels: tuple[Watched, ...]


def find_tool(name: str) -> str | None:
    """Path of one of the CUDA toolkit's tools: on PATH, or where the toolkit puts it."""
    return shutil.which(name) or next((str(tool) for folder in toolkit_folders() if (tool := folder / "bin" / name).is_file()), None)


def watch(
    tool: Sequence[str], module: str, request: Request, seconds: float, stop: threading.Event, changes: Mapping[str, str]
) -> tuple[int | None, str]:
    """Runs `python -m MODULE REQUEST.json` under a tool (its path and options), with `changes` of the environment. Exit code, None if it
    was ended before its time, and all output. Each kernel that is reported gives it `seconds` more. Raises OSError when the tool cannot be
    started."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "request.json"
        file.write_text(request.to_json())
        return _run([*tool, sys.executable, "-m", module, str(file)], child_environment(changes), seconds, stop)


def _run(command: list[str], env: dict[str, str], seconds: float, stop: threading.Event) -> tuple[int | None, str]:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, start_new_session=True
    )
    assert process.stdout is not None
    output, said, deadline = bytearray(), 0, time.monotonic() + seconds
    try:
        with process.stdout as pipe, selectors.DefaultSelector() as ready:
            ready.register(pipe, selectors.EVENT_READ)
            while time.monotonic() < deadline and not stop.is_set():
                if not ready.select(min(0.5, seconds)):
                    continue
                if not (more := os.read(pipe.fileno(), 1 << 16)):
                    return process.wait(max(0.0, deadline - time.monotonic())), output.decode(errors="replace")
                output += more
                if (count := output.count(SAID.encode())) > said:
                    said, deadline = count, time.monotonic() + seconds
    except subprocess.TimeoutExpired:
        pass
    finally:  # also on Ctrl-C: the tool and what it watches end with us
        if process.poll() is None:
            kill_group(process.pid)
            process.wait()
    return None, output.decode(errors="replace")
