"""The launcher's extension: built once, whole, or a sentence that says why not."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig

import pytest

from kernelwright.runtime.launcher import build
from kernelwright.runtime.launcher.build import LauncherUnavailable, binary
from kernelwright.targets import cpu


@pytest.fixture
def compiler(monkeypatch):
    """Sets KERNELWRIGHT_CXX as a new process would see it."""

    def choose(path: str | None) -> None:
        cpu.compiler.cache_clear()
        cpu.compiler_version.cache_clear()
        if path is None:
            monkeypatch.setenv("PATH", "/nonexistent")
        else:
            monkeypatch.setenv("KERNELWRIGHT_CXX", path)

    yield choose
    cpu.compiler.cache_clear()
    cpu.compiler_version.cache_clear()


def test_it_is_built_once(home, monkeypatch):
    path = binary()
    assert path.parent == home / "builds" and path.is_file()
    monkeypatch.setattr(build, "_compile", None)
    assert binary() == path
    assert sorted(p.name for p in path.parent.iterdir()) == sorted(["launcher.lock", path.name])


def test_every_source_counts(home, monkeypatch, tmp_path):
    beside = shutil.copytree(build.SOURCE.parent, tmp_path / "launcher")
    monkeypatch.setattr(build, "SOURCE", beside / build.SOURCE.name)
    monkeypatch.setattr(build, "_compile", lambda stem, command, path: None)
    sources = [path for path in beside.iterdir() if path.suffix in (".cpp", ".h")]
    seen = {binary()}
    for path in sources:
        path.write_text(path.read_text() + "// changed")
        seen.add(binary())
    assert len(seen) == 1 + len(sources) and len(sources) > 2


def test_processes_that_start_together_build_one(home):
    code = "from kernelwright.runtime.launcher.build import load; print(load().__file__)"
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = {process.communicate()[0].strip() for process in started}
    assert [process.returncode for process in started] == [0, 0] and len(printed) == 1
    assert len(list((home / "builds").glob("launcher-*"))) == 1


def test_without_a_compiler_it_says_what_to_install(compiler):
    compiler(None)
    with pytest.raises(LauncherUnavailable, match=r"needs a C\+\+ compiler: install g\+\+"):
        binary()


def test_without_python_headers_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(LauncherUnavailable, match=r"no Python\.h\): install python3-dev"):
        binary()


def test_a_compiler_that_fails_leaves_nothing(compiler, home, tmp_path):
    broken = tmp_path / "broken-g++"
    broken.write_text("#!/bin/sh\necho no room for templates >&2\nexit 1\n")
    broken.chmod(0o755)
    compiler(str(broken))
    with pytest.raises(LauncherUnavailable, match=r"cannot build the launcher.*no room for templates"):
        binary()
    assert [p.name for p in (home / "builds").iterdir()] == ["launcher.lock"]


def test_a_home_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KERNELWRIGHT_HOME", str(tmp_path / "file"))
    with pytest.raises(LauncherUnavailable, match="KERNELWRIGHT_HOME"):
        binary()


def test_a_damaged_binary_is_named(home):
    path = binary()
    path.write_bytes(b"not a library")
    build.load.cache_clear()
    with pytest.raises(LauncherUnavailable, match="remove it"):
        build.load()
    build.load.cache_clear()
