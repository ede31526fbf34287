"""BUMPWGT3 -> the canonical index: packed tensors described by the layouts that the writer uses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ckconv.core.config import MAX_LAYERS
from ckconv.core.dtypes import BUMP_CODES
from ckconv.core.metadata import CONFIG_NAME
from ckconv.core.tensors import Checksum, Extent, TensorIndex
from ckconv.errors import InputError, listed, quoted
from ckconv.formats.bump.ages import right_of_bump3
from ckconv.formats.bump.config import model_config, without_config
from ckconv.formats.bump.engines import computed_by
from ckconv.formats.bump.placement import Geometry, Placed, geometry, place
from ckconv.formats.bump.slots import SLOTS_V3, table_entries
from ckconv.formats.bump.spec import ALIGN_ELEMENTS, HEADER_BYTES, TABLE_LENGTH, HeaderV3, align
from ckconv.formats.bump.table import (
    by_slot,
    check_room,
    code_error,
    extent_error,
    misfit,
    misfit_error,
    read_table,
    stored_of,
    tensor_of,
    types_of,
)
from ckconv.io.bytesource import ByteSource


class Bump3File(NamedTuple):
    """What the file says without a configuration."""

    header: HeaderV3
    codes: bytes
    size: int | None


def read_bump3(path: Path, source: ByteSource, head: bytes) -> Bump3File:
    """Read and check header and dtype table; ``head`` is the first 128 bytes.

    Raises:
        InputError: ``bump.header`` or ``bump.dtype-table``.
    """
    header = HeaderV3.unpack(head)
    _check_header(path, header)
    layers = header.num_layers
    codes = read_table(path, source, HEADER_BYTES, {table_entries(SLOTS_V3, layers)}, layers)
    return Bump3File(header, codes, source.size)


def index_bump3(path: Path, file: Bump3File, config: Mapping[str, Any] | None) -> TensorIndex:
    """The index of a file, without tensors where there is no configuration.

    The file itself names neither the key/value heads nor the feed-forward size.

    Raises:
        InputError: ``bump.dtype-table``, ``bump.extent`` or ``model.config``.
        UnsupportedError: ``model.architecture``.
    """
    header, codes, size = file.header, file.codes, file.size
    facts = {"header": header, "codes": codes, "size": size}
    payload = Extent(path, HEADER_BYTES, (size or HEADER_BYTES) - HEADER_BYTES)
    checksums = (Checksum("payload", payload, header.sha256),)
    if config is None:
        if all(types_of(SLOTS_V3, codes, header.num_layers, numbering) is None for numbering in BUMP_CODES):
            raise code_error(path, SLOTS_V3, codes, header.num_layers, HEADER_BYTES + TABLE_LENGTH.size)
        return TensorIndex(
            "bump",
            3,
            path,
            (path,),
            "",
            None,
            (),
            {},
            facts=facts,
            incomplete=without_config(path),
            checksums=checksums,
        )
    fields = ("num_layers", "hidden_size", "num_heads", "vocab_size", "context_length", "head_dim")
    model = model_config(path, config, {field: getattr(header, field) for field in fields})
    layout = _rope_layout(path, config)
    g = geometry(model, context=header.context_length, step=ALIGN_ELEMENTS)
    numbering, placed = _resolve_codes(path, codes, g, size, interleaved=layout == "interleaved")
    who = computed_by([item.dtype.name for item in placed], numbering)
    note = {"note": who} if who else {}
    kinds = {item.dtype.name for item in placed if item.slot.parts and not item.slot.fp32}
    right = () if layout == "interleaved" else right_of_bump3(kinds, numbering)
    return TensorIndex(
        format="bump",
        version=3,
        path=path,
        files=(path,),
        architecture=str(config.get("model_type", "")),
        config=model,
        stored=tuple(stored_of(path, p) for p in placed),
        tensors={p.canonical: tensor_of(path, p) for p in placed},
        canonical_of={p.canonical: (p.canonical,) for p in placed},
        metadata=config,
        facts={**facts, "dtype_codes": numbering, "rope_layout": layout, "engines": ", ".join(right) or None, **note},
        checksums=checksums,
    )


def _check_header(path: Path, h: HeaderV3) -> None:
    """The header must describe a file that the loader's own arithmetic gives."""
    if any(h.reserved):
        at = next(i for i, byte in enumerate(h.reserved) if byte)
        raise InputError(
            "bump.header",
            f"reserved byte {0x60 + at:#x} is {h.reserved[at]:#04x}, not zero",
            path=path,
            offset=0x60 + at,
        )
    faults = [
        f"{name} is {value}"
        for name, value in (
            ("num_layers", h.num_layers),
            ("vocab_size", h.vocab_size),
            ("embed_dim", h.hidden_size),
            ("context_length", h.context_length),
            ("num_heads", h.num_heads),
            ("head_dim", h.head_dim),
        )
        if not 0 < value < 1 << 31
    ]
    if h.num_layers > MAX_LAYERS:
        faults.append(f"num_layers is {h.num_layers:,}, at most {MAX_LAYERS:,} are allowed")
    if h.model_type != 1:
        faults.append(f"model_type is {h.model_type}, 1 expected")
    if h.num_heads * h.head_dim != h.hidden_size:
        faults.append(f"num_heads {h.num_heads} x head_dim {h.head_dim} is not embed_dim {h.hidden_size}")
    for name, real, aligned in (
        ("embed", h.hidden_size, h.aligned_hidden),
        ("head", h.head_dim, h.aligned_head),
        ("context", h.context_length, h.aligned_context),
    ):
        if aligned < real:
            faults.append(f"aligned_{name} {aligned} is below {name} {real}")
        elif aligned != align(real):
            faults.append(f"aligned_{name} {aligned} is not {name} {real} rounded up to 16")
    if faults:
        raise InputError("bump.header", faults[0], path=path, details=listed(faults[1:]))


