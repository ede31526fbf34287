"""Differences between two models besides their tensors.

Two of one format are compared as they are. Of two formats one is planned into the other's: what it would say there is
held against what that one says.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from ckconv.comparison.verify import content_of_plan, plan_again
from ckconv.core.metadata import CONFIG_NAME, METADATA, scalar
from ckconv.core.tensors import MetadataKind, TensorIndex
from ckconv.errors import CkconvError
from ckconv.families.naming_schemes import NAMES_KEY
from ckconv.formats import format_of
from ckconv.formats.safetensors.spec import INDEX_SUFFIX
from ckconv.options import Options
from ckconv.tokenizer.vocabulary import adds_by_default
from ckconv.verification.content import COVERED, SPELLING, Fact, content_of_index, differences

#: Differences that are looked for: more say nothing more.
_ENOUGH = 1_000

#: Keys of a configuration that the comparison of tensors covers, or that say how values are stored.
_STORAGE = frozenset(
    {"quantization", "quantization_config", "torch_dtype", "dtype", "transformers_version", "tie_word_embeddings"}
)

#: A GGUF is called after the place of its source, where that has no name of its own.
_OF_THE_PLACE = "general.name"

#: The library that a safetensors file says it was written for, and the names that its tensors have.
_WRITTEN_FOR = (f"{METADATA}.format", f"{METADATA}.{NAMES_KEY}")

_TOKENS = "tokenizer.ggml.tokens"


class Facts(NamedTuple):
    """Differences found.

    Attributes:
        different: what the two say different things of.
        unknown: why that could not be compared, empty where it was.
    """

    different: tuple[Fact, ...] = ()
    unknown: str = ""


def compare_facts(a: TensorIndex, b: TensorIndex) -> Facts:
    """Compare architectures, metadata, tokenizers, and the files beside two models.

    Raises:
        InputError: ``side.json``, a file beside one of them is malformed.
    """
    if a.adapter is not None or b.adapter is not None:  # their scales are in their tensors
        rows = [str(index.adapter.replaced) if index.adapter is not None else "" for index in (a, b)]
        return Facts((Fact("trainable_token_indices", rows[0], rows[1]),) if rows[0] != rows[1] else ())
    towers = a.tower is not None and b.tower is not None
    if (a.config is None or b.config is None) and a.architecture != b.architecture and not towers:
        return Facts((Fact("architecture", a.architecture, b.architecture),))
    if a.format == b.format and (format_of(a.format).choose is None or a.version == b.version):
        one, other = content_of_index(a), content_of_index(b)
        found = differences(one, other, people=False)
        return Facts(tuple(islice((fact for fact in found if _counts(fact, ruled=a.config is not None)), _ENOUGH)))
    ways: list[Facts] = []
    lacking: list[Fact] = []
    for source, target in ((a, b), (b, a)):
        facts = _planned(source, target)
        own = [(fact, _is_lacking(fact)) for fact in facts.different]
        turned = [(f._replace(mine=f.meant, meant=f.mine) if source is a else f, lacks) for f, lacks in own]
        lacking += [fact for fact, lacks in turned if lacks]
        ways.append(Facts(tuple(fact for fact, lacks in turned if not lacks), facts.unknown))
    # Of two ways the one that finds less: the other names what only one of the formats has a place for.
    fewer = min(ways, key=lambda facts: (bool(facts.unknown), len(facts.different)))
    return fewer._replace(different=(*lacking, *fewer.different))


def _counts(fact: Fact, *, ruled: bool) -> bool:
    """Whether it is not covered by the comparison of tensors and hyper-parameters, which only rules make possible."""
    if fact.key in (SPELLING, *_WRITTEN_FOR) or (fact.file or fact.key).endswith(INDEX_SUFFIX):
        return False
    top, last = fact.key.partition(".")[0], fact.key.rpartition(".")[2]
    if not (ruled and fact.file == CONFIG_NAME) or (top not in _STORAGE and last not in COVERED and top not in COVERED):
        return True
    # Hyper-parameters are compared as readers of ckconv take them; those of a document that lacks one may take another.
    return top not in _STORAGE and not fact.idle and None in (fact.mine, fact.meant)


def _planned(source: TensorIndex, other: TensorIndex) -> Facts:
    """Facts of ``other``, and those of ``source`` in the same format."""
    try:
        plan = plan_again(source, other, Options(source_record=False), directory=other.path.is_dir())
        plan.check()
        meant = content_of_plan(plan.contents())
    except CkconvError as error:
        return Facts(unknown=error.message)
    mine = content_of_index(other)
    if other.metadata_kind is MetadataKind.TYPED:  # a flag that is not there is what llama.cpp takes for it
        taken = {key: scalar("bool", value) for key, value in adds_by_default(other.metadata).items()}
        mine = replace(mine, keys={**{key: value for key, value in taken.items() if key in meant.keys}, **mine.keys})
    worded, ruled = _TOKENS in mine.keys and _TOKENS in meant.keys, source.config is not None
    found = (
        fact
        for fact in differences(mine, meant, people=False, spelled=False)
        if _counts(fact, ruled=ruled) and _both_could_say(fact, worded=worded, ruled=ruled)
    )
    return Facts((*_modifiers(other, source), *islice(found, _ENOUGH)))


def _modifiers(one: TensorIndex, other: TensorIndex) -> tuple[Fact, ...]:
    """What changes the computation, where only one of the two says anything of the kind: words differ by format."""
    mine, theirs = (index.config.modifiers if index.config else () for index in (one, other))
    if bool(mine) == bool(theirs):
        return ()
    return (Fact("modifiers", ", ".join(mine) or None, ", ".join(theirs) or None),)


def _both_could_say(fact: Fact, *, worded: bool, ruled: bool) -> bool:
    """What only one of two formats says is no difference, unless it is of a document or a tokenizer that both have.

    What a configuration may say only one of is in the hyper-parameters and modifiers, where there are rules.
    """
    if not fact.file and fact.key.startswith("tokenizer."):
        return worded
    said_by_both = fact.mine is not None and fact.meant is not None
    document = bool(fact.file) and not (ruled and fact.file == CONFIG_NAME)
    return fact.key != _OF_THE_PLACE and (said_by_both or document or _is_lacking(fact))


def _is_lacking(fact: Fact) -> bool:
    """A document lacks a hyper-parameter, and whoever reads it takes another value."""
    return fact.file == CONFIG_NAME and fact.mine is None and fact.key.rpartition(".")[2] in COVERED
