"""What a bump file says besides its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ckconv.core.tensors import TensorIndex
from ckconv.formats.bump.beside import document_beside
from ckconv.formats.bump.config import CONFIG_NAME
from ckconv.formats.bump.manifest import MANIFEST_NAME
from ckconv.formats.bump.map import MAP_NAME
from ckconv.formats.bump.spec import FOOTER_NAME, fields_of
from ckconv.io.bytesource import open_source
from ckconv.plan.content import Content


def content(index: TensorIndex, named: Mapping[str, Path]) -> Content:
    """Header fields, tokenizer and metadata in the file, and the documents beside it.

    Args:
        named: document -> where it is, if not beside the file.
    """
    path = index.path
    keys = {**fields_of(index.facts["header"]), "dtype table": bytes(index.facts["codes"])}
    with open_source(path) as source:
        for stored in index.facts.get("tokenizer") or ():
            keys[stored.name] = source.read_at(stored.extent.offset, stored.extent.nbytes)
        metadata = [checksum.extent for checksum in index.checksums if checksum.what == "metadata"]
        files = {FOOTER_NAME: source.read_at(metadata[0].offset, metadata[0].nbytes)} if metadata else {}
    names = (CONFIG_NAME,) if index.version == 3 else (CONFIG_NAME, MANIFEST_NAME, MAP_NAME)
    paths = {name: named.get(name) or document_beside(path, name) for name in names}
    return Content(keys, files, {name: place for name, place in paths.items() if place.exists()})
