"""The files beside a model whose content follows from what is written: records and lists of digests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ckconv.errors import UsageError
from ckconv.formats import format_of
from ckconv.formats.destination import Destination
from ckconv.plan.steps import Plan
from ckconv.record.schema import record_path

if TYPE_CHECKING:
    from ckconv.engine.conversion_record import Facts, Recorded
    from ckconv.engine.settle import Late
    from ckconv.plan.steps import Beside


def side_files(
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
    from ckconv.engine.checksums import checksum_file

    plan.check()
    content: Recorded | None = None
    if record or attest:
        from ckconv.engine.conversion_record import Facts, attested, record_file, recorded

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
    from ckconv.engine.settle import Late

    if place.parent is None:
        raise UsageError("usage.side-file", "--source-record writes a file beside the model, and stdout has none")
    return Late(
        record_path(place.parent / plan.files[0].name),
        lambda files: record.size(content(files) if content else None),
        lambda files: record.chunks(bytes.fromhex(files[0].payload_sha256), content(files) if content else None),
        names_digests=content is not None,
    )
