"""The models whose configurations are edited, in every format that they are converted from.

A folder of references has ``hf/NAME`` and, made by llama.cpp's own converter, ``gguf/NAME.f32.gguf``. Without one,
transformers makes a small random checkpoint of each family, and ckconv its GGUF.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from edit_draws import Edit

import ckconv
from ckconv.families.merge import FOLDER as SHIPPED

#: Name -> architecture in GGUF.
FAMILIES: Mapping[str, str] = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
    "llama_biased": "llama", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3", "phi3": "phi3", "gpt2": "gpt2",
}  # fmt: skip

#: ``model_type`` of a fork, whose family is a file of the user's own: every word of the shipped one under another name.
FORK = "forked"
FORKED = ("llama", "qwen3", "phi3", "mixtral")

#: What transformers calls a model whose name here says more.
MODEL_TYPES: Mapping[str, str] = {"llama_biased": "llama"}

_SMALL: Mapping[str, Any] = {
    "vocab_size": 384, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "tie_word_embeddings": False,
}  # fmt: skip
_EXPERTS: Mapping[str, Any] = {"intermediate_size": 48, "num_local_experts": 4, "num_experts_per_tok": 2}
_OWN: Mapping[str, Mapping[str, Any]] = {
    "mistral": {"sliding_window": None},
    "mixtral": _EXPERTS,
    "qwen3": {"head_dim": 8},
    "qwen3_moe": {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                  "norm_topk_prob": True},
    "gemma3_text": {"head_dim": 16, "num_hidden_layers": 7, "num_key_value_heads": 1, "query_pre_attn_scalar": 16,
                    "sliding_window": 4, "tie_word_embeddings": True},
    "phi3": {"sliding_window": None, "original_max_position_embeddings": 256},
    "gpt2": {"n_positions": 128, "tie_word_embeddings": True},
}  # fmt: skip

#: Windows that the reference has and a target does not, so that nothing could be converted.
_TAMED: Mapping[str, Mapping[str, Any]] = {"mistral": {"sliding_window": None}, "phi3": {"sliding_window": None}}
_TAMED_GGUF = {"phi3": Edit("set", ("phi3.attention.sliding_window",), 0, "u32")}


@dataclass(frozen=True)
class Base:
    """An unedited model: a directory with its document, or a GGUF with its metadata as (type, value)."""

    family: str
    format: str
    style: str
    path: Path
    document: Mapping[str, Any]
    own: Path | None = None

    def known(self, path: Path) -> Path:
        """The model under the ``model_type`` of the class that is forked, which programs know."""
        if self.own is None:
            return path
        target = path.parent / f"{path.name}-known"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(path, target)
        named = self.named(json.loads((path / "config.json").read_text()))
        (target / "config.json").write_text(json.dumps(named))
        return target

    def named(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """A document under the ``model_type`` that programs know."""
        forked = self.own is not None and document.get("model_type") == FORK
        return {**document, "model_type": MODEL_TYPES.get(self.family, self.family)} if forked else dict(document)

    def edited(self, edit: Edit, place: Path) -> Path:
        """The same model with an edit, made at ``place`` (of which it is a part)."""
        document = edit.applied(self.document)
        if self.format == "gguf":
            return write_gguf(self.path, place / "edited.gguf", edit)
        target = place / "edited"
        target.mkdir()
        for file in self.path.iterdir():
            if file.name != "config.json":
                os.link(file, target / file.name)
        (target / "config.json").write_text(json.dumps(document, indent=2))
        return target


def bases(family: str, folder: Path, reference: Path | None) -> list[Base]:
    """The family's models, written below ``folder``: two styles of checkpoint and of MLX, a GGUF."""
    made = []
    source = folder / "made"
    if reference is not None and not (reference / "hf" / family).is_dir():
        reference = None
    if reference is None:
        _random_checkpoint(family, source)
    else:
        shutil.copytree(reference / "hf" / family, source)
        source.chmod(0o755)
        for file in source.iterdir():
            file.chmod(0o644)
    document = {**json.loads((source / "config.json").read_text()), **_TAMED.get(family, {})}
    for style, own in (("5", document), ("hub", in_style_of_the_hub(document))):
        path = folder / f"hf-{style}" / family
        shutil.copytree(source, path)
        (path / "config.json").write_text(json.dumps(own, indent=2))
        made.append(Base(family, "hf", style, path, own))
    path = folder / f"{family}.gguf"
    if reference is None:
        ckconv.convert(made[0].path, path)
    else:
        theirs = reference / "gguf" / f"{family}.f32.gguf"
        tamed = _TAMED_GGUF.get(family)
        path = write_gguf(theirs, path, tamed) if tamed else shutil.copyfile(theirs, path)
    made.append(Base(family, "gguf", "", path, gguf_document(path)))
    path = folder / "mlx" / family
    path.parent.mkdir()
    ckconv.convert(made[1].path, path, to="mlx")
    own = json.loads((path / "config.json").read_text())
    made.append(Base(family, "mlx", "", path, own))
    if "rope_parameters" in document:  # as mlx-lm keeps config.json of a checkpoint of transformers 5
        both = shutil.copytree(path, folder / "mlx-5" / family)
        own = {**own, "rope_parameters": document["rope_parameters"]}
        (both / "config.json").write_text(json.dumps(own, indent=2))
        made.append(Base(family, "mlx", "5", both, own))
    if family in FORKED:
        made.append(_fork(made[0], folder))
    return made


