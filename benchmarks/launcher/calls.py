"""What kw.matmul and its like cost on the host, from Python to a CUDA driver that does nothing, beside torch's functions on the CPU.

    python benchmarks/launcher/calls.py            needs g++ and NVRTC; no GPU

This machine's memory stands in for a GPU's: kernels of a pack, its dispatcher and the launcher are the real ones, with a null driver below.
The processor's time of the best of 40 rounds of 2,000 calls counts: others are disturbed. torch multiplies matrices of 1x1, so that its
time is that of a call.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent.parent / "tests" / "runtime"), str(HERE.parent.parent / "tests")]
CPU = torch.device("cpu")
SERVED = ("gemm:64x32x64:fp16:nn", "linear:64x32x64:fp16:nt:bias", "linear:64x32x64:fp16:nt:bias+gelu")


def serve(folder: Path) -> None:
    """Has this machine's memory served from a pack of three kernels."""
    from fake_cuda import FakeCuda, kernels

    from kernelwright.families import DeviceFacts, family
    from kernelwright.problems import resolve
    from kernelwright.records import Environment
    from kernelwright.runtime import engine, ops
    from kernelwright.runtime.launcher import Launcher
    from made_up import made_up_pack

    h200 = DeviceFacts(target="cuda:sm_90", sms=132, smem_per_block=227 * 1024, l2_bytes=60 * 2**20)
    whole_k = family("gemm_sm90_whole_k")
    made = [(name, whole_k.render(whole_k.seeds(w := resolve(name), h200)[0], w, h200)) for name in SERVED]
    pack = made_up_pack(folder / "p", "cuda:sm_90", Environment(target="cuda:sm_90", device="NVIDIA H200", host="none"), made)
    driver = folder / "null_driver.so"
    subprocess.run(["g++", "-std=c++17", "-O2", "-shared", "-fPIC", str(HERE / "null_driver.cpp"), "-o", str(driver)], check=True)
    ctypes.CDLL(str(driver), ctypes.RTLD_GLOBAL)
    launcher, fake = Launcher(str(driver), torch.Tensor.__dlpack_c_exchange_api__), FakeCuda(folder)  # pyright: ignore[reportAttributeAccessIssue]
    launcher.kernels = lambda artifact, device: lambda name: kernels(fake, {name: [8]})(name)
    one = engine.Engine(pack, CPU, launcher, 132)
    engine._engines[CPU] = one
    ops.serve = engine.serve
    if hasattr(one, "hasten"):  # earlier versions had no first question to the launcher: measure them with this file too
        one.hasten()


def ways() -> dict[str, Callable[[], object]]:
    import kernelwright as kw

    a, b, weight, bias, c = (torch.randn(s).half() for s in ((64, 64), (64, 32), (32, 64), (32,), (64, 32)))
    turned, stacked = weight.t(), a.view(4, 16, 64)
    tiny = [torch.ones(1, 1, dtype=torch.float16) for _ in range(3)]  # of which the pack has no kernel
    return {
        "kw.matmul(a, b, out=c)": lambda: kw.matmul(a, b, out=c),
        "kw.matmul(a, b)": lambda: kw.matmul(a, b),
        "kw.matmul(a, b), a of three axes": lambda: kw.matmul(stacked, b),
        "kw.linear(x, weight, bias)": lambda: kw.linear(a, weight, bias),
        'kw.linear(x, weight, bias, "gelu")': lambda: kw.linear(a, weight, bias, "gelu"),
        "kw.addmm(bias, x, weight.t())": lambda: kw.addmm(bias, a, turned),
        "kw.matmul(a, b) of 1x1, which is the library's": lambda: kw.matmul(*tiny[:2]),
        "torch.matmul(a, b, out=c) of 1x1": lambda: torch.matmul(*tiny[:2], out=tiny[2]),
        "torch.matmul(a, b) of 1x1": lambda: torch.matmul(*tiny[:2]),
        "torch.nn.functional.linear(x, weight) of 1x1": lambda: torch.nn.functional.linear(*tiny[:2]),
    }


def best(call: Callable[[], object], calls: int = 2000) -> float:
    """Microseconds."""
    call()
    found = float("inf")
    for _ in range(40):
        started = time.thread_time()
        for _ in range(calls):
            call()
        found = min(found, time.thread_time() - started)
    return found / calls * 1e6


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        serve(Path(folder))
        for gradients in (True, False):
            torch.set_grad_enabled(gradients)
            print(f"gradients {'on, though no tensor wants one' if gradients else 'off'}")
            for name, call in ways().items():
                print(f"    {best(call):5.2f} us  {name}", flush=True)


if __name__ == "__main__":
    main()
