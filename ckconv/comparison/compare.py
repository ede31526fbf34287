"""Comparison of two models of any formats: values, statements, hashes."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from ckconv.comparison.verify import (
    LABELS,
    OF_THE_PLACE,
    WRITTEN_FOR,
    content_of_plan,
    plan_again,
    wants_model,
    with_flags,
)
from ckconv.core.config import llama3_factors, same_factors
from ckconv.core.layouts import COUNTED, F32, F64, I64, INTEGERS, WIDENS_TO_F32
from ckconv.core.lazy import Floats, NDArray, Rows, dataclass, field, np
from ckconv.core.metadata import CONFIG_NAME, METADATA, document_of, text_key
from ckconv.core.options import Options
from ckconv.core.tensors import (
    HEAD,
    PREFIX,
    ROPE_FREQUENCIES,
    MetadataKind,
    Tensor,
    TensorIndex,
    in_rows_of,
    is_bias,
    parse,
    plain_tensor,
    require_tensors,
    stored_value,
)
from ckconv.errors import CkconvError, UnsupportedError, counted, shown
from ckconv.families import canonical, huggingface_classes, huggingface_config, parameters
from ckconv.families.adapters import parted_alike
from ckconv.families.catalog import FAMILIES, layers_behind
from ckconv.families.keys import CONSUMERS, MLX_LM, TABLES_OF_ROPE
from ckconv.families.names import NAMES_KEY, shift_of
from ckconv.families.towers import parameter_differences, tower_family
from ckconv.formats import format_of
from ckconv.formats.gguf.keys import gives_embeddings
from ckconv.formats.gguf.values import known_types, types_of
from ckconv.formats.safetensors.container import INDEX_SUFFIX, SINGLE_NAME
from ckconv.io.files import Files, Progress, head_is_embedding, runs
from ckconv.io.rows import RowReader, canonical_pieces, values_of
from ckconv.quant.convert import Conversion, convertible, decodable, decode, shifted, way_between
from ckconv.quant.packed import NOT_WEIGHTS
from ckconv.verification.content import COVERED, SPELLING, Fact, content_of_index, differences
from ckconv.verification.documents import CARRIED
from ckconv.verification.statements import ENOUGH, required_keys

# -- Content hashes: the same numbers give the same hash in every format -----------------------------------------------
# A tensor's hash is the SHA-256 of its canonical name, its shape and its canonical rows as exact float32 values: blocks
# are decoded, and zeros are positive; whole numbers count as I64. Blocks without a decoder count as type and bytes. The
# model's hash covers the hashes of all tensors, by name.

_NEGATIVE_ZERO = 0x80000000


class Hashes(NamedTuple):
    """Hex digests of tensors by name, canonical if possible, and of the model."""

    tensors: dict[str, str]
    model: str


def hash_index(index: TensorIndex, progress: Callable[[int, str], None] | None = None) -> Hashes:
    """Hash every tensor of a model.

    Left out of the model's hash is what a format may leave out without changing the model: a head that is the
    embedding, RoPE frequencies (they follow from the configuration), and all-zero placeholders and biases.

    Raises:
        InputError, UnsupportedError: there is nothing to hash, see :func:`ckconv.core.tensors.require_tensors`.
    """
    require_tensors(index)
    hashes: dict[str, str] = {}
    counted: dict[str, str] = {}
    with Files(index.identities) as files:
        tied = head_is_embedding(index, files)
        for tensor in index.everything.values():
            digest, zero_filled = _hash_tensor(tensor, index, files, progress)
            hashes[tensor.name] = digest
            derived = tensor.name == "rope_frequencies" or (tied and tensor.name == "output.weight")
            # Some formats store zeros for a bias that is not there, so everywhere they stand for none.
            nothing = zero_filled and (tensor.may_be_absent or is_bias(tensor.name))
            if not derived and not nothing:
                counted[tensor.name] = digest
        files.check_unchanged()
    model = hashlib.sha256()
    for name in sorted(counted):
        model.update(f"{counted[name]}  {name}\n".encode("utf-8", "surrogateescape"))
    return Hashes(hashes, model.hexdigest())


def _without_signs_of_zeros(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Float32 values whose zeros are positive."""
    bits = np.ascontiguousarray(data).view(np.uint32)
    return np.where(bits == _NEGATIVE_ZERO, np.uint32(0), bits).view(np.uint8)


