"""The library: open a model, convert it, verify it, compare two.

Arguments are checked by their annotation; errors are builtin classes where they apply, and their hints have arguments
where those of the command line have flags.
"""

from __future__ import annotations

import errno
import inspect
import math
import numbers
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from ckconv.conversion.planning import at_work, judged, prepare, prepare_edit, prepare_tower
from ckconv.conversion.run import Report, make_folder, run, uploading
from ckconv.conversion.sidefiles import last_files
from ckconv.conversion.write import Watcher, arrays, watching
from ckconv.core.config import ModelConfig
from ckconv.core.lazy import NDArray, dataclass, field, replace
from ckconv.core.options import OPTIONS, Options, Takes
from ckconv.core.tensors import Identity, Tensor, TensorIndex
from ckconv.errors import CkconvError, InputError, OutputError, UsageError, counted, shown
from ckconv.formats import hazards
from ckconv.formats.destination import STDOUT, targets_in
from ckconv.formats.detect import open_index
from ckconv.formats.model import check_alone, of_task, seen_alike, with_mmproj
from ckconv.io import StrPath, as_path
from ckconv.io.files import Files, Progress
from ckconv.plan.quantizing import check_values
from ckconv.plan.steps import Plan

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import numpy as np

    from ckconv.comparison.compare import Comparison
    from ckconv.comparison.verify import Verified


class SupportsWrite(Protocol):
    """A binary file object that is open for writing."""

    def write(self, data: bytes, /) -> object:
        """Write all of ``data``."""


P = ParamSpec("P")
T = TypeVar("T")

#: Flag -> the argument of the library's functions.
_ARGUMENTS = {
    "--force": "force=True", "--to": "to=", "--from": "source_format=", "--adapter": "adapters=", "--mmproj": "mmproj=",
    "--no-verify": "verify=False", "--checksums": "checksums=True", "--record": "record=True", "--jobs": "jobs=",
    "--resume": "resume=True", "--weights": "weights=True", "--tolerance": "tolerance=",
}  # fmt: skip


class ArgumentError(UsageError, TypeError):
    """An argument of another type than its function takes."""


class NotFoundError(InputError, FileNotFoundError):
    """A file that is not there."""


class ExistsError(OutputError, FileExistsError):
    """An output that is there already."""


#: Code of an error -> the builtin class that it is besides, and that class's number.
_ALSO: dict[str, tuple[type[CkconvError], int]] = {
    "input.missing": (NotFoundError, errno.ENOENT),
    "output.exists": (ExistsError, errno.EEXIST),
}

#: A flag, and the value behind it: quoted, or a word.
_FLAG = r"--[a-z][a-z0-9-]*(?P<value>[ =](?:'[^']*'|[\w.:*/]*[\w*/](?=$|[\s,;)])))?"


def in_python(text: str) -> str:
    """A hint with the arguments of the library where flags stand."""
    return re.sub(_FLAG, _spelled, text)


def _spelled(found: re.Match[str]) -> str:
    value = found["value"] or ""
    flag, word = found[0].removesuffix(value), value[1:].strip("'")
    row = next((option for option in OPTIONS if option.flag == flag), None)
    if row is None:
        argument = _ARGUMENTS.get(flag, flag)
        return f"{argument}{word!r}" if argument.endswith("=") and word else argument + value
    if row.takes is Takes.NOTHING:
        return f"Options({row.name}={row.gives!r}){value}"
    if not word or (row.takes is Takes.NUMBER and not word.isdigit()):
        return f"Options({row.name}=...){value}"
    several = row.takes in (Takes.GLOB, Takes.WORDS)
    return f"Options({row.name}={f'({word!r},)' if several else word if row.takes is Takes.NUMBER else repr(word)})"


def _made(error: CkconvError) -> CkconvError:
    kind, number = _ALSO.get(error.code, (None, 0))
    if kind is not None and not isinstance(error, kind):
        plain, error = error, kind.__new__(kind)
        error.__dict__.update(plain.__dict__)
        error.args = plain.args
        for name, value in {"filename": plain.path, "errno": number, "strerror": os.strerror(number)}.items():
            setattr(error, name, value)
    error.python_hint = in_python(error.hint) if error.hint else None
    return error


