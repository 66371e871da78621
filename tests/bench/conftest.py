"""A level of two small problems with answers, and a model's endpoint that is scripted."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "propose"))  # the scripted server

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def level(tmp_path) -> Path:
    """A checkout with the problems 2 (gelu) and 6 (degenerate) of the examples, and one that hangs when it is imported."""
    folder = tmp_path / "checkout" / "level1"
    folder.mkdir(parents=True)
    for file in (EXAMPLES / "kernelbench" / "level1").glob("[26]_*.py"):
        shutil.copy(file, folder)
    return folder.parent


@pytest.fixture
def endpoint(monkeypatch):
    def use(server, **more: str) -> None:
        monkeypatch.setenv("KERNELWRIGHT_LLM_URL", server.url)
        monkeypatch.setenv("KERNELWRIGHT_LLM_MODELS", "writer=1/10")
        for name, value in more.items():
            monkeypatch.setenv(f"KERNELWRIGHT_LLM_{name}", value)

    return use
