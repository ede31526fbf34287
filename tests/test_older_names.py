"""Names that other programs gave the tensors of a model: TensorFlow's norms, and the classes' own of transformers 5."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from checkpoints import Raw, save_file
from family_cases import cases, checkpoint, tensors
from gguf_copies import bytes_of
from safetensors.numpy import load_file
from safetensors_builder import tensors_of

import ckconv

CASE = next(cases("bert"))
#: The heads that it was trained with.
HEADS = {
    "cls.predictions.bias": (384,),
    "cls.predictions.transform.LayerNorm.gamma": (24,),
    "cls.predictions.transform.LayerNorm.beta": (24,),
    "cls.predictions.transform.dense.weight": (24, 24),
    "cls.predictions.transform.dense.bias": (24,),
    "cls.seq_relationship.weight": (2, 24),
    "cls.seq_relationship.bias": (2,),
}


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_norms_under_their_older_names_are_the_same_model(prefix: str, tmp_path: Path) -> None:
    new = checkpoint(CASE.recorded, tmp_path / "new", CASE.tokenizer)
    old = checkpoint(CASE.recorded, tmp_path / "old", CASE.tokenizer)
    named = {
        prefix + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): values
        for name, values in tensors(CASE.recorded).items()
    }
    heads = {name: np.ones(shape, np.float32) for name, shape in HEADS.items() if prefix}
    save_file(old / "model.safetensors", {**named, **heads}, {"format": "pt"})

    report = ckconv.convert(old, tmp_path / "old.gguf")
    ckconv.convert(new, tmp_path / "new.gguf")
    ckconv.convert(old, f"{tmp_path / 'copy'}/", to="safetensors")

    assert bytes_of(tmp_path / "old.gguf") == bytes_of(tmp_path / "new.gguf")
    assert {item.name for item in report.plan.left_out} == set(heads)
    assert load_file(tmp_path / "copy" / "model.safetensors").keys() == {**named, **heads}.keys()
    assert ckconv.verify(tmp_path / "old.gguf", old)


#: Family -> parts of names in the released files, and in the class: what ``save_original_format=False`` saves (verl
#: 7068), which loads as well. Experts are one parameter there, W1 above W3.
OF_THE_CLASS = {
    "minimax": {".block_sparse_moe.": ".mlp."},
    "minimax_m2": {".block_sparse_moe.": ".mlp."},
    "lfm2_moe": {},
    "nemotron_h_moe": {"backbone.embeddings": "backbone.embedding"},
}
_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(w1|w2|w3|up_proj|down_proj)\.weight")
_PARAMETER = {"w1": "gate_up_proj", "w3": "gate_up_proj", "w2": "down_proj"}


def as_the_class_has_them(found: dict[str, Raw], renamed: dict[str, str]) -> dict[str, Raw]:
    """Experts as one array each, in the order of their numbers, and the other names."""
    made: dict[str, Raw] = {}
    of_expert = {match: found[match[0]] for name in found if (match := _EXPERT.fullmatch(name))}
    for match in sorted(of_expert, key=lambda match: (int(match[2]), match[3])):
        one, name = of_expert[match], f"{match[1]}.{_PARAMETER.get(match[3], match[3])}"
        before = made.get(name, Raw(one.dtype, (0, 0, one.shape[1]), b""))
        count = int(match[2]) + 1
        rows = one.shape[0] * (2 if match[3] in ("w1", "w3") else 1)
        made[name] = Raw(one.dtype, (count, rows, one.shape[1]), before.data + one.data)
    made |= {name: array for name, array in found.items() if not _EXPERT.fullmatch(name)}
    for part, instead in renamed.items():
        made = {name.replace(part, instead): array for name, array in made.items()}
    return made


@pytest.mark.parametrize("family", OF_THE_CLASS)
def test_names_of_the_class_are_those_of_the_released_files(family: str, tmp_path: Path) -> None:
    case = next(cases(family))
    source = checkpoint(case.recorded, tmp_path / "model", case.tokenizer)
    ckconv.convert(source, tmp_path / "released.gguf")
    found = {name: Raw(*entry) for name, entry in tensors_of(source).items()}
    named = as_the_class_has_them(found, OF_THE_CLASS[family])
    assert not found.keys() >= named.keys()

    save_file(source / "model.safetensors", named, {"format": "pt"})
    ckconv.convert(source, tmp_path / "class.gguf")

    assert bytes_of(tmp_path / "class.gguf") == bytes_of(tmp_path / "released.gguf")
