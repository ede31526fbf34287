"""Values in any order that a family file can say, written and read, against numpy's own concatenate and transpose."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ckconv.core.layouts import DTYPES, F16, F32, DType, Layout, plain, transposed
from ckconv.core.tensors import Extent, Tensor, blocks_split, cut, matrix_of
from ckconv.errors import UnsupportedError
from ckconv.families.axes import move, parse
from ckconv.families.sizes import Kind, stored_layout
from ckconv.io import rows as rows_module
from ckconv.io.files import Files
from ckconv.io.rows import RowReader, canonical_pieces
from ckconv.io.stored import JoinedRows, stored_pieces
from ckconv.quant.convert import Conversion, Run
from ckconv.verification.tensors import dirty_padding


@dataclass(frozen=True)
class Order:
    """Canonical tensors that are stored as one: shapes in a family file's words, sizes of their letters."""

    stored: str
    canonical: tuple[str, ...]
    letters: tuple[str, ...]
    sizes: dict[str, int]

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple(self._kind(n) for n in range(len(self.canonical)))

    def _kind(self, part: int) -> Kind:
        found = move(parse(self.stored), parse(self.canonical[part]), part, self.sizes.__getitem__)
        return Kind(found.stored, found.canonical, found.first, found.axes)

    def packed(self, values: list[np.ndarray]) -> np.ndarray:
        """What is stored: every part with its axes in stored order, side by side along the axis of segments."""
        turned = []
        for part, (text, own) in enumerate(zip(self.canonical, values, strict=True)):
            names = [name for name in text.replace("(", " ").replace(")", " ").split() if name != "1"]
            stored = [f"P{part}" if name == "|" else name for name in self.letters]
            whole = own.reshape([self.sizes[name] for name in names])
            turned.append(whole.transpose([names.index(name) for name in stored]))
        axis = self.letters.index("|") if "|" in self.letters else 0
        return np.concatenate(turned, axis)


def _grouped(draw: st.DrawFn, names: list[str]) -> str:
    """The axes as a shape: some of them as products, some axes of one element between."""
    text = ""
    while names:
        count = draw(st.integers(1, len(names)))
        group, names = names[:count], names[count:]
        text += (f"({' '.join(group)}) " if count > 1 else f"{group[0]} ") + draw(st.sampled_from(("", "", "1 ")))
    return text


@st.composite
def orders(draw: st.DrawFn, *, block: int = 1) -> Order:
    letters = ["A", "B", "C", "D"][: draw(st.integers(1, 4))]
    sizes = {name: draw(st.integers(1, 4)) for name in letters}
    sizes["A"] *= block
    parts = draw(st.integers(1, 3))
    shared = parts > 1 or draw(st.booleans())
    sizes |= {f"P{n}": draw(st.integers(1, 3)) for n in range(parts)}
    stored = draw(st.permutations([*letters, *(["|"] if shared else [])]))
    if block > 1:  # blocks are runs of values that stay together
        stored = [*(name for name in stored if name != "A"), "A"]
    inner = "A" if block > 1 else draw(st.sampled_from(letters))
    canonical = []
    for n in range(parts):
        rest = draw(st.permutations([*(name for name in letters if name != inner), *([f"P{n}"] if shared else [])]))
        canonical.append((_grouped(draw, list(rest)) if rest else "") + inner)
    segments = f"({'|'.join(f'P{n}' for n in range(parts))})" if parts > 1 else "P0"
    shape = _grouped(draw, [segments if name == "|" else name for name in stored])
    return Order(
        shape.removesuffix("1 ") if block > 1 else shape,
        tuple(canonical),
        tuple(stored),
        sizes,
    )


