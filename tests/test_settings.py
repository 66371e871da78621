from __future__ import annotations

import errno
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.settings import VARIABLES, SettingsError, settings, writable

ROOT = Path(__file__).parents[1]


def test_defaults_follow_xdg():
    assert settings({"XDG_CACHE_HOME": "/x/cache"}).home == Path("/x/cache/kernelwright")
    assert settings({}).home == Path.home() / ".cache" / "kernelwright"
    assert settings({"XDG_CACHE_HOME": "relative"}).home == Path.home() / ".cache" / "kernelwright"


def test_home_holds_everything(tmp_path):
    s = settings({"KERNELWRIGHT_HOME": str(tmp_path), "XDG_CACHE_HOME": "/elsewhere"})
    assert (s.builds, s.peaks, s.archive) == (tmp_path / "builds", tmp_path / "peaks", tmp_path / "archive.db")
    assert (s.cxx, s.threads) == (None, 1)


def test_every_variable_has_an_effect(tmp_path):
    base = settings({})
    values = {
        "KERNELWRIGHT_HOME": str(tmp_path),
        "KERNELWRIGHT_ARCHIVE": "~/mine.db",
        "KERNELWRIGHT_CXX": "clang++",
        "KERNELWRIGHT_THREADS": "4",
        "KERNELWRIGHT_CUBLASLT_SECONDS": "2.5",
        "KERNELWRIGHT_DISABLE": "1",
        "KERNELWRIGHT_PACK": "~/my-pack",
    }
    assert set(values) == {v.name for v in VARIABLES}
    for name, value in values.items():
        assert settings({name: value}) != base, name
        assert settings({name: "  "}) == base, f"an empty {name} counts as unset"
    assert settings(values).archive == Path.home() / "mine.db" and settings(values).pack == Path.home() / "my-pack"
    assert settings(values).threads == 4 and settings(values).cublaslt_seconds == 2.5


def test_paths_are_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert settings({"KERNELWRIGHT_HOME": "here/../there"}).home == tmp_path / "there"


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "99999999999", "1e3", "²"])
def test_bad_thread_counts_get_one_sentence(text):
    with pytest.raises(SettingsError, match=r"KERNELWRIGHT_THREADS=.* integer from 1 to") as error:
        settings({"KERNELWRIGHT_THREADS": text})
    assert "\n" not in str(error.value)


def test_a_bad_switch_gets_one_sentence():
    with pytest.raises(SettingsError, match="KERNELWRIGHT_DISABLE='yes' is no switch; set it to 1 or 0"):
        settings({"KERNELWRIGHT_DISABLE": "yes"})


@pytest.mark.parametrize("text", ["0", "-1", "two", "inf", "nan"])
def test_a_bad_search_time_gets_one_sentence(text):
    with pytest.raises(SettingsError, match=r"KERNELWRIGHT_CUBLASLT_SECONDS=.* seconds above 0"):
        settings({"KERNELWRIGHT_CUBLASLT_SECONDS": text})


def test_unknown_user_in_path():
    with pytest.raises(SettingsError, match="KERNELWRIGHT_HOME"):
        settings({"KERNELWRIGHT_HOME": "~no-such-user-here/x"})


def test_writable_makes_the_folder_and_leaves_nothing(tmp_path):
    folder = writable(tmp_path / "a" / "b")
    assert folder.is_dir() and not list(folder.iterdir())


def test_writable_refuses_a_file_in_the_way(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "sub"):
        with pytest.raises(SettingsError, match="a file is in its way; set KERNELWRIGHT_HOME"):
            writable(path)


def test_writable_refuses_a_read_only_place():
    # /proc refuses everyone, root included.
    with pytest.raises(SettingsError, match="set KERNELWRIGHT_ARCHIVE to a folder that can be written"):
        writable(Path("/proc/kernelwright"), "KERNELWRIGHT_ARCHIVE")


def test_a_full_disk_is_named(monkeypatch, tmp_path):
    def full(**_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("kernelwright.settings.tempfile.TemporaryFile", full)
    with pytest.raises(SettingsError, match=r"the disk that holds .* is full; set KERNELWRIGHT_HOME"):
        writable(tmp_path)


def test_nobody_else_reads_the_environment():
    """Writing a variable for a child process is allowed, and so is handing the whole environment on."""
    reads = re.compile(r"os\.getenv|os\.environ\.get|in os\.environ|os\.environ\[[^]]+\](?! = )")
    readers = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py") if reads.search(path.read_text())}
    assert readers <= {"kernelwright/settings.py"}


def test_import_is_light():
    code = "import sys, kernelwright.settings; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
