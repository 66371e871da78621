"""What an untrusted contender's process may do: compute, in memory of its own, and nothing else.

`enter` confines the calling process for good; no root, no compiler, no other package is needed. Four layers, each of which holds alone:
- rlimits: address space, processor time, file size, open files, core dumps, tasks; the first to be killed when memory runs out;
- no_new_privs and no capabilities: what root may do beyond an ordinary user is gone;
- landlock: the file system is readable where Python, PyTorch and system libraries lie, writable in one private folder; also, its tracing
  rule keeps the process out of the memory of every process outside (`/proc/PID/mem`, `ptrace`), the judge's above all;
- seccomp: a BPF filter that denies new processes, exec, sockets, signals to others, tracing, mounting, clocks, kernel interfaces.
  Where the kernel lacks landlock, it denies every opening for writing as well; reading files is then not restricted.

The filter is loaded before any of the candidate's code: constructors of a library run when it is opened, and opening needs none of what is
denied. Threads work: `clone3` is ENOSYS, so that glibc falls back to `clone`, whose flags a filter can read.

Written against the kernel's own interfaces (linux/landlock.h, linux/seccomp.h): three system calls and forty instructions of BPF are less
than the packages that wrap them (pyseccomp needs libseccomp.so, which is not on every machine; landlock is a development release).

Bubblewrap is not used: it execs its program, and a contender on the CPU is a fork that shares buffers with the judge and starts in 5 ms
where a fresh interpreter with PyTorch needs 2 s. What it would add here is a process id namespace and an empty /proc: other processes'
names and command lines stay visible without. Signals to them, their memory and the network are closed off all the same.

What this does NOT protect against: bugs of the kernel, and side channels; load (memory bandwidth, caches) while the candidate runs; a full
disk, as 64 MiB a file are allowed and files are not counted.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
# Copies for this module alone: a Python candidate may patch ctypes or os, but by then nothing here is called any more.
_syscall, _prctl = _libc.syscall, _libc.prctl
_syscall.restype = ctypes.c_long

MEMORY = 8 << 30
"""Address space beyond what the process had mapped, bytes."""
FILE_BYTES = 64 << 20
CPU_SECONDS = 600
"""Of processor time for each thread allowed: a second line behind the judge's own time limits."""
OPEN_FILES = 256
TASKS = 2048
"""Threads beyond those of the whole machine at the start. Linux exempts root from this limit; an ordinary user's thread bomb ends there."""


class SandboxError(RuntimeError):
    """The machine refuses a layer that it offers; the message says which."""


def enter(private: Path, readable: Iterable[str | Path] = (), *, threads: int = 1) -> tuple[str, ...]:
    """Confines this process for good. Returns the layers reached, as `Environment.facts["isolation"]` names them.

    `private` is a folder, the only place where files can be written; `readable` are files or folders besides Python and its packages.
    """
    return (*restrict(private, readable, threads=threads), *seal(memory_files=False))


def restrict(
    private: Path,
    readable: Iterable[str | Path] = (),
    *,
    threads: int = 1,
    memory: int | None = MEMORY,
    devices: Iterable[str | Path] = (),
    programs: bool = False,
) -> tuple[str, ...]:
    """All but the filter. `memory` None: no limit of the address space (a GPU's driver reserves terabytes); `devices` are files, or folders
    of files, that can be written and controlled; with `programs` those of the system may be started, until `seal`."""
    layers = ["rlimits"]
    _limit(threads, memory)
    _check(_prctl(38, 1, 0, 0, 0), "no_new_privs")  # PR_SET_NO_NEW_PRIVS: landlock and seccomp ask for it of those who are not root
    _drop_capabilities()
    layers.append("no capabilities")
    if abi := landlock_abi():
        _landlock(abi, private, [*_system_paths(), *map(Path, readable)], list(map(Path, devices)), programs=programs)
        layers.append(f"landlock {abi}")
    return tuple(layers)


def seal(*, processes: bool = False, memory_files: bool = True) -> tuple[str, ...]:
    """The filter, for all threads of this process. With `processes` new ones may be made, until it is called again; without `memory_files`
    there are none in memory, which no limit of the address space counts (256 of 64 MiB each): where that is limited."""
    if not seccomp_available():
        return ()
    abi = landlock_abi()
    _seccomp(abi, processes=processes, memory_files=memory_files)
    return ("seccomp",) if abi else ("seccomp (no landlock: files can be read, none written)",)


def isolation(layers: Iterable[str]) -> str:
    return ", ".join(["own process", *layers])