def pythonic(function: Callable[P, T]) -> Callable[P, T]:
    """Function with checked arguments whose errors are Python's, too.

    Raises:
        ArgumentError: ``usage``, an argument is not what its annotation says (:data:`_KINDS`).
    """

    def generate(*args: Any, **more: Any) -> Any:
        try:
            yield from function(*args, **more)  # type: ignore[misc]
        except CkconvError as error:
            raise _made(error) from error.__cause__

    @wraps(function)
    def call(*args: P.args, **more: P.kwargs) -> T:
        try:
            given = inspect.signature(function).bind(*args, **more)
        except TypeError:
            return function(*args, **more)  # raises that error in its own words
        for name, value in [*given.arguments.items()]:
            annotation = function.__annotations__[name]
            check_argument(name, value, annotation)
            given.arguments[name] = _pythons_own(value, annotation)
        if inspect.isgeneratorfunction(function):
            return generate(*given.args, **given.kwargs)  # type: ignore[no-any-return]
        try:
            return function(*given.args, **given.kwargs)
        except CkconvError as error:
            raise _made(error) from error.__cause__

    return call


def _is_path(value: object) -> bool:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    return isinstance(text, str) and text != ""


def _is_bool(value: object) -> bool:
    numpy = sys.modules.get("numpy")  # whoever has one of its values has imported it
    return isinstance(value, bool) or (numpy is not None and isinstance(value, numpy.bool_))


def _is_count(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) > 0


def _pythons_own(value: object, annotation: str) -> object:
    """Python's number for one of NumPy's: others are no JSON and no ``True``."""
    kind = {"int": int, "bool": bool}.get(annotation.removesuffix(" | None"))
    return value if kind is None or value is None else kind(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and _is_number(value) and 0 <= value < math.inf


def _each(accepted: Callable[[object], bool]) -> Callable[[object], bool]:
    """Accept lists and tuples; a lone text would be taken for its letters."""
    return lambda value: isinstance(value, list | tuple) and all(map(accepted, value))


def _pair(first: Callable[[object], bool], second: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, tuple) and len(value) == 2 and first(value[0]) and second(value[1])


def _is_text(value: object) -> bool:
    return isinstance(value, str)


#: Annotation of an argument -> what it accepts, in Python and in words.
_KINDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "StrPath": (_is_path, "a path"),
    "StrPath | SupportsWrite": (lambda value: _is_path(value) or hasattr(value, "write"), "a path or a binary file"),
    "Iterable[StrPath]": (
        lambda value: isinstance(value, Iterable) and not isinstance(value, str | bytes | os.PathLike),
        "paths",
    ),
    "Sequence[StrPath]": (_each(_is_path), "a list of paths"),
    "Sequence[str]": (_each(_is_text), "a list of words"),
    "Sequence[tuple[StrPath, float]]": (_each(_pair(_is_path, _is_number)), "a list of (path, weight)"),
    "Sequence[tuple[str, str]]": (_each(_pair(_is_text, _is_text)), "a list of (key, value), both words"),
    "str": (lambda value: _is_text(value) and value != "", "a word"),
    "bool": (_is_bool, "True or False"),
    "int": (_is_count, "a whole number from 1 on"),
    "float": (_is_amount, "a number from 0 on"),
    "Options": (lambda value: isinstance(value, Options), "ckconv.Options"),
    "Progress": (callable, "a function of bytes and a name"),
    "Executor": (lambda value: hasattr(value, "submit"), "an executor of concurrent.futures"),
    "Any": (lambda value: True, "anything"),
}


def check_argument(name: str, value: object, annotation: str) -> None:
    """Check a value by an annotation."""
    accepts, words = _KINDS[annotation.removesuffix(" | None")]
    if not (accepts(value) or (value is None and annotation.endswith(" | None"))):
        raise ArgumentError("usage", f"{name} is {repr(value)[:80]}, {words} expected")


# An open model as programs see it: tensors and metadata by name, read when they are asked for.


