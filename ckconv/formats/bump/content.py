"""Facts of a bump file that are not tensors, and options visible in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckconv.core.metadata import CONFIG_NAME, Content
from ckconv.core.tensors import TensorIndex
from ckconv.formats.bump.header import MANIFEST_NAME
from ckconv.formats.bump.sidefiles import MAP_NAME, document_beside, other_bumps
from ckconv.formats.bump.slots import FOOTER_NAME, fields_of
from ckconv.formats.bump.trained import manifest_of
from ckconv.io.files import open_source
from ckconv.plan.steps import Along, Plan


def content(index: TensorIndex, named: Mapping[str, Path]) -> Content:
    """Header fields, tokenizer, metadata, and the documents beside the file.

    Args:
        named: document -> where it is, if not beside the file.
    """
    path = index.path
    if not index.version:  # its manifest is all that it says
        return Content({}, {}, {MANIFEST_NAME: named.get(MANIFEST_NAME) or manifest_of(path)})
    keys = {**fields_of(index.facts["header"]), "dtype table": bytes(index.facts["codes"])}
    with open_source(path) as source:
        for stored in index.facts.get("tokenizer") or ():
            keys[stored.name] = source.read_at(stored.extent.offset, stored.extent.nbytes)
        metadata = [checksum.extent for checksum in index.checksums if checksum.what == "metadata"]
        files = {FOOTER_NAME: source.read_at(metadata[0].offset, metadata[0].nbytes)} if metadata else {}
    names = (CONFIG_NAME,) if index.version == 3 else (CONFIG_NAME, MANIFEST_NAME, MAP_NAME)
    paths = {name: named.get(name) or document_beside(path, name) for name in names}
    return Content(keys, files, {name: place for name, place in paths.items() if place.exists()})


def shown(_: TensorIndex, out: TensorIndex) -> dict[str, Any]:
    """The version, and how its types are numbered and its rows ordered."""
    if not out.version:
        return {"trainable": out.facts["layout"]}
    seen: dict[str, Any] = {"bump_version": out.version}
    if out.version == 3 and "dtype_codes" in out.facts:
        seen["dtype_codes"] = out.facts["dtype_codes"]
    if any(tensor.layout.interleaved for tensor in out.tensors.values()):
        seen["rope_layout"] = "interleaved"
    return seen


def stores_alike(plan: Plan, out: TensorIndex) -> bool:
    """The plan writes entries of these types, in this order of rows."""
    if not (plan.version and out.version):
        return plan.version == out.version and plan.options.trainable == out.facts["layout"]
    layout = str(out.facts.get("rope_layout", "")) if plan.rope_layout else ""
    return bytes(plan.contents().keys["dtype table"]) == bytes(out.facts["codes"]) and plan.rope_layout == layout


def takes_along(plan: Plan, directory: Path) -> Along:
    """Files that the engine reads along with the output.

    Unless another bump file there may need them.

    It takes types and places from ``weights_manifest.json``, and loads by the ``weights_manifest.map`` that lies beside
    the weights.
    """
    name = directory / plan.files[0].name
    return Along(documents=tuple(d for d in (MANIFEST_NAME, MAP_NAME) if not other_bumps(name, d)))


def configured(directory: Path) -> list[str]:
    """Bump files that ``config.json`` in the directory describes.

    Files that have none of their own.
    """
    found = (path for path in directory.iterdir() if path.suffix == ".bump")
    return [path.name for path in found if document_beside(path, CONFIG_NAME).name == CONFIG_NAME]
