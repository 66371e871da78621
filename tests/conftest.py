"""Every test has a home folder of its own: no test sees another's builds or archive, nor the user's."""

from __future__ import annotations

import os
import signal

import pytest


def pytest_configure():
    """What a script starts in the background ignores Ctrl-C, and so would all that the tests start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    path = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("KERNELWRIGHT_HOME", str(path))
    for name in ("KERNELWRIGHT_ARCHIVE", "KERNELWRIGHT_CXX", "KERNELWRIGHT_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name in [name for name in os.environ if name.startswith("KERNELWRIGHT_LLM_")]:
        monkeypatch.delenv(name)
    return path


def pytest_collection_modifyitems(items):
    """Tests marked `gpu` are skipped where no GPU is usable, so that plain `pytest` works anywhere."""
    from kernelwright.targets import target

    if not any(item.get_closest_marker("gpu") for item in items) or target("cuda").unavailable() is None:
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no usable GPU"))
