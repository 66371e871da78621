"""What a call of three tensors costs from Python, by the way that leads from Python to C++.

    python benchmarks/launcher/compare.py          needs g++; apache-tvm-ffi where it shall be compared

A CUDA driver that does nothing stands in for the real one, so what is timed is Python's call, reading tensors and stream, the table and
the parameters. The best of 40 rounds of 5,000 calls counts: others are disturbed. Each way has a process of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).parent
WAYS = ("launcher", "stable", "ffi", "python", "torch.mm")


def compiled(source: str, *options: str) -> Path:
    path = Path(tempfile.mkdtemp()) / "built.so"
    with timed("build"):
        subprocess.run(["g++", "-std=c++17", "-O2", "-shared", "-fPIC", str(HERE / source), "-o", str(path), *options], check=True)
    return path


@contextlib.contextmanager
def timed(what: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    print(f"    {what} {1e3 * (time.perf_counter() - started):.1f} ms")


def way(name: str, driver: Path) -> Callable[..., object]:
    """A function of (operation, a, b, c)."""
    import torch

    ctypes.CDLL(str(driver), ctypes.RTLD_GLOBAL)
    include, lib = (Path(torch.__file__).parent / part for part in ("include", "lib"))
    if name == "python":
        return lambda op, *tensors: [(t.data_ptr(), t.shape, t.stride(), t.dtype, t.device) for t in tensors]
    if name == "torch.mm":
        return lambda op, a, b, c, mm=torch.mm: mm(a, b, out=c)
    if name == "stable":
        path = compiled("stable.cpp", "-DTORCH_TARGET_VERSION=0x0209000000000000", f"-I{include}", f"-L{lib}", "-ltorch_cpu", "-ltorch")
        with timed("load"):
            torch.ops.load_library(str(path))
        return torch.ops.kernelwright_comparison.launch.default
    if name == "ffi":
        found = importlib.util.find_spec("tvm_ffi")
        assert found is not None and found.origin is not None
        package = Path(found.origin).parent
        path = compiled("ffi.cpp", f"-I{package / 'include'}", f"-L{package / 'lib'}", "-ltvm_ffi")
        with timed("load"):
            import tvm_ffi  # pyright: ignore[reportMissingImports]

            return tvm_ffi.load_module(str(path)).launch
    from kernelwright.runtime.launcher import Launcher, build

    compiled(str(build.SOURCE), *build.options(), *(f"-l{library}" for library in build.LIBRARIES))
    build.binary()
    with timed("load"):
        build.load()
    return launcher_call(Launcher(str(driver), torch.Tensor.__dlpack_c_exchange_api__))  # pyright: ignore[reportAttributeAccessIssue]


def launcher_call(launcher) -> Callable[..., object]:
    """With everything a product of gemm_sm90 has: three tensor maps, a workspace, eight numbers, a cluster."""
    import torch

    sys.path.insert(0, str(HERE.parent.parent / "tests" / "runtime"))
    from fake_cuda import FakeCuda, kernels

    from kernelwright.records import Launch, LaunchPlan, ScalarArg, TensorMapArg, WorkspaceArg

    maps = [TensorMapArg(name=n, dims=(i, o), strides=(f"ld_{n} * 2",), box=(64, 64), swizzle="128B") for n, o, i in ("aMK", "bKN", "cMN")]
    args = (*maps, WorkspaceArg(), *[ScalarArg(ctype="i32", value="M")] * 8)
    one = Launch(kernel="k", args=args, grid=(2, 1, 1), block=(128, 1, 1), cluster=(2, 1, 1))
    t = {name: torch.empty(64, 64, dtype=torch.float16) for name in "abc"}
    plan = LaunchPlan(launches=(one,), workspace=4096, workspace_zeroed=True)
    with tempfile.TemporaryDirectory() as folder:
        found = kernels(FakeCuda(Path(folder)), {"k": [8]})
        launcher.register(1, t, plan, found, {"M": 64, "N": 64, "K": 64}, sms=132)
    return launcher.launch


def measure(name: str) -> None:
    with contextlib.redirect_stdout(None):
        driver = compiled("null_driver.cpp")
    call = way(name, driver)
    import torch

    size = (1, 1) if name == "torch.mm" else (64, 64)
    dtype = torch.float32 if name == "torch.mm" else torch.float16
    a, b, c = (torch.empty(size, dtype=dtype) for _ in range(3))
    call(1, a, b, c)
    served = call(1, a, b, c)
    assert served is True or name in ("python", "torch.mm")
    best = float("inf")
    for _ in range(40):
        started = time.perf_counter()
        for _ in range(5000):
            call(1, a, b, c)
        best = min(best, time.perf_counter() - started)
    print(f"    {best / 5000 * 1e9:.0f} ns a call")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        measure(sys.argv[1])
    else:
        for one in WAYS:
            print(one, flush=True)
            if one == "ffi" and importlib.util.find_spec("tvm_ffi") is None:
                print("    apache-tvm-ffi is not installed")
                continue
            subprocess.run([sys.executable, __file__, one], check=True)
