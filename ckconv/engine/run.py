"""Run a plan: stream the steps into an output that is published complete and verified, or not at all."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ckconv.core.beside import beside
from ckconv.core.documents import CONFIG_NAME
from ckconv.engine.leftovers import check_leftovers, gone_notes, left_documents, stale_lists
from ckconv.engine.pipeline import SMALLEST_HOLE
from ckconv.engine.reread import Soundness
from ckconv.engine.settle import Late, Staged, Written, write_late
from ckconv.engine.transfer import NO_DIGEST, Unwatched, Watcher, write_frames, write_stdout
from ckconv.errors import UsageError
from ckconv.formats import format_of, load
from ckconv.formats.destination import Destination
from ckconv.formats.safetensors.spec import ADAPTER_CONFIG, INDEX_SUFFIX
from ckconv.io.ahead import at_once
from ckconv.io.files import Files
from ckconv.plan.container import Container
from ckconv.plan.steps import OutputFile, Plan
from ckconv.publish.checks import check_parent
from ckconv.publish.files import SideFile, digest_of, failing
from ckconv.publish.staging import Outputs, Room, Small
from ckconv.signals import noted

if TYPE_CHECKING:
    from ckconv.engine.apart import Apart, Assembly


@dataclass(frozen=True, slots=True)
class Report:
    """What a conversion did.

    Attributes:
        target: what was written, as the user named it.
        files: the files of tensors, in order.
        side_files: what was published beside them.
        verified: tensors compared, ``None`` where that was not asked for.
        seconds: wall time.
        changed: source tensor -> values that are not what they were.
        merged: tensor that adapters change -> the largest difference that they made to a value.
    """

    plan: Plan
    target: str
    files: tuple[Written, ...]
    side_files: tuple[Path, ...]
    verified: int | None
    seconds: float
    changed: Mapping[str, int] = field(default_factory=dict)
    merged: Mapping[str, float] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        """The digest of the one file; empty where there are several."""
        return self.files[0].sha256 if len(self.files) == 1 else ""

    @property
    def payload_sha256(self) -> str:
        """The digest that the one file's own header stores; empty where there is none."""
        return self.files[0].payload_sha256 if len(self.files) == 1 else ""


@noted()
def run(
    plan: Plan,
    target: Destination,
    *,
    force: bool = False,
    in_place: bool = False,
    verify: bool = True,
    places: Mapping[str, Path] | None = None,
    on_request: Sequence[str] = (),
    late: Sequence[Late] = (),
    stdout: int | None = None,
    digests: bool = True,
    watcher: Watcher | None = None,
    apart: Apart | None = None,
) -> Report:
    """Write the output of ``plan`` to ``target``.

    Args:
        force: replace what is there.
        in_place: the output may take the name of the source, whose bytes stay as they are until then.
        verify: read the output again and compare every tensor with its source before it gets its name.
        places: side file -> where it goes, if not beside the model.
        on_request: side files that are asked for.
        late: further files.
        stdout: the descriptor that ``-`` means.
        digests: of whole files are wanted, even where a header holds that of its payload, which is computed anyway.
        apart: how each of several files is made apart from the others.

    Raises:
        UsageError: a side file was asked for that the target does not have.
        UnsupportedError: the plan refuses, or a value would change that may not.
        OutputError: the output exists, is the input, does not fit or cannot be written; or the input changed.
        VerifyError: the output is not what the source holds, or the source not what its own checksum says; the output
            is not published.
        Interrupted: a signal came, before the output was published or after; it says which.
    """
    plan.check()
    started = time.monotonic()
    watcher = watcher or Unwatched()
    container = plan.contents()
    plan = replace(plan, notes=(*plan.notes, *container.notes))
    if target.parent is None and plan.index.adapter is not None and container.side_files:
        raise UsageError("usage.target", "an adapter is two files, and stdout takes one", hint="name a directory")
    side = side_places(plan, container, target, places or {}, on_request)
    plan = replace(plan, notes=(*plan.notes, *_own_names(side, target)))
    if target.file is not None:
        check_parent(target.file)
    with Files(plan.index.identities) as files, Soundness(plan.index) as source:
        if target.parent is None:
            assert stdout is not None
            source.check()  # nothing can be taken back from there
            with Outputs({}, side, force=force, inputs=_inputs(plan)) as outputs:
                digest, losses = write_stdout(plan, container, files, stdout, watcher)
                outputs.publish()
            whole = Written(Path(target.name), plan.nbytes, *_of_pipe(container, digest))
            return Report(
                plan,
                target.name,
                (whole,),
                tuple(side),
                None,
                time.monotonic() - started,
                losses.changed,
                losses.merged,
            )
        paths = [target.parent / file.name for file in plan.files]
        rooms = _rooms_of_late(late, paths, plan, side)
        assembly = _assembly(plan, container, apart, verify=verify) if apart is not None else None
        if apart is not None and assembly is None and (apart.resume or apart.executor):
            plan = replace(
                plan,
                notes=(*plan.notes, "--resume and --cluster change nothing here: the output is written in one piece"),
            )
        rooms |= {
            path: Room(file.nbytes, tuple(_holes(file)), apart=assembly is not None)
            for path, file in zip(paths, plan.files, strict=True)
        }
        _check_apart([*side, *(item.path for item in late)], paths)
        gone = left_documents(plan, target, [*rooms, *side]) if force else []
        plan = replace(plan, notes=(*plan.notes, *gone_notes(gone), *stale_lists(target, [*rooms, *side])))
        last = entry(plan, paths, side)
        inputs = () if in_place else _inputs(plan)
        kept = assembly.kept if assembly else None
        if kept is not None:
            with failing(Path(target.name)):
                kept.begin(target.directory or paths[0])
        with (
            kept or nullcontext(),
            Outputs(
                rooms,
                side,
                directory=target.directory,
                typed=target.file,
                force=force,
                inputs=inputs,
                last=last,
                gone=gone,
            ) as outputs,
        ):
            look = partial(check_leftovers, plan, target, rooms, side, gone)
            look()
            if not plan.restores or not verify:  # else it is verified whole
                source.begin()
            with failing(Path(target.name)):  # a reader raises its own error
                if assembly is not None:
                    losses, files_written, verified = assembly.run(outputs, paths, target, watcher)
                else:
                    staged = Staged(plan, container, target, paths, outputs, verify=verify)
                    write_frames(plan, container, (outputs.fds[path] for path in paths), Path(target.name))
                    with at_once(staged.jobs), staged.lanes:
                        losses = staged.write(files, watcher)
                        named = digests or any(item.names_digests for item in late)
                        files_written, verified = staged.settle(whole=named)
            if not plan.restores or not verify:
                source.check()
            written = [*files_written, *_written(side)]
            for item in late:
                with failing(item.path):
                    written.append(write_late(item, written, outputs.fds[item.path], verify=verify))
            files.check_unchanged()
            outputs.publish(look)
    return Report(
        replace(plan, notes=(*plan.notes, *outputs.notes)),
        target.name,
        tuple(written[: len(paths)]),
        tuple(file.path for file in written[len(paths) :]),
        verified,
        time.monotonic() - started,
        losses.changed,
        losses.merged,
    )


