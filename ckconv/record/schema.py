"""The source record: what an output does not hold of its source, so that the source can be made again byte for byte.

``out.bump.source.zip`` lies beside ``out.bump`` and belongs to it by the SHA-256 that the bump's header stores of its
payload. Its ``record.json`` lists every file of the source with its size, and *runs* of bytes (offset and length) that
are kept verbatim: all that is no tensor, and tensors or rows of tensors that do not come back out of the bump. Every
other byte comes back out of the bump file, or is zero. Contents are members of the archive: a file that is kept whole
under its own name in ``files/``, any other run, or several runs of one tensor, in ``parts/`` under its SHA-256.

Where a conversion record was asked for it is a member, too (``ckconv.json``), and says all the options (schema 2);
without one, ``record.json`` lists those that decide what the bump holds (schema 1).

A GGUF has no digest in its header. The record beside one has the SHA-256 of every file of tensors of the source
instead, and what is made again is that file or is not published (schema 3). A model that sees is two of them, the
text model, beside which the record lies, and its tower: both are needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ckconv.formats.gguf.values import parse_shard_name

if TYPE_CHECKING:
    from ckconv.core.tensors import TensorIndex

#: What the record of a file is called, behind the name of that.
SUFFIX = ".source.zip"

#: Without and with a conversion record, and of an output whose header holds no digest.
SCHEMA, SCHEMA_RECORDED, SCHEMA_HASHED = 1, 2, 3

#: Bytes that a record keeps at most, and bytes of its ``record.json``.
MAX_KEPT = 64 << 20
MAX_DOCUMENT = 16 << 20

#: The member that says what the others are.
DOCUMENT_NAME = "record.json"

#: The member that is the conversion record, if there is one.
CONVERSION_NAME = "ckconv.json"

#: What its name ends in beside a model that is one file.
CONVERSION_SUFFIX = f".{CONVERSION_NAME}"

DOCUMENTS = (DOCUMENT_NAME, CONVERSION_NAME)

#: Bytes of a file's name, in almost every file system.
MAX_NAME_BYTES = 255

#: (offset, bytes) in a source file.
Run = tuple[int, int]


class Kept(NamedTuple):
    """Runs of one file, sorted, and the SHA-256 (hex) of their bytes one after the other."""

    runs: tuple[Run, ...]
    sha256: str

    @property
    def nbytes(self) -> int:
        """Bytes of all runs together."""
        return sum(nbytes for _, nbytes in self.runs)


class SourceFile(NamedTuple):
    """One file of the source: ``tensors`` if it holds any, or could. ``kept`` runs do not overlap.

    Attributes:
        sha256: of the whole file (hex), of one that holds tensors; empty in a bump file's record before 0.4.
    """

    name: str
    size: int
    tensors: bool
    kept: tuple[Kept, ...]
    sha256: str = ""

    @property
    def runs(self) -> list[Run]:
        """Every run that is kept, sorted."""
        return sorted(run for kept in self.kept for run in kept.runs)

    def member(self, kept: Kept) -> str:
        """The archive's name of what is kept."""
        whole = not self.tensors
        return f"files/{self.name}" if whole else f"parts/{kept.sha256}"


class Record(NamedTuple):
    """Everything in ``record.json``.

    Attributes:
        format: of the source: ``gguf``, ``safetensors`` or ``mlx``.
        source: the name of the path that was converted.
        payload: SHA-256 of the bump's payload, as its header stores it; empty where no header does.
        rope_layout: ``split`` or ``interleaved`` rows in the bump, empty for a model without RoPE.
        family: of the model, as ckconv names families.
        options: the flags that changed values or left tensors out; ``None`` where the conversion record says all.
        left_out: names of source tensors that are not in the bump.
        aliases: canonical tensor that is not in the bump -> the one that is byte for byte the same.
        files: in the order in which a reader of the format reads them; side files last.
    """

    format: str
    source: str
    payload: bytes
    rope_layout: str
    family: str
    options: Mapping[str, Any] | None
    left_out: tuple[str, ...]
    aliases: Mapping[str, str]
    files: tuple[SourceFile, ...]

    def to_json(self) -> bytes:
        """``record.json``: its size does not depend on what ``payload`` is."""
        made = {"payload_sha256": self.payload.hex(), "rope_layout": self.rope_layout, "family": self.family}
        document = {
            "schema": SCHEMA_RECORDED if self.options is None else SCHEMA if self.payload else SCHEMA_HASHED,
            "format": self.format,
            "source": self.source,
            **({"bump": made} if self.payload else {}),
            **({} if self.options is None else {"options": dict(self.options)}),
            "left_out": list(self.left_out),
            "aliases": dict(self.aliases),
            "files": [
                {
                    "name": file.name,
                    "size": file.size,
                    "tensors": file.tensors,
                    "kept": [{"sha256": kept.sha256, "runs": kept.runs} for kept in file.kept],
                    **({"sha256": file.sha256} if file.sha256 else {}),
                }
                for file in self.files
            ],
        }
        return (json.dumps(document) + "\n").encode()


def named_after(index: TensorIndex, opened: Path, suffix: str) -> list[Path]:
    """Return the paths that a document beside a model may have: its names with ``suffix``; of shards, the whole's.

    Args:
        opened: the path that the user named.
    """
    first = index.files[0]
    shard = parse_shard_name(first.name)
    names = [opened.name, first.name, *([f"{shard.stem}.gguf"] if shard else [])]
    return [first.parent / f"{name}{suffix}" for name in dict.fromkeys(names)]


def record_path(made: Path) -> Path:
    """Where the record of a file lies."""
    return made.with_name(made.name + SUFFIX)


def plain_name(name: str) -> bool:
    """The name of a file directly in a directory, not hidden, which any system can hold."""
    if not name or name.startswith(".") or any(c in "/\\" or ord(c) < 32 or ord(c) == 127 for c in name):
        return False
    try:
        return len(name.encode()) <= MAX_NAME_BYTES
    except UnicodeEncodeError:
        return False