@dataclass(frozen=True, slots=True, repr=False)
class ModelTensor:
    """Tensor of an open model; data is read when it is asked for."""

    tensor: Tensor
    identities: Mapping[Path, Identity] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        return f"<ModelTensor {self.name}: {self.dtype}, {' x '.join(map(str, self.shape)) or 'a scalar'}>"

    @property
    def name(self) -> str:
        """The canonical name, or the file's own where there is no rule for it."""
        return self.tensor.name

    @property
    def source(self) -> str:
        """The name in the file."""
        return self.tensor.source

    @property
    def dtype(self) -> str:
        """The stored type: ``F32``, ``BF16``, ``Q4_K``."""
        return self.tensor.dtype.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Canonical shape in elements, outermost first."""
        return self.tensor.shape

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.tensor.nbytes

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 1

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = self.values()
        return values if dtype is None else values.astype(dtype, copy=False)

    def __getitem__(self, at: int | slice) -> NDArray[np.float32]:
        """Values of outermost rows, read alone: ``tensor[10:20]``."""
        count = len(self)
        if len(self.shape) < 2:
            part: NDArray[np.float32] = self.values()[at]
            return part
        if isinstance(at, slice):
            numbers = range(count)[at]
            start, stop = (min(numbers), max(numbers) + 1) if numbers else (0, 0)
            read = self._decoded(start, stop)
            return read[:: numbers.step]
        number = range(count)[at]
        one: NDArray[np.float32] = self._decoded(number, number + 1)[0]
        return one

    def rows(self) -> NDArray[np.uint8]:
        """Canonical rows as stored bytes, ``[rows, bytes of a row]``.

        Rows are un-permuted and un-packed; blocks stay as they are.

        Of blocks that hold values of several rows: the values, as float32.

        Raises:
            OutputError: ``input.changed``, the file is not what it was.
        """
        from ckconv.io.rows import RowReader

        with Files(self.identities) as files:
            return RowReader(self.tensor, files).rows(0, self.tensor.layout.rows)

    def values(self) -> NDArray[np.float32]:
        """The canonical values, decoded exactly, in the tensor's shape.

        What a format adds to its values (1 to every norm of a Gemma in GGUF) is in them.

        Raises:
            UnsupportedError: ``tensor.values``, the type has no float32 values.
            OutputError: ``input.changed``, the file is not what it was.
        """
        return self._decoded(0, len(self))

    def _decoded(self, start: int, stop: int) -> NDArray[np.float32]:
        """Values of outermost rows ``start`` to ``stop``."""
        from ckconv.io.rows import values_of

        each = self.tensor.layout.rows // max(1, len(self))
        whole = (start, stop) == (0, len(self))
        with Files(self.identities) as files:
            found = values_of(self.tensor, files) if whole else values_of(self.tensor, files, start * each, stop * each)
        return found.reshape(self.shape if whole else (stop - start, *self.shape[1:]))


class Metadata(Mapping[str, Any]):
    """Key/value pairs of a file as Python values; arrays decode on access."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        value = getattr(value, "value", value)
        return value.decode() if hasattr(value, "decode") else value

    def type(self, key: str) -> str:
        """Type of a value in the file (``u32``, ``arr[i32]``); empty for none."""
        return str(getattr(self._values[key], "type", ""))

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Tensors(Mapping[str, ModelTensor]):
    """Tensors by canonical name, or by the name in the file."""

    def __init__(self, index: TensorIndex) -> None:
        self._tensors = {name: ModelTensor(tensor, index.identities) for name, tensor in index.everything.items()}

    def __getitem__(self, name: str) -> ModelTensor:
        if name in self._tensors:
            return self._tensors[name]
        found = next((tensor for tensor in self._tensors.values() if tensor.source == name), None)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class Model:
    """Open model of any format, headers only; ``index`` has all of it."""

    def __init__(self, index: TensorIndex) -> None:
        self.index = index
        self.metadata = Metadata(index.metadata)
        self.tensors: Mapping[str, ModelTensor] = Tensors(index)

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open: files are read when values are asked for."""

    @property
    def format(self) -> str:
        """``gguf``, ``safetensors``, ``mlx`` or ``bump``."""
        return self.index.format

    @property
    def version(self) -> int:
        """The format's version, 0 where it has none."""
        return self.index.version

    @property
    def architecture(self) -> str:
        """The file's own word for it, empty where it has none."""
        return self.index.architecture

    @property
    def config(self) -> ModelConfig | None:
        """Canonical hyper-parameters; ``None`` for an unknown architecture."""
        return self.index.config

    def __repr__(self) -> str:
        what = f"{self.format} {self.architecture or 'model'}"
        return f"<{what} of {counted(len(self.tensors), 'tensor')}: {shown(self.index.path)}>"


