"""Place, format and types of an output, and the flags that decide them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from ckconv.core.config import llama3_factors, same_factors
from ckconv.core.layouts import DTYPES, Kind
from ckconv.core.lazy import NamedTuple, replace
from ckconv.core.metadata import CONFIG_NAME, document_of, pieces_of
from ckconv.core.options import OPTIONS, Options, SetOption, given_options
from ckconv.core.tensors import HEAD, ROPE_FREQUENCIES, MetadataKind, TensorIndex, parse, parted, with_layer
from ckconv.errors import InputError, UnsupportedError, UsageError, counted, listed, shown
from ckconv.families import catalog, parameters, sizes, towers
from ckconv.families.names import GGUF, HF, beside_text, is_beside_text, names_of
from ckconv.families.schema import DRAFTS, MTP, TOWER
from ckconv.formats import ALIASES, FORMATS, Format, Place, format_of, load, model_outputs, named
from ckconv.formats.safetensors import container, files
from ckconv.io.files import NewHeader
from ckconv.plan import quantizing, steps

# Where an output goes, and what its name says about its format.

#: The names that write to standard output: the one file of an output, and a tar archive of its directory.
STDOUT, ARCHIVED = "-", "tar:-"
ON_STDOUT = (STDOUT, ARCHIVED)


class Destination(NamedTuple):
    """Place and format that the user named.

    Attributes:
        format: what is written there.
        directory: the directory that is made for it, ``None`` where the output is a file.
        file: the file, ``None`` where the output is a directory or standard output.
        typed: a user has named it as it stands; else it may be no link.
    """

    name: str
    format: str
    directory: Path | None = None
    file: Path | None = None
    typed: bool = True

    @property
    def parent(self) -> Path | None:
        """Where the files of the output go; ``None`` for standard output."""
        return self.directory or (self.file.parent if self.file else None)

    @property
    def archived(self) -> bool:
        """Say whether stdout gets a tar archive: no loader reads such a file."""
        alone = format_of(self.format)
        directory = alone.read is None or not (alone.suffix or alone.file)
        return self.parent is None and (self.name == ARCHIVED or directory)

    @property
    def file_name(self) -> str:
        """File name that the user gave; empty where nobody gave one."""
        return self.file.name if self.file else ""


def says_nothing(target: str) -> bool:
    """Say whether the name is a directory or stdout, and names no format."""
    return target in ON_STDOUT or (_is_directory(target) and not named_by_directory(target))


def named_by_directory(target: str) -> str:
    """Format that a name's last word says (``x-mlx/``); empty for none."""
    word = re.search(r"(?:^|[-_./])([a-z]+)/*$", target.lower())
    found = named(word[1]) if word else ""
    if word is None or all(format.single or format.name != found for format in FORMATS):
        return ""
    return found if _is_directory(target) or f".{word[1]}" not in _SUFFIXES else ""


#: Ending of a file's name -> its format.
_SUFFIXES = {format.suffix: format.name for format in FORMATS if format.suffix}


def _is_directory(target: str) -> bool:
    return target.endswith("/") or (target not in ON_STDOUT and os.path.isdir(target))  # noqa: PTH112 - never raises


def _is_same(target: str, source: str) -> bool:
    try:
        return Path(target).samefile(source)
    except (OSError, ValueError):  # nothing is there
        return False


def _names_one(options: Options, *, adapter: bool) -> str | None:
    """Hint that names the formats which take every option, or ``None``."""
    holds = [format for format in FORMATS if any(output.adapter == adapter for output in format.outputs)]
    fit = [format for format in holds if not _idle(format, options)]
    usual = [] if adapter else [format.name for format in fit if any(output.general for output in format.outputs)]
    short = {name: alias for alias, name in reversed(ALIASES.items())}
    ways = [f"--to {short.get(name, name)}" for name in usual or [format.name for format in fit]]
    return f"{', '.join(ways[:-1])}{' or ' if ways[:-1] else ''}{ways[-1]} names one" if ways else None


