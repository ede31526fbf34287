"""Bump files that are known and not read: named, with what reads them, so that none is mistaken for another.

Source: ``load_model_weights`` of ``src/ckernel_codegen.c``, the runtime that is generated for bump 3. It takes the
magic number ``BUMPWGT2`` (FP32 from byte 128 on), and any other start for FP32 from byte 0 on, as its
``save_model_weights`` writes it. ``build_dummy_weights`` of ``ck_run_v7.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckconv.core.config import CONFIG_KEYS, MAX_DIMENSION
from ckconv.core.dtypes import F32
from ckconv.core.metadata import CONFIG_NAME
from ckconv.errors import InputError, UnsupportedError
from ckconv.formats.bump.beside import document_beside
from ckconv.formats.bump.config import load_config
from ckconv.formats.bump.manifest import MANIFEST_NAME, load_manifest
from ckconv.formats.bump.placement import Geometry, place
from ckconv.formats.bump.slots import SLOTS_V3
from ckconv.formats.bump.spec import HEADER_BYTES, align
from ckconv.formats.bump.trained import is_wrapped, manifest_of

CODE = "bump.flavour"

#: The magic number before those of :data:`ckconv.formats.bump.spec.MAGIC`.
_SECOND = b"BUMPWGT2"

#: What the manifest of a file of zeros calls itself, which smoke tests load.
_DUMMY = "ck-bumpwgt4-dummy-v1"

_READER = "only the v1 runtime that the engine generates for bump 3 reads that"

_SIZES = ("num_layers", "vocab_size", "hidden_size", "ffn_size", "num_heads", "num_kv_heads", "context_length")


def check_old(path: Path, head: bytes, size: int | None, *, beside: bool) -> None:
    """Name a file that is none of those that are read.

    Args:
        beside: documents may lie beside it.

    Raises:
        UnsupportedError: ``bump.flavour``.
        InputError: ``bump.metadata``, the file cannot be described without its manifest.
    """
    if head.startswith(_SECOND):
        raise UnsupportedError(CODE, f"is bump 2, FP32 without types from byte {HEADER_BYTES} on: {_READER}", path=path)
    if is_wrapped(head):
        document = load_manifest(manifest_of(path)) if beside else None
        if document is not None and document.get("format") == _DUMMY:
            raise UnsupportedError(CODE, "holds no weights, but zeros for a smoke test of the engine", path=path)
        raise InputError(
            "bump.metadata",
            f"a header of zeros stands before what the engine trained, and no {MANIFEST_NAME} of that is beside it",
            path=path,
        )
    if beside and not head.startswith(b"BUMPWGT") and size is not None and size == _flat(path):
        raise UnsupportedError(CODE, f"is FP32 without a header, in the order of bump 3: {_READER}", path=path)
    if len(head) == HEADER_BYTES and not any(head):
        # Both scripts write the header last, over zeros.
        raise InputError(
            "bump.magic", "its header is zeros: the engine's script stopped before it wrote one", path=path
        )


def _flat(path: Path) -> int | None:
    """Bytes of all slots of bump 3 in FP32, as the configuration beside the file has their sizes."""
    try:
        config = load_config(document_beside(path, CONFIG_NAME), required=False)
    except InputError:
        return None
    sizes = {field: _number(config or {}, field) for field in _SIZES}
    sizes["num_kv_heads"] = sizes["num_kv_heads"] or sizes["num_heads"]
    if not all(sizes.values()):
        return None
    layers, vocab, hidden, ffn, heads, kv_heads, context = sizes.values()
    dim = hidden // heads
    g = Geometry(1, vocab, hidden, ffn, heads, kv_heads, dim, context, align(hidden), align(ffn), align(dim))
    one, two = (
        sum(
            item.nbytes
            for item in place(SLOTS_V3, g._replace(num_layers=n), lambda *_: F32, start=0, interleaved=False)
        )
        for n in (1, 2)
    )
    return one + (layers - 1) * (two - one)


def _number(config: Mapping[str, Any], field: str) -> int:
    value = next((config[key] for key in CONFIG_KEYS[field] if key in config), 0)
    return value if isinstance(value, int) and 0 < value < MAX_DIMENSION else 0