@pythonic
def open_model(
    path: StrPath,
    *,
    format: str | None = None,
    follow_links: bool = False,
    strict: bool = False,
    families: Sequence[StrPath] = (),
) -> Model:
    """Open a model of any format: a file, a shard of a set, or a directory.

    No tensor data is read.

    Args:
        format: read it as this format, whatever it looks like.
        follow_links: files of a directory that are links to places outside of it are read.
        strict: a model that carries code or hidden characters is refused.
        families: family files of your own.

    Raises:
        InputError: malformed, missing or unreadable; exit status 3 of the command line.
        UnsupportedError: nothing but pickles, or tensors of a quantizer that is not read.
    """
    with at_work(families):
        index = open_index(as_path(path), format=format, follow_links=follow_links)
        if strict:
            hazards.noted(index, strict=True)
        return Model(index)


@pythonic
def convert(
    source: StrPath,
    target: StrPath | SupportsWrite,
    *,
    to: str | None = None,
    source_format: str | None = None,
    adapters: Sequence[tuple[StrPath, float]] = (),
    mmproj: StrPath | None = None,
    options: Options | None = None,
    force: bool = False,
    verify: bool = True,
    checksums: bool = False,
    record: bool = False,
    attest: StrPath | None = None,
    jobs: int | None = None,
    executor: Executor | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Convert a model.

    The output is complete and verified when this returns, or is not there; what goes into a file object is not read
    back: its report says "not verified".

    Args:
        target: a file whose name says its format, or a directory (ending in ``/``, or with ``to``); or the address of
            one, of a system that fsspec knows; or a binary file object, which gets the file, or a tar archive of a
            directory's files, and needs ``to``.
        to: the format to write: ``bump``, ``gguf``, ``safetensors`` or ``mlx``.
        adapters: (path, weight) of each adapter that is merged into the model, in order.
        mmproj: the tower of the source, a text model in a GGUF: the output is a checkpoint of both.
        options: everything that changes what is written.
        force: replace what is there.
        verify: read the output again and compare every tensor with its source before it gets its name.
        checksums: write a file for ``sha256sum -c`` beside it.
        record: write a conversion record, from which :func:`verify` knows the options: beside the output, or into
            the source record of a bump file.
        attest: write the same there as a statement of in-toto.
        jobs: how many processors are kept at work, by pieces that a library quantizes, or files of an output;
            ``None`` for those that the process may use. The bytes are the same, memory grows with it.
        executor: its workers make the files of an output of several, each one at a time; they need source and target
            under the same paths, and the same ckconv. A worker quantizes one piece of a tensor at once, or ``jobs``.
        resume: finished files of an output of several stay where the work ends early, and are gone on with.
        progress: called with bytes just done and the tensor they belong to, in the calling thread; if it has a method
            ``begin(phase, total)``, that hears of each phase.

    Raises:
        UsageError: target and options say nothing that can be done.
        InputError: the source is malformed.
        UnsupportedError: the target cannot hold the model exactly; every reason is in ``details``.
        OutputError: the output exists, does not fit or cannot be written.
        VerifyError: the output is not what the source holds.
    """
    options = options or Options()
    check_values(options)
    check_alone({"resume": resume, "executor": executor} if mmproj is not None else {})
    lasting = resume or executor is not None
    if not isinstance(target, str | os.PathLike):
        if lasting or checksums or record or attest is not None or mmproj is not None:
            raise UsageError("usage.target", "a file object takes the output alone: no record, checksums or tower")
        with at_work(options.families, jobs):
            return _into(target, source, to, source_format, adapters, options, watching(progress))
    elsewhere = uploading(os.fspath(target), replacing=force, lasting=lasting)
    with at_work(options.families, jobs), elsewhere as upload:
        plan, place = prepare(
            source,
            upload.local if upload else os.fspath(target),
            to=to,
            source_format=source_format,
            adapters=adapters,
            mmproj=mmproj,
            options=options,
        )
        if place.parent is None:
            raise UsageError("usage.target", "only the command line writes to standard output", hint="name a file")
        statement = Path(attest) if attest is not None else None
        last = last_files(plan, place, checksums=checksums, record=record, attest=statement, adapters=adapters)
        shared = None
        if lasting:
            from ckconv.conversion.cluster import sharing
            from ckconv.conversion.resume import requested

            request = requested(plan, place, source, source_format, adapters, verify=verify, force=force)
            shared = sharing(request, executor=executor, resume=resume, jobs=jobs)
        watcher = watching(progress)
        report = run(plan, place, force=force, verify=verify, last=last, watcher=watcher, shared=shared)
        return upload.publish(report, watcher) if upload else report


def _into(
    target: SupportsWrite,
    source: StrPath,
    to: str | None,
    source_format: str | None,
    adapters: Sequence[tuple[StrPath, float]],
    options: Options,
    watcher: Watcher,
) -> Report:
    """Convert into a file object, by way of a temporary file."""
    from shutil import copyfileobj
    from tempfile import TemporaryFile

    plan, place = prepare(source, STDOUT, to=to, source_format=source_format, adapters=adapters, options=options)
    with TemporaryFile() as file:
        report = run(plan, place, stdout=file.fileno(), watcher=watcher)
        file.seek(0)
        copyfileobj(file, target)
    return report


@pythonic
def iter_tensors(
    source: StrPath,
    *,
    to: str,
    adapters: Sequence[tuple[StrPath, float]] = (),
    options: Options | None = None,
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield name and array of each tensor in a target's order.

    No file is made.

    A type that numpy has not comes as its bits: BF16 as ``uint16`` (``torch.from_numpy(a).view(torch.bfloat16)``,
    ``mx.array(a).view(mx.bfloat16)``), FP8 as ``uint8``, blocks of a GGUF as rows of ``uint8``. One tensor is in memory
    at a time.

    Raises:
        UsageError, InputError, UnsupportedError, OutputError: as :func:`convert`.
    """
    options = options or Options()
    check_values(options)
    with at_work(options.families):
        plan, _ = prepare(source, STDOUT, to=to, adapters=adapters, options=options)
        plan.check()
    found = arrays(plan)

    def following() -> tuple[str, NDArray[Any]] | None:
        with at_work(options.families):  # not while the caller has the tensor
            return next(found, None)

    yield from iter(following, None)


@pythonic
def batch(
    sources: Iterable[StrPath], into: StrPath, *, to: str, options: Options | None = None, **more: Any
) -> Iterator[tuple[StrPath, Report | CkconvError]]:
    """Convert models to ``INTO/NAME/``, one after the other.

    An error is given back, and does not stop the others.

    Args:
        more: arguments of :func:`convert`.

    Raises:
        UsageError: ``usage.target``, two models have one name, or one would go to its own place.
    """
    given = list(sources)
    for source in given:
        check_argument("a source", source, "StrPath")
    pairs = targets_in([as_path(source) for source in given], Path(into))
    make_folder(Path(into))
    for source, (_, place) in zip(given, pairs, strict=True):
        try:
            yield source, convert(source, place, to=to, options=options, **more)
        except CkconvError as error:
            yield source, error


@pythonic
def dry_run(
    source: StrPath,
    target: StrPath,
    *,
    to: str | None = None,
    adapters: Sequence[tuple[StrPath, float]] = (),
    options: Options | None = None,
) -> Plan:
    """Plan a conversion without writing anything.

    ``refusals`` are the reasons why it would not, ``nbytes``, ``steps`` and ``notes`` what it would write.

    Raises:
        UsageError, InputError, UnsupportedError: as :func:`convert`.
    """
    options = options or Options()
    check_values(options)
    with at_work(options.families):
        return prepare(source, os.fspath(target), to=to, adapters=adapters, options=options)[0]


@pythonic
def targets(path: StrPath) -> dict[str, tuple[str, ...]]:
    """Formats, each with the reason why it cannot hold a model; or empty.

    Raises:
        InputError, UnsupportedError: as :func:`open_model`.
    """
    found = judged(open_index(as_path(path)))
    return {target.name: tuple(reason.text for reason in target.reasons) for target in found}


@pythonic
def hash(path: StrPath, *, progress: Progress | None = None) -> str:
    """The SHA-256 of a model's canonical names, shapes and values.

    It is the same in every format (``inspect --hash``).

    Raises:
        InputError, UnsupportedError: as :func:`open_model`, or there is nothing to hash.
    """
    from ckconv.comparison.compare import hash_index

    return hash_index(open_index(as_path(path)), progress).model


@pythonic
def edit(
    source: StrPath,
    target: StrPath | None = None,
    *,
    set_meta: Sequence[tuple[str, str]] = (),
    drop_meta: Sequence[str] = (),
    force: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Write a model again with other metadata; its tensors stay byte for byte.

    Args:
        target: where it goes; ``None`` for the place of ``source``, a single file, which gets a new one in its stead:
            no byte of the old one is overwritten. A ``NAME.sha256`` beside it is written anew then.
        set_meta: key and value, as text: of a GGUF's metadata, of a checkpoint's ``config.json``,
            ``generation_config.json`` and ``tokenizer_config.json`` (``FILE:KEY`` names one), or of the headers of its
            files (``__metadata__.KEY``). Values have the type that readers want; ``eos_token`` takes a token's text.
        drop_meta: globs over keys.

    Raises:
        UsageError: nothing would change, or not so; ``usage.in-place``, what lies beside ``source`` speaks of its
            bytes, or it is no single file.
        InputError, UnsupportedError, OutputError, VerifyError: as :func:`convert`.
    """
    plan, place, last = prepare_edit(source, target, set_meta=set_meta, drop_meta=drop_meta)
    in_place = target is None
    return run(plan, place, force=force or in_place, in_place=in_place, last=last, watcher=watching(progress))


# The vision or audio tower of a model (``mmproj``), a file of its own.


@pythonic
def convert_tower(
    source: StrPath,
    target: StrPath,
    *,
    options: Options | None = None,
    force: bool = False,
    verify: bool = True,
    checksums: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Write a model's tower, which llama.cpp loads beside the text model.

    Args:
        target: a GGUF file.
        options: those of types, and ``drop``, have a say.
        force, verify, checksums, progress: as :func:`convert` has them.

    Raises:
        UsageError: ``usage.target``, the target is stdout, or named as a file of another format.
        UnsupportedError: ``tower.unknown``, or every reason why llama.cpp would not compute the tower.
        InputError, OutputError, VerifyError: as :func:`convert`.
    """
    options = options or Options()
    check_values(options)
    plan, place = prepare_tower(source, target, options=options)
    last = last_files(plan, place, checksums=checksums)
    return run(plan, place, force=force, verify=verify, last=last, watcher=watching(progress))


@pythonic
def verify(
    path: StrPath,
    source: StrPath | None = None,
    *,
    mmproj: StrPath | None = None,
    left_out: Sequence[str] = (),
    options: Options | None = None,
    adapters: Sequence[tuple[StrPath, float]] = (),
    weights: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Verified:
    """Check a file's structure, padding and checksums.

    With ``source``, everything that it holds against it.

    Args:
        mmproj: the tower of ``source``, where ``path`` is a checkpoint of both.
        left_out: names or globs of source tensors that are not in the file on purpose.
        options: with which it was converted, as far as no conversion record says that or the file shows it.
        adapters: (path, weight) of each adapter that was merged into it.
        weights: compare the tensors alone.
        jobs: how many pieces of a tensor are quantized at once to be compared, as for :func:`convert`.
        progress: called with bytes just read and the tensor they belong to.

    Raises:
        VerifyError: something is not what it should be; every fault is in ``details``.
        InputError: one of the two is malformed.
        UsageError: a conversion record says that files have to be named which are not.
    """
    from ckconv.comparison.verify import check_output

    options = options or Options()
    options = replace(options, drop=(*options.drop, *left_out))
    check_values(options)
    opened = partial(open_index, base=options.base, follow_links=options.follow_links)
    with at_work(options.families, jobs):
        out = opened(as_path(path))
        index = of_task(opened(as_path(source)), options.task) if source is not None else None
        index = with_mmproj(index, mmproj) if index is not None and mmproj is not None else index
        checked = check_output(
            as_path(path), out, index, options, adapters=adapters, weights=weights, progress=progress
        )
    return checked.found


@pythonic
def diff(
    a: StrPath,
    b: StrPath,
    *,
    weights: bool = False,
    tolerance: float = 0.0,
    follow_links: bool = False,
    families: Sequence[StrPath] = (),
    progress: Progress | None = None,
) -> Comparison:
    """Compare two models of any formats: values and metadata.

    Args:
        tolerance: a tensor whose relative error (root of the sum of squared differences over that of squared values)
            is no larger counts as the same.
        follow_links: files of a directory that are links to places outside of it are read.
        families: family files of your own.

    Raises:
        InputError: one of the two is malformed.
        UnsupportedError: the two cannot be compared.
    """
    from ckconv.comparison.compare import diff as compare, require_comparable

    with at_work(families):
        one, other = (open_index(as_path(path), follow_links=follow_links) for path in (a, b))
        one, other = seen_alike(one, other)
        require_comparable(one, other)
        return compare(one, other, weights=weights, tolerance=tolerance, progress=progress)
