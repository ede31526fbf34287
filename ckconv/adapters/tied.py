"""What becomes of a tied base, whose output head is its embedding, when adapters change one of the two or both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ckconv.core.config import ModelConfig
from ckconv.core.tensors import Role, TensorIndex
from ckconv.errors import UnsupportedError
from ckconv.io.files import Files, head_is_embedding

_HEAD_MODULE, _EMBEDDING_MODULE = "output", "token_embedding"
_HEAD, _EMBEDDING = f"{_HEAD_MODULE}.weight", f"{_EMBEDDING_MODULE}.weight"


def untied(base: TensorIndex, adapters: Sequence[TensorIndex], config: ModelConfig) -> TensorIndex:
    """The base with an output head of its own, where the adapters make a tied one differ from the embedding.

    Raises:
        UnsupportedError: ``adapter.unsupported``, of several adapters only some change both together.
    """
    apart, together, rows_of_head = False, False, False
    for index in adapters:
        known = index.adapter
        assert known is not None
        for name in known.modules.keys() & {_EMBEDDING_MODULE, _HEAD_MODULE}:
            rows = Role.ROWS in known.modules[name].roles  # of the embedding, peft replaces those of a tied head too
            apart |= not known.ties and not rows
            together |= (known.ties or rows) and name == _EMBEDDING_MODULE
            rows_of_head |= rows and name == _HEAD_MODULE
    if not (apart or together or rows_of_head) or not _is_tied(base, config):
        return base
    if rows_of_head:
        raise UnsupportedError(
            "adapter.unsupported",
            "the base is tied, and trainable_token_indices names rows of its output head that are not its embedding's",
            path=base.path,
            hint="ckconv convert BASE DST --untie makes a base with a head of its own; merge the adapter into that",
        )
    if apart and together:
        raise UnsupportedError(
            "adapter.unsupported",
            "the base is tied; of the changes some are of its embedding and its output head together, others of one",
            path=base.path,
        )
    tensors = dict(base.tensors)
    if together:
        tensors.pop(_HEAD, None)  # the one matrix that both are changes with the embedding
        return replace(base, tensors=tensors)
    if _HEAD not in base.tensors:
        tensors[_HEAD] = replace(tensors[_EMBEDDING], name=_HEAD)
    return replace(base, tensors=tensors, config=replace(config, tied=False))


def said_once(index: TensorIndex, base: TensorIndex, config: ModelConfig) -> TensorIndex:
    """An adapter of a tied base without its change of the head, where that is its change of the embedding again.

    peft saves both where it keeps them tied (``ensure_weight_tying``).

    Raises:
        UnsupportedError: ``adapter.unsupported``, the two are to change together and do not change alike.
    """
    known = index.adapter
    assert known is not None
    head, embedding = known.modules.get(_HEAD_MODULE), known.modules.get(_EMBEDDING_MODULE)
    if not known.ties or head is None or embedding is None or not _is_tied(base, config):
        return index
    alike = (head.roles, head.scale) == (embedding.roles, embedding.scale)
    if alike:
        from ckconv.io.rows import same_values

        pairs = [
            [index.tensors[f"{module}.{role.value}"] for module in (_HEAD_MODULE, _EMBEDDING_MODULE)]
            for role in head.roles
        ]
        with Files(index.identities) as files:
            alike = all(same_values(one, other, files) for one, other in pairs)
    if not alike:
        raise UnsupportedError(
            "adapter.unsupported",
            "the base is tied, and the adapter changes its embedding and its output head differently",
            path=index.path,
        )
    modules = {name: module for name, module in known.modules.items() if name != _HEAD_MODULE}
    return replace(index, adapter=replace(known, modules=modules))


def _is_tied(base: TensorIndex, config: ModelConfig) -> bool:
    return _HEAD not in base.tensors or (config.tied is not False and head_is_embedding(base))
