"""Record what the classes of transformers and mlx-lm take where a document does not say it.

    python scripts/record_config_defaults.py

ckconv/families/mlx_lm_defaults.json: of each class of mlx-lm the defaults of its arguments, ``"= !"`` of those that it
is not built without; and of those that none of its code asks for (``idle``).

ckconv/families/transformers_defaults.json: of each class the values of its fields, and the keys whose value is that of
others (the heads of keys are those of queries, a head's size is what each gets of the width); and of the classes of
models with a text part which tie the head, T, by what the whole and the text part say (columns: ``TIES``). Run it with
the newest transformers.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import inspect
import json
import logging
import re
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from record_config_keys import KEYS, arguments_of  # noqa: E402

from ckconv.families.catalog import FAMILIES  # noqa: E402
from ckconv.families.huggingface_classes import DEFAULTS, DEFAULTS_OF_MLX, TIES  # noqa: E402

#: Heads and width of a document that says nothing else, so that what follows from them is told from what does not.
_HEADS, _WIDTH = 6, 6 * 22


def main() -> None:
    """Write the file."""
    import transformers

    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    engines = (family.engines.get("mlx_lm") for family in FAMILIES.values())
    names = sorted({*KEYS, *(row.model_type for row in engines if row is not None and row.model_type)})
    version, text = importlib.metadata.version("mlx-lm"), ""
    for table, asked in (("defaults", True), ("idle", False)):
        taken = {name: found for name in names if (found := of_mlx(name, asked=asked))}
        classes = ",\n".join(f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in taken.items())
        text += f',\n "{table}": {{\n{classes}\n }}'
    DEFAULTS_OF_MLX.write_text(f'{{\n "versions": {{"mlx-lm": "{version}"}}{text}\n}}\n')
    made = {name: of_class(transformers, name) for name in KEYS if name in transformers.CONFIG_MAPPING}
    version = importlib.metadata.version("transformers")
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in made.items())
    tied: dict[str, list[str]] = {}
    for name in transformers.CONFIG_MAPPING:
        if row := ties(transformers, name):
            tied.setdefault(row, []).append(name)
    rows = ",\n".join(f"  {json.dumps(row)}: {json.dumps(' '.join(sorted(names)))}" for row, names in tied.items())
    DEFAULTS.write_text(
        f'{{\n "versions": {{"transformers": "{version}"}},\n "ties": {{\n{rows}\n }},\n'
        f' "defaults": {{\n{lines}\n }}\n}}\n'
    )


#: What a class with a head is called.
_HEADED = ("ForConditionalGeneration", "ForCausalLM")


def ties(transformers: Any, name: str) -> str:
    """A row of ``ties``; empty for models without a text part, or whose class is not to be had."""
    import torch

    try:
        of = transformers.CONFIG_MAPPING[name]
        module = importlib.import_module(of.__module__.replace(".configuration_", ".modeling_"))
        text = of().text_config if "text_config" in of.sub_configs else None
    except Exception:
        return ""
    known: list[Any] = [
        one
        for called, one in vars(module).items()
        if called.endswith(_HEADED) and inspect.isclass(one) and getattr(one, "config_class", None) is of
    ]
    if text is None or not known:
        return ""
    row = ""
    try:
        # as `PreTrainedModel.get_expanded_tied_weights_keys` does: each class asks its own configuration
        own, within = _ties_head(known[0]), False
        if not own:
            with torch.device("meta"):
                within = any(map(_ties_head, known[0](of()).modules()))
        for whole, inner in TIES:
            table = {"model_type": text.model_type, "tie_word_embeddings": inner}
            said = of.from_dict({"text_config": table, **({} if whole is None else {"tie_word_embeddings": whole})})
            tied = (own or within) and getattr(said if own else said.text_config, "tie_word_embeddings", False)
            row += "T" if tied else "-"
    except Exception:
        return ""
    return row


def _ties_head(model: Any) -> bool:
    return "lm_head.weight" in (getattr(model, "_tied_weights_keys", None) or {})


def of_class(transformers: Any, name: str) -> dict[str, Any]:
    """Key -> value: ``"= KEY"`` that of another key, ``"= KEY // KEY"`` a quotient, ``"= ?"`` something else."""
    own = type(transformers.AutoConfig.for_model(name))
    plain = own()
    heads, width = (own.attribute_map.get(key, key) for key in ("num_attention_heads", "hidden_size"))
    try:
        other = own(**{heads: _HEADS, width: _WIDTH})
    except Exception:
        other = plain
    # Of a table of RoPE that is there and has no base.
    found: dict[str, Any] = {"default_theta": own.default_theta} if hasattr(own, "default_theta") else {}
    names = {field.name for field in dataclasses.fields(own)} - {"transformers_version", "architectures", "dtype"}
    for key in sorted({*names, *own.attribute_map}):
        values = [vars(config).get(own.attribute_map.get(key, key)) for config in (plain, other)]
        if key in (heads, width, "num_attention_heads", "hidden_size") or values[0] == values[1]:
            value = values[0]
        else:
            same = {_HEADS: f"= {heads}", _WIDTH: f"= {width}", _WIDTH // _HEADS: f"= {width} // {heads}"}
            value = same.get(values[1], "= ?") if isinstance(values[1], int) else "= ?"
        if is_json(value):
            found[key] = value
    return found


def of_mlx(name: str, *, asked: bool) -> dict[str, Any]:
    """Key -> default, ``"= !"`` for none; a default that no document says is left out.

    Args:
        asked: those that code asks for, or those that none does.
    """
    own, *others = arguments_of(name) or [None]
    if own is None:
        return {}
    wraps = "text_config" in {field.name for field in dataclasses.fields(own)}
    classes = [own, *others] if wraps else [own]  # others are those of the class that the model's is made of
    code = "".join(inspect.getsource(sys.modules[one.__module__]) for one in [own, *others])
    found = {}
    for field in (field for one in classes for field in dataclasses.fields(one)):
        made = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        value = "= !" if made is dataclasses.MISSING else list(made) if isinstance(made, tuple) else made
        read = value == "= !" or re.search(rf"\b(args|config)\.{field.name}\b", code)
        if field.name not in ("model_type", "text_config") and bool(read) is asked and is_json(value):
            found[field.name] = value
    return dict(sorted(found.items()))


def is_json(value: Any) -> bool:
    """A document can say it."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except TypeError:
        return False


if __name__ == "__main__":
    main()
