"""What makes a plan, as plain data: another process or run makes the same one of it, or sees that it cannot."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from ckconv.core.tensors import Tensor
from ckconv.core.version import __version__
from ckconv.engine.planning import make_plan, merged
from ckconv.errors import OutputError
from ckconv.families.own import own_files
from ckconv.formats.detect import open_index
from ckconv.formats.locate import located
from ckconv.io.addresses import ADDRESS, as_path
from ckconv.io.files import Files, readable
from ckconv.options import Options
from ckconv.plan.container import Container
from ckconv.plan.steps import Plan
from ckconv.publish.files import opened_regular
from ckconv.publish.kept import digest_of

#: Bytes of a source that are hashed at most: headers end before.
_HEADER = 64 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """A conversion, whatever its output is called.

    Attributes:
        source: a path from the root, or an address.
        to: the format of the output.
        version: of ckconv.
    """

    source: str
    to: str
    source_format: str | None
    adapters: tuple[tuple[str, float], ...]
    options: Options
    version: str = __version__

    def planned(self) -> Plan:
        """The plan.

        Raises:
            OutputError: ``cluster.version``, this is another version of ckconv.
            InputError, UnsupportedError, UsageError: as :func:`ckconv.api.prepare`.
        """
        check_version(self.version)
        options = self.options
        index = open_index(
            as_path(self.source),
            format=self.source_format,
            base=options.base,
            follow_links=options.follow_links,
            drop=options.drop,
        )
        adapters = [(as_path(path), weight) for path, weight in self.adapters]
        if adapters:
            index = merged(index, adapters, options, self.to)
        with readable(index.path):
            return make_plan(index, self.to, options)


def requested(
    plan: Plan,
    source: str | os.PathLike[str],
    source_format: str | None,
    adapters: Sequence[tuple[str | os.PathLike[str], float]],
) -> Request:
    """What ``plan`` was made of, so that a process in another directory can make it again."""
    named = tuple((absolute_path(path), weight) for path, weight in adapters)
    return Request(absolute_path(source), plan.format, source_format, named, absolute(plan.options))


def check_version(version: str) -> None:
    """Check that the process that sent the work has this version of ckconv.

    Raises:
        OutputError: ``cluster.version``.
    """
    if version != __version__:
        message = f"a worker has ckconv {__version__}, and the conversion is one of {version}"
        raise OutputError("cluster.version", message, hint="install the same version there")


def absolute(options: Options) -> Options:
    """Options that say the same in another directory."""
    return replace(
        options,
        imatrix=options.imatrix and Path(absolute_path(options.imatrix)),
        template=options.template and Path(absolute_path(options.template)),
        base=options.base and as_path(absolute_path(options.base)),
        families=tuple(Path(absolute_path(path)) for path in options.families),
    )


def absolute_path(path: str | os.PathLike[str]) -> str:
    """A path that means the same in another directory; an address, and a name of a cache, as they are."""
    text = str(path)
    return text if ADDRESS.fullmatch(text) or not os.path.lexists(text) else os.path.abspath(text)  # noqa: PTH100


class Fingerprint(NamedTuple):
    """What two runs of the same conversion have in common, as digests.

    Attributes:
        source: sizes, times and headers of every file that is read.
        plan: all else: options, what is written where, everything around the tensors, and the version of ckconv.
    """

    source: str
    plan: str

    def __str__(self) -> str:
        return f"{self.source}-{self.plan}"

    def check(self, found: Fingerprint) -> None:
        """Another process found this of what should be the same.

        Raises:
            OutputError: ``input.changed`` or ``cluster.version``.
        """
        if found.source != self.source:
            message = "has changed since the conversion began, or is another file on a worker's machine"
            raise OutputError("input.changed", message)
        if found != self:
            message = "a worker plans this conversion differently: it has another version of some package"
            raise OutputError("cluster.version", message, hint="install the same versions there")


def fingerprint(plan: Plan, container: Container, request: Request, *, verify: bool) -> Fingerprint:
    """What is the same for every run of a conversion.

    Raises:
        InputError: a file cannot be read.
        OutputError: ``input.changed``, one is not what it was when its header was read.
    """
    files = "\n".join(_files(plan, request))
    digest = sha256(f"{__version__} {verify} {plan.target_name} {request.options} {request.adapters}".encode())
    digest.update(repr(sorted(own_files().digests.items())).encode())
    for file, frame in zip(plan.files, container.frames, strict=True):
        digest.update(f"{file.name} {file.nbytes} {frame.header_bytes}".encode())
        digest.update(frame.prologue + frame.epilogue)
        for step in file.steps:
            sources = [(tensor.source, tensor.dtype.name, tensor.shape) for tensor in step.sources]
            target = _described(step.target)
            digest.update(f"{step.slot} {step.offset} {step.nbytes} {step.action} {target} {sources}".encode())
            digest.update(step.content or b"")
    return Fingerprint(sha256(files.encode("utf-8", "surrogateescape")).hexdigest(), digest.hexdigest())


def _described(tensor: Tensor) -> list[object]:
    """What a tensor is, without what differs between two processes: paths as the user named them, and functions."""
    packed = [
        (each.rows, [array and (_described(array.tensor), array.per) for array in each.arrays])
        for each in tensor.packed
    ]
    places = [(extent.offset, extent.nbytes) for extent in tensor.extents]
    what = (tensor.name, tensor.source, tensor.dtype, tensor.shape, tensor.layout, tensor.may_be_absent)
    return [*what, places, [_described(plane) for plane in tensor.planes], packed]


def _files(plan: Plan, request: Request) -> Iterator[str]:
    """A line for each file: its name, size and time, and the digest of what is before its tensors."""
    index, options = plan.index, request.options
    begins: dict[Path, int] = {}
    for stored in index.stored:
        path, offset, _ = stored.extent
        begins[path] = min(begins.get(path, offset), offset)
    with Files(index.identities) as files:
        for path in dict.fromkeys((*index.files, *index.side_files, *index.part_files)):
            files.fd(path)  # it is the file that was planned
            with readable(path):
                status = path.stat()
            header = bytearray(min(begins.get(path, 0), status.st_size, _HEADER))
            files.read_into(path, 0, header)
            yield f"{path.name} {status.st_size} {status.st_mtime_ns} {sha256(header).hexdigest()}"
    for name, _ in request.adapters:
        yield from _small(located(as_path(name)))
    for further in (options.imatrix, options.template, options.base):
        if further is not None:
            yield from _small(located(further))


def _small(path: Path) -> Iterator[str]:
    """What is read besides: the content of small files, size and time of others."""
    with readable(path):
        for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if each.is_file():
                status = each.stat()
                line = f"{each.name} {status.st_size} {status.st_mtime_ns}"
                if status.st_size <= _HEADER:
                    with opened_regular(each) as fd:
                        line += f" {digest_of(fd)}"
                yield line
