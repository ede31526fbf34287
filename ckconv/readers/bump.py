"""BUMPWGT3 -> the canonical index: packed tensors described by the layouts that the writer uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from ckconv.dtypes import BUMP_CODES, F32, DType, Kind
from ckconv.errors import InputError, UnsupportedError, listed, quoted
from ckconv.formats.bump import (
    ALIGN_ELEMENTS,
    HEADER_BYTES,
    MAGIC,
    SLOTS_V3,
    TABLE_LENGTH,
    VERSIONS,
    HeaderV3,
    align,
    table_entries_v3,
)
from ckconv.model.architectures import family_of_model_type
from ckconv.model.config import MAX_LAYERS, PARAMETERS, ModelConfig, build_config, checked_number
from ckconv.model.index import Checksum, Extent, StoredTensor, Tensor, TensorIndex
from ckconv.model.names import with_layer
from ckconv.model.placement import Geometry, Placed, geometry, place, slots_of
from ckconv.readers.bytesource import ByteSource, open_source
from ckconv.readers.strictjson import Document, read_object

CONFIG_NAME = "config.json"
CONFIG_DOCUMENT = Document(what="configuration", code="model.config", duplicate_code="model.config", limit=64 << 20)


def open_bump(
    path: Path,
    *,
    source: ByteSource | None = None,
    config_path: Path | None = None,
    config: Mapping[str, Any] | None = None,
) -> TensorIndex:
    """Read a bump file's header and dtype table, and the ``config.json`` beside it.

    The file itself names neither the key/value heads nor the feed-forward size, so without a configuration the index
    has no tensors; the header is still described.

    Args:
        config_path: where the configuration is, if not beside the file.
        config: the configuration itself, if the caller has it.

    Raises:
        InputError: ``bump.*`` or ``model.config``.
        UnsupportedError: a version this build does not read.
    """
    opened = source or open_source(path)
    try:
        head = opened.read_at(0, HEADER_BYTES)
        version = _version(path, head)
        if version != 3:
            raise UnsupportedError("bump.version", f"bump {version} is not read by this version of ckconv", path=path)
        header = HeaderV3.unpack(head)
        _check_header(path, header)
        codes = _read_table(path, opened, header)
        size = opened.size
    finally:
        if source is None:
            opened.close()
    facts = {"header": header, "codes": codes, "size": size}
    payload = Extent(path, HEADER_BYTES, (size or HEADER_BYTES) - HEADER_BYTES)
    checksums = (Checksum("payload", payload, header.sha256),)
    if config is None and (config_path or source is None):  # nothing lies beside a pipe
        config = _load_config(config_path or path.parent / CONFIG_NAME, required=config_path is not None)
    if config is None:
        return TensorIndex("bump", 3, path, (path,), "", None, (), {}, facts=facts, checksums=checksums)
    model = _model_config(path, header, config)
    layout = _rope_layout(path, config)
    g = geometry(model, context=header.context_length, step=ALIGN_ELEMENTS)
    numbering, placed = _resolve_codes(path, codes, g, size, interleaved=layout == "interleaved")
    return TensorIndex(
        format="bump",
        version=3,
        path=path,
        files=(path,),
        architecture=str(config.get("model_type", "")),
        config=model,
        stored=tuple(StoredTensor(p.canonical, p.dtype, p.shape, Extent(path, p.offset, p.nbytes)) for p in placed),
        tensors={p.canonical: _tensor(path, p) for p in placed},
        canonical_of={p.canonical: (p.canonical,) for p in placed},
        metadata=config,
        facts={**facts, "dtype_codes": numbering, "rope_layout": layout},
        checksums=checksums,
    )


def _tensor(path: Path, placed: Placed) -> Tensor:
    return Tensor(
        placed.canonical,
        placed.slot_name,
        placed.dtype,
        placed.shape,
        (Extent(path, placed.offset, placed.nbytes),),
        placed.layout,
        may_be_absent=placed.slot.zero_if_absent,
    )


def _version(path: Path, head: bytes) -> int:
    version = VERSIONS.get(head[:8])
    if version is None:
        raise InputError(
            "bump.magic",
            f"starts with {head[:8]!r}, not one of {', '.join(m.decode() for m in MAGIC.values())}"
            if head
            else "the file is empty",
            path=path,
            offset=0,
            found=head[:8],
        )
    if len(head) < HEADER_BYTES:
        raise InputError(
            "bump.header", f"{len(head)} bytes, a bump header has {HEADER_BYTES}", path=path, found=len(head)
        )
    field = int.from_bytes(head[8:12], "little")
    if field != version:
        raise InputError(
            "bump.magic",
            f"magic {head[:8].decode()} with version {field}",
            path=path,
            offset=8,
            found=field,
            allowed=version,
        )
    return version


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


def _read_table(path: Path, source: ByteSource, header: HeaderV3) -> bytes:
    expected = table_entries_v3(header.num_layers)
    raw = source.read_at(HEADER_BYTES, TABLE_LENGTH.size)
    if len(raw) < TABLE_LENGTH.size:
        raise InputError("bump.dtype-table", "the file ends before the dtype table", path=path, offset=HEADER_BYTES)
    (count,) = TABLE_LENGTH.unpack(raw)
    if count != expected:
        raise InputError(
            "bump.dtype-table",
            f"the table has {count:,} entries, {expected:,} expected for {header.num_layers:,} layers",
            path=path,
            offset=HEADER_BYTES,
            found=count,
            allowed=expected,
        )
    start = HEADER_BYTES + TABLE_LENGTH.size
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


def _load_config(path: Path, *, required: bool) -> Mapping[str, Any] | None:
    if not required and not path.exists():
        return None
    return read_object(path, CONFIG_DOCUMENT)


def _model_config(path: Path, header: HeaderV3, config: Mapping[str, Any]) -> ModelConfig:
    def fail(message: str) -> InputError:
        return InputError("model.config", f"{CONFIG_NAME}: {message}", path=path)

    values: dict[str, int | float] = {}
    names: dict[str, str] = {}
    for parameter in PARAMETERS:
        names[parameter.field] = parameter.huggingface[0] if parameter.huggingface else parameter.field
        for key in parameter.huggingface:
            if config.get(key) is not None:
                names[parameter.field] = key
                values[parameter.field] = checked_number(key, config[key], parameter, fail)
                break
    for field, number in (
        ("num_layers", header.num_layers),
        ("hidden_size", header.hidden_size),
        ("num_heads", header.num_heads),
        ("vocab_size", header.vocab_size),
        ("context_length", header.context_length),
    ):
        if field in values and values[field] != number:
            raise fail(f"{names[field]} is {values[field]:,}, the file's header says {number:,}")
        values[field] = number
    family = family_of_model_type(str(config.get("model_type", "llama")))
    if family is None:
        raise UnsupportedError(
            "model.architecture", f"model_type {quoted(str(config['model_type']))} has no rules", path=path
        )
    model = build_config(
        family, str(config.get("model_type", "llama")), values, names, fail, vocab_size=header.vocab_size, rope=True
    )
    if model.head_dim != header.head_dim:
        raise fail(f"head_dim is {model.head_dim}, the file's header says {header.head_dim}")
    if not model.ffn_size:
        raise fail(f"{names['ffn_size']} is missing")
    return model


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
    _check_room(path, g, size)
    fitting: dict[str, list[Placed]] = {}
    plausible: dict[str, list[Placed]] = {}
    misfit: Placed | None = None
    for numbering in sorted(BUMP_CODES, key=lambda n: (n == "v4") != (8 in codes and 6 not in codes)):
        types = _types(codes, g.num_layers, numbering)
        if types is None:
            continue
        placed = place(
            SLOTS_V3,
            g,
            lambda slot, n, types=types: types[with_layer(slot.name, n)],  # type: ignore[misc]
            start=HEADER_BYTES + TABLE_LENGTH.size + len(codes),
            interleaved=interleaved,
        )
        misfit = next(
            (p for p in placed if p.layout.cols % p.dtype.block or p.layout.stored_cols % p.dtype.block), None
        )
        if misfit:
            continue
        plausible[numbering] = placed
        if size is None or placed[-1].offset + placed[-1].nbytes == size:
            fitting[numbering] = placed
    if misfit and not plausible:
        raise InputError(
            "bump.dtype-table",
            f"{misfit.slot_name} is {misfit.dtype} with rows of {misfit.layout.cols}; blocks hold {misfit.dtype.block}",
            path=path,
            tensor=misfit.slot_name,
        )
    if not plausible:
        _bad_code(path, codes, g.num_layers)
    if not fitting:
        _bad_extent(path, next(iter(plausible.values())), size or 0)
    return next(iter(fitting.items()))


def _check_room(path: Path, g: Geometry, size: int | None) -> None:
    """The vectors of all layers fit into the file: the index must not grow beyond what the bytes can justify."""
    layer = SLOTS_V3[1]
    least = place(((), layer, ()), replace(g, num_layers=1), lambda slot, n: F32, start=0, interleaved=False)
    need = g.num_layers * sum(item.nbytes for item in least if item.slot.fp32)
    if size is not None and need > size:
        raise InputError(
            "bump.extent",
            f"the FP32 vectors of {g.num_layers:,} layers alone are {need:,} bytes, the file has {size:,}",
            path=path,
            found=size,
            allowed=need,
            hint="the copy looks incomplete",
        )


def _types(codes: bytes, num_layers: int, numbering: str) -> dict[str, DType] | None:
    """Slot name -> type, or ``None`` where a code has no meaning at its place."""
    table = BUMP_CODES[numbering]
    types: dict[str, DType] = {}
    for (slot, layer), code in zip(slots_of(SLOTS_V3, num_layers), codes, strict=True):
        dtype = table.get(code)
        if dtype is None or (slot.fp32 and dtype is not F32) or dtype.kind is Kind.INTEGER:
            return None
        types[with_layer(slot.name, layer)] = dtype
    return types


def _bad_code(path: Path, codes: bytes, num_layers: int) -> NoReturn:
    known = {code for table in BUMP_CODES.values() for code, dtype in table.items() if dtype.kind is not Kind.INTEGER}
    faults = []
    first = 0
    for position, ((slot, layer), code) in enumerate(zip(slots_of(SLOTS_V3, num_layers), codes, strict=True)):
        name = with_layer(slot.name, layer)
        if slot.fp32 and code:
            faults.append(f"{name} has dtype code {code}, it is always FP32 (0)")
        elif code not in known:
            faults.append(f"{name} has dtype code {code}, which no weights have")
        if len(faults) == 1 and not first:
            first = HEADER_BYTES + TABLE_LENGTH.size + position
    if not faults:
        faults.append("its codes belong to no one numbering of the types")
    raise InputError("bump.dtype-table", faults[0], path=path, offset=first or None, details=listed(faults[1:]))


def _bad_extent(path: Path, placed: list[Placed], size: int) -> NoReturn:
    for item in placed:
        end = item.offset + item.nbytes
        if end > size:
            raise InputError(
                "bump.extent",
                f"{item.slot_name} ends at byte {end:,}, the file has {size:,}",
                path=path,
                tensor=item.slot_name,
                offset=item.offset,
                found=size,
                allowed=placed[-1].offset + placed[-1].nbytes,
                hint="the copy looks incomplete",
            )
    end = placed[-1].offset + placed[-1].nbytes
    raise InputError(
        "bump.extent",
        f"{size - end:,} bytes after {placed[-1].slot_name}, which ends at {end:,}",
        path=path,
        offset=end,
    )
