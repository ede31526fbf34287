"""What the readers of all bump versions share: the dtype table, and tensors out of placed slots."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from ckconv.core.dtypes import BUMP_CODES, F32, DType, Kind
from ckconv.core.tensors import Extent, StoredTensor, Tensor, with_layer
from ckconv.errors import InputError, counted, listed
from ckconv.formats.bump.placement import Geometry, Placed, place, slots_of
from ckconv.formats.bump.slots import CANONICAL, Slot, SlotTable
from ckconv.formats.bump.spec import TABLE_LENGTH
from ckconv.io.bytesource import ByteSource


def read_table(
    path: Path, source: ByteSource, at: int, expected: Collection[int], num_layers: int, hint: str = ""
) -> bytes:
    """The dtype table whose length stands at byte ``at``.

    Args:
        expected: lengths that the number of layers allows.
        hint: what helps where it has another.

    Raises:
        InputError: ``bump.dtype-table``.
    """
    raw = source.read_at(at, TABLE_LENGTH.size)
    if len(raw) < TABLE_LENGTH.size:
        raise InputError("bump.dtype-table", "the file ends before the dtype table", path=path, offset=at)
    (count,) = TABLE_LENGTH.unpack(raw)
    if count not in expected:
        lengths = " or ".join(f"{length:,}" for length in sorted(expected))
        raise InputError(
            "bump.dtype-table",
            f"the table has {count:,} entries, {lengths} expected for {counted(num_layers, 'layer')}",
            path=path,
            offset=at,
            found=count,
            allowed=max(expected),
            hint=hint or None,
        )
    start = at + TABLE_LENGTH.size
    if source.size is not None and start + count > source.size:
        raise InputError(
            "bump.dtype-table",
            f"the table of {count:,} bytes ends at {start + count:,}, the file has {source.size:,}",
            path=path,
            offset=start,
        )
    codes = source.read_at(start, count)
    if len(codes) != count:
        raise InputError(
            "bump.dtype-table", "the file ends inside the dtype table", path=path, offset=start + len(codes)
        )
    return codes


def types_of(table: SlotTable, codes: bytes, num_layers: int, numbering: str) -> dict[str, DType] | None:
    """Slot name -> type, FP32 for slots without a code; ``None`` where a code has no meaning at its place."""
    known = BUMP_CODES[numbering]
    types: dict[str, DType] = {}
    remaining = iter(codes)
    for slot, layer in slots_of(table, num_layers):
        dtype = known.get(next(remaining)) if slot.coded else F32
        if dtype is None or (slot.fp32 and dtype is not F32) or dtype.kind is Kind.INTEGER:
            return None
        types[with_layer(slot.name, layer)] = dtype
    return types


def code_error(path: Path, table: SlotTable, codes: bytes, num_layers: int, start: int) -> InputError:
    """What is wrong with a table of codes, the first of which is at byte ``start``, that no numbering explains."""
    known = {code for codes_ in BUMP_CODES.values() for code, dtype in codes_.items() if dtype.kind is not Kind.INTEGER}
    faults = []
    first = 0
    coded = [(slot, layer) for slot, layer in slots_of(table, num_layers) if slot.coded]
    if len(coded) != len(codes):  # of a layout whose codes belong to no slots
        coded = []
    for position, ((slot, layer), code) in enumerate(zip(coded, codes, strict=False)):
        name = with_layer(slot.name, layer)
        if slot.fp32 and code:
            faults.append(f"{name} has dtype code {code}, it is always FP32 (0)")
        elif code not in known:
            faults.append(f"{name} has dtype code {code}, which no weights have")
        if len(faults) == 1 and not first:
            first = start + position
    if not faults:
        faults.append("its codes belong to no one numbering of the types")
    return InputError("bump.dtype-table", faults[0], path=path, offset=first or None, details=listed(faults[1:]))


def check_room(path: Path, table: SlotTable, g: Geometry, size: int | None) -> None:
    """The vectors of all layers fit into the file: the index must not grow beyond what the bytes can justify.

    Raises:
        InputError: ``bump.extent``.
    """
    layer = tuple(slot for slot in table[1] if slot.fp32 and not slot.optional and slot.parts[0].layout != CANONICAL)
    least = place(((), layer, ()), g._replace(num_layers=1), lambda slot, n: F32, start=0, interleaved=False)
    need = g.num_layers * sum(item.nbytes for item in least)
    if size is not None and need > size:
        raise InputError(
            "bump.extent",
            f"the FP32 vectors of {g.num_layers:,} layers alone are {need:,} bytes, the file has {size:,}",
            path=path,
            found=size,
            allowed=need,
            hint="the copy looks incomplete",
        )


def misfit(placed: list[Placed]) -> Placed | None:
    """The first tensor whose rows are not whole blocks."""
    return next((p for p in placed if p.layout.cols % p.dtype.block or p.layout.stored_cols % p.dtype.block), None)


def misfit_error(path: Path, item: Placed) -> InputError:
    """What is wrong with a tensor whose rows are not whole blocks."""
    return InputError(
        "bump.dtype-table",
        f"{item.slot_name} is {item.dtype} with rows of {item.layout.cols}; blocks hold {item.dtype.block}",
        path=path,
        tensor=item.slot_name,
    )


def extent_error(path: Path, placed: list[Placed], size: int) -> InputError:
    """What is wrong with a payload that ends at byte ``size`` and not where the last slot does."""
    end = placed[-1].offset + placed[-1].nbytes
    for item in placed:
        if item.offset + item.nbytes > size:
            return InputError(
                "bump.extent",
                f"{item.slot_name} ends at byte {item.offset + item.nbytes:,}, the file has {size:,}",
                path=path,
                tensor=item.slot_name,
                offset=item.offset,
                found=size,
                allowed=end,
                hint="the copy looks incomplete",
            )
    return InputError(
        "bump.extent",
        f"{counted(size - end, 'byte')} after {placed[-1].slot_name}, which ends at {end:,}",
        path=path,
        offset=end,
    )


def stored_of(path: Path, placed: Placed) -> StoredTensor:
    """A slot, or one of its parts, as the file holds it."""
    name = placed.canonical or placed.slot_name
    return StoredTensor(name, placed.dtype, placed.shape, Extent(path, placed.offset, placed.nbytes))


def tensor_of(path: Path, placed: Placed) -> Tensor:
    """The canonical tensor in a slot."""
    return Tensor(
        placed.canonical,
        placed.slot_name,
        placed.dtype,
        placed.shape,
        (Extent(path, placed.offset, placed.nbytes),),
        placed.layout,
        may_be_absent=placed.slot.zero_if_absent,
    )


def by_slot(types: Mapping[str, DType]) -> Callable[[Slot, int | None], DType]:
    """Types by slot name, as :func:`place` asks for them."""
    return lambda slot, layer: types[with_layer(slot.name, layer)]