@cache
def probe() -> tuple[str, ...]:
    """The layers that `enter` reaches on this machine, seen by entering in a forked child. Raises SandboxError."""
    read, write = os.pipe()
    with tempfile.TemporaryDirectory(prefix="kernelwright-") as private:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads: the child calls the kernel and exits
            pid = os.fork()
        if pid == 0:
            try:
                os.write(write, "\n".join(enter(Path(private))).encode())
            except BaseException as error:  # last line of the process
                os.write(write, f"none: {error}".encode())
            finally:
                os._exit(0)
        os.close(write)
        words = os.read(read, 4096).decode()
        os.close(read)
        os.waitpid(pid, 0)
    if words.startswith("none: "):
        raise SandboxError(words.removeprefix("none: "))
    return tuple(words.split("\n"))


def _check(result: int, what: str) -> int:
    if result < 0:
        raise SandboxError(f"the sandbox cannot be made: {what}: {os.strerror(ctypes.get_errno())}")
    return result


# ------------------------------------------------------------------------------------------------- limits and capabilities


def bound_memory(size: int) -> None:
    """So many bytes of address space beyond what this process has mapped."""
    with open("/proc/self/statm") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    _lower(resource.RLIMIT_AS, mapped + size)


def _lower(what: int, wanted: int) -> None:
    hard = resource.getrlimit(what)[1]
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(what, (limit, limit))


def _limit(threads: int, memory: int | None) -> None:
    if memory is not None:
        bound_memory(memory)
    with open("/proc/loadavg") as loadavg:
        tasks = int(loadavg.read().split()[3].split("/")[1])
    for what, wanted in (
        (resource.RLIMIT_CPU, CPU_SECONDS * threads),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_NPROC, tasks + TASKS),
        (resource.RLIMIT_CORE, 0),
    ):
        _lower(what, wanted)
    try:
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
    except OSError:
        pass  # a container may keep it; the address-space limit stands


def _drop_capabilities() -> None:
    """Empties the effective, permitted and inheritable sets; with no_new_privs nothing brings them back."""
    header = struct.pack("=Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
    _check(_libc.capset(header, bytes(24)), "dropping capabilities")


# ---------------------------------------------------------------------------------------------------------------- landlock

_RULESET, _ADD_RULE, _RESTRICT = 444, 445, 446
"""System call numbers, the same on all architectures."""
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_ACCESS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""What is handled, and so denied unless allowed: every right that the ABI knows, from execute (bit 0) over refer (13) and truncate (14) to
ioctl on devices (15)."""
_FILE_RIGHTS = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
"""Those that make sense for a file; a rule for a file must name no others."""


@cache
def landlock_abi() -> int:
    """The kernel's version of landlock; 0 where there is none."""
    return max(0, _syscall(_RULESET, None, ctypes.c_size_t(0), 1))


def _landlock(abi: int, private: Path, readable: list[Path], devices: Sequence[Path] = (), *, programs: bool = False) -> None:
    access = _ACCESS_BY_ABI[max(known for known in _ACCESS_BY_ABI if known <= abi)]
    # from ABI 4: TCP bind and connect; from ABI 6: no abstract sockets to, and no signals to, processes outside
    attributes = struct.pack("=QQQ", access, 3 if abi >= 4 else 0, 3 if abi >= 6 else 0)[: 24 if abi >= 6 else 16 if abi >= 4 else 8]
    ruleset = _check(_syscall(_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0), "landlock")
    try:
        for path in dict.fromkeys(readable):
            _allow(ruleset, path, (_READ_FILE | _READ_DIR | int(programs)) & access)
        for path in (Path(os.devnull), *devices):
            _allow(ruleset, path, (_READ_FILE | 1 << 1 | 1 << 14 | 1 << 15) & access)  # also by open with O_TRUNC, as fopen writes
        _allow(ruleset, private, access & ~(1 << 0 | 0b1111111 << 6) | 1 << 7 | 1 << 8)  # no devices, sockets, links; files and folders
        _check(_syscall(_RESTRICT, ruleset, 0), "landlock")
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # not on this machine
    try:
        if not os.path.isdir(f"/proc/self/fd/{fd}"):
            rights &= _FILE_RIGHTS
        _check(_syscall(_ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, fd), 0), f"landlock, {path}")
    finally:
        os.close(fd)


