"""gemm_sm90's Schedule, compiled for the host: every step of every tile once, in even shares whose parts meet by different numbers."""

from __future__ import annotations

import ctypes
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

SOURCE = Path(__file__).parents[2] / "src" / "kernelwright"
KINDS = {"tiles": (1, 0), "split_3": (3, 0), "stream": (1, 1), "two_tile": (1, 2)}
"""(SplitK, SharedWaves)."""
WALK = """
extern "C" int walk_{name}(int tiles, int k_steps, int cluster, int clusters, int* out) {{
    Schedule<{split}, {waves}> work(tiles, k_steps, cluster, clusters);
    int count = 0;
    while (work.more()) {{
        Item item = work.next();
        int first = 0, parts = 1;
        if constexpr (work.cuts)
            if (item.steps < k_steps) first = work.meeting(item.tile).first, parts = work.meeting(item.tile).count;
        int row[] = {{item.tile, item.begin, item.steps, item.share, first, parts}};
        for (int x : row) *out++ = x;
        count++;
    }}
    return count;
}}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("schedule")
    walks = "".join(WALK.format(name=name, split=split, waves=waves) for name, (split, waves) in KINDS.items())
    source = folder / "schedule.cpp"
    macros = "#define __host__\n#define __device__\n#define __forceinline__ inline\n"
    source.write_text(f'{macros}#include "{SOURCE}/families/gemm_sm90/schedule.cuh"\n{walks}')
    (folder / "kernelwright").symlink_to(SOURCE / "device")
    command = ["g++", "-std=c++17", "-shared", "-fPIC", f"-I{folder}", str(source), "-o", str(folder / "schedule.so")]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / "schedule.so"))


def walk(library: ctypes.CDLL, kind: str, tiles: int, k_steps: int, clusters: int) -> list[list[tuple[int, ...]]]:
    """Of each cluster, its items in order: tile, first step, steps, share, the first share of the tile, shares of the tile."""
    room = (ctypes.c_int * (6 * (tiles * 4 + 4)))()
    found = []
    for cluster in range(clusters):
        count = getattr(library, f"walk_{kind}")(tiles, k_steps, cluster, clusters, room)
        found.append([tuple(room[6 * i : 6 * i + 6]) for i in range(count)])
    return found


@pytest.mark.parametrize("kind", KINDS)
@given(tiles=st.integers(1, 300), k_steps=st.integers(3, 70), clusters=st.integers(1, 140))
@example(tiles=561, k_steps=17, clusters=132)
@example(tiles=16, k_steps=128, clusters=132)
@example(tiles=133, k_steps=3, clusters=132)
@settings(max_examples=60, deadline=None)
def test_every_step_once_in_even_shares(library: ctypes.CDLL, kind: str, tiles: int, k_steps: int, clusters: int) -> None:
    items = walk(library, kind, tiles, k_steps, clusters)
    of_tile: dict[int, list[tuple[int, ...]]] = {}
    for item in (x for of_cluster in items for x in of_cluster):
        of_tile.setdefault(item[0], []).append(item)
    assert sorted(of_tile) == list(range(tiles))
    meetings: list[int] = []
    for parts in of_tile.values():
        parts.sort(key=lambda x: x[1])
        ends = [0, *(begin + steps for _, begin, steps, *_ in parts)]
        assert [x[1] for x in parts] == ends[:-1] and ends[-1] == k_steps
        assert all(x[2] > 0 for x in parts)
        if len(parts) > 1:
            first = parts[0][4]
            assert all(x[3:] == (first + i, first, len(parts)) for i, x in enumerate(parts))
            meetings += range(first + 1, first + len(parts))
    assert len(set(meetings)) == len(meetings)
    split, waves = KINDS[kind]
    assert all(0 < x < (tiles * split if split > 1 else clusters) for x in meetings), "the workspace has no room for a meeting"
    loads = [sum(x[2] for x in of_cluster) for of_cluster in items]
    if waves:
        assert max(loads) - min(loads) <= 1
    if kind == "two_tile" and tiles > clusters:
        assert all(len(parts) <= 2 for parts in of_tile.values())
    if not waves:
        assert max(loads) <= -(-tiles * split // clusters) * -(-k_steps // split)
    if waves:  # the shared tiles are the first, in time too
        assert all(x[0] < y[0] for of_cluster in items for x, y in pairwise(of_cluster))
