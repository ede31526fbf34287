"""What adapters do to a matrix, a piece at a time, against numpy over the whole of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ckconv.core.layouts import BF16, F16, F32, DType, Layout, headed, plain, transposed
from ckconv.core.tensors import Delta, Extent, Merge, Rescale, Tensor
from ckconv.io import rows as rows_module
from ckconv.io.files import Files, runs
from ckconv.io.rows import RowReader, canonical_pieces

OUT, IN, RANK = 12, 12, 3


class Shelf:
    """Tensors in files of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0

    def tensor(self, matrix: np.ndarray, layout: Layout | None = None, dtype: DType = F32) -> Tensor:
        self.count += 1
        path = self.folder / str(self.count)
        path.write_bytes(np.ascontiguousarray(matrix).tobytes())
        layout = layout or plain(*matrix.shape)
        return Tensor(
            path.name, path.name, dtype, (layout.rows, layout.cols), (Extent(path, 0, matrix.nbytes),), layout
        )


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


@pytest.fixture
def numbers() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    shapes = {"w": (OUT, IN), "a": (RANK, IN), "b": (OUT, RANK), "m": (OUT, 1), "c": (IN, 1)}
    return {name: rng.standard_normal(shape).astype("<f4") for name, shape in shapes.items()}


def merged(base: Tensor, *changes: Delta | Rescale, dtype: DType = F32) -> tuple[np.ndarray, float]:
    tensor = Tensor("w", "w", dtype, base.shape, (), plain(*base.shape), merge=Merge(base, changes))
    with Files() as files:
        reader = RowReader(tensor, files)
        data = b"".join(bytes(rows) for _, rows in canonical_pieces(reader))
        return np.frombuffer(data, "<f4" if dtype is F32 else "<u2").reshape(base.shape), reader.max_change


@pytest.mark.parametrize("piece", [1, 100, 1 << 20])
def test_lora(piece: int, shelf: Shelf, numbers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A square matrix: b @ a and its transpose both fit."""
    monkeypatch.setattr(rows_module, "PIECE", piece)
    w, a, b = (numbers[name] for name in "wab")
    got, change = merged(shelf.tensor(w), Delta(shelf.tensor(a), shelf.tensor(b), 0.375))
    want = w.astype(np.float64) + 0.375 * (b.astype(np.float64) @ a)
    assert np.abs(got - want).max() < 1e-6
    assert np.abs(got - (w + 0.375 * (b @ a).T)).max() > 0.1
    assert change == pytest.approx(np.abs(0.375 * (b @ a)).max(), rel=1e-5)


def test_several_adapters_one_after_the_other(shelf: Shelf, numbers) -> None:
    w, a, b = (numbers[name] for name in "wab")
    delta = Delta(shelf.tensor(a), shelf.tensor(b), 1.0)
    got, _ = merged(shelf.tensor(w), delta, Rescale(shelf.tensor(numbers["m"]), of_columns=False), delta)
    assert np.abs(got - ((w + b @ a) * numbers["m"] + b @ a)).max() < 1e-5


def test_dora_gives_every_row_its_length(shelf: Shelf, numbers) -> None:
    w, a, b, m = (numbers[name] for name in "wabm")
    got, _ = merged(shelf.tensor(w), Delta(shelf.tensor(a), shelf.tensor(b), 2.0, shelf.tensor(np.abs(m))))
    sum_ = w + 2.0 * (b @ a)
    want = np.abs(m) * sum_ / np.linalg.norm(sum_, axis=1, keepdims=True)
    assert np.abs(got - want).max() < 1e-6
    assert np.linalg.norm(got, axis=1) == pytest.approx(np.abs(m)[:, 0], rel=1e-5)


@pytest.mark.parametrize("of_columns", [True, False])
def test_ia3(of_columns: bool, shelf: Shelf, numbers) -> None:
    factors = numbers["c" if of_columns else "m"]
    got, _ = merged(shelf.tensor(numbers["w"]), Rescale(shelf.tensor(factors), of_columns))
    assert (got == numbers["w"] * (factors.T if of_columns else factors)).all()


def test_rows_of_the_base_and_of_the_adapter_lie_as_their_files_have_them(shelf: Shelf, numbers) -> None:
    w, a, b = (numbers[name] for name in "wab")
    pairs = np.arange(OUT).reshape(3, 2, 2).transpose(0, 2, 1).reshape(-1)
    layout = headed(3, 4, IN, interleaved=True)
    delta = Delta(
        shelf.tensor(a.T, transposed(RANK, IN)),
        shelf.tensor(b[pairs], headed(3, 4, RANK, interleaved=True)),
        1.0,
    )
    got, _ = merged(shelf.tensor(w[pairs], layout), delta)
    assert np.abs(got - (w + b @ a)).max() < 1e-6


def test_rounded_once_to_the_type_of_the_base(shelf: Shelf, numbers) -> None:
    a, b = numbers["a"], numbers["b"]
    w = numbers["w"].view("<u4") >> 16
    got, _ = merged(
        shelf.tensor(w.astype("<u2"), dtype=BF16), Delta(shelf.tensor(a), shelf.tensor(b), 1e-3), dtype=BF16
    )
    want = (w << 16).view("<f4") + np.float32(1e-3) * (b @ a)
    back = (got.astype("<u4") << 16).view("<f4")
    assert np.abs(back - want).max() <= np.abs(want).max() * 2**-8
    assert np.abs(back - want).max() > 0


def test_an_adapter_in_half_precision(shelf: Shelf, numbers) -> None:
    w, a, b = numbers["w"], numbers["a"].astype("<f2"), numbers["b"].astype("<f2")
    got, _ = merged(shelf.tensor(w), Delta(shelf.tensor(a, dtype=F16), shelf.tensor(b, dtype=F16), 1.0))
    assert np.abs(got - (w + b.astype("<f4") @ a.astype("<f4"))).max() < 1e-6


def test_no_file_has_the_bytes_of_what_is_computed(shelf: Shelf, numbers) -> None:
    base = shelf.tensor(numbers["w"])
    with pytest.raises(AssertionError, match="is computed"):
        list(runs(Tensor("w", "w", F32, base.shape, (), base.layout, merge=Merge(base, ()))))