def destination(
    target: str, to: str | None, options: Options | None = None, *, source: str = "", adapter: bool = False
) -> Destination:
    """Format of ``target``: the one asked for, or that of its name.

    Args:
        options: what formats that a hint names have to take.
        source: what is read; a file that is written in its own place keeps its name, whatever that says.
        adapter: it is known to be one.
    """
    if "\0" in target:
        raise UsageError("usage.target", "a file name cannot hold a NUL character")
    if "://" in target:
        raise UsageError("usage.target", "outputs are written to local paths only", hint="copy it there afterwards")
    path = Path(target)
    by_suffix = _SUFFIXES.get(path.suffix.lower())
    if to is None and (format := named_by_directory(target)):
        return Destination(target, format, directory=path)
    if to is None:
        if says_nothing(target):
            raise UsageError(
                "usage.target",
                f"{target!r} {'is a directory and ' if by_suffix else ''}does not say which format to write",
                hint=_names_one(options or Options(), adapter=adapter),
            )
        if by_suffix is None:
            known = ", ".join(_SUFFIXES)
            raise UsageError(
                "usage.target",
                f"{path.name!r} ends in no known format ({known})",
                hint=_names_one(options or Options(), adapter=adapter),
            )
    format = to or by_suffix or ""
    if target in ON_STDOUT:
        return Destination(target, format)
    if by_suffix not in (None, format) and not (_is_directory(target) or _is_same(target, source)):
        ending = format_of(format).suffix
        file = f"a name in {ending} makes a file, " if ending else ""
        raise UsageError(
            "usage.target",
            f"{path.name!r} says {by_suffix}, and the format to write is {format}",
            hint=f"{file}{target}/ makes a directory",
        )
    if options and options.trainable == "headerless" and by_suffix is None and not _is_directory(target):
        ending = format_of(format).suffix
        raise UsageError(
            "usage.target",
            f"{path.name!r} does not end in {ending}, and what the engine trains is known by its name alone",
            hint=f"{target}{ending} makes a file, {target}/ makes a directory",
        )
    if _is_directory(target) or not (format_of(format).single or by_suffix == format):
        return Destination(target, format, directory=path)
    return Destination(target, format, file=path)


# Which flags have a say in which outputs: one that has none is an error of the user's, not a flag to ignore.

#: Options that have a say in what lies beside weights, or in what is read for it.
_BESIDE = frozenset({"dtype", "context", "follow_links", "families", "source_record", "created", "file_name"})


def without_say_beside(options: Options) -> list[str]:
    """The flags that mean nothing where no weights are written."""
    return [given.flag for given in given_options(options) if given.option.name not in _BESIDE]


def check_options(index: TensorIndex, to: str, options: Options) -> None:
    """Refuse options that have no say in the output."""
    adapter = index.adapter is not None
    output, because = (f"{to} adapter", "the source is an adapter") if adapter else (to, f"the output is {to}")
    for given in given_options(options):
        outputs = _outputs_with(given.option.name)
        if given.option.limited and output not in outputs:
            message = f"{given.flag} is for {_listed(outputs)}, and {because}"
            raise UsageError("usage.flag", message, found=given.option.name)
    if options.base is not None and index.adapter is None and (index.target is None or to == index.format):
        what = "is copied" if index.target else "is a model"
        message = f"--base is for an adapter or a drafter to be converted, and {index.path.name} {what}"
        raise UsageError("usage.flag", message)
    if index.adapter is None:
        check_globs(index, options)


def _outputs_with(option: str) -> list[str]:
    """The outputs that an option has a say in, versions apart."""
    found = (
        output.name if output.adapter else format.name
        for format in FORMATS
        for output in format.outputs
        if option in output.options
    )
    return list(dict.fromkeys(found))


