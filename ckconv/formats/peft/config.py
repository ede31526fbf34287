"""peft's ``adapter_config.json``: which modules it selects, and each one's rank, alpha and scale.

The rules are peft's own (0.21): ``LoraLayer.update_layer`` for the scale; those of modules are in
:mod:`ckconv.formats.peft.modules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckconv.errors import InputError, UnsupportedError, quoted
from ckconv.formats.peft.modules import ModuleKeys, Selection
from ckconv.formats.peft.patterns import Steps
from ckconv.formats.safetensors.adapter_document import positive, read_adapter_document
from ckconv.io.json import shown

#: Keys under which a method of peft is another one than plain LoRA -> what to say of it.
_VARIANTS: dict[str, str] = {
    "layer_replication": "layers of the base are stacked anew",
    "use_qalora": "inputs are pooled in groups",
    "alora_invocation_tokens": "it is active only after certain tokens",
    "arrow_config": "it routes between adapters",
    "use_bdlora": "its matrices are block-diagonal",
    "monteclora_config": "its scales are sampled",
    "kasa_config": "it truncates the base's singular values",
    "velora_config": "it has parts of its own",
}

#: Starts of ``init_lora_weights`` with which peft changes the base model before the adapter is added to it.
_CHANGES_BASE = ("pissa", "corda", "olora", "loftq", "lora_ga")

METHODS = ("LORA", "IA3")


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """A configuration, proved sound.

    Attributes:
        method: ``LORA`` or ``IA3``.
        dora: rows of the merged matrix get norms of their own.
        ties: the embedding and the head of a tied base change together.
        rows: end of a module's path -> the rows of it that are replaced; of the embedding where it is empty.
        unsupported: settings that change the computation and have no rule here.
    """

    document: Mapping[str, Any]
    method: str
    rank: int
    alpha: float
    ranks: tuple[int, ...]
    rank_keys: ModuleKeys
    alphas: tuple[float, ...]
    alpha_keys: ModuleKeys
    selection: Selection
    rank_stabilised: bool
    dora: bool
    ties: bool
    base_name: str
    rows: Mapping[str, tuple[int, ...]]
    unsupported: tuple[str, ...]

    def rank_of(self, module: str) -> int:
        """The rank of a module by its path in the base model."""
        number = self.rank_keys.first(module)
        return self.rank if number is None else self.ranks[number]

    def rows_of(self, module: str) -> tuple[int, ...]:
        """Which rows of a module are replaced, by its path in the base model."""
        return next((rows for end, rows in self.rows.items() if f".{module}".endswith(f".{end}" if end else "")), ())

    def alpha_of(self, module: str) -> float:
        """The alpha of a module by its path in the base model."""
        number = self.alpha_keys.first(module)
        return self.alpha if number is None else self.alphas[number]


def read_peft_config(path: Path) -> PeftConfig:
    """Read and validate a configuration.

    Raises:
        InputError: ``adapter.config``, malformed; ``adapter.scale``, a rank or alpha that is none.
        UnsupportedError: ``adapter.unsupported``, a method without rules.
    """
    document = read_adapter_document(path)
    method = document.get("peft_type")
    if method not in METHODS:
        raise UnsupportedError(
            "adapter.unsupported",
            f"peft_type is {shown(method)}; {' and '.join(METHODS)} are supported",
            path=path,
            found=method if isinstance(method, str) else None,
            allowed=METHODS,
        )
    config = _Fields(document, path)
    lora = method == "LORA"
    steps = Steps(path)
    ranks, alphas = config.entries("rank_pattern"), config.entries("alpha_pattern")
    return PeftConfig(
        document=document,
        method=method,
        rank=config.rank("r", document.get("r", 8)) if lora else 0,
        alpha=config.alpha("lora_alpha", document.get("lora_alpha", 8)) if lora else 0.0,
        ranks=tuple(config.rank(f"rank_pattern of {quoted(key)}", v) for key, v in ranks.items()),
        rank_keys=ModuleKeys(ranks, "rank_pattern", steps),
        alphas=tuple(config.alpha(f"alpha_pattern of {quoted(key)}", v) for key, v in alphas.items()),
        alpha_keys=ModuleKeys(alphas, "alpha_pattern", steps),
        selection=Selection(document, steps),
        rank_stabilised=config.flag("use_rslora"),
        dora=config.flag("use_dora"),
        ties=config.flag("ensure_weight_tying"),
        base_name=config.base_name(),
        rows=config.rows(),
        unsupported=_unsupported(document),
    )


class _Fields:
    """Fields of a document, each checked."""

    def __init__(self, document: Mapping[str, Any], path: Path) -> None:
        self._document, self._path = document, path
        for key in ("target_modules", "exclude_modules", "modules_to_save", "feedforward_modules", "layers_pattern"):
            self._names(key, document.get(key))
        self._layers(document.get("layers_to_transform"))

    def rank(self, what: str, value: object) -> int:
        number = positive(value)
        if number is None or not isinstance(value, int) or value > 1 << 24:
            raise self._fault("adapter.scale", f"{what} is {shown(value)}; it must be a whole number above 0")
        return value

    def alpha(self, what: str, value: object) -> float:
        number = positive(value)
        if number is None:
            raise self._fault("adapter.scale", f"{what} is {shown(value)}; it must be a number above 0")
        return number

    def entries(self, key: str) -> dict[str, Any]:
        value = self._document.get(key) or {}
        if not isinstance(value, dict):
            raise self._fault("adapter.config", f"{key} is {shown(value)}; it must be an object")
        return value

    def flag(self, key: str) -> bool:
        value = self._document.get(key)
        if value not in (None, True, False):
            raise self._fault("adapter.config", f"{key} is {shown(value)}; it must be true or false")
        return bool(value)

    def base_name(self) -> str:
        value = self._document.get("base_model_name_or_path")
        return value if isinstance(value, str) else ""

    def rows(self) -> dict[str, tuple[int, ...]]:
        value = self._document.get("trainable_token_indices") or {}
        rows = value if isinstance(value, dict) else {"": value}
        for found in rows.values():
            whole = isinstance(found, list) and all(type(row) is int and row >= 0 for row in found)
            if not whole or len(set(found)) < len(found):
                message = f"trainable_token_indices has {shown(found)}; it must be a list of rows, none of them twice"
                raise self._fault("adapter.config", message)
        return {module: tuple(found) for module, found in rows.items()}

    def _names(self, key: str, value: object) -> None:
        if value is None:
            return
        if isinstance(value, str) and key != "modules_to_save":
            return
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            wanted = "a list of strings" if key == "modules_to_save" else "a string or a list of strings"
            raise self._fault("adapter.config", f"{key} is {shown(value)}; it must be {wanted}")

    def _layers(self, value: object) -> None:
        numbers = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(number) is int for number in numbers):
            raise self._fault("adapter.config", f"layers_to_transform is {shown(value)}; layers are whole numbers")

    def _fault(self, code: str, message: str) -> InputError:
        return InputError(code, message, path=self._path)


def _unsupported(document: Mapping[str, Any]) -> tuple[str, ...]:
    found = [f"{key} is {shown(document[key])}: {what}" for key, what in _VARIANTS.items() if document.get(key)]
    start = document.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        found.append(
            f"init_lora_weights is {quoted(start)}: it belongs to a base that peft changes first "
            "(peft's save_pretrained with path_initial_model_for_weight_conversion saves it as plain LoRA)"
        )
    return tuple(found)