@cache
def _fixed_paths() -> tuple[Path, ...]:
    package = Path(__file__).resolve().parents[2]
    packages = [Path(p).resolve() for p in sys.path if p]
    here = Path.cwd()
    installed = {Path(p) for p in sysconfig.get_paths().values()}
    return (
        *(Path(p) for p in ("/usr", "/lib", "/lib64", "/sys/devices/system", "/sys/fs/cgroup", "/sys/kernel/mm")),
        *(Path("/etc") / name for name in ("ld.so.cache", "ld.so.conf", "localtime", "nsswitch.conf", "passwd")),
        *(Path("/proc") / name for name in ("cpuinfo", "meminfo", "stat", "loadavg", "filesystems", "version", "sys/vm", "sys/kernel")),
        *(Path("/dev") / name for name in ("zero", "full", "random", "urandom")),
        *(Path(p) for p in (sys.prefix, sys.base_prefix)),
        *(p for p in installed if p.is_dir()),
        # `python -m` puts the folder that the user works in first: its files are none of a candidate's business
        *(p for p in packages if p == package or p != here),
    )


def _system_paths() -> list[Path]:
    return [*_fixed_paths(), Path(f"/proc/{os.getpid()}")]


# ----------------------------------------------------------------------------------------------------------------- seccomp

_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_CLONE_THREAD = 0x10000

_DENIED = {
    "x86_64": {
        "new processes": (57, 58, 59, 322, 109),
        "processes": (272, 308, 112, 434, 424, 438),
        "sockets": (*range(41, 56), 288, 299, 307),
        "tracing and signals": (101, 310, 311, 312, 440, 448, 200, 129, 297),
        "the file system": (165, 166, 155, 161, *range(428, 434), 442, 303, 304, 133, 259, 300, 179, 167, 168),
        "attributes of files": (90, 91, 92, 93, 94, 260, 268, 132, 235, 261, 280, 188, 189, 190, 197, 198, 199),
        "clocks": (164, 227, 305, 159),
        "the kernel": (298, 321, 323, 425, 426, 427, 248, 249, 250, 169, 170, 171, 172, 173, 175, 176, 313, 246, 320, 163, 135, 103),
        "shared objects that outlive a process": (29, 30, 31, 64, 65, 66, 67, 68, 69, 70, 71, 220, *range(240, 246)),
        "scheduling": (203, 144, 142, 314, 141, 251, 238, 256, 279),
    },
    "aarch64": {
        "new processes": (221, 281, 154),
        "processes": (97, 268, 157, 434, 424, 438),
        "sockets": (*range(198, 213), 242, 243, 269),
        "tracing and signals": (117, 270, 271, 272, 440, 448, 130, 138, 240),
        "the file system": (40, 39, 41, 51, *range(428, 434), 442, 264, 265, 33, 262, 60, 224, 225),
        "attributes of files": (52, 53, 54, 55, 88, 5, 6, 7, 14, 15, 16),
        "clocks": (170, 112, 266, 171),
        "the kernel": (241, 280, 282, 425, 426, 427, 217, 218, 219, 142, 161, 162, 105, 106, 273, 104, 294, 89, 92, 116),
        "shared objects that outlive a process": (*range(186, 198), *range(180, 186)),
        "scheduling": (122, 119, 118, 274, 140, 30, 237, 238, 239),
    },
}
"""System calls that are refused (EPERM) whatever their arguments. Those of new processes hold setpgid, without which ninja starts no
compiler; a session (setsid) nobody leaves."""
_CALLS = (
    "clone",
    "clone3",
    "kill",
    "tgkill",
    "prctl",
    "prlimit64",
    "openat",
    "openat2",
    "seccomp",
    "truncate",
    "fcntl",
    "ioctl",
    "madvise",
    "memfd_create",
)
_NUMBERS = {
    "x86_64": dict(zip(_CALLS, (56, 435, 62, 234, 157, 302, 257, 437, 317, 76, 72, 16, 28, 319), strict=True)),
    "aarch64": dict(zip(_CALLS, (220, 435, 129, 131, 167, 261, 56, 437, 277, 45, 25, 29, 233, 279), strict=True)),
}
_WRITING = {
    # creat, rename, mkdir, rmdir, link, unlink, symlink, and their *at forms
    "x86_64": (85, 82, 83, 84, 86, 87, 88, 264, 258, 265, 263, 266, 316),
    "aarch64": (38, 34, 37, 35, 36, 276),
}
_NEWEST = 450
"""Calls that are younger than this list are ENOSYS, as on an older kernel."""
_PRCTL_ALLOWED = (2, 3, 15, 16, 21, 23, 30, 38, 39, 51, 64, 0x53564D41)
"""Asking, and naming threads and memory; not: outliving the parent (PDEATHSIG), hiding from the judge (DUMPABLE), letting others trace."""


