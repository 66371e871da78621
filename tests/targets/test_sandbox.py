"""What a confined process can no longer do; each attempt is made for real, in a forked child."""

from __future__ import annotations

import json
import os
import platform
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kernelwright.targets import sandbox

ATTEMPTS = {
    "fork": "os.fork()",
    "vfork or exec": "os.posix_spawn('/bin/true', ['true'], {})",
    "exec": "os.execv('/bin/true', ['true'])",
    "a socket": "socket.socket()",
    "a pair of sockets": "socket.socketpair()",
    "writing in /tmp": "open(outside, 'w')",
    "writing beside the package": "open(os.path.join(os.path.dirname(sandbox.__file__), 'x'), 'w')",
    "reading a file of the user's": "open(secret).read()",
    "listing the home folder": "os.listdir(os.path.expanduser('~'))",
    "reading the parent's memory": "open(f'/proc/{os.getppid()}/mem', 'rb')",
    "reading the parent's environment": "open(f'/proc/{os.getppid()}/environ', 'rb').read()",
    "a signal to the parent": "os.kill(os.getppid(), signal.SIGCONT)",
    "a signal to the group": "os.kill(0, signal.SIGCONT)",
    "a signal to the parent by way of a pipe": "fcntl.fcntl(os.pipe()[0], 8, os.getppid())",
    "choosing that signal": "fcntl.fcntl(os.pipe()[0], 10, signal.SIGKILL)",
    "a lease of a file": "fcntl.fcntl(os.open(os.__file__, os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK)",
    "freeing pages that others share": "mmap.mmap(-1, 1 << 20).madvise(mmap.MADV_REMOVE)",
    "a file in memory": "os.memfd_create('more')",
    "leaving the group": "os.setsid()",
    "other cores": "os.sched_setaffinity(0, range(64))",
    "changing attributes": "os.chmod(secret, 0o777)",
    "the clock": "time.clock_settime(time.CLOCK_REALTIME, 1)",
    "being root": "os.setuid(1)",
    "outliving the parent": "check(libc.prctl(1, 0, 0, 0, 0))",
    "ptrace": "check(libc.ptrace(16, os.getppid(), 0, 0))",
    "unshare": "check(libc.unshare(0x10000000))",
    "shared memory that stays": "check(libc.shmget(4711, 4096, 0o1600))",
    "the limits of the parent": "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    "eight gigabytes too many": "bytearray(12 << 30)",
}
ALLOWED = {
    "a file of its own": "open(os.path.join(private, 'a'), 'w').write('x')",
    "folders of its own": "os.makedirs(os.path.join(private, 'b', 'c')); os.rename(os.path.join(private, 'b'), os.path.join(private, 'd'))",
    "/dev/null": "open(os.devnull, 'w').write('x')",
    "threads": "t = threading.Thread(target=len, args=('',)); t.start(); t.join()",
    "importing": "import wave, numpy.fft",
    "facts of the machine": "[open(p).read() for p in ('/proc/cpuinfo', '/proc/meminfo', '/proc/self/maps')]; os.cpu_count()",
    "flags of a pipe": "fcntl.fcntl(os.pipe()[0], fcntl.F_SETFL, os.O_NONBLOCK)",
    "giving pages of its own back": "mmap.mmap(-1, 1 << 20).madvise(mmap.MADV_DONTNEED)",
    "a signal to itself": "os.kill(os.getpid(), 0)",
    "a product on threads": "torch.set_num_threads(2); torch.ones(500, 500) @ torch.ones(500, 500)",
}
PROGRAM = """
import ctypes, fcntl, json, mmap, os, pathlib, resource, signal, socket, sys, threading, time
import torch
from kernelwright.targets import sandbox
secret, outside, private, attempts = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
layers = sandbox.enter(pathlib.Path(private), threads=2)
seen = {"layers": layers}
for name, code in json.loads(attempts).items():
    try:
        exec(code)
        seen[name] = "done"
    except (OSError, MemoryError, ValueError) as error:
        seen[name] = type(error).__name__
print(json.dumps(seen), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outside")
    secret, outside, private = folder / "secret", folder / "written", tmp_path_factory.mktemp("private")
    secret.write_text("my own")
    arguments = [str(secret), str(outside), str(private), json.dumps(ATTEMPTS | ALLOWED)]
    environment = os.environ | {"PYTHONPATH": str(Path(sandbox.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, cwd=folder, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert not outside.exists()
    found = json.loads(done.stdout)
    if "seccomp" not in found["layers"] or not any(layer.startswith("landlock") for layer in found["layers"]):
        pytest.skip(f"this kernel offers only {found['layers']}")
    return found


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_it_cannot(seen, attempt):
    assert seen[attempt] in ("PermissionError", "OSError", "MemoryError"), f"{attempt}: {ATTEMPTS[attempt]} was done"


@pytest.mark.parametrize("attempt", ALLOWED)
def test_it_can(seen, attempt):
    assert seen[attempt] == "done"


def test_the_probe_says_what_entering_reaches(seen):
    assert list(sandbox.probe()) == seen["layers"]
    assert sandbox.isolation(seen["layers"]).startswith("own process, rlimits, ")


def test_without_landlock_nothing_is_written(tmp_path):
    """The filter alone, as on a kernel without landlock."""
    program = f"""
    import os, pathlib
    from kernelwright.targets import sandbox
    sandbox.landlock_abi = lambda: 0
    layers = sandbox.enter(pathlib.Path({str(tmp_path)!r}))
    assert "files can be read" in layers[-1], layers
    open("/proc/cpuinfo").read()
    at = "{tmp_path}/x"
    for attempt in ("open(at, 'w')", "os.open(at, os.O_CREAT | os.O_RDWR)", "os.mkdir(at)", "os.symlink('/tmp', at)"):
        try:
            eval(attempt)
        except PermissionError:
            continue
        raise SystemExit("written")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())


