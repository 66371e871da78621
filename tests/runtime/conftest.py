from __future__ import annotations

import pytest
from server import Server

from kernelwright.runtime import ops


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """Serves every product that operators ask for."""
    made = Server()
    monkeypatch.setattr(ops, "serve", made)
    return made