def file_of(folder: Path, name: str, data: bytes, dtype: DType, layout: Layout, cuts: tuple[int, ...] = ()) -> Tensor:
    path = folder / name
    path.write_bytes(b"\xee" * 7 + data)
    whole = Extent(path, 7, len(data))
    edges = [0, *sorted(at % len(data) // dtype.size * dtype.size for at in cuts), len(data)]
    extents = [extent for low, high in itertools.pairwise(edges) for extent in cut([whole], low, high)]
    return Tensor(name, name, dtype, (layout.rows, layout.cols), tuple(extents), layout)


def written(runs: list[Run], layout: Layout) -> bytes:
    with Files() as files:
        joined = JoinedRows(runs, layout.cols, files)
        pieces = stored_pieces(joined, layout, Conversion(joined.dtype, joined.dtype))
        return b"".join(bytes(np.ascontiguousarray(piece(joined)[0])) for piece in pieces)


def read(tensor: Tensor) -> bytes:
    with Files() as files:
        return b"".join(rows.tobytes() for _, rows in canonical_pieces(RowReader(tensor, files)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("orders")


@pytest.fixture(scope="module")
def small_pieces(small_pieces: None):
    """The fixture of all tests, with no run so short that what lies between is read along."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "PAGE", 4)  # one value: a run of one is always read whole
        yield


@given(order=orders(), cuts=st.tuples(st.integers(0, 999), st.integers(0, 999)), wide=st.booleans())
@settings(deadline=None, max_examples=50)
def test_values_go_into_every_order_and_come_back(
    small_pieces: None, folder: Path, order: Order, cuts: tuple[int, ...], wide: bool
) -> None:
    kinds, kind = order.kinds, F16 if wide else F32
    number = np.dtype("<f2" if wide else "<f4")
    count = 1
    values = []
    for own in kinds:
        size = int(np.prod(own.shape))
        values.append(np.arange(count, count + size).astype(number).reshape(own.shape))
        count += size
    layout = stored_layout(kinds, F32)
    runs = []
    for n, (own, array) in enumerate(zip(kinds, values, strict=True)):
        source = file_of(folder, f"part{n}", array.tobytes(), kind, plain(*matrix_of(own.shape, kind)), cuts)
        runs.append(Run(source, Conversion(kind, F32), 0, source.layout.rows))
    wanted = order.packed([array.astype("<f4") for array in values]).tobytes()

    assert written(runs, layout) == wanted

    for own, array in zip(kinds, values, strict=True):
        tensor = file_of(folder, "whole", wanted, F32, stored_layout((own,), F32), cuts)
        assert read(tensor) == array.astype("<f4").tobytes()
        # and out of one stored order into another
        turned = [Run(tensor, Conversion(F32, F32), 0, tensor.layout.rows)]
        matrix = array.astype("<f4").reshape(tensor.layout.rows, tensor.layout.cols)
        assert written(turned, transposed(*matrix.shape)) == matrix.T.tobytes()


@given(order=orders(block=32))
@settings(deadline=None, max_examples=25)
def test_blocks_go_along_where_their_values_stay_together(small_pieces: None, folder: Path, order: Order) -> None:
    kind = DTYPES["Q4_0"]
    kinds, rng = order.kinds, np.random.default_rng(1)
    block = np.dtype("V18")
    small = Order(order.stored, order.canonical, order.letters, {**order.sizes, "A": order.sizes["A"] // 32})
    values, runs = [], []
    for n, (own, few) in enumerate(zip(kinds, small.kinds, strict=True)):
        raw = rng.integers(0, 256, int(np.prod(own.shape)) // 32 * 18, np.uint8)
        values.append(raw.view(block).reshape(few.shape))
        source = file_of(folder, f"part{n}", raw.tobytes(), kind, plain(*matrix_of(own.shape, kind)))
        runs.append(Run(source, Conversion(kind, kind), 0, source.layout.rows))
    layout = stored_layout(kinds, kind)
    assert blocks_split(kind, layout) == ""
    wanted = small.packed(values).tobytes()

    assert written(runs, layout) == wanted
    for own, array in zip(kinds, values, strict=True):
        assert read(file_of(folder, "whole", wanted, kind, stored_layout((own,), kind))) == array.tobytes()


def blocks_apart_in(folder: Path, kind: DType, size: int) -> tuple[Tensor, np.ndarray]:
    """A stack of matrices stored turned, in blocks whose values are of several rows."""
    order = Order("A C P", ("A P C",), ("A", "C", "P"), {"A": 3, "C": 48, "P": 64})
    data = np.random.default_rng(3).integers(0, 64, 3 * 48 * 2 * size, np.uint8).reshape(3 * 48, -1)
    return file_of(folder, "k_b", data.tobytes(), kind, stored_layout(order.kinds, kind)), data


@pytest.mark.parametrize("name", ["Q4_0", "Q5_1", "Q8_0"])
def test_blocks_whose_values_go_apart_are_read_as_their_values(small_pieces: None, folder: Path, name: str) -> None:
    kind = DTYPES[name]
    tensor, data = blocks_apart_in(folder, kind, kind.size)
    values = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name]).reshape(3, 48, 64).transpose(0, 2, 1)

    assert read(tensor) == values.astype("<f4").tobytes()
    run = Run(tensor, Conversion(kind, F32), 60, 130)  # rows of three matrices
    assert written([run], plain(70, 48)) == values.reshape(192, 48)[60:130].astype("<f4").tobytes()


def test_blocks_whose_values_go_apart_are_refused_where_there_is_no_decoder(folder: Path) -> None:
    tensor, _ = blocks_apart_in(folder, DTYPES["Q8_1"], DTYPES["Q8_1"].size)

    with pytest.raises(
        UnsupportedError, match="blocks of Q8_1 would have to be decoded: of 32 values only 1 stay together"
    ):
        read(tensor)


def test_a_segment_of_no_tensor_is_written_as_zeros(folder: Path) -> None:
    found = move(parse("(_o|P) H"), parse("P H"), 0, {"o": 2, "P": 3, "H": 4}.__getitem__)
    kind = Kind(found.stored, found.canonical, found.first, found.axes)
    values = np.arange(1, 13, dtype="<f4").reshape(3, 4)
    source = file_of(folder, "part", values.tobytes(), F32, plain(3, 4))

    data = written([Run(source, Conversion(F32, F32), 0, 3)], stored_layout((kind,), F32))

    assert data == bytes(32) + values.tobytes()


def test_padding_between_the_rows_of_a_transposed_matrix_is_looked_at(folder: Path) -> None:
    layout = transposed(3, 2, stored_cols=5)
    clean = np.pad(np.ones((2, 3), "<f4"), ((0, 0), (0, 2)))
    dirty = clean.copy()
    dirty[1, 4] = 1

    with Files() as files:
        assert dirty_padding(file_of(folder, "clean", clean.tobytes(), F32, layout), files) is None
        assert dirty_padding(file_of(folder, "dirty", dirty.tobytes(), F32, layout), files) == 1
