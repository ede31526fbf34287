"""Arrays -> safetensors files: which file each goes into, in which order, and the header in front of them."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from ckconv.core.metadata import METADATA
from ckconv.core.tensors import chained, made
from ckconv.formats.safetensors.spec import INDEX_SUFFIX, SINGLE_NAME, SUFFIX, encode_header, shard_name
from ckconv.plan.container import Frame
from ckconv.plan.pieces import Module, Piece
from ckconv.plan.steps import OutputFile, Step, place

#: What loaders look for in the directory of a checkpoint.
_DIFFUSERS_NAME = f"diffusion_pytorch_model{SUFFIX}"


class Shards(NamedTuple):
    """The files.

    Attributes:
        headers: what stands before the tensors of each file.
        metadata: what each header says besides.
        index_name: what their index is called, empty where there is none.
        weight_map: tensor -> file, where there is an index.
    """

    files: tuple[OutputFile, ...]
    headers: tuple[bytes, ...]
    metadata: Mapping[str, str]
    index_name: str
    weight_map: Mapping[str, str]

    @property
    def frames(self) -> tuple[Frame, ...]:
        """What stands around the tensors of each file."""
        return tuple(Frame(header) for header in self.headers)

    @property
    def keys(self) -> dict[str, str]:
        """What every file declares."""
        return {f"{METADATA}.{key}": value for key, value in self.metadata.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(file.nbytes - len(header) for file, header in zip(self.files, self.headers, strict=True))


def lay_out(
    modules: Sequence[Module], file_name: str, limit: int, metadata: Mapping[str, str], *, always_index: bool
) -> Shards:
    """Deal modules out to files in the order of their names, and put each file together.

    Args:
        file_name: of a single file; shards are called after it.
        limit: bytes of tensors in a file, unless one module has more; 0 for one file.
        always_index: a single file has an index too.
    """
    groups = _split(modules, limit)
    stem = file_name.removesuffix(SUFFIX)
    names = [file_name] if len(groups) == 1 else [shard_name(stem, n + 1, len(groups)) for n in range(len(groups))]
    indexed = always_index or len(groups) > 1
    files, headers = [], []
    weight_map: dict[str, str] = {}
    for name, group in zip(names, groups, strict=True):
        ordered = _ordered(chained(group))
        header = encode_header(((p.name, p.dtype.safetensors or "", p.shape, p.nbytes) for p in ordered), metadata)
        places, at = array("Q"), len(header)
        for piece in ordered:
            places.append(place(at))
            at += piece.nbytes
        files.append(OutputFile(name, at, made(len(ordered), partial(_step, ordered, places))))
        headers.append(header)
        weight_map |= {piece.name: name for piece in ordered} if indexed else {}
    return Shards(
        tuple(files),
        tuple(headers),
        metadata,
        f"{stem}{SUFFIX}{INDEX_SUFFIX}" if indexed else "",
        dict(sorted(weight_map.items())),
    )


def single_name(name: str, same: bool) -> str:
    """What the only file of an output is called that has no name, and its shards after it.

    Args:
        name: of the source's first file.
        same: the output is the same kind of model; diffusers looks for its own name (``WEIGHTS_NAME``).
    """
    return _DIFFUSERS_NAME if same and name.startswith(_DIFFUSERS_NAME.removesuffix(SUFFIX)) else SINGLE_NAME


def _split(modules: Sequence[Module], limit: int) -> list[Sequence[Module]]:
    if not limit:
        return [modules]
    groups: list[list[Module]] = [[]]
    filled = 0
    for module in sorted(modules, key=lambda module: natural(module[0].name)):
        nbytes = sum(piece.nbytes for piece in module)
        if groups[-1] and filled + nbytes > limit:
            groups.append([])
            filled = 0
        groups[-1].append(module)
        filled += nbytes
    return [*groups]


def _ordered(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """Wide types first, so that every tensor is aligned to its own type; then by name, as safetensors' writer does."""
    order = sorted(range(len(pieces)), key=lambda at: pieces[at].name)
    order.sort(key=lambda at: -pieces[at].dtype.size)
    return made(len(order), partial(_nth, pieces, array("I", order)))


def _nth(pieces: Sequence[Piece], order: Sequence[int], at: int) -> Piece:
    return pieces[order[at]]


def _step(pieces: Sequence[Piece], places: Sequence[int], at: int) -> Step:
    return pieces[at].step(places[at])


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sorting key that puts layer 2 before layer 10."""
    return tuple((0, int(part), part) if part.isdecimal() else (1, 0, part) for part in name.split("."))
