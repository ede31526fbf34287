"""Files beside a bump file: configuration and the loader's map."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ckconv.core.config import (
    CONFIG_KEYS,
    FIELD_OF,
    NUMBERS,
    REAL,
    Fail,
    ModelConfig,
    build_config,
    checked_number,
    shortest_float32,
)
from ckconv.core.lazy import replace
from ckconv.core.metadata import CONFIG_NAME, SideFile
from ckconv.core.tensors import TensorIndex
from ckconv.errors import InputError, UnsupportedError, VerifyError, listed, quoted
from ckconv.families.catalog import FAMILIES, families_of_gguf, family_of_model_type, family_without_name
from ckconv.families.expressions import ExpressionError
from ckconv.families.names import canonical_pattern
from ckconv.families.parameters import ConfigSource, ParameterError, Values
from ckconv.families.schema import Family, TensorRow
from ckconv.families.sizes import Scope, layers_with
from ckconv.formats.bump import slots
from ckconv.io.files import holds, open_source, there
from ckconv.io.json import Document, read_object, shown

# The documents beside a bump file, under the names that the engine reads or under the bump file's own.
#
# Where two bump files share a directory and their documents differ, those of the second one are called after it
# (``b.bump.config.json``). ckconv looks for such a name first; the engine knows only ``config.json``.


def document_beside(bump: Path, name: str) -> Path:
    """Where the document ``name`` of a bump file is, if it has one."""
    own = _own(bump, name)
    return own if there(own) else bump.with_name(name)


def place_beside(bump: Path, name: str, content: SideFile) -> Path:
    """Path of the document ``name``, which no other bump file there needs."""
    own, shared = _own(bump, name), bump.with_name(name)
    if there(own):  # it would be found first
        return own
    return own if other_bumps(bump, name) and not holds(shared, content) else shared


def other_bumps(bump: Path, name: str) -> bool:
    """Whether another bump file beside this one reads the shared ``name``."""
    if not bump.parent.is_dir():
        return False
    others = (path for path in bump.parent.glob("*.bump") if path.name != bump.name)
    return any(not there(_own(other, name)) for other in others)


def _own(bump: Path, name: str) -> Path:
    return bump.with_name(f"{bump.name}.{name}")


# The configuration beside a bump file, compared with what the file's own header says.

_DOCUMENT = Document("configuration", "model.config", "model.config", 64 << 20, lax=True)


def load_config(path: Path, *, required: bool) -> Mapping[str, Any] | None:
    """Load the document at ``path``, or ``None`` where none is required.

    Raises:
        InputError: ``model.config``; those of ``open_source``.
    """
    if not required and not path.exists():
        return None
    return read_object(path, _DOCUMENT)


def model_config(path: Path, config: Mapping[str, Any], header: Mapping[str, int]) -> ModelConfig:
    """Hyper-parameters of the header, and further ones of the configuration.

    Args:
        config: under Hugging Face's keys.
        header: field of :class:`ModelConfig` -> number. Without key/value heads (version 3) the head size must follow
            from the others.
    """

    def fail(message: str) -> InputError:
        return InputError("model.config", f"{CONFIG_NAME}: {message}", path=path)

    values: dict[str, int | float] = {}
    names: dict[str, str] = {}
    for field, keys in CONFIG_KEYS.items():
        names[field] = keys[0] if keys else field
        for key in keys:
            if config.get(key) is not None:
                names[field] = key
                values[field] = checked_number(key, config[key], NUMBERS[field], fail)
                break
    for field, number in header.items():
        if field != "head_dim":
            if field in values and values[field] != number:
                raise fail(f"{names[field]} is {values[field]:,}, the file's header says {number:,}")
            values[field] = number
        elif "num_kv_heads" in header:
            values.setdefault(field, number)
    model_type = str(config["model_type"] if "model_type" in config else family_without_name(slots.GENERATED, ()))
    family = family_of_model_type(model_type)
    if family is None:
        raise UnsupportedError(
            "model.architecture", f"ckconv does not know the model_type {quoted(model_type)}", path=path
        )
    whole = _as_transformers_reads(config, family, path)
    if whole is not None:
        values |= {"rope_theta": whole.rope_theta} if whole.rope_theta else {}
        values.setdefault("norm_eps", whole.norm_eps)
        values.setdefault("context_length", whole.context_length)
    rope = "rope_theta" in family.parameters  # without RoPE the engine has a base all the same
    model = build_config(family.name, model_type, values, names, fail, vocab_size=header["vocab_size"], rope=rope)
    if model.head_dim != header["head_dim"]:
        raise fail(f"head_dim is {model.head_dim}, the file's header says {header['head_dim']}")
    if not model.ffn_size:
        raise fail(f"{names['ffn_size']} is missing")
    if whole is not None:
        model = replace(model, rope_scaling=whole.rope_scaling, modifiers=whole.modifiers)
    if config.get("tie_word_embeddings") is False:  # January's script leaves such a head out
        model = replace(model, tied=False)
    return _sliding(config, model, fail) if "local_theta" in family.parameters else model


def _as_transformers_reads(config: Mapping[str, Any], family: Family, path: Path) -> ModelConfig | None:
    """Configuration if RoPE is a table, as in transformers; else ``None``."""
    if not isinstance(config.get("rope_parameters"), dict) and not isinstance(config.get("rope_scaling"), dict):
        return None
    from ckconv.families.huggingface_config import huggingface_config

    return huggingface_config(config, family, (), path)


def _sliding(config: Mapping[str, Any], model: ModelConfig, fail: Fail) -> ModelConfig:
    """With what the documents say of the layers that slide."""
    local, period = config.get("rope_local_base_freq"), config.get("sliding_window_pattern")
    if local is not None:
        local = shortest_float32(float(checked_number("rope_local_base_freq", local, REAL, fail)))
    if period is None:
        return replace(model, local_rope_theta=local or None)
    if isinstance(period, bool) or not isinstance(period, int) or period < 0:
        raise fail(f"sliding_window_pattern must be a whole number, got {shown(period)}")
    return replace(model, local_rope_theta=local or None, layer_types=slots.periodic(model.num_layers, period))


class EngineConfig(ConfigSource):
    """The engine's own configuration as the rows of a family read it."""

    format = "bump"


