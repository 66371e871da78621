"""A Python candidate in a fresh process of its own, for devices whose context does not survive a fork: its side. The judge's is
`answer_process`. On a GPU the process has a context of its own; the same code runs on CPU memory, which is how it is tested without.

The judge owns an exchange area for inputs and outputs, and nothing else of its memory is shared: on a GPU one allocation opened through
CUDA IPC, on the CPU an anonymous file. One launch is: the judge writes fresh inputs and poison into the area while the process is stopped,
then starts its clock and asks; the process runs `ModelNew`, synchronises its whole context (every stream) by a handle taken before the
candidate's code was loaded, and answers; the judge stops its clock. A second request has the results copied into the area; what it takes
beyond such a copy, as measured while the process was still ours alone, is added to the time, so that nothing is won by working then. The
judge stops the process (SIGSTOP) and copies the outputs to where they are checked. All times are the judge's wall clock over a batch of
launches (one launch in the host's modes), each on a set of its own, less what an empty request takes. So they hold what calling PyTorch
costs on the host: an upper bound of device time.

Compilers (nvcc, Triton) may run while the source is loaded and in one run after it, on inputs that are never used again; then other
processes of the session are killed and a second filter denies new ones.

What this does NOT protect against: a kernel that goes on in a context that the process made besides PyTorch's, or that spins on the device
while a rival runs (rivals then look slow, and no check tells why); code that guesses the handle of another process's allocation; bugs of
the GPU driver, whose device files the process may write.
"""

from __future__ import annotations

import mmap
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelwright.targets import sandbox

if TYPE_CHECKING:
    import torch

    from kernelwright.records import Workload
    from kernelwright.targets.target import Bound

_ALIGN = 256


@dataclass(frozen=True)
class Setup:
    """What the judge tells the process, once, before it holds any of the candidate's code."""

    source: str
    workload: str
    device: str
    sets: int
    private: str
    area: int | bytes
    """File descriptor of the area (CPU), or CUDA IPC handle of the allocation."""
    size: int
    threads: int


def area_bytes(w: Workload, sets: int) -> int:
    from kernelwright.problems import problem_of

    return sum(-(-_size(s) // _ALIGN) * _ALIGN for s in problem_of(w).tensors(w)) * sets + _ALIGN


def _size(spec: Any) -> int:
    from kernelwright.records import DTYPES

    return spec.numel * DTYPES[spec.dtype]


def bind(flat: torch.Tensor, w: Workload, sets: int) -> list[Bound]:
    """The tensors of each set in the exchange area, contiguous."""
    from kernelwright.problems import problem_of
    from kernelwright.problems.problem import TORCH_DTYPES
    from kernelwright.targets.target import Bound

    bounds, at = [], 0
    for _ in range(sets):
        tensors = {}
        for spec in problem_of(w).tensors(w):
            tensors[spec.name] = flat[at : at + _size(spec)].view(TORCH_DTYPES[spec.dtype]).view(spec.shape)
            at += -(-_size(spec) // _ALIGN) * _ALIGN
        bounds.append(Bound(tensors=tensors, names={}))
    return bounds


# ------------------------------------------------------------------------------------------------------------ the process


def main(fd: int) -> None:
    """Serves until the judge closes the pipe: `python -m kernelwright.targets.python_process FD`."""
    from kernelwright.targets.processes import die_with_parent

    die_with_parent()
    pipe = Connection(fd)
    setup: Setup = pickle.loads(pipe.recv_bytes())  # from the judge, which is trusted; what goes back is JSON
    private = Path(setup.private)
    tempfile.tempdir = str(private)
    os.chdir(private)
    gpu = setup.device == "cuda"
    # before PyTorch is imported: landlock binds the calling thread and those that it starts
    layers = restrict(private, gpu, setup.threads)
    import torch

    from kernelwright.records import Workload
    from kernelwright.targets.cpu_child import serve

    torch.set_num_threads(setup.threads)
    flat, finish = _opened(setup)
    w = Workload.from_json(setup.workload)
    work = _stored(setup.source, w, bind(flat, w, setup.sets), finish)
    serve(pipe, work, lambda: (*layers, *sandbox.seal(processes=True)), wait=0)


def restrict(private: Path, gpu: bool, threads: int = 1) -> tuple[str, ...]:
    """All layers of the sandbox but the filter; on a GPU with its device files, its threads' names, and what its driver and compilers
    read."""
    # libcuda writes the names of its threads (/proc/self/task/*/comm), and cuInit fails with error 304 where it cannot
    devices = [*Path("/dev").glob("nvidia*"), Path("/proc/self/task")] if gpu else []
    toolkits: list[str | Path] = ["/bin", "/etc/alternatives"]
    if gpu:
        toolkits += [*Path("/usr/local").glob("cuda*"), "/proc/driver", "/proc/devices", "/sys/module", "/sys/devices", "/sys/bus/pci"]
    memory = None if gpu else sandbox.MEMORY
    return sandbox.restrict(private, toolkits, threads=threads, memory=memory, devices=devices, programs=True)


def _opened(setup: Setup) -> tuple[torch.Tensor, Callable[[], object]]:
    """The exchange area in this process, and what waits for all that the device still does."""
    import torch

    if setup.device == "cuda":
        from kernelwright.targets.cuda_ipc import opened, wait_for_context

        torch.cuda.init()
        torch.zeros(1, device="cuda")  # makes the context
        assert isinstance(setup.area, bytes)
        return opened(setup.area, setup.size), wait_for_context()
    assert isinstance(setup.area, int)
    return torch.frombuffer(mmap.mmap(setup.area, setup.size), dtype=torch.uint8), lambda: None


def _stored(source: str, w: Workload, sets: Sequence[Bound], finish: Callable[[], object]) -> Any:
    import torch

    from kernelwright.targets.python_module import Answer, match_precision

    class Stored(Answer):
        """Keeps its results until they are collected into the exchange area; a model for each set, as a launch must find its state
        loaded."""

        def __init__(self) -> None:
            super().__init__(source, w, sets)
            # for measuring what collecting takes, before the candidate's code is there
            self._models: list[torch.nn.Module] = []
            self._results = {i: [torch.zeros_like(one.tensors[name]) for name in self.outputs] for i, one in enumerate(sets)}

        def load(self) -> None:
            self._results = {}
            match_precision()
            made = self.define()
            self._models = [self.make(made) for _ in sets]

        def state(self, index: int) -> None:
            self.fill(self._models[index], index)
            finish()  # what a hook has enqueued must not run beside the judge's next steps

        def launch(self, index: int) -> None:
            self._results[index] = self.plain(self.call(self._models[index], index))

        def collect(self, indices: Sequence[int]) -> bool:
            """Copies the results of these sets. True if two of them lie in the same memory: a launch then overwrites what another left."""
            places = [value.data_ptr() for i in indices for value in self._results[i] if value.numel()]
            for i in indices:
                for name, value in zip(self.outputs, self._results[i], strict=True):
                    sets[i].tensors[name].copy_(value)
            finish()
            if self._models:  # not while it is measured what this takes
                self._results = {}
            return len(set(places)) < len(places)

        def describe(self, result: Any) -> None:
            finish()

        def seal(self) -> Sequence[str]:
            return sandbox.seal()

    return Stored()


if __name__ == "__main__":
    main(int(sys.argv[1]))
