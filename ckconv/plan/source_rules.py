"""What the source's own reader leaves out: tensors that its class does not have.

transformers ignores them with a warning at most; a target's engine would compute with them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from ckconv.core.tensors import TensorIndex, parse
from ckconv.errors import counted
from ckconv.families.catalogue import FAMILIES
from ckconv.families.gguf_metadata import own_document
from ckconv.families.huggingface_classes import expected_of, is_on, switches_of
from ckconv.families.keys import CONSUMERS
from ckconv.plan.planner import HEAD
from ckconv.plan.steps import Reason


def surplus_reasons(index: TensorIndex, dropped: Callable[..., bool]) -> Iterator[Reason]:
    """Tensors of a checkpoint that its reader's class has no place for, as the configuration sets its switches."""
    config, consumer = index.config, CONSUMERS.get(index.format)
    if config is None or consumer is None or not FAMILIES[config.family].known_classes:
        return
    document, switches = own_document(config), switches_of(config, consumer)
    expected = expected_of(config, {key: is_on(config, key, document, consumer) for key in switches}, consumer)
    found: dict[str, list[str]] = defaultdict(list)
    for tensor in index.tensors.values():
        surplus = tensor.name != HEAD and parse(tensor.name).pattern not in expected
        if surplus and not dropped(tensor.name, tensor.source):
            found[parse(tensor.source).pattern].append(tensor.name)
    for pattern, names in found.items():
        also = f" ({counted(len(names), 'tensor')})" if len(names) > 1 else ""
        glob = pattern.replace("{n}", "*").replace("{e}", "*")
        kind = f"{config.model_type} class (model_type) of {consumer}"
        yield Reason(
            f"the {kind} has no {pattern}{also}{_switch(switches, names[0])}, and computes without",
            f"--drop '{glob}' leaves out what it ignores",
        )


def _switch(switches: Mapping[str, frozenset[str]], name: str) -> str:
    pattern = parse(name).pattern
    return next((f" unless {key} is true" for key, patterns in switches.items() if pattern in patterns), "")