def _assembly(plan: Plan, container: Container, apart: Apart, *, verify: bool) -> Assembly | None:
    from ckconv.engine.apart import Assembly, is_apart

    return Assembly(plan, container, apart, verify=verify) if is_apart(plan) else None


def outputs_of(
    plan: Plan, target: Destination, *, places: Mapping[str, Path], on_request: Sequence[str], late: Sequence[Late]
) -> list[Path]:
    """Everything that :func:`run` gives a name.

    Raises:
        UsageError: as :func:`run`.
    """
    side = side_places(plan, plan.contents(), target, places, on_request)
    files = [target.parent / file.name for file in plan.files] if target.parent is not None else []
    return [*([target.directory] if target.directory else []), *files, *side, *(item.path for item in late)]


def _inputs(plan: Plan) -> tuple[Path, ...]:
    return (*plan.index.files, *beside(plan.index).values())


def _written(side: Mapping[Path, Small]) -> list[Written]:
    return [Written(path, len(what.content), digest_of(what.content)) for path, what in side.items()]


def _rooms_of_late(
    late: Sequence[Late], paths: Sequence[Path], plan: Plan, side: Mapping[Path, Small]
) -> dict[Path, Room]:
    none = NO_DIGEST.hex()
    known = [Written(path, file.nbytes, none, none) for path, file in zip(paths, plan.files, strict=True)]
    known += _written(side)
    rooms = {}
    for item in late:
        nbytes = item.nbytes(known)
        rooms[item.path] = Room(nbytes)
        known.append(Written(item.path, nbytes, none))
    return rooms


def side_places(
    plan: Plan, container: Container, target: Destination, places: Mapping[str, Path], on_request: Sequence[str]
) -> dict[Path, Small]:
    """Where each side file goes. A model on standard output has no place beside it."""
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


def _own_names(side: Mapping[Path, Small], target: Destination) -> Iterator[str]:
    """What there is to say of side files that are not called what the engine reads."""
    own = {small.name: path.name for path, small in side.items() if path.name == f"{target.file_name}.{small.name}"}
    if own:
        yield (
            f"another bump file is there: what belongs to this one is {', '.join(own.values())}; "
            f"the engine reads {', '.join(own)}, so a directory of its own (DST/) is better"
        )


def _check_apart(beside: Sequence[Path], paths: Sequence[Path]) -> None:
    taken = {path.absolute() for path in beside}
    for path in paths:
        if path.absolute() in taken:
            raise UsageError(
                "usage.target", f"{path} would be both the model and a file beside it", hint="name another DST"
            )


def _holes(file: OutputFile) -> list[tuple[int, int]]:
    return [(step.offset, step.nbytes) for step in file.steps if step.zero_filled and step.nbytes >= SMALLEST_HOLE]


def _of_pipe(container: Container, digest: bytes) -> tuple[str, str]:
    """SHA-256 of the whole and of the payload; what follows a header is all that was hashed of it."""
    return ("", digest.hex()) if container.frames[0].header else (digest.hex(), "")


def entry(plan: Plan, paths: Sequence[Path], side: Mapping[Path, Small]) -> list[Path]:
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
