from __future__ import annotations

import errno
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.settings import SettingsError, child_environment, settings, writable

ROOT = Path(__file__).parents[1]
VARIABLES = set(re.findall(r"KERNELWRIGHT_[A-Z_]*[A-Z]", (ROOT / "src/kernelwright/settings.py").read_text()))


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
        "KERNELWRIGHT_POLICY": "~/my-policy.safetensors",
        "KERNELWRIGHT_LLM_URL": "http://localhost:8000/v1/",
        "KERNELWRIGHT_LLM_MODELS": "small, large=1.25/10",
        "KERNELWRIGHT_LLM_KEY": "k-123",
        "KERNELWRIGHT_LLM_TOKENS": "5000",
        "KERNELWRIGHT_LLM_DOLLARS": "2.5",
        "KERNELWRIGHT_LLM_ANSWER_TOKENS": "100",
        "KERNELWRIGHT_LLM_CONCURRENCY": "2",
        "KERNELWRIGHT_LLM_SECONDS": "10",
        "KERNELWRIGHT_LLM_EXEMPLARS": "islands",
        "KERNELWRIGHT_LLM_PROMPT": "brief",
    }
    assert set(values) == VARIABLES
    for name, value in values.items():
        assert settings({name: value}) != base, name
        assert settings({name: "  "}) == base, f"an empty {name} counts as unset"
    priced = values | {"KERNELWRIGHT_LLM_MODELS": "small=0/0, large=1.25/10"}
    llm = settings(priced).llm
    assert (llm.url, llm.models, llm.prices["large"]) == ("http://localhost:8000/v1", ("small", "large"), (1.25, 10.0))
    assert (llm.tokens, llm.dollars, llm.answer_tokens, llm.concurrency, llm.seconds) == (5000, 2.5, 100, 2, 10.0)
    assert llm.key == "k-123" and "k-123" not in repr(settings(priced))
    with pytest.raises(SettingsError, match="the price of small is not known"):
        settings(values)
    del values["KERNELWRIGHT_LLM_DOLLARS"]
    assert settings(values).archive == Path.home() / "mine.db" and settings(values).pack == Path.home() / "my-pack"
    assert settings(values).threads == 4 and settings(values).cublaslt_seconds == 2.5


def test_every_variable_is_documented():
    page = (ROOT / "docs/quick-start.md").read_text()
    assert [name for name in VARIABLES if f"`{name}`" not in page] == []


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


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("URL", "localhost:8000", "no base URL"),
        ("URL", "http://me:secret@host/v1", "put the key into"),
        ("URL", "https://host/v1?key=secret", "put the key into"),
        ("MODELS", "a=cheap", "is not NAME or NAME=IN/OUT"),
        ("MODELS", "a=1/-2", "is not NAME or NAME=IN/OUT"),
        ("KEY", "a\nb", "characters that no key has"),
        ("TOKENS", "0", "integer from 1"),
        ("TOKENS", "9" * 13, "integer from 1"),
        ("TOKENS", "9" * 5000, "integer from 1"),
        ("DOLLARS", "-1", "dollars above 0"),
        ("CONCURRENCY", "many", "integer from 1 to 256"),
        ("EXEMPLARS", "best", "buckets, islands, random or none"),
    ],
)
def test_bad_llm_settings_get_one_sentence(name, text, says):
    with pytest.raises(SettingsError, match=says) as error:
        settings({f"KERNELWRIGHT_LLM_{name}": text})
    assert "secret" not in str(error.value) and "\n" not in str(error.value)


def test_processes_that_we_start_do_not_get_the_key(monkeypatch):
    monkeypatch.setenv("KERNELWRIGHT_LLM_KEY", "k-123")
    assert "KERNELWRIGHT_LLM_KEY" not in child_environment({"A": "1"}) and child_environment({"A": "1"})["A"] == "1"


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