def completed(path: Path, model: ModelConfig, config: Mapping[str, Any]) -> ModelConfig:
    """Add the engine's keys of a family to a configuration."""
    family = FAMILIES[model.family]
    own = [name for name, row in family.parameters.items() if row.cells.get("bump") and row.value is None]
    if not own:
        return model
    given = {name: value for name, value in model.scope.items() if name not in own}
    values = Values(family, EngineConfig(config), given=given)
    try:
        fields = {FIELD_OF[name]: values[name] for name in own if name in FIELD_OF}
        return replace(model, **fields, own={name: values[name] for name in family.own})
    except (ParameterError, ExpressionError) as error:
        raise InputError("model.config", f"weights_manifest.json: {error}", path=path) from None


def without_config(path: Path) -> InputError:
    """The error of whoever needs the tensors of a file that nothing describes."""
    return InputError(
        "bump.config",
        "without a config.json its tensors cannot be found:"
        " only that file has the number of key/value heads and the feed-forward size",
        path=path,
        hint="put config.json beside it",
    )


# ``weights_manifest.map``: what the engine's loader maps a bump 4 or 5 file by, compared with the file itself.
#
# A line an entry, ``name|dtype|file_offset|size|runtime_offset``, numbers in any base that C's ``strtoull`` takes from
# the prefix; ``#`` begins a comment (``ck_load_weights_manifest_v7`` of ``ckernel_model_load_v7.c``).

MAP_NAME = "weights_manifest.map"
CODE = "verify.map"
_LIMIT = 64 << 20

#: (type, offset in the file, bytes) of an entry.
Place = tuple[str, int, int]


def check_map(index: TensorIndex) -> bool:
    """Whether a right map lies beside the file; ``False`` where there is none.

    The loader copies every entry to where the map puts it in memory: in the engine's usual layout that is where it is
    in the file, for all entries. In another one no two entries may overlap.

    Raises:
        VerifyError: ``verify.map``, an entry is malformed, missing, or not where the file has it.
        InputError: those of ``open_source``.
    """
    path = document_beside(index.path, MAP_NAME)
    if index.format != "bump" or index.version < 4 or not path.exists():
        return False
    stored = dict(_slots(index))
    faults: list[str] = []
    seen: set[str] = set()
    entries = list(_entries(path, faults))
    for name, place, _ in entries:
        slot = stored.get(name)
        if name in seen:
            faults.append(f"{quoted(name)} is listed twice")
        elif slot is None:
            faults.append(f"{quoted(name)} is not in the file")
        elif slot[0] != place:
            faults.append(f"{name} is {_words(place)}, in the file {_words(slot[0])}")
        seen.add(name)
    faults += _misplaced(entries)
    faults += [f"{name} is missing" for name, (_, needed) in stored.items() if needed and name not in seen]
    if faults:
        raise VerifyError(CODE, faults[0], path=path, details=listed(faults[1:]))
    return True


