"""SwizzledTile's claims, checked for every tile width by the host compiler on the real header."""

from __future__ import annotations

import ctypes
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

DEVICE = Path(__file__).parents[2] / "src" / "kernelwright" / "device"
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32)
ROWS = 32


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("layout")
    functions = "".join(
        f'extern "C" int offset_{w}(int row, int chunk) {{ return kw::SwizzledTile<{ROWS}, {w}>::offset(row, chunk); }}\n' for w in WIDTHS
    )
    tile = (
        'extern "C" int tile(int block, int tiles_m, int tiles_n, int group)'
        " { auto t = kw::grouped_tile(block, tiles_m, tiles_n, group); return t.m * 1000 + t.n; }\n"
        'extern "C" int hilbert(int block, int tiles_m, int tiles_n)'
        " { auto t = kw::hilbert_tile(block, tiles_m, tiles_n); return t.m * 1000 + t.n; }\n"
    )
    source = folder / "layout.cpp"
    macros = "#define __host__\n#define __device__\n#define __forceinline__ inline\n"
    source.write_text(f'{macros}#include "{DEVICE / "layout.cuh"}"\n{functions}{tile}')
    subprocess.run(["g++", "-std=c++17", "-shared", "-fPIC", str(source), "-o", str(folder / "layout.so")], check=True)
    return ctypes.CDLL(str(folder / "layout.so"))


@pytest.mark.parametrize("width", WIDTHS)
def test_swizzle_permutes_chunks_and_spreads_eight_rows_over_all_banks(library: ctypes.CDLL, width: int) -> None:
    offset = getattr(library, f"offset_{width}")
    all_offsets = {offset(row, chunk) for row in range(ROWS) for chunk in range(width)}
    assert all_offsets == {16 * i for i in range(ROWS * width)}
    for first in range(0, ROWS, 8):
        for chunk in range(width):
            groups = {offset(row, chunk) // 16 % 8 for row in range(first, first + 8)}
            assert len(groups) == 8


@pytest.mark.parametrize("group", [1, 3, 4, 8, 16])
def test_grouped_raster_visits_every_tile_once(library: ctypes.CDLL, group: int) -> None:
    tiles_m, tiles_n = 11, 5
    seen = [library.tile(block, tiles_m, tiles_n, group) for block in range(tiles_m * tiles_n)]
    assert sorted(seen) == [m * 1000 + n for m in range(tiles_m) for n in range(tiles_n)]
    assert [s // 1000 for s in seen[: min(group, tiles_m)]] == list(range(min(group, tiles_m)))  # down a column first


GRIDS = [(m, n) for m in range(1, 20) for n in range(1, 20)] + [(33, 17), (17, 33), (64, 64), (1, 300), (300, 2), (100, 37)]


def test_hilbert_raster_visits_every_tile_once(library: ctypes.CDLL) -> None:
    for tiles_m, tiles_n in GRIDS:
        seen = [library.hilbert(block, tiles_m, tiles_n) for block in range(tiles_m * tiles_n)]
        assert sorted(seen) == [m * 1000 + n for m in range(tiles_m) for n in range(tiles_n)], (tiles_m, tiles_n)


@pytest.mark.parametrize(("tiles_m", "tiles_n"), [(32, 32), (8, 48), (64, 16)])
def test_hilbert_raster_goes_from_neighbour_to_neighbour_and_fills_squares(library: ctypes.CDLL, tiles_m: int, tiles_n: int) -> None:
    seen = [divmod(library.hilbert(block, tiles_m, tiles_n), 1000) for block in range(tiles_m * tiles_n)]
    assert all(abs(m - m2) + abs(n - n2) == 1 for (m, n), (m2, n2) in pairwise(seen))
    for side in (2, 4, 8):
        for first in range(0, len(seen), side * side):
            run = seen[first : first + side * side]
            assert len({(m // side, n // side) for m, n in run}) == 1
