"""The public names: sorted, all there, and cheap to import."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kernelwright


def test_the_list_is_sorted_and_every_name_resolves():
    assert kernelwright.__all__ == sorted(set(kernelwright.__all__))
    for name in kernelwright.__all__:
        assert getattr(kernelwright, name) is not None


def test_other_names_say_what_there_is():
    with pytest.raises(AttributeError, match="optimize"):
        kernelwright.optimise  # noqa: B018


def test_importing_needs_nothing_heavy():
    code = "import kernelwright, sys; assert not {'torch', 'numpy', 'msgspec'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_functions_of_torch_bring_little_along():
    code = "import kernelwright as kw, sys; kw.matmul; assert not {'msgspec', 'kernelwright.runtime.engine'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
