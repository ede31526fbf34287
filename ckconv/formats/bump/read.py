"""Bump files of any version -> the canonical index."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckconv.core.metadata import CONFIG_NAME
from ckconv.core.tensors import TensorIndex
from ckconv.errors import InputError, counted
from ckconv.formats.bump.beside import document_beside
from ckconv.formats.bump.config import load_config
from ckconv.formats.bump.header5 import read_bump5
from ckconv.formats.bump.manifest import MANIFEST_NAME, load_manifest
from ckconv.formats.bump.old import check_old
from ckconv.formats.bump.read3 import index_bump3, read_bump3
from ckconv.formats.bump.read5 import index_bump5
from ckconv.formats.bump.spec import HEADER_BYTES, MAGIC, VERSIONS
from ckconv.formats.bump.trained import index_trained, is_wrapped, trained_manifest
from ckconv.io.bytesource import ByteSource, open_source


def open_bump(
    path: Path,
    *,
    source: ByteSource | None = None,
    config_path: Path | None = None,
    config: Mapping[str, Any] | None = None,
    manifest: Mapping[str, Any] | None = None,
) -> TensorIndex:
    """Read what a bump file says about itself, the ``config.json`` and the ``weights_manifest.json`` beside it.

    Both are looked for under the bump file's own name first (:mod:`ckconv.formats.bump.beside`).

    A version 3 file itself names neither the key/value heads nor the feed-forward size, so without a configuration
    its index has no tensors; the header is still described. A version 4 or 5 file needs neither document.

    Args:
        config_path: where the configuration is, if not beside the file.
        config: the configuration itself, if the caller has it; then nothing beside the file is looked at.
        manifest: the manifest, for a caller who has the configuration.

    Raises:
        InputError: ``bump.*`` or ``model.config``.
        UnsupportedError: ``model.architecture``.
    """
    opened = source or open_source(path)
    try:
        head = opened.read_at(0, HEADER_BYTES)
        trained = trained_manifest(path, head) if source is None and config is None else None
        if trained is not None:
            return index_trained(path, opened, trained, wrapped=is_wrapped(head))
        check_old(path, head, opened.size, beside=source is None and config is None)
        version = _version(path, head)
        older = read_bump3(path, opened, head) if version == 3 else None
        beside = source is None and config is None  # nothing lies beside a pipe
        if beside and older is None:
            manifest = load_manifest(document_beside(path, MANIFEST_NAME))
        newer = read_bump5(path, opened, head, version, named=manifest is not None) if older is None else None
        if config is None and (config_path or source is None):
            config = load_config(config_path or document_beside(path, CONFIG_NAME), required=config_path is not None)
        if older is not None:
            return index_bump3(path, older, config)
        assert newer is not None
        return index_bump5(path, opened, newer, config, manifest)
    finally:
        if source is None:
            opened.close()


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
            hint=f"a model trained in the engine has none: its {MANIFEST_NAME} has to be beside it" if head else None,
        )
    if len(head) < HEADER_BYTES:
        raise InputError(
            "bump.header", f"{counted(len(head), 'byte')}, a bump header has {HEADER_BYTES}", path=path, found=len(head)
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