_ARGUMENT_DENIED = {
    "fcntl": (1, (8, 10, 15, 1024, 1026)),
    "ioctl": (1, (0x8901, 0x8902, 0x5412)),
    "madvise": (2, (9,)),
}
"""By call: which argument, and its values that are refused. Whom a file signals, and how (F_SETOWN, F_SETSIG, F_SETOWN_EX, FIOSETOWN,
SIOCSPGRP: SIGKILL for the judge when a pipe can be read); leases and notices that hold up others' opening of a file (F_SETLEASE, F_NOTIFY);
words typed for others (TIOCSTI); freeing shared pages in every process (MADV_REMOVE): a rival's next run would pay for the page faults."""


def seccomp_available() -> bool:
    return platform.machine() in _ARCH and os.path.exists("/proc/sys/kernel/seccomp/actions_avail")


def _seccomp(abi: int, *, processes: bool, memory_files: bool) -> None:
    program = _program(platform.machine(), os.getpid(), abi=abi, processes=processes, memory_files=memory_files)

    class Filter(ctypes.Structure):
        _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

    filter_ = Filter(len(program) // 8, program)
    # SECCOMP_SET_MODE_FILTER with SECCOMP_FILTER_FLAG_TSYNC: threads that libraries have started meanwhile are confined as well
    _check(_syscall(_NUMBERS[platform.machine()]["seccomp"], 1, 1, ctypes.byref(filter_)), "seccomp")


def _program(machine: str, pid: int, *, abi: int, processes: bool, memory_files: bool = True) -> bytes:
    """The filter: `struct sock_filter` (code, jump if true, jump if false, k), 8 bytes each."""
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    number, args = 0, 16  # offsets in struct seccomp_data: nr, and the low halves of six 64-bit arguments
    out: list[tuple[int, int, int, int]] = []

    def refuse(code: int) -> tuple[int, int, int, int]:
        return give, 0, 0, _ERRNO | code

    def when(call: int, *body: tuple[int, int, int, int]) -> None:
        """`body` for one system call; it ends in a return. The accumulator holds the number before and after."""
        out.append((equal, 0, len(body), call))
        out.extend(body)

    def argument(index: int) -> tuple[int, int, int, int]:
        return load, 0, 0, args + 8 * index

    allow, deny = (give, 0, 0, _ALLOW), refuse(errno.EPERM)
    numbers = _NUMBERS[machine]
    out += [(load, 0, 0, 4), (equal, 1, 0, _ARCH[machine]), (give, 0, 0, _KILL), (load, 0, 0, number)]
    out += [(at_least, 0, 1, 0x40000000), (give, 0, 0, _KILL)]  # x86's x32 calls go by other numbers
    when(numbers["clone3"], refuse(errno.ENOSYS))
    when(numbers["openat2"], refuse(errno.ENOSYS))  # its flags lie in memory, where no filter can look
    out += [(at_least, 0, 1, _NEWEST + 1), refuse(errno.ENOSYS)]
    denied = [call for group, calls in _DENIED[machine].items() for call in calls if not (processes and group == "new processes")]
    if not processes:
        when(numbers["clone"], argument(0), (any_bit, 0, 1, _CLONE_THREAD), allow, deny)
        denied.append(numbers["seccomp"])
    for name in ("kill", "tgkill"):
        when(numbers[name], argument(0), (equal, 0, 1, pid), allow, deny)
    when(numbers["prlimit64"], argument(0), (equal, 1, 0, 0), (equal, 0, 1, pid), allow, deny)
    if not memory_files:
        denied.append(numbers["memfd_create"])
    for name, (index, values) in _ARGUMENT_DENIED.items():
        when(numbers[name], argument(index), *[(equal, len(values) - i, 0, value) for i, value in enumerate(values)], allow, deny)
    options = [(equal, len(_PRCTL_ALLOWED) - i, 0, option) for i, option in enumerate(_PRCTL_ALLOWED)]
    when(numbers["prctl"], argument(0), *options, deny, allow)
    if abi < 3:
        denied.append(numbers["truncate"])  # landlock does not know it yet
    if not abi:
        denied += _WRITING[machine]
        writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
        when(numbers["openat"], argument(2), (any_bit, 0, 1, writing), deny, allow)
        if machine == "x86_64":
            when(2, argument(1), (any_bit, 0, 1, writing), deny, allow)
    for call in denied:
        when(call, deny)
    out.append(allow)
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in out)