def check_globs(index: TensorIndex, options: Options) -> None:
    """A glob that names nothing is a name that was not written right."""
    if options.imatrix is not None and not options.quantize:
        raise UsageError("usage.flag", "--imatrix is for --quantize, which is not given")
    if not (options.drop or options.quantize or options.decode):
        return
    everything = index.everything.values()
    names = {name for tensor in everything for name in (tensor.name, tensor.source)}
    # What scales RoPE may be a tensor, or said by the configuration alone; what a rule drops anyway has a name too.
    known = {*names, *(stored.name for stored in index.stored), HEAD}
    known |= {ROPE_FREQUENCIES} if index.config is not None and index.config.rope_scaling else set()
    known.update(name for found in index.canonical_of.values() for name in found)
    config = index.config if options.drop else None
    known |= {TOWER} if config and any(beside_text(config.raw, stored.name) for stored in index.unknown) else set()
    own = index.config.own if index.config is not None else {}
    aside = (
        index.dropped and index.config and (own.get(DRAFTS) is False or catalog.FAMILIES[index.config.family].of_drafts)
    )
    known |= {MTP} if own.get(DRAFTS) or aside else set()
    if options.drop and index.shard_index is not None:  # what an index lists and no shard has is left out already
        known.update(files.read_shard_index(index.shard_index).weight_map)
    if options.drop:
        from ckconv.plan.planner import lost_tensors

        known.update(with_layer(pattern, n) for pattern, layers in index.once(lost_tensors).items() for n in layers)
    for glob in options.drop:
        if not any(fnmatchcase(name, glob) for name in known):
            raise UsageError("usage.flag", f"--drop {glob} names no tensor of {index.path.name}")
    rules = quantizing.parsed(options.quantize).rules if options.quantize else ()
    written = _names_elsewhere(index) if rules else frozenset()
    for glob, _ in rules:
        if not any(fnmatchcase(name, glob) for name in (*names, *written)):
            raise UsageError("usage.flag", f"--quantize: {glob} names no tensor of {index.path.name}")
    for glob in options.decode:
        if not any(fnmatchcase(name, glob) for name in names):
            raise UsageError("usage.flag", f"--decode {glob} names no tensor of {index.path.name}")


