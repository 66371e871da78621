"""Every layout gives back the bits that it was given, for any mask and size, and is as small as its documentation says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from masks import KINDS, weight

from kernelwright.layouts import quad_bitmap
from kernelwright.sparse import LAYOUTS, SparseError, compress

ALL = [("bitmask", {}), ("quad-bitmap", {}), ("quad-bitmap", {"order": "lane"}), ("three-layer", {})]
HALF = (torch.float16, torch.bfloat16)


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous().view({2: torch.int16, 4: torch.int32, 1: torch.uint8}[t.element_size()])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(KINDS),
    rows=st.integers(1, 70),
    columns=st.one_of(st.integers(1, 300), st.integers(500, 530)),
    sparsity=st.sampled_from((0.1, 0.5, 0.9)),
    dtype=st.sampled_from(HALF),
    seed=st.integers(0, 1000),
)
def test_any_mask_comes_back(kind, rows, columns, sparsity, dtype, seed):
    w = weight(kind, rows, columns, dtype, sparsity, seed)
    for layout, options in ALL:
        packed = compress(w, layout, min_sparsity=0, **options)
        dense = packed.to_dense()
        assert dense.dtype == dtype and torch.equal(bits(dense), bits(w)), (layout, options)
        assert packed.nonzeros == int((bits(w) != 0).sum())
        assert packed.verify(w) and not packed.verify(w.roll(1, 0) + 1)


@pytest.mark.parametrize(("layout", "options"), ALL)
@pytest.mark.parametrize("remainder", range(16))
def test_every_remainder_of_rows_and_columns(layout, options, remainder):
    for rows, columns in ((16 + remainder, 128), (32, 128 + remainder), (1 + remainder, 384 - remainder), (17, 8 * remainder + 1)):
        w = weight("random", rows, columns, seed=remainder)
        assert compress(w, layout, min_sparsity=0, **options).verify(w), (rows, columns)


@pytest.mark.parametrize(("layout", "options"), ALL)
@pytest.mark.parametrize("dtype", HALF)
def test_unusual_values_are_kept(layout, options, dtype):
    w = weight("random", 33, 300, dtype)
    unusual = torch.tensor([0x0001, 0x03FF, 0x007F, 0x7FFF, 0x7C00, 0x7F80, 0x7E01, 0x7FC1], dtype=torch.int16)
    unusual = torch.cat([unusual, unusual | -0x8000, torch.tensor([-0x8000], dtype=torch.int16)])  # and all of them negative, and -0.0
    bits(w).view(-1)[torch.arange(17) * 541] = unusual
    packed = compress(w, layout, **options)
    assert torch.equal(bits(packed.to_dense()), bits(w))
    assert int((bits(packed.to_dense()) == -0x8000).sum()) == 1


def test_negative_zero_can_be_dropped_and_is_named_where_it_is_in_the_way():
    dense = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)).half()
    keep = torch.arange(256) % 2 == 0
    masked = dense * keep  # how masks are often applied; leaves -0.0
    with pytest.raises(SparseError, match="negative_zero='drop'"):
        compress(masked)
    packed = compress(masked, negative_zero="drop")
    assert packed.sparsity == 0.5 and torch.equal(packed.to_dense(), masked) and not packed.verify(masked)
    assert compress(masked, min_sparsity=0.2).verify(masked)
    short = torch.where(keep, torch.ones_like(masked), masked).to(torch.float8_e4m3fn)
    with pytest.raises(SparseError, match="negative_zero='drop'"):
        compress(short, "bitmask")
    assert compress(short, "bitmask", negative_zero="drop").sparsity == 0.5


def test_the_canonical_layout_holds_other_sizes_too():
    for dtype in (torch.float32, torch.float8_e4m3fn, torch.float8_e5m2):
        w = weight("random", 20, 77).to(dtype)
        assert compress(w, "bitmask").verify(w)
        with pytest.raises(SparseError, match="convert it first"):
            compress(w, "quad-bitmap")


def test_bytes_per_weight_at_half():
    for kind in ("random", "rows"):
        w = weight(kind, 512, 4096)
        assert compress(w, "bitmask").bytes_per_weight == pytest.approx(1.125, abs=0.003)
        assert compress(w).bytes_per_weight <= 1.17
        assert compress(w).facts["prefix_bits"] == 8
        assert compress(w, "three-layer").bytes_per_weight == pytest.approx(1.329, abs=0.004)
    assert compress(weight("half", 512, 4096)).bytes_per_weight <= 1.17 + 2 / 64


def test_uneven_masks_take_16_bit_prefixes():
    for kind, prefix_bits in (("random", 8), ("full", 8), ("empty", 8), ("columns", 8), ("one row", 16), ("half", 16)):
        assert compress(weight(kind, 64, 1024), min_sparsity=0).facts["prefix_bits"] == prefix_bits, kind
    assert compress(weight("random", 64, 1000)).facts["prefix_bits"] == 16  # the padding is uneven too


def test_packing_in_pieces_makes_no_difference(monkeypatch):
    for layout in ("quad-bitmap", "three-layer"):
        module = LAYOUTS[layout]
        for kind in ("random", "half", "one row"):
            w = weight(kind, 100, 700)
            whole = compress(w, layout, min_sparsity=0)
            with monkeypatch.context() as small:
                small.setattr(module, "CHUNK", 1)
                pieces = compress(w, layout, min_sparsity=0)
                assert pieces.facts == whole.facts and pieces.verify(w)
            assert all(torch.equal(pieces.parts[n], whole.parts[n]) for n in whole.parts)


@pytest.mark.parametrize(("layout", "options"), ALL)
def test_split_by_rows_and_columns(layout, options):
    w = weight("random", 50, 300)
    packed = compress(w, layout, **options)
    for dim, sizes in ((0, [16, 1, 33]), (1, [128, 129, 43]), (1, [100, 100, 100])):
        pieces = packed.split(sizes, dim)
        assert torch.equal(torch.cat([p.to_dense() for p in pieces], dim), w)
        assert all(p.layout == layout and p.facts.get("order") == packed.facts.get("order") for p in pieces)
    assert packed.as_layout(layout, **options) is packed and packed.cast(torch.bfloat16).facts.get("order") == packed.facts.get("order")
    with pytest.raises(SparseError, match="add up to the 50 rows"):
        packed.split([25, 26])


def test_refusals():
    dense = torch.ones(8, 8, dtype=torch.float16)
    for bad, said in (
        ((dense,), "below the 30% that make compressing"),
        ((dense[0],), "1 dimensions"),
        ((dense[:0],), "holds nothing"),
        ((dense.long(),), "int64; convert"),
        ((dense, "csr"), "no layout 'csr'; choose one of bitmask, quad-bitmap, three-layer"),
    ):
        with pytest.raises(SparseError, match=said):
            compress(*bad)
    with pytest.raises(ValueError, match="no order 'diagonal'"):
        compress(dense, min_sparsity=0, order="diagonal")
    with pytest.raises(SparseError, match="neither 'keep' nor 'drop'"):
        compress(dense, negative_zero="flip")
    with pytest.raises(SparseError, match="bitmask has no option 'order'"):
        compress(dense, "bitmask", order="tile")
    for bad in (dense.to("meta"), dense.to_sparse()):
        with pytest.raises(SparseError, match="cannot be read; load it or make it dense first"):
            compress(bad)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_a_tensor_like_the_weight_is_written_to(layout):
    w = weight("random", 64, 256)
    packed = compress(w, layout)
    half = torch.float16
    for out in (
        torch.empty(256, 64, dtype=half).t(),
        torch.empty(32, 512, dtype=torch.float16),
        torch.empty(64, 256, dtype=torch.bfloat16),
    ):
        with pytest.raises(SparseError, match=r"this weight is float16 \(64, 256\)"):
            packed.to_dense(out)
    with pytest.raises(SparseError, match="neither 0"):
        packed.split([64], 2)


def test_a_transposed_weight_is_packed_as_it_reads():
    w = weight("random", 300, 50)
    assert compress(w.t()).verify(w.t().contiguous())
    assert compress(w).layout == quad_bitmap.NAME