def _rope_layout(path: Path, config: Mapping[str, Any]) -> str:
    layout = config.get("rope_layout", "split")
    if layout not in ("split", "interleaved"):
        raise InputError(
            "model.config",
            f"{CONFIG_NAME}: rope_layout is {quoted(str(layout))}, split or interleaved expected",
            path=path,
        )
    return str(layout)


def _resolve_codes(
    path: Path, codes: bytes, g: Geometry, size: int | None, *, interleaved: bool
) -> tuple[str, list[Placed]]:
    """Which of the two numberings the table is in, and what it places.

    Version 3 carries no mark of it. Codes 6 and 8 are Q4_K and Q6_K in one numbering each; the file's size settles the
    rest, because a block of 144 bytes and one of 210 never give the same total for one model.
    """
    check_room(path, SLOTS_V3, g, size)
    start = HEADER_BYTES + TABLE_LENGTH.size
    fitting: dict[str, list[Placed]] = {}
    plausible: dict[str, list[Placed]] = {}
    cut: Placed | None = None
    for numbering in sorted(BUMP_CODES, key=lambda n: (n == "v4") != (8 in codes and 6 not in codes)):
        types = types_of(SLOTS_V3, codes, g.num_layers, numbering)
        if types is None:
            continue
        placed = place(SLOTS_V3, g, by_slot(types), start=start + len(codes), interleaved=interleaved)
        cut = misfit(placed)
        if cut:
            continue
        plausible[numbering] = placed
        if size is None or placed[-1].offset + placed[-1].nbytes == size:
            fitting[numbering] = placed
    if cut and not plausible:
        raise misfit_error(path, cut)
    if not plausible:
        raise code_error(path, SLOTS_V3, codes, g.num_layers, start)
    if not fitting:
        raise extent_error(path, next(iter(plausible.values())), size or 0)
    return next(iter(fitting.items()))
