"""Record the keys that the configuration classes of transformers and mlx-lm know: tests/config_keys.json.

    python scripts/record_config_keys.py

The tables of ckconv/families are held against the recording, so that no key of a class is left unclassified. Run it
with the newest transformers and mlx-lm, look at what changed, and give every new key a row.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ckconv.families.catalog import FAMILIES  # noqa: E402

#: Model types that are recorded before they have a file, so that a new file finds its class.
AHEAD = """apertus arcee bloom cohere cohere2 dbrx deepseek_v2 deepseek_v3 dots1 ernie4_5 ernie4_5_moe exaone4 falcon
    gemma gemma3n_text gemma4_text glm glm4 glm4_moe gpt_bigcode gpt_neox gpt_oss gptj granitemoe hunyuan_v1_dense
    hunyuan_v1_moe internlm3 llama4_text minicpm3 ministral3 mpt nemotron olmo olmo3 olmoe phi phimoe qwen2_moe seed_oss
    smollm3 stablelm starcoder2"""

#: Model types of text parts -> that of the class that reads them as ``text_config``.
WRAPPED = {
    name: row.wrapped
    for family in FAMILIES.values()
    if (row := family.engines.get("mlx_lm")) is not None and row.wrapped
    for name in family.in_huggingface.names
}

KEYS = sorted({*AHEAD.split(), *(name for family in FAMILIES.values() for name in family.in_huggingface.names)})

RECORDING = ROOT / "tests" / "config_keys.json"

#: What classes of mlx-lm call their arguments, and those of a text part.
_ARGUMENTS = ("ModelArgs", "TextModelArgs", "TextArgs", "TextConfig")

#: Modules whose class is made of the text part.
_WRAPS = re.compile(r"(\w+)\.ModelArgs\.from_dict\(args\.text_config\)")

#: Methods that every configuration goes through.
_METHODS = ("__post_init__", "convert_rope_params_to_dict")

#: Keys that a method takes out of what a document says besides the class's fields.
_TAKEN = re.compile(r'kwargs\.(?:pop|get)\(\s*"(\w+)"')


def main() -> None:
    """Write the recording."""
    import transformers
    from transformers.modeling_rope_utils import RopeParameters

    known = transformers.CONFIG_MAPPING
    made: dict[str, Any] = {
        "versions": {name: importlib.metadata.version(name) for name in ("transformers", "mlx-lm")},
        "transformers": {name: " ".join(of_transformers(transformers, name)) for name in KEYS if name in known},
        "mlx-lm": {name: " ".join(keys) for name in KEYS if (keys := of_mlx(name))},
        "rope": sorted(RopeParameters.__annotations__),
    }
    RECORDING.write_text(json.dumps(made, indent=1) + "\n")


def of_transformers(transformers: Any, model_type: str) -> list[str]:
    """Fields of the class and of its bases, other names of them, and what its methods ask for."""
    own = type(transformers.AutoConfig.for_model(model_type))
    fields = {field.name for field in dataclasses.fields(own)} | set(own.attribute_map)
    found = (vars(c).get(method) for c in own.__mro__ for method in _METHODS)
    methods = "".join(inspect.getsource(method) for method in found if method is not None)
    return sorted(fields | set(_TAKEN.findall(methods)))


def of_mlx(model_type: str) -> list[str]:
    """Fields of ``ModelArgs``, and of that of a text part, its base's too; empty for a class that there is not."""
    found = {field.name for own in arguments_of(model_type) for field in dataclasses.fields(own)}
    return sorted(found - {"text_config"} if model_type in WRAPPED else found)  # the document around the family's own


def arguments_of(model_type: str) -> list[Any]:
    """Classes of the arguments of a model of mlx-lm, and of its text part; empty for one that there is not."""
    from mlx_lm.utils import MODEL_REMAPPING

    name = WRAPPED.get(model_type, model_type)
    try:
        module = importlib.import_module(f"mlx_lm.models.{MODEL_REMAPPING.get(name, name)}")
    except (ImportError, SystemExit):  # a class that needs another package
        return []
    bases = [sys.modules[base.__module__] for base in module.Model.__mro__ if base.__module__.startswith("mlx_lm.")]
    others = [getattr(module, name) for name in _WRAPS.findall(inspect.getsource(module))]
    found = [getattr(one, name) for one in (module, *bases, *others) for name in _ARGUMENTS if hasattr(one, name)]
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    main()