def _hash_tensor(
    tensor: Tensor, index: TensorIndex, files: Files, progress: Callable[[int, str], None] | None
) -> tuple[str, bool]:
    """The digest, and whether every byte that went into it was zero."""
    reader = RowReader(tensor, files)
    exact = reader.dtype in WIDENS_TO_F32 or decodable(reader.dtype)
    shift = 0.0
    if index.config is not None:
        shift = shift_of(FAMILIES[index.config.family], tensor.name) - tensor.layout.shift
    factor = tensor.layout.scale if exact else 1.0
    target = F32 if exact else I64 if reader.dtype in INTEGERS else reader.dtype
    conversion = Conversion(reader.dtype, target, shift if exact else 0, factor=factor)
    shape = "x".join(map(str, tensor.shape))
    digest = hashlib.sha256(f"{tensor.name}\n{shape}\n{conversion.target}\n".encode("utf-8", "surrogateescape"))
    if index.adapter is not None:  # what an adapter's rows are depends on where they go
        digest.update(
            "".join(f"{row}\n" for row in index.adapter.replaced.get(tensor.name.rpartition(".")[0], ())).encode()
        )
    zero_filled = True
    before = index.once(canonical.unowned).get(tensor.source)
    front = [] if before is None or files.are_zero(runs(before)) else [RowReader(before, files)]
    for each in (reader, *front):
        for _, rows in canonical_pieces(each):
            data, _ = conversion.apply(rows)
            data = _without_signs_of_zeros(data) if exact else data
            digest.update(data)
            zero_filled = zero_filled and not data.any()
            if progress:
                progress(rows.nbytes, tensor.name)
    return digest.hexdigest(), zero_filled


# -- Comparison of two models of any formats: values and statements ----------------------------------------------------
# Tensors are compared through the canonical index, not as files.
#
# Metadata of one format are compared as they are. Of two formats one model is planned into the other's: what it would
# say there is compared with what that one says.


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Result of a comparison of two models.

    Attributes:
        equal: tensors whose every value is the same.
        retyped: those of them whose types differ, as (name, type in A, type in B).
        only: names that only the first, and only the second model has.
        config: field -> its two values, where they differ.
        facts: what else the two say different things of: metadata, tokenizers, files beside them.
        unknown: why that was not compared, empty where it was.
        uncompared: documents, and keys of a tokenizer, of which one says what the other's format, or nothing beside it,
            has words for.
        weights: nothing but tensors was compared.
        near: tensors that differ by no more than the tolerance; worst first, as ``different`` is.
        tolerance: the relative error that a tensor may have, 0 for none.
    """

    equal: int
    retyped: tuple[tuple[str, str, str], ...]
    different: tuple[Difference, ...]
    only: tuple[tuple[str, ...], tuple[str, ...]]
    config: dict[str, tuple[object, object]] = field(default_factory=dict)
    facts: tuple[Fact, ...] = ()
    unknown: str = ""
    uncompared: tuple[str, ...] = ()
    weights: bool = False
    near: tuple[Difference, ...] = ()
    tolerance: float = 0.0

    def __repr__(self) -> str:
        verdict = "the same" if self.same else "not the same"
        return f"<Comparison: {verdict}, {self.equal} equal, {len(self.near)} near, {len(self.different)} different>"

    def to_dict(self) -> dict[str, Any]:
        """The fields of ``ckconv diff --json`` but for the paths."""
        return {
            "same": self.same,
            "equal": self.equal,
            "tolerance": self.tolerance,
            "retyped": [{"tensor": name, "a": a, "b": b} for name, a, b in self.retyped],
            "near": [item.to_dict() for item in self.near],
            "different": [item.to_dict() for item in self.different],
            "only_in_a": list(self.only[0]),
            "only_in_b": list(self.only[1]),
            "config": {name: {"a": a, "b": b} for name, (a, b) in self.config.items()},
            "weights_only": self.weights,
            "facts": [{"name": fact.name, "a": fact.found, "b": fact.meant} for fact in self.facts],
            "not_compared": self.unknown or None,
            "uncompared": list(self.uncompared),
        }

    @property
    def same_weights(self) -> bool:
        """Whether every tensor is the same."""
        return not (self.different or self.only[0] or self.only[1])

    @property
    def same(self) -> bool:
        """Whether the two are the same model, as far as was asked for."""
        facts = [fact for fact in self.facts if fact.key not in LABELS]
        return self.same_weights and not (self.config or facts or self.unknown)


def diff(
    a: TensorIndex,
    b: TensorIndex,
    *,
    weights: bool = False,
    spread: bool = False,
    tolerance: float = 0.0,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two models: tensors, then metadata, unless ``weights`` count.

    Tensors are matched by canonical name, or by their own where a file has no rules. Not counted as missing: a head
    that is the embedding, RoPE frequencies where the other model's configuration says the same, all-zero placeholders.

    Args:
        spread: count how far values are apart, power of two by power of two.
        tolerance: a tensor whose relative error is no larger counts as the same.
    """
    tell = progress or (lambda nbytes, name: None)
    if (a.config is None) != (b.config is None) and _are_named_alike(a, b):
        a, b = a.as_container, b.as_container  # one of them contradicts its family's rules, or names no known one
    a, b = parted_alike(a, b), parted_alike(b, a)
    with Files({**a.identities, **b.identities}) as files:
        of_a, of_b = _tensors(a, files), _tensors(b, files)
        if a.format == b.format:  # what rules leave out for others has the same names in both
            of_a, of_b = _with(of_a, _beside(a, b)), _with(of_b, _beside(b, a))
        of_a = _without_derived(_without_placeholders(of_a, of_b, files), of_b, b, files)
        of_b = _without_derived(_without_placeholders(of_b, of_a, files), of_a, a, files)
        equal, retyped = 0, list[tuple[str, str, str]]()
        different: list[Difference] = []
        near: list[Difference] = []
        for name, one in of_a.items():
            if name not in of_b:
                continue
            tell(0, name)
            other = of_b[name]
            found = _compare(one, other, (_shift(a, one), _shift(b, other)), files, tell, spread=spread)
            if found is None and not _alike_before(one, a, other, b, files):
                found = incomparable(one, other, "what stands before its elements")
            if found is not None:
                (near if tolerance and not found.reason and found.relative_error <= tolerance else different).append(
                    found
                )
                continue
            equal += 1
            if one.dtype.name != other.dtype.name:
                retyped.append((name, one.dtype.name, other.dtype.name))
        files.check_unchanged()
    facts = Facts() if weights else compare_facts(a, b)
    return Comparison(
        equal,
        tuple(retyped),
        tuple(sorted(different, key=_badness, reverse=True)),
        (tuple(n for n in of_a if n not in of_b), tuple(n for n in of_b if n not in of_a)),
        {} if weights else parameter_differences(a, b),
        facts.different,
        facts.unknown,
        facts.uncompared,
        weights,
        tuple(sorted(near, key=_badness, reverse=True)),
        tolerance,
    )


