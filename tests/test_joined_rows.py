"""Rows of several tensors as one, some rows of one, and single arrays of an MLX triple."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ckconv.core.layouts import BF16, DTYPES, F16, F32, DType, Layout, headed, plain, transposed
from ckconv.core.tensors import Extent, Tensor, cut
from ckconv.io.files import Files
from ckconv.io.rows import RowReader
from ckconv.io.stored import JoinedRows, stored_pieces
from ckconv.plan.steps import Step
from ckconv.quant.convert import Conversion, Run
from ckconv.quant.mlx import Quantization, plane_types, triple_type
from ckconv.quant.repack import Triple


def stored(path: Path, matrix: np.ndarray, dtype: DType = F32, layout: Layout | None = None) -> Tensor:
    path.write_bytes(matrix.tobytes())
    rows, cols = matrix.shape
    return Tensor(
        path.name, path.name, dtype, (rows, cols), (Extent(path, 0, matrix.nbytes),), layout or plain(rows, cols)
    )


def written(runs: list[Run], layout: Layout) -> tuple[bytes, int]:
    with Files() as files:
        joined = JoinedRows(runs, layout.cols, files)
        pieces = stored_pieces(joined, layout, Conversion(joined.dtype, joined.dtype))
        return b"".join(bytes(piece(joined)[0]) for piece in pieces), joined.changed


SAME = Conversion(F32, F32)


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), cols=st.integers(1, 7), turned=st.booleans())
def test_rows_follow_each_other(sizes: list[int], cols: int, turned: bool, tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("t")
    rng = np.random.default_rng(sum(sizes))
    parts = [rng.standard_normal((rows, cols)).astype("<f4") for rows in sizes]
    runs = [Run(stored(folder / str(n), part), SAME, 0, len(part)) for n, part in enumerate(parts)]
    whole = np.concatenate(parts)
    layout = transposed(*whole.shape) if turned else plain(*whole.shape)
    assert written(runs, layout) == ((whole.T if turned else whole).tobytes(), 0)


def test_each_run_has_a_conversion_of_its_own(tmp_path: Path) -> None:
    a = np.array([[1.5, 2.5]], "<f4")
    b = np.array([[3.25, -1.0]], "<f2")
    runs = [
        Run(stored(tmp_path / "a", a), SAME, 0, 1),
        Run(stored(tmp_path / "b", b, F16), Conversion(F16, F32), 0, 1),
    ]
    assert written(runs, plain(2, 2))[0] == np.array([[1.5, 2.5], [3.25, -1.0]], "<f4").tobytes()


def test_interleaved_rows_come_out_split(tmp_path: Path) -> None:
    canonical = np.arange(8, dtype="<f4").reshape(8, 1)
    interleaved = canonical.reshape(2, 2, 2).transpose(0, 2, 1).reshape(8, 1)
    tensor = stored(tmp_path / "q", interleaved, layout=headed(2, 4, 1, interleaved=True))
    assert written([Run(tensor, SAME, 2, 6)], plain(4, 1))[0] == canonical[2:6].tobytes()


def test_values_that_change_count_once_however_often_they_are_read(tmp_path: Path, monkeypatch) -> None:
    matrix = np.full((4, 3), 1.0009765625 + 2**-20, "<f4")
    run = Run(stored(tmp_path / "a", matrix), Conversion(F32, F16), 0, 4)
    monkeypatch.setattr("ckconv.io.stored.SCRATCH", 8)  # one column a pass: the rows are read three times
    assert written([run, run], transposed(8, 3))[1] == 24


def test_one_expert_of_many_is_a_run_of_bytes(tmp_path: Path) -> None:
    matrix = np.arange(24, dtype="<f4").reshape(6, 4)
    tensor = stored(tmp_path / "experts", matrix)
    target = Tensor("e", "e", F32, (2, 4), (Extent(tmp_path, 0, 32),), plain(2, 4))
    step = Step("e", target, tensor, SAME, runs=(Run(tensor, SAME, 2, 4),))
    assert step.copied == (Extent(tmp_path / "experts", 32, 32),)
    assert not step.one_run


@pytest.mark.parametrize(
    ("conversion", "layout"),
    [(Conversion(F32, F16), plain(2, 4)), (SAME, headed(1, 4, 2, interleaved=True)), (SAME, transposed(2, 4))],
)
def test_what_has_to_be_computed_is_no_run_of_bytes(conversion: Conversion, layout: Layout, tmp_path: Path) -> None:
    tensor = stored(tmp_path / "a", np.zeros((6, 4), "<f4"))
    target = Tensor("e", "e", conversion.target, (2, 4), (Extent(tmp_path, 0, 32),), layout)
    assert Step("e", target, tensor, conversion, runs=(Run(tensor, conversion, 2, 4),)).copied is None


def test_cutting_a_run_of_several_extents() -> None:
    a, b = Path("a"), Path("b")
    extents = [Extent(a, 100, 10), Extent(b, 7, 5), Extent(a, 0, 3)]
    assert cut(extents, 0, 18) == extents
    assert cut(extents, 9, 16) == [Extent(a, 109, 1), Extent(b, 7, 5), Extent(a, 0, 1)]
    assert cut(extents, 4, 4) == []


@pytest.mark.parametrize("number", [F16, BF16])
def test_a_plane_is_what_the_whole_triple_has_there(number: DType, tmp_path: Path) -> None:
    triple = Triple(Quantization("affine", 4, 32), number)
    kind = triple_type(triple)
    types = plane_types(triple)
    assert types == (DTYPES["U32"], number, number)
    rows, groups = 3, 2
    widths = [groups * 4, groups, groups]
    blob = np.random.default_rng(1).integers(0, 256, rows * kind.nbytes(64), np.uint8)
    planes, at = [], 0
    for n, (width, dtype) in enumerate(zip(widths, types, strict=True)):
        path, nbytes = tmp_path / str(n), rows * width * dtype.size
        path.write_bytes(blob[at : at + nbytes].tobytes())
        planes.append(Tensor(str(n), str(n), dtype, (rows, width), (Extent(path, 0, nbytes),), plain(rows, width)))
        at += nbytes
    tensor = Tensor("w", "w", kind, (rows, 64), (), plain(rows, 64), tuple(planes))
    with Files() as files:
        for n, width in enumerate(widths):
            conversion = Conversion(kind, kind, plane=n)
            assert conversion.written is types[n]
            reader = RowReader(tensor, files)
            pieces = stored_pieces(reader, plain(rows, width), conversion)
            assert b"".join(bytes(piece(reader)[0]) for piece in pieces) == (tmp_path / str(n)).read_bytes()


def test_a_shift_is_undone_only_where_adding_it_again_gives_the_same(tmp_path: Path) -> None:
    kept = np.array([[0.25, -1.5, 1e-9]], "<f4") + np.float32(1)
    lower, changed = Conversion(F32, BF16, shift=-1).apply(kept.view(np.uint8))
    assert changed == 0  # what 1e-9 was is lost, and adding 1 to what is left gives the same number
    assert lower.view("<u2").tolist() == [[0x3E80, 0xBFC0, 0x0000]]
    odd = np.array([[1 + 2**-23, 3.0]], "<f4")
    assert Conversion(F32, F16, shift=-1).apply(odd.view(np.uint8))[1] == 0
    assert Conversion(F32, BF16, shift=-1).apply(np.array([[1.30000007]], "<f4").view(np.uint8))[1] == 1