def of_tower_alone(whole: TensorIndex, tower: TensorIndex, options: Options) -> Options:
    """Options of a tower, without globs of the text model beside it."""
    names = {name for tensor in tower.everything.values() for name in (tensor.name, tensor.source)}
    names |= {stored.name for stored in tower.stored}

    def own_first(globs: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        own = tuple(glob for glob in globs if any(fnmatchcase(name, glob) for name in names))
        return own, tuple(glob for glob in globs if glob not in own)

    (drop, of_text), (decode, decoded) = own_first(options.drop), own_first(options.decode)
    check_globs(whole, Options(drop=of_text, decode=decoded))
    return replace(options, drop=drop, decode=decode)


def _names_elsewhere(index: TensorIndex) -> frozenset[str]:
    """Names of the model's tensors in a GGUF and in a checkpoint."""
    if index.config is None:
        return frozenset()
    family, found = catalog.FAMILIES[index.config.family], set()
    for format in ("gguf", "hf"):
        written = names_of(family, format).written
        for name in index.tensors:
            pattern, layer, _ = parse(name)
            if pattern in written:
                found.add(written[pattern].called(layer, index.config.scope))
    return frozenset(found)


def check_version(plan: steps.Plan) -> None:
    """Refuse options that have a say in other versions of the output only."""
    outputs = format_of(plan.format).outputs
    if format_of(plan.format).choose is None or (plan.refusals and not plan.version):
        return
    for given in given_options(plan.options):
        having = [output for output in outputs if given.option.name in output.options]
        if given.option.limited and plan.version not in [output.version for output in having]:
            hint = " or ".join(f"--{plan.format}-version {o.version}" for o in having) if plan.version else None
            message = f"{given.flag} is for {_listed([o.name for o in having])}, and the output is {plan.target_name}"
            raise UsageError("usage.flag", message, hint=hint, found=given.option.name)


def _read_back(plan: steps.Plan) -> TensorIndex | None:
    """Headers and configuration of an output that is not written yet.

    None where nothing reads such a file.
    """
    read = format_of(plan.format).of_headers
    if read is None or not plan.files:
        return None
    container = plan.contents()
    pairs = zip(plan.files, container.frames, strict=True)
    headers = [NewHeader(Path(file.name), frame.prologue, file.nbytes) for file, frame in pairs]
    config = container.side_files.get(CONFIG_NAME)
    document = None if config is None else NewHeader(Path(CONFIG_NAME), b"".join(pieces_of(config)))
    index: TensorIndex = load(read)(plan.index.path, headers, document)
    return index


def check_edits(plan: steps.Plan, unedited: Callable[[], steps.Plan]) -> None:
    """Check that keys which flags set or drop are those of the tensors.

    Args:
        unedited: the same plan without these flags.

    Raises:
        UsageError: ``usage.meta``.
    """
    index = plan.index
    named = {"--set-meta": [key for key, _ in plan.options.set_meta], "--drop-meta": plan.options.drop_meta}
    flags = " and ".join(f"{flag} of {', '.join(dict.fromkeys(keys))}" for flag, keys in named.items() if keys)
    try:
        out = _read_back(plan)
    except (InputError, UnsupportedError) as error:
        raise UsageError("usage.meta", f"{flags} would make a model that is not read: {error.message}") from None
    if out is None:
        return
    misfit, alike = out.misfit, out.format == index.format
    if misfit is not None and index.misfit is None and (misfit.tensor or not alike):
        raise UsageError("usage.meta", f"{flags} would make a model that is not read: {misfit.message}")
    unchanged = alike and {stored.name for stored in out.stored} <= {stored.name for stored in index.stored}
    if index.config is not None and out.config is None and not unchanged:
        message = f"{flags} would make a model of no known family, and tensors are named and laid out by one"
        raise UsageError("usage.meta", message, hint="leave it out, and change config.json itself for another program")
    plain = index if alike else _read_back(unedited())  # what the tensors are written as
    if plain is not None:
        _check_tower(out, plain, plan, flags)
    if plain is None or out.config is None or plain.config is None or out.architecture != plain.architecture:
        return
    first = "convert it first; edit changes what a document says"
    if not alike and (idle := [text for text in out.config.overruled if text not in plain.config.overruled]):
        raise UsageError("usage.meta", f"{flags} would say two things, of which one is not read: {idle[0]}", hint=first)
    if ROPE_FREQUENCIES in index.tensors.keys() - out.tensors.keys():  # factors that follow from what is said
        made, meant = (llama3_factors(one) or b"" for one in (out.config, plain.config))
        if not same_factors(made, meant):
            source = index.tensors[ROPE_FREQUENCIES].source
            raise UsageError("usage.meta", f"{flags} says what follows from {source}, which is left out", hint=first)
    differing = out.everything.keys() ^ parted(plain)[0].everything.keys()  # the output is read without its tower
    others = {name for name in differing - {HEAD} if not is_beside_text(out.config.raw, name)}
    if others and not (alike and plan.options.drop):
        hint = "without it they are as in the source"
        raise UsageError("usage.meta", f"{flags} says which layers have which tensors", hint=hint)
    shared = out.everything.keys() & plain.everything.keys()
    if any(out.everything[name].layout.scale != plain.everything[name].layout.scale for name in shared):
        hint = "change config.json itself for a model that computes something else"
        raise UsageError("usage.meta", f"{flags} says what matrices are multiplied by", hint=hint)


def _check_tower(out: TensorIndex, plain: TensorIndex, plan: steps.Plan, flags: str) -> None:
    """Check that flags say no other tower than the one that is stored.

    Args:
        plain: what is written without them.

    Raises:
        UsageError: ``usage.meta``.
    """
    from ckconv.formats.model import tower_index  # which opens files

    was, now = (towers.tower_of_document(document_of(one.metadata)) for one in (plain, out))
    if was is not now:  # the class is another, as a note says
        return
    side = plan.contents().side_files
    documents = {name: b"".join(pieces_of(side[name])) for name in side if name.endswith("processor_config.json")}
    read = (lambda one: one) if plain.metadata_kind is MetadataKind.TYPED else partial(tower_index, documents=documents)
    try:
        meant = read(plain)
    except (InputError, UnsupportedError):  # there is none, or none that is known
        return
    try:
        made = read(out)
    except (InputError, UnsupportedError) as error:
        raise UsageError("usage.meta", f"{flags} would make a tower that is not read: {error.message}") from None
    if _at_odds(meant) != _at_odds(made):
        hint = "without it they are as in the source"
        raise UsageError("usage.meta", f"{flags} says which tensors the tower has, or of which sizes", hint=hint)


def _at_odds(index: TensorIndex) -> tuple[int, Counter[str], set[str]]:
    """Layers of a known tower, patterns that are missing, and unknown names."""
    if index.tower is None:
        return -1, Counter(), set()
    family, known = towers.tower_family(index.tower.family), index.tower.parameters
    typed, there = index.metadata_kind is MetadataKind.TYPED, Counter(parse(name).pattern for name in index.tensors)
    wanted = Counter(sizes.expected(family, GGUF if typed else HF, known))
    layers = known["layers"] + known.get("extra_layers", 0) if typed else 0  # a checkpoint may have some behind
    return layers, wanted - there, {stored.name for stored in index.unknown}


_FLAG, _TO = r"--[a-z][a-z-]*", r"--to ([a-z-]+)"


def followable(hint: str, place: Destination, options: Options) -> str:
    """Complete a hint: flags to leave out, and a DST that fits its format."""
    flags = set(re.findall(_FLAG, hint))
    rows = [row for row in OPTIONS if row.flag in flags]
    gone = [given.shown for given in given_options(options) if any(given.excludes(row) for row in rows)]
    first = f"without {' and '.join(gone)}, " if gone else ""
    named_file = place.file is not None and place.file.suffix.lower() in _SUFFIXES

    def another(found: re.Match[str]) -> str:
        format = found[1]
        if format == place.format:
            return found[0]
        idle = _idle(format_of(named(format)), options)
        other = named_file and "DST" not in re.split("[,;]", hint[: found.start()])[-1]  # a command may name it
        return f"{found[0]}{' DST/' if other else ''}{''.join(f' without {given.flag}' for given in idle)}"

    return f"{first}{re.sub(_TO, another, hint)}"


def _idle(format: Format, options: Options) -> list[SetOption]:
    """Options without a say in any output of a format."""
    used = {option for output in format.outputs for option in output.options}
    return [
        given
        for given in given_options(options)
        if (given.option.limited and given.option.name not in used)
        or (given.option.name == "quantize" and not _has_types(format, str(given.value)))
    ]


def _has_types(format: Format, types: str) -> bool:
    try:
        load(format.quantizes)(types) if format.quantizes else None
    except UsageError:
        return False
    return True


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# Which quantized types each direction keeps, out of the tables that conversions work with.


def passed_types() -> dict[tuple[str, str], tuple[str, ...]]:
    """Source and target -> block types that pass without being decoded.

    Those of MLX are named by the GGUF type that has the same numbers. Floats go from every format to every other.
    """
    return {
        (source.name, target.name): tuple(name for name in _blocks(source.blocks) if name in _blocks(target.blocks))
        for source in FORMATS
        if source.read is not None
        for target in model_outputs()
    }


def _blocks(place: Place | None) -> list[str]:
    """In the order of the table of types."""
    names = load(place) if place is not None else ()
    return [dtype.name for dtype in DTYPES.values() if dtype.kind is Kind.BLOCK and dtype.name in names]


def targets_in(sources: Sequence[Path], into: Path) -> list[tuple[Path, str]]:
    """Place of each model, ``INTO/NAME/``.

    A file that is named twice is one model, and so are files of one split set and their index.
    """
    wholes: dict[tuple[object, ...], Path] = {}
    sets = {source: _split_set(source.name) for source in sources}
    within = {source: os.path.realpath(source.parent) for source in sets}
    stems = {(within[source], found[0]) for source, found in sets.items() if found}
    for source, found in sets.items():
        if source.name.endswith(container.INDEX_SUFFIX) and (within[source], _name(source)) in stems:
            continue
        wholes.setdefault((within[source], source.suffix, found) if found else (within[source], source.name), source)
    named: dict[str, list[Path]] = {}
    for source in wholes.values():
        named.setdefault(_name(source), []).append(source)
    faults = [f"{name}: {', '.join(map(shown, same))}" for name, same in named.items() if len(same) > 1]
    if faults:
        message = f"{counted(len(faults), 'name')} in {into} would be used by several models"
        hint = "convert them into different directories, or rename them"
        raise UsageError("usage.target", message, hint=hint, details=listed(faults))
    for name, (source,) in named.items():
        if os.path.realpath(into / name) in (os.path.realpath(source), os.path.realpath(source.parent)):
            raise UsageError("usage.target", f"{into / name} is where the source is", hint="name another directory")
    return [(source, f"{into / name}/") for name, (source,) in named.items()]


def _split_set(name: str) -> tuple[str, int] | None:
    """Stem and count of the set that a shard is of."""
    from ckconv.formats.gguf.values import parse_shard_name as parse_split_name

    if split := parse_split_name(name):
        return split.stem, split.count
    shard = container.parse_shard_name(name)
    return (shard[0], shard[2]) if shard else None


def _name(source: Path) -> str:
    """Name of a model in a batch: its directory, repository or file stem."""
    if os.path.isdir(source):  # noqa: PTH112 - never raises
        return parameters.directory_name(source) or "model"
    name = source.name.partition("?")[0].removesuffix(container.INDEX_SUFFIX)
    found = _split_set(name)
    if found:
        return found[0]
    if os.path.lexists(source) or any(Path(name).suffix in row.endings for row in FORMATS):
        return Path(name).stem or "model"
    return name.partition("@")[0].removeprefix("ollama:").replace(":", "-") or "model"