def _badness(found: Difference) -> tuple[bool, float]:
    """Sort key: incomparable tensors first, then the largest relative error."""
    error = found.relative_error
    return bool(found.reason), math.inf if math.isnan(error) else error


def _are_named_alike(a: TensorIndex, b: TensorIndex) -> bool:
    """Whether tensors can be matched by the two files' names."""
    return a.format == b.format and not {s.name for s in a.stored}.isdisjoint(s.name for s in b.stored)


def _tensors(index: TensorIndex, files: Files) -> Mapping[str, Tensor]:
    """Tensors of a model, without a head that equals the embedding."""
    return _without(index.everything, {"output.weight"} if head_is_embedding(index, files) else ())


def _with(tensors: Mapping[str, Tensor], more: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return {**tensors, **more} if more else tensors


def _without(tensors: Mapping[str, Tensor], names: Collection[str]) -> Mapping[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name not in names} if names else tensors


def _beside(index: TensorIndex, other: TensorIndex) -> dict[str, Tensor]:
    """Tensors of the file that its family leaves out of other formats.

    A scale of activations counts where both models have it, and in a checkpoint where both have the matrix in blocks:
    of one whose values are decoded nobody computes with it, nor does llama.cpp.
    """
    copied = [item for item in index.dropped if item.copied]
    there = {stored.name for stored in other.stored} if copied else set[str]()
    modules = {_module(name) for name in there if not name.endswith((".weight", ".bias"))}
    packed = modules if index.metadata_kind is MetadataKind.DOCUMENT else set[str]()
    of_weights = (item for item in copied if item.reason == NOT_WEIGHTS)
    left = {i.stored.name for i in of_weights if i.stored.name not in there and _module(i.stored.name) not in packed}
    found = [item.stored for item in copied if item.stored.name not in left]
    return {stored.name: plain_tensor(stored.name, stored) for stored in found}


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _without_placeholders(has: Mapping[str, Tensor], lacks: Mapping[str, Tensor], files: Files) -> Mapping[str, Tensor]:
    """Remove zeros that stand for a tensor which is not there."""
    alone = [name for name, tensor in has.items() if name not in lacks and (tensor.may_be_absent or is_bias(name))]
    return _without(has, {name for name in alone if files.are_zero(runs(has[name]))})


def _without_derived(
    has: Mapping[str, Tensor], lacks: Mapping[str, Tensor], other: TensorIndex, files: Files
) -> Mapping[str, Tensor]:
    """Remove RoPE frequencies that the other model's configuration gives."""
    tensor = has.get(ROPE_FREQUENCIES)
    if tensor is None or ROPE_FREQUENCIES in lacks or not convertible(tensor.dtype, F32):
        return has
    factors = llama3_factors(other.config) if other.config else None
    if factors is None:
        return has
    values = values_of(tensor, files)
    return _without(has, {ROPE_FREQUENCIES} if same_factors(values.tobytes(), factors) else ())


def _shift(index: TensorIndex, tensor: Tensor) -> float:
    """Difference between a stored value and another file's: norms as 1 + w."""
    family, name = FAMILIES[index.config.family] if index.config else None, tensor.name
    if index.tower is not None and (family is None or name.startswith(PREFIX)):
        family, name = tower_family(index.tower.family), name.removeprefix(PREFIX)
    return shift_of(family, name) - tensor.layout.shift if family is not None else 0


def _compare(
    one: Tensor, other: Tensor, shifts: tuple[float, float], files: Files, progress: Progress, *, spread: bool
) -> Difference | None:
    if one.shape != other.shape:
        from ckconv.verification.tensors import same_rank

        one, other = same_rank(one, other, files)

    if one.shape != other.shape:
        return incomparable(one, other, f"shape {list(one.shape)} and {list(other.shape)}")
    one, other = in_rows_of(one, other), in_rows_of(other, one)
    return difference(one, other, shifts, files, lambda nbytes: progress(nbytes, one.name), spread=spread)


def _alike_before(one: Tensor, a: TensorIndex, other: Tensor, b: TensorIndex, files: Files) -> bool:
    """Whether elements that no tensor owns are equal, or zeros in one alone."""
    first, second = a.once(canonical.unowned).get(one.source), b.once(canonical.unowned).get(other.source)
    if first is not None and second is not None:
        return _compare(first, second, (0, 0), files, lambda *_: None, spread=False) is None
    return all(before is None or files.are_zero(runs(before)) for before in (first, second))


def require_comparable(a: TensorIndex, b: TensorIndex) -> None:
    """Refuse two models of which no tensor can be matched.

    In the first there is nothing to compare, and of the others no name would match.

    Raises:
        InputError: ``bump.config``.
        UnsupportedError: ``model.architecture`` or ``model.no-tensors``.
    """
    for index in (a, b):
        require_tensors(index)
    for one, other in ((a, b), (b, a)):
        if one.adapter is not None and other.adapter is None:
            raise UnsupportedError(
                "model.architecture",
                f"{one.path.name} is an adapter, {other.path.name} a model: their tensors are not the same things",
                path=one.path,
                hint=f"ckconv convert {shown(other.path)} merged/ --to hf --adapter {shown(one.path)}"
                " makes a model of both, which can be compared",
            )
        if one.config is None and other.config is not None and not _are_named_alike(one, other):
            if one.misfit is not None:
                raise one.misfit
            raise UnsupportedError(
                "model.architecture",
                f"ckconv does not know the architecture {one.architecture!r},"
                f" so its tensors cannot be matched with those of {other.path}",
                path=one.path,
                hint=wants_model(one) or None,
            )


# Differences besides tensors: metadata, tokenizers, files beside the models.

#: Keys of a configuration that the comparison of tensors covers, or that say how values are stored.
_STORAGE = frozenset(
    {"quantization", "quantization_config", "torch_dtype", "dtype", "transformers_version", "tie_word_embeddings"}
)

#: Keys of a GGUF that say how values are stored, which the comparison of tensors covers.
_OF_THE_FILE = r"(split\.|general\.(file_type|quantization_version|alignment)$|quantize\.)"

#: Keys of a GGUF that say a scaling of RoPE together, or none.
_SCALING = r"rope\.scal(ing\..+|e_linear)$"

#: How far a layer of a GGUF sees that slides.
_WINDOW = ".attention.sliding_window"

#: What headers of safetensors say of their readers: the library, and the names that tensors have.
_OF_READERS = (WRITTEN_FOR, f"{METADATA}.{NAMES_KEY}")

_TOKENS = "tokenizer.ggml.tokens"


class Facts(NamedTuple):
    """Differences found.

    Attributes:
        different: what the two say different things of.
        unknown: why that could not be compared, empty where it was.
        one_sided: what only one of two formats has words for.
        uncompared: documents that this is about, and tokens.
    """

    different: tuple[Fact, ...] = ()
    unknown: str = ""
    one_sided: tuple[Fact, ...] = ()
    uncompared: tuple[str, ...] = ()


def compare_facts(a: TensorIndex, b: TensorIndex) -> Facts:
    """Compare architectures, metadata, tokenizers, and side files.

    Raises:
        InputError: ``side.json``, a file beside one of them is malformed.
    """
    if a.adapter is not None or b.adapter is not None:  # their scales are in their tensors
        rows = [str(index.adapter.replaced) if index.adapter is not None else "" for index in (a, b)]
        return Facts((Fact("trainable_token_indices", rows[0], rows[1]),) if rows[0] != rows[1] else ())
    towers = a.tower is not None and b.tower is not None
    if (a.config is None or b.config is None) and a.architecture != b.architecture and not towers:
        return Facts((Fact("architecture", a.architecture, b.architecture),))
    found = _facts(a, b)
    return found._replace(different=(*_of_heads(a, b), *_of_biases(a, b), *found.different))


def _of_heads(a: TensorIndex, b: TensorIndex) -> tuple[Fact, ...]:
    """Heads that loaders make of equal tensors: one is tied, or made up."""
    heads = [_head(index) for index in (a, b)]
    both = all(HEAD in index.tensors for index in (a, b))
    distinct = "" not in heads and len({*heads}) > 1 and (both or MADE_UP in heads)
    return (Fact("output head", heads[0], heads[1]),) if distinct else ()


def _of_biases(a: TensorIndex, b: TensorIndex) -> Iterator[Fact]:
    """Biases of which a configuration says other than the tensors."""
    one, other = _untold_biases(a), _untold_biases(b)
    pairs = {key: (one.get(key, _AS_STORED), other.get(key, _AS_STORED)) for key in one | other}
    return (Fact(key, *pair) for key, pair in pairs.items() if len({*pair}) > 1)


_AS_STORED = "as its tensors are"


def _untold_biases(index: TensorIndex) -> dict[str, str]:
    """Switch of biases -> what comes of a contradiction to the tensors.

    Those that transformers makes up are zeros.
    """
    consumer, found = CONSUMERS.get(index.format), dict[str, str]()
    if index.config is None or consumer is None:
        return found
    document = parameters.own_document(index.config)
    for key, patterns in huggingface_classes.switches_of(index.config, consumer).items():
        on = huggingface_classes.is_on(index.config, key, document, consumer)
        there = [tensor for tensor in index.tensors.values() if parse(tensor.name).pattern in patterns]
        if on is bool(there) or not (consumer == MLX_LM or there):
            continue
        with Files(index.identities) as files:
            if consumer == MLX_LM or not all(files.are_zero(runs(bias)) for bias in there):
                comes = "does not load it" if consumer == MLX_LM else "computes without"
                found[key] = f"{on}, and {'biases are' if there else 'no bias is'} there: {consumer} {comes}"
    return found


#: What a loader computes logits with where a configuration ties nothing and there is no head.
MADE_UP = "random numbers: it is not tied, and there is none"


def _head(index: TensorIndex) -> str:
    """Matrix that a loader computes logits with; empty without logits."""
    if index.config is None or "output" not in FAMILIES[index.config.family].tensors or gives_embeddings(index):
        return ""
    if HEAD not in index.tensors:
        return MADE_UP if index.config.tied is False else "the embedding"
    # transformers 5 ties no two matrices that are both stored and differ; sanitize of mlx-lm's classes drops the head.
    tied = index.config.tied and CONSUMERS.get(index.format) == MLX_LM
    return "the embedding" if tied or head_is_embedding(index) else "a matrix of its own"


def _facts(a: TensorIndex, b: TensorIndex) -> Facts:
    """Compare what is no tensor of two models."""
    if a.format == b.format and (format_of(a.format).choose is None or a.version == b.version):
        one, other = content_of_index(a), content_of_index(b)
        one, other = with_flags(a, one, other), with_flags(b, other, one)
        found = differences(one, other, people=False, defaults=format_of(a.format).class_defaults)
        overruled, tables = _overruled(a) | _overruled(b), _config_tables(a, b)
        both = layers_behind(a).keys() & layers_behind(b).keys()
        linear = {f"{folder}/{SINGLE_NAME}" for folder in both}  # compared as tensors
        found = (fact for fact in found if fact.key not in linear)
        counted = (fact for fact in found if _counts(fact, tables) or _is_of(fact, overruled))
        return Facts(tuple(islice((fact for fact in counted if not _is_covered(fact, a, b, tables)), ENOUGH)))
    ways: list[Facts] = []
    lacking: list[Fact] = []
    for source, target in ((a, b), (b, a)):
        facts = _facts_of_plan(source, target)
        own = [(fact, _is_lacking(fact, target)) for fact in facts.different]
        turned = [(f._replace(found=f.meant, meant=f.found) if source is a else f, lacks) for f, lacks in own]
        lacking += [fact for fact, lacks in turned if lacks]
        ways.append(facts._replace(different=tuple(fact for fact, lacks in turned if not lacks)))
    # Of two ways the one that finds less, labels aside: the other names what only one of the formats has a place for.
    fewer = min(ways, key=lambda facts: (bool(facts.unknown), sum(fact.key not in LABELS for fact in facts.different)))
    one_sided = [[*way.one_sided, *(way.different if way is not fewer else ())] for way in ways]
    names = [{fact.file or fact.key for fact in facts} for facts in one_sided]
    left = [{name for name in each if name == _TOKENS or re.fullmatch(CARRIED, name)} for each in names]
    uncompared = (left[0] | left[1]) - ({_TOKENS} if not all(left) else set())  # one way compares the words
    return fewer._replace(different=(*lacking, *fewer.different), uncompared=tuple(sorted(uncompared)))


def _overruled(index: TensorIndex) -> set[str]:
    """Keys of ``config.json`` that some releases of a library read."""
    return {text.partition(",")[0] for text in (index.config.overruled if index.config else ())}


def _is_of(fact: Fact, keys: Collection[str]) -> bool:
    """Whether a fact is of one of these keys of the text model."""
    outer, _, inner = fact.key.partition(".")
    names = {fact.key} | ({inner} if outer not in TABLES_OF_ROPE else set())
    return fact.file == CONFIG_NAME and not names.isdisjoint(keys)


def _config_tables(a: TensorIndex, b: TensorIndex) -> frozenset[str]:
    """Tables of ``config.json`` with hyper-parameters of the text model.

    None without rules of a family.
    """
    texts = {text_key(document_of(i.metadata)) for i in (a, b) if i.metadata_kind is MetadataKind.DOCUMENT} | {""}
    tables = {f"{text}.{table}".strip(".") for text in texts for table in ("", *TABLES_OF_ROPE)}
    return frozenset(tables) if a.config is not None else frozenset()


def _is_covered(fact: Fact, a: TensorIndex, b: TensorIndex, tables: Collection[str]) -> bool:
    """Whether the hyper-parameters that were compared cover a fact.

    Its words are not :data:`COVERED` in every family: of a window that reaches beyond the context, of kinds of layers
    that the class of the other takes by itself, and of a number that a family's class, or a tower's, takes under two
    names.
    """
    if a.config is None or b.config is None:
        return False
    tensor = fact.key.removeprefix(f"{METADATA}.")
    if tensor != fact.key and (tensor in a.canonical_of or tensor in b.canonical_of):
        return True  # how torchao stores a tensor, which was compared itself
    of_headers = (index.metadata[fact.key] for index in (a, b) if not fact.file and fact.key in index.metadata)
    stored = {getattr(value, "type", "") for value in of_headers}  # those of safetensors are bare texts
    scales = len(stored) == 1 and re.match(rf"{re.escape(a.architecture)}\.{_SCALING}", fact.key)
    if scales and stored <= {*types_of(fact.key, known_types(a.architecture))}:
        return a.config.modifiers == b.config.modifiers and not parameter_differences(a, b)
    if not fact.file and fact.key.startswith(f"{a.architecture}.") and None in (fact.found, fact.meant):
        # llama.cpp takes a number where the key is not there; what follows from other keys or shapes, it may ask for
        of_family = FAMILIES[a.config.family].parameters.values()
        taken = (row for row in of_family if "llama_cpp" in row.defaults and not row.defaults["llama_cpp"].names)
        types = {f"{a.architecture}.{cell.key}": cell.type for row in taken for cell in row.key_cells(a.format)}
        if fact.key in {*required_keys(a), *required_keys(b)} or not stored <= {types.get(fact.key)}:
            return False  # of another type, llama.cpp stops at the key
        return not parameter_differences(a, b)
    outer, _, last = fact.key.rpartition(".")
    alone = fact.file == CONFIG_NAME and outer in tables and None in (fact.found, fact.meant)
    slides = fact.key.endswith(_WINDOW)
    if slides and None not in (fact.found, fact.meant):  # llama.cpp does not read Phi 3's, and a class would
        windows = [*(stored_value(i, fact.key) for i in (a, b)), a.config.sliding_window, b.config.sliding_window]
        if any(type(one) is int and 0 < one < a.config.context_length for one in windows):
            return False
    if (alone and last == "layer_types") or slides:
        return not {"sliding_window", "layer_types"} & parameter_differences(a, b).keys()
    if a.tower is not None and b.tower is not None and fact.file == CONFIG_NAME and None in (fact.found, fact.meant):
        rows = [
            row for row in tower_family(a.tower.family).parameters.values() if not (row.read_only or row.of_a_class)
        ]
        if fact.key in {cell.key for row in rows for cell in row.key_cells("hf")}:
            return not parameter_differences(a, b)
    cells = [[*row.key_cells("hf")] for row in FAMILIES[a.config.family].parameters.values()] if alone else []
    named = any(last in {cell.key for cell in row} for row in cells if any(cell.alias for cell in row))
    return named and not parameter_differences(a, b)


def _counts(fact: Fact, tables: Collection[str]) -> bool:
    """Whether a fact is outside of tensors and hyper-parameters.

    Args:
        tables: tables of ``config.json`` with hyper-parameters; those of a tower are others under the same names.
    """
    if fact.key in (SPELLING, *_OF_READERS) or (fact.file or fact.key).endswith(INDEX_SUFFIX):
        return False
    if (fact.idle and fact.file == CONFIG_NAME) or (not fact.file and re.match(_OF_THE_FILE, fact.key)):
        return False
    top, (outer, _, last) = fact.key.partition(".")[0], fact.key.rpartition(".")
    covered = top in COVERED or (last in COVERED and outer in tables)
    if not (tables and fact.file == CONFIG_NAME) or not (covered or top in _STORAGE):
        return True
    # Hyper-parameters are compared as readers of ckconv take them; those of a document that lacks one may take another.
    return top not in _STORAGE and not fact.idle and None in (fact.found, fact.meant)


def _facts_of_plan(source: TensorIndex, other: TensorIndex) -> Facts:
    """Facts of ``other``, and those of ``source`` in the same format."""
    try:
        plan = plan_again(source, other, Options(source_record=False), directory=other.path.is_dir())
        plan.check()
        meant = content_of_plan(plan.contents())
    except CkconvError as error:
        return Facts(unknown=error.message)
    content = with_flags(other, content_of_index(other), meant)
    tables = _config_tables(source, other)
    worded, ruled = _TOKENS in content.keys and _TOKENS in meant.keys, source.config is not None
    facts = differences(content, meant, people=False, spelled=False, defaults=format_of(other.format).class_defaults)
    count = (fact for fact in facts if _counts(fact, tables) and not _is_covered(fact, source, other, tables))
    found, one_sided = list[Fact](), list[Fact]()
    for fact in islice(count, ENOUGH):
        comparable = _both_could_say(fact, worded=worded, ruled=ruled) or _is_lacking(fact, other)
        (found if comparable else one_sided).append(fact)
    return Facts((*_modifiers(other, source), *found), one_sided=tuple(one_sided))


def _modifiers(one: TensorIndex, other: TensorIndex) -> tuple[Fact, ...]:
    """Modifiers of the computation, where only one of two models has any."""
    first, second = (index.config.modifiers if index.config else () for index in (one, other))
    if bool(first) == bool(second):
        return ()
    return (Fact("modifiers", ", ".join(first) or None, ", ".join(second) or None),)


def _both_could_say(fact: Fact, *, worded: bool, ruled: bool) -> bool:
    """Whether both formats have a place for a fact.

    A fact of one alone is no difference, unless it is of a document or a tokenizer that both have.

    What a configuration may say only one of is in the hyper-parameters and modifiers, where there are rules.
    """
    if not fact.file and fact.key.startswith("tokenizer."):
        return worded
    both = fact.found is not None and fact.meant is not None
    document = bool(fact.file) and not (ruled and fact.file == CONFIG_NAME)
    return fact.key != OF_THE_PLACE and (both or document)


def _is_lacking(fact: Fact, index: TensorIndex) -> bool:
    """Whether a model lacks a key that its reader takes else, or needs."""
    if index.metadata_kind is MetadataKind.TYPED:
        return not fact.file and fact.found is None and fact.key in required_keys(index)
    key = fact.key.rpartition(".")[2]
    if fact.file != CONFIG_NAME or fact.found is not None or key not in COVERED:
        return False
    if index.config is None:
        return True
    # Under another of the family's words, or by a default that follows from other numbers, it is said all the same.
    document = huggingface_config.text_config(document_of(index.metadata))
    rows = FAMILIES[index.config.family].parameters.values()
    words = {row.name: {cell.key for cell in row.key_cells("hf")} for row in rows}
    named = (row for row in rows if key in words[row.name])
    return not any(words[row.name] & document.keys() or any(d.names for d in row.defaults.values()) for row in named)


# -- Differences between two tensors, piece by piece -------------------------------------------------------------------


class Difference(NamedTuple):
    """A tensor that both models have with different values.

    Attributes:
        values: how many values differ, of ``elements``; 0 where the shapes or types cannot be compared.
        max_error: the largest absolute difference; NaN where every difference is between a number and NaN, or
            between two NaNs of other bits, which are left out of both errors.
        relative_error: root of the sum of squared differences over that of squared values of the first model.
        reason: why the values were not compared, empty where they were.
        spread: (n, values whose absolute difference is below 2**n and no less than half of that), if it was asked for.
    """

    name: str
    dtypes: tuple[str, str]
    values: int
    elements: int
    max_error: float
    relative_error: float
    reason: str = ""
    spread: tuple[tuple[int, int], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The fields of ``ckconv diff --json``."""
        errors = {"max_error": self.max_error, "relative_error": self.relative_error}
        return {
            "tensor": self.name,
            "a": self.dtypes[0],
            "b": self.dtypes[1],
            "values": self.values,
            "elements": self.elements,
            **{name: error if math.isfinite(error) else None for name, error in errors.items()},
            "reason": self.reason or None,
        }


def incomparable(one: Tensor, other: Tensor, reason: str) -> Difference:
    """Two whose values cannot be compared with each other."""
    return Difference(one.name, (one.dtype.name, other.dtype.name), 0, one.elements, math.nan, math.nan, reason)


def difference(
    one: Tensor, other: Tensor, shifts: tuple[float, float], files: Files, tell: Callable[[int], None], *, spread: bool
) -> Difference | None:
    """The difference between two tensors; ``None`` for equal ones.

    Args:
        shifts: what has to be added to the stored values of each.
        tell: called with the bytes just compared.
        spread: count how far values are apart.
    """
    types = (one.dtype.name, other.dtype.name)
    left, right = RowReader(one, files), RowReader(other, files)
    pair = _Pair(left, right, shifts, Counter() if spread else None)
    if left.dtype is not right.dtype and not pair.comparable:
        return incomparable(one, other, f"{types[0]} and {types[1]}")
    lead = left if left.piece >= right.piece else right
    for start, rows in canonical_pieces(lead, max(left.row_bytes, right.row_bytes)):
        stop = start + len(rows)
        pair.add(rows if lead is left else left.rows(start, stop), rows if lead is right else right.rows(start, stop))
        tell(rows.nbytes)
    return pair.result(types, lambda: _power(left, shifts[0]))


def _power(reader: RowReader, shift: float) -> float:
    """The sum of a tensor's squared values, read once more."""
    total = 0.0
    with np.errstate(all="ignore"):
        for _, rows in canonical_pieces(reader):
            total += float(np.nansum(_doubles(rows, reader, shift) ** 2))
    return total


def _values(rows: Rows, reader: RowReader, shift: float) -> Floats:
    values = np.ascontiguousarray(decode(rows, reader.dtype))
    if reader.layout.scale != 1.0:
        values = (values.astype(np.float64) * reader.layout.scale).astype(np.float32)
    return shifted(values, shift) if shift else values


def _doubles(rows: Rows, reader: RowReader, shift: float) -> NDArray[np.float64]:
    if reader.dtype in INTEGERS:
        whole = np.ascontiguousarray(rows).view(f"<i{reader.dtype.size}").astype(np.float64)
        return whole + np.arange(whole.shape[1]) if shift == COUNTED else whole
    if reader.dtype is not F64:
        return _values(rows, reader, shift).astype(np.float64)
    return np.ascontiguousarray(rows).view(np.float64) * reader.layout.scale + shift


class _Pair:
    """Adds up the differences of two tensors, piece by piece."""

    def __init__(
        self, one: RowReader, other: RowReader, shifts: tuple[float, float], spread: Counter[int] | None
    ) -> None:
        self.spread = spread
        self.one, self.other, self.shifts = one, other, shifts
        self.doubles = F64 in (one.dtype, other.dtype) and one.dtype.kind is other.dtype.kind
        self.doubles |= {one.dtype, other.dtype} == INTEGERS or COUNTED in shifts
        self.comparable = self.doubles or (convertible(one.dtype, F32) and convertible(other.dtype, F32))
        self.recipes = way_between(one.dtype, other.dtype), way_between(other.dtype, one.dtype)
        self.values, self.max_error, self.squares = 0, math.nan, 0.0
        self.uncompared = False

    def add(self, left: Rows, right: Rows) -> None:
        """Compare some rows.

        Blocks of the same numbers are equal whatever either library rounds them to.
        """
        alike = self.shifts[0] == self.shifts[1] and self.one.layout.scale == self.other.layout.scale
        if self.one.dtype is self.other.dtype and alike and np.array_equal(left, right):
            return
        # Some re-packings go one way only: whichever there is decides.
        for recipe, source, target, rows, want in (
            (self.recipes[0], self.one, self.other, left, right),
            (self.recipes[1], self.other, self.one, right, left),
        ):
            if recipe is not None:
                packed, inexact = Conversion(source.dtype, target.dtype).apply(rows)
                if not inexact and np.array_equal(packed, want):
                    return
        if not self.comparable:
            self.values += int((left != right).any(axis=1).sum())
            self.uncompared = True
            return
        values = _doubles if self.doubles else _values
        a, b = values(left, self.one, self.shifts[0]), values(right, self.other, self.shifts[1])
        if not self.doubles and self.one.dtype.block == 1 and self.other.dtype.block == 1:
            wrong = a.view(np.uint32) != b.view(np.uint32)
        else:
            wrong = (a != b) & ~(np.isnan(a) & np.isnan(b))
        if wrong.any():
            with np.errstate(all="ignore"):
                error = np.abs(a[wrong].astype(np.float64) - b[wrong])
                self.max_error = float(np.fmax(self.max_error, np.fmax.reduce(error)))
                self.squares += float(np.nansum(error * error))
            if self.spread is not None:
                powers, counts = np.unique(np.frexp(error[np.isfinite(error) & (error > 0)])[1], return_counts=True)
                self.spread.update(dict(zip(powers.tolist(), counts.tolist(), strict=True)))
            self.values += int(np.count_nonzero(wrong))

    def result(self, types: tuple[str, str], power: Callable[[], float]) -> Difference | None:
        """The sum, or ``None`` where nothing differs."""
        if not self.values:
            return None
        if self.uncompared:
            differ = f"{counted(self.values, 'row')} differ{'s' if self.values == 1 else ''}"
            reason = f"{differ}, and there is no decoder for {self.one.dtype.name}"
            return incomparable(self.one.tensor, self.other.tensor, reason)
        relative = math.nan if math.isnan(self.max_error) else 0.0  # only zeros of the other sign
        if self.squares:
            squares = power()
            relative = math.sqrt(self.squares / squares) if squares else math.inf
        errors = self.max_error, relative
        spread = tuple(sorted(self.spread.items())) if self.spread else ()
        return Difference(self.one.tensor.name, types, self.values, self.one.tensor.elements, *errors, spread=spread)