def _fork(base: Base, folder: Path) -> Base:
    """A checkpoint whose class nobody knows, and the file of its family."""
    path = shutil.copytree(base.path, folder / FORK)
    (name,) = base.document["architectures"]
    document = {**base.document, "model_type": FORK, "architectures": [f"Forked{name}"]}
    (path / "config.json").write_text(json.dumps(document, indent=2))
    words = (SHIPPED / f"{base.family}.toml").read_text()
    renamed = words.replace(f'"{base.family}"', f'"{FORK}"').replace(f'"{name}"', f'"Forked{name}"')
    own = folder / f"{FORK}.toml"
    own.write_text(renamed)
    return Base(base.family, "hf", FORK, path, document, own)


def in_style_of_the_hub(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document as transformers 4 wrote it: no ``rope_parameters``, ``torch_dtype``, nothing derived."""
    made = {key: value for key, value in document.items() if key not in ("rope_parameters", "dtype", "layer_types")}
    rope = document.get("rope_parameters") or {}
    full, local = rope.get("full_attention", rope), rope.get("sliding_attention", {})
    made["torch_dtype"] = document["dtype"]
    made |= {key: full[key] for key in ("rope_theta", "partial_rotary_factor") if key in full}
    if local:
        made["rope_local_base_freq"] = local["rope_theta"]
        made["sliding_window_pattern"] = made.pop("_sliding_window_pattern", 6)
    if document["model_type"] == "qwen3_moe":
        made["num_experts"] = made.pop("num_local_experts")
    return made


def _random_checkpoint(family: str, target: Path) -> None:
    import torch
    import transformers

    torch.manual_seed(len(family))
    config = transformers.CONFIG_MAPPING[MODEL_TYPES.get(family, family)](**{**_SMALL, **_OWN.get(family, {})})
    model = transformers.AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            norm = parameter.ndim == 1 and not name.endswith("bias")
            center = (0.0 if family.startswith("gemma") else 1.0) if norm else 0.0
            parameter.copy_(center + 0.1 * torch.randn(parameter.shape))
    model.save_pretrained(target)


def gguf_document(path: Path) -> dict[str, Any]:
    """The keys of a GGUF that are no texts of a tokenizer: (type, value)."""
    import gguf

    names = {"UINT32": "u32", "FLOAT32": "f32", "BOOL": "bool", "STRING": "str"}
    made = {}
    for key, field in gguf.GGUFReader(path).fields.items():
        kind = names.get(field.types[0].name if field.types else "")
        if kind and not key.startswith(("tokenizer.", "GGUF.")):
            made[key] = (kind, field.contents())
    return made


@cache
def _parts(source: Path) -> tuple[list[tuple[str, Any, Any, Any]], list[Any]]:
    """Metadata of a GGUF as (key, value, type, type of elements), and its tensors."""
    import gguf

    reader = gguf.GGUFReader(source)
    fields = [(key, field) for key, field in reader.fields.items() if not key.startswith("GGUF.")]
    metadata = [
        (key, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
        for key, field in fields
    ]
    return metadata, reader.tensors


def write_gguf(source: Path, target: Path, edit: Edit) -> Path:
    """A copy of a GGUF with one key added, set or removed."""
    import gguf

    kinds = {
        "u32": gguf.GGUFValueType.UINT32, "f32": gguf.GGUFValueType.FLOAT32, "bool": gguf.GGUFValueType.BOOL,
        "str": gguf.GGUFValueType.STRING,
    }  # fmt: skip
    metadata, tensors = _parts(source)
    writer = gguf.GGUFWriter(target, next(value for key, value, *_ in metadata if key == "general.architecture"))
    (edited,) = edit.path
    for key, value, kind, elements in metadata:
        if key not in ("general.architecture", edited):
            writer.add_key_value(key, value, kind, elements)
    if edit.op != "remove":
        writer.add_key_value(edited, edit.value, kinds[edit.kind])
    for tensor in tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
