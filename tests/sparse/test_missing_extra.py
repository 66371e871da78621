"""Without the extra, what needs it says which one to install, and all else works."""

from __future__ import annotations

import sys

import pytest

from kernelwright import sparse
from kernelwright.sparse import hf


def test_missing_libraries_are_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(sparse.MissingExtra, match=r"safetensors is not installed; run: pip install 'kernelwright\[sparse\]'"):
        sparse.load_file(tmp_path / "x.safetensors")
    monkeypatch.setitem(sys.modules, "transformers", None)
    for part in ("", ".auto", ".base"):
        monkeypatch.setitem(sys.modules, f"transformers.quantizers{part}", None)
    monkeypatch.setattr(hf, "register", hf.register.__wrapped__)
    with pytest.raises(sparse.MissingExtra, match=r"transformers is not installed.*pip install 'kernelwright\[sparse\]'"):
        sparse.from_pretrained(tmp_path)
