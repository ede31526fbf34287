"""The files beside a model: where they go, and those whose content follows from what is written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from ckconv.conversion.write import NO_DIGEST
from ckconv.core.metadata import CONFIG_NAME
from ckconv.errors import UsageError, VerifyError
from ckconv.formats import format_of, load
from ckconv.formats.destination import Destination
from ckconv.formats.safetensors.spec import ADAPTER_CONFIG, INDEX_SUFFIX
from ckconv.io.digests import sha256_of
from ckconv.plan.steps import Container, Late, Plan, Written
from ckconv.publish.files import SideFile, digest_of
from ckconv.publish.staging import Room, Small
from ckconv.record.schema import record_path
from ckconv.system import sync, write_at

if TYPE_CHECKING:
    from ckconv.conversion.conversion_record import Facts, Recorded
    from ckconv.plan.steps import Beside


def side_places(
    plan: Plan, container: Container, target: Destination, places: Mapping[str, Path], on_request: Sequence[str]
) -> dict[Path, Small]:
    """Where each side file goes. A model on standard output has no place beside it.

    Raises:
        UsageError: ``usage.side-file``, one was asked for that the target does not have, or two are one file.
    """
    side: dict[Path, Small] = {}
    wanted = {*places, *on_request}
    for name in sorted(wanted - container.side_files.keys()):
        raise UsageError("usage.side-file", f"{plan.target_name} has no {name}")
    for name, content in container.side_files.items():
        if name in container.on_request and name not in wanted:
            continue
        place = places.get(name) or _beside(target, name, content)
        if place is None and name in container.on_request:
            raise UsageError("usage.side-file", f"{name} must lie beside the model, and stdout has no place for it")
        if place is not None and any(place.absolute() == other.absolute() for other in side):
            raise UsageError("usage.side-file", f"{place} would be two of the files beside the model")
        if place is not None:
            side[place] = Small(name, content)
    return side


def _beside(target: Destination, name: str, content: SideFile) -> Path | None:
    own = format_of(target.format).place_beside
    if target.file is not None and own is not None:
        place: Path = load(own)(target.file, name, content)
        return place
    return target.parent / name if target.parent is not None else None


def own_names(side: Mapping[Path, Small], target: Destination) -> Iterator[str]:
    """What there is to say of side files that are not called what the engine reads."""
    own = {small.name: path.name for path, small in side.items() if path.name == f"{target.file_name}.{small.name}"}
    if own:
        yield (
            f"another bump file is there: what belongs to this one is {', '.join(own.values())}; "
            f"the engine reads {', '.join(own)}, so a directory of its own (DST/) is better"
        )


def check_distinct(beside: Sequence[Path], paths: Sequence[Path]) -> None:
    """Check that no file beside the model is the model.

    Raises:
        UsageError: ``usage.target``.
    """
    taken = {path.absolute() for path in beside}
    for path in paths:
        if path.absolute() in taken:
            raise UsageError(
                "usage.target", f"{path} would be both the model and a file beside it", hint="name another DST"
            )


def written(side: Mapping[Path, Small]) -> list[Written]:
    """Side files, as the report lists them."""
    return [Written(path, len(what.content), digest_of(what.content)) for path, what in side.items()]


def late_rooms(late: Sequence[Late], paths: Sequence[Path], plan: Plan, side: Mapping[Path, Small]) -> dict[Path, Room]:
    """The space that late files take, whose content is not known yet."""
    none = NO_DIGEST.hex()
    known = [Written(path, file.nbytes, none, none) for path, file in zip(paths, plan.files, strict=True)]
    known += written(side)
    rooms = {}
    for item in late:
        nbytes = item.nbytes(known)
        rooms[item.path] = Room(nbytes)
        known.append(Written(item.path, nbytes, none))
    return rooms


def named_last(plan: Plan, paths: Sequence[Path], side: Mapping[Path, Small]) -> list[Path]:
    """The files to name last, in this order.

    llama.cpp begins with the first shard of a split GGUF (``llama_model_loader``), the engine with the weights,
    transformers with the index of a checkpoint, or its one file of weights; mlx-lm reads ``config.json`` and takes
    no weights of which a tensor is missing.

    Args:
        paths: files of tensors, in order.
        side: files beside them.
    """
    if format_of(plan.format).single:
        return list(reversed(paths))
    indexes = [path for path, what in side.items() if what.name.endswith(INDEX_SUFFIX)]
    configs = [path for path, what in side.items() if what.name in (CONFIG_NAME, ADAPTER_CONFIG)]
    return [*configs, *paths, *indexes]


def write_late(item: Late, files: Sequence[Written], fd: int, *, verify: bool) -> Written:
    """Write a file whose content is known now, bring it to the disk and read it again.

    Raises:
        VerifyError: ``verify.file``.
        OSError: it cannot be written.
    """
    at, meant, planned = 0, sha256(), item.nbytes(files)
    for data in item.content(files):
        meant.update(data)
        write_at(fd, data, at)
        at += len(data)
    if at != planned:
        raise AssertionError(f"{item.path.name} has {at:,} bytes, {planned:,} were planned")
    if verify and sha256_of(fd) != meant.hexdigest():
        raise VerifyError("verify.file", "differs from what should have been written", path=item.path)
    sync(fd)
    return Written(item.path, at, meant.hexdigest())


def late_files(
    plan: Plan,
    place: Destination,
    *,
    checksums: bool = False,
    record: bool = False,
    attest: Path | None = None,
    adapters: Sequence[tuple[str | os.PathLike[str], float]] = (),
    facts: Facts | None = None,
) -> Sequence[Late]:
    """The files beside the model whose content follows from what is written.

    Args:
        attest: where the statement for in-toto goes.
        facts: what the record and the statement say, if somebody has gathered that already.
    """
    from ckconv.conversion.checksums import checksum_file

    plan.check()
    content: Recorded | None = None
    if record or attest:
        from ckconv.conversion.conversion_record import Facts, attested, record_file, recorded

        facts = facts or Facts(plan, [(Path(path), weight) for path, weight in adapters])
        content = recorded(facts, place) if record else None
    late = []
    digested = format_of(plan.format).keeps_source
    if plan.record:
        late.append(_source_record(plan.record, plan, place, content if digested else None))
    if content and not (plan.record and digested):
        late.append(record_file(place, content))
    if attest and facts:
        late.append(attested(facts, place, attest))
    return [*late, checksum_file(place)] if checksums else late


def _source_record(record: Beside, plan: Plan, place: Destination, content: Recorded | None) -> Late:
    """``DST.source.zip``, in which the conversion record is if one was asked for."""
    if place.parent is None:
        raise UsageError("usage.side-file", "--source-record writes a file beside the model, and stdout has none")
    return Late(
        record_path(place.parent / plan.files[0].name),
        lambda files: record.size(content(files) if content else None),
        lambda files: record.chunks(bytes.fromhex(files[0].payload_sha256), content(files) if content else None),
        names_digests=content is not None,
    )