def interpret(program: bytes, arch: int, number: int, *arguments: int) -> int:
    """Runs a filter as the kernel would: the action for a system call."""
    data = struct.pack("=IIQ6Q", number, arch, 0, *(list(arguments) + [0] * 6)[:6])
    code = list(struct.iter_unpack("=HBBI", program))
    accumulator = at = 0
    while True:
        op, yes, no, k = code[at]
        at += 1
        match op:
            case 0x20:
                accumulator = struct.unpack_from("=I", data, k)[0]
            case 0x06:
                return k
            case 0x15:
                at += yes if accumulator == k else no
            case 0x35:
                at += yes if accumulator >= k else no
            case 0x45:
                at += yes if accumulator & k else no
            case _:
                raise AssertionError(f"unknown instruction {op:#x}")


NAMING = """
import sys, threading
from pathlib import Path
from kernelwright.targets.python_process import restrict
restrict(Path(sys.argv[1]), gpu=True)
def name():
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("named")
    print(Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text())
one = threading.Thread(target=name)
one.start()
one.join()
try:
    Path(sys.argv[2]).write_text("x")
except PermissionError:
    print("denied")
"""


def test_on_a_gpu_threads_can_be_named(tmp_path):
    """As libcuda does: cuInit fails where it cannot."""
    (tmp_path / "private").mkdir()
    command = [sys.executable, "-c", NAMING, str(tmp_path / "private"), str(tmp_path / "other")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["named", *(["denied"] if sandbox.landlock_abi() else [])], done.stderr


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_of_both_architectures(machine):
    """Also of the one that this machine is not."""
    program, arch, numbers = sandbox._program(machine, 77, abi=7, processes=False), sandbox._ARCH[machine], sandbox._NUMBERS[machine]
    allow, deny, absent = 0x7FFF0000, 0x00050001, 0x00050026
    assert len(program) // 8 < 4096  # BPF_MAXINSNS

    def action(name: str, *arguments: int) -> int:
        return interpret(program, arch, numbers[name], *arguments)

    assert action("clone", 0x3D0F00) == allow and action("clone", 17) == deny
    assert action("clone3") == absent and action("openat2") == absent
    assert action("kill", 77, 9) == allow and action("kill", 1, 9) == deny and action("kill", 2**32 - 1, 9) == deny
    assert action("prlimit64", 0) == allow and action("prlimit64", 77) == allow and action("prlimit64", 5) == deny
    assert action("fcntl", 3, 4) == allow and action("fcntl", 3, 8) == deny and action("fcntl", 3, 1026) == deny
    assert action("madvise", 0, 0, 4) == allow and action("madvise", 0, 0, 9) == deny and action("ioctl", 3, 0x8902) == deny
    strict = sandbox._program(machine, 77, abi=7, processes=False, memory_files=False)
    assert interpret(strict, arch, numbers["memfd_create"]) == deny and action("memfd_create") == allow
    assert action("prctl", 15) == allow and action("prctl", 1) == deny and action("prctl", 4) == deny
    for group in sandbox._DENIED[machine].values():
        assert all(interpret(program, arch, call) == deny for call in group)
    assert interpret(program, arch, 460) == absent
    assert interpret(program, 0x40000003, 1) == 0x80000000, "another architecture's calls have other meanings"
    assert action("seccomp") == deny
    early = sandbox._program(machine, 77, abi=7, processes=True)
    started = [numbers["clone"], numbers["seccomp"], *sandbox._DENIED[machine]["new processes"]]
    assert all(interpret(early, arch, call, 17) == allow for call in started), "a compiler may run, and the filter may be completed"
    assert interpret(early, arch, sandbox._DENIED[machine]["sockets"][0]) == deny
    assert interpret(sandbox._program(machine, 77, abi=2, processes=False), arch, numbers["truncate"]) == deny
    reads = {"x86_64": (0, 1, 2, 3, 9, 10, 11, 202, 257), "aarch64": (63, 64, 56, 57, 222, 226, 215, 98)}[machine]
    assert all(interpret(program, arch, call) == allow for call in reads)


def test_names_of_this_machines_calls():
    """The numbers are those of the C library's headers, where such are installed."""
    if platform.machine() not in sandbox._NUMBERS:
        pytest.skip("no filter for this architecture")
    try:
        text = subprocess.run(
            ["cc", "-E", "-dM", "-include", "sys/syscall.h", "-x", "c", "/dev/null"], capture_output=True, text=True
        ).stdout
    except OSError:
        pytest.skip("no C compiler")
    defined = dict(line.split()[1:3] for line in text.splitlines() if line.startswith("#define __NR_") and len(line.split()) == 3)
    for name, number in sandbox._NUMBERS[platform.machine()].items():
        assert int(defined[f"__NR_{name}"]) == number
    numbers = {int(n): name.removeprefix("__NR_") for name, n in defined.items() if n.isdigit()}
    denied = sandbox._DENIED[platform.machine()]
    for name in ("fork", "vfork", "execve", "execveat", "unshare", "setns", "setsid", "pidfd_open", "pidfd_getfd"):
        assert name not in numbers.values() or name in [numbers.get(n) for n in denied["processes"] + denied["new processes"]]
    for group, word in (("sockets", "socket"), ("tracing and signals", "ptrace"), ("the file system", "mount"), ("the kernel", "bpf")):
        assert word in [numbers.get(n) for n in denied[group]]


def test_a_machine_that_refuses_says_so(monkeypatch):
    monkeypatch.setattr(sandbox, "_syscall", lambda *_: -1)
    with pytest.raises(sandbox.SandboxError, match="landlock"):
        sandbox._landlock(1, sandbox.Path("/tmp"), [])