def _words(place: Place) -> str:
    dtype, offset, nbytes = place
    return f"{dtype}, {nbytes:,} bytes from {offset:,} on"


def _slots(index: TensorIndex) -> Iterator[tuple[str, tuple[Place, bool]]]:
    """Slot -> its place, and whether the loader cannot do without it."""
    found: dict[str, tuple[Place, bool]] = {}
    for tensor in index.tensors.values():
        word = slots.TYPE_WORDS.get(tensor.dtype.name, "")
        first = found.get(tensor.source)
        offset, nbytes = tensor.extents[0].offset, tensor.nbytes
        if first is not None:  # a slot of several parts, one after the other
            offset, nbytes = min(offset, first[0][1]), nbytes + first[0][2]
        found[tensor.source] = (word, offset, nbytes), not tensor.may_be_absent
    for stored in index.facts.get("tokenizer") or ():
        found[stored.name] = (
            (slots.CONTENT_WORDS[stored.dtype.name], stored.extent.offset, stored.extent.nbytes),
            False,
        )
    yield from found.items()


def _misplaced(entries: list[tuple[str, Place, int]]) -> Iterator[str]:
    """Entries of a map that lie at a wrong place in memory."""
    moved = [name for name, (_, offset, _), memory in entries if memory != offset]
    if len(moved) < len(entries):
        yield from (f"{name} has another place in memory than in the file, unlike the others" for name in moved)
        return
    end = 0
    for name, (_, _, nbytes), memory in sorted(entries, key=lambda entry: entry[2]):
        if memory < end:
            yield f"{name} begins in memory at {memory:,}, inside another"
        end = memory + nbytes


def _entries(path: Path, faults: list[str]) -> Iterator[tuple[str, Place, int]]:
    with open_source(path) as source:
        size = source.size or 0
        if size > _LIMIT:
            raise InputError(
                CODE, f"{size:,} bytes; at most {_LIMIT:,} are read", path=path, found=size, allowed=_LIMIT
            )
        lines = source.read_at(0, size).decode("utf-8", "surrogateescape").splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.split("|")
        try:
            name, dtype, *numbers = fields
            offset, nbytes, memory = (int(number, 0) for number in numbers)
        except ValueError:
            faults.append(f"line {number:,} is not name|dtype|file_offset|size|runtime_offset")
            continue
        yield slots.ALIASES.get(name, name), (dtype, offset, nbytes), memory


# -- Families with entries of their own for layers: rows as slots ------------------------------------------------------


def table_of(family: Family, parameters: Mapping[str, Any]) -> slots.SlotTable | None:
    """The slots of a model; ``None`` for a family with those of a Llama."""
    row = family.engines.get(slots.TEMPLATED)
    if row is None or not row.slots:
        return None
    scope = Scope(family, parameters)
    entries = []
    of_layers = [(slot, names) for slot, names in row.slots if names[0].startswith("L.")]
    for slot, names in of_layers:
        tensors = [_row(family, name) for name in names]
        layers = layers_with(family, tensors[0][0], scope)
        fp32 = slot in row.floats or len(tensors[0][0].axes) == 1 or tensors[0][1] == "bias"
        here = None if len(layers) == scope["layers"] else frozenset(layers)
        entries.append((slot, [canonical_pattern(family, one.name, kind) for one, kind in tensors], fp32, here))
    return slots.own_slots(entries, final_bias=len(of_layers) < len(row.slots))


def _row(family: Family, name: str) -> tuple[TensorRow, str]:
    """A tensor's row, and which of its tensors it is."""
    if name in family.tensors:
        return family.tensors[name], ""
    module, _, kind = name.rpartition(".")
    return family.tensors[module], kind


def described_table(config: Mapping[str, Any], num_layers: int, coded: int) -> slots.SlotTable | None:
    """Slot table of the configured model if it has layers of its own.

    Args:
        coded: bytes of the file's dtype table, which have to be that table's.
    """
    for family in families_of_gguf(str(config.get("model"))):
        values = Values(family, EngineConfig(config), given={"layers": num_layers})
        try:
            table = table_of(family, values)
        except (ParameterError, ExpressionError, LookupError, TypeError):
            continue
        heads = (set[str](), {"output.weight"})
        if table and any(slots.table_entries(slots.with_optional(table, head), num_layers) == coded for head in heads):
            return table
    return None
