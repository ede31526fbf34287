"""Experts as transformers 5 holds them in memory, as a dumped ``state_dict`` has them: the model of saved ones."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import numpy as np
import pytest
from checkpoints import save_file
from family_cases import Case, cases, checkpoint, stored, values
from safetensors.numpy import load_file

import ckconv
from ckconv.errors import CkconvError

#: Family -> names of the saved checkpoint (expressions) and those that its class of transformers 5.23 has.
RENAMED = {
    "mixtral": {r"block_sparse_moe": "mlp"},
    "phimoe": {r"block_sparse_moe\.gate\.": "mlp.router.", r"block_sparse_moe": "mlp"},
    "ernie4_5_moe": {r"mlp\.moe_statics": "mlp.gate.moe_statics"},
    "granitemoe": {
        r"router\.layer": "router",
        r"input_linear\.weight": "experts.gate_up_proj",
        r"output_linear\.weight": "experts.down_proj",
    },
    **{name: {} for name in ("qwen2_moe", "qwen3moe", "olmoe", "deepseek_v2", "dots1", "glm4_moe", "hunyuan_v1_moe")},
}
#: Where a family cannot go to GGUF whatever its form.
TARGETS = {"phimoe": "mlx"}
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate_proj|w1|up_proj|w3|down_proj|w2)\.weight")


def in_memory(case: Case, folder: Path) -> Path:
    """The checkpoint with experts as two tensors a layer: gate in front of up, and down."""
    recorded = case.recorded["tensors"]
    found: dict[str, np.ndarray] = {}
    experts: dict[tuple[str, str], list[np.ndarray]] = {}
    for name, (_, shape, *mean) in recorded.items():
        renamed = name
        for old, new in RENAMED[case.family].items():
            renamed = re.sub(old, new, renamed)
        if match := _EXPERT.fullmatch(renamed):
            assert int(match[2]) == len(experts.setdefault((match[1], match[3]), []))
            experts[match[1], match[3]].append(values(name, tuple(shape), *mean))
        else:
            found[renamed] = values(name, tuple(shape), *mean)
    for (module, kind), arrays in experts.items():
        if kind in ("down_proj", "w2"):
            found[f"{module}.down_proj"] = np.stack(arrays)
        elif kind in ("gate_proj", "w1"):
            up = experts[module, {"gate_proj": "up_proj", "w1": "w3"}[kind]]
            found[f"{module}.gate_up_proj"] = np.concatenate([np.stack(arrays), np.stack(up)], axis=1)
    checkpoint(case.recorded, folder)
    kinds = {name: entry[0] for name, entry in recorded.items()}
    dtype = kinds[next(name for name in kinds if name.endswith("q_proj.weight") or "q_a_proj" in name)]
    save_file(folder / "model.safetensors", {name: stored(a, kinds.get(name, dtype)) for name, a in found.items()})
    return folder


def tensors(path: Path) -> dict[str, tuple[object, ...]]:
    """Name -> type, shape and bytes."""
    if path.is_dir():
        return {name: (a.shape, a.tobytes()) for name, a in load_file(path / "model.safetensors").items()}
    found = gguf.GGUFReader(path).tensors
    return {tensor.name: (tensor.tensor_type, tuple(tensor.shape), tensor.data.tobytes()) for tensor in found}


@pytest.mark.parametrize("family", sorted(RENAMED))
def test_experts_of_transformers_5_in_memory_convert_to_what_saved_ones_do(family: str, tmp_path: Path) -> None:
    case = next(case for case in cases(family) if case.dtype == "float32")
    target = TARGETS.get(family, "gguf")
    sources = {"saved": checkpoint(case.recorded, tmp_path / "saved"), "memory": in_memory(case, tmp_path / "memory")}
    made = {}
    for name, source in sources.items():
        out = tmp_path / f"{name}.gguf" if target == "gguf" else tmp_path / f"{name}-mlx"
        ckconv.convert(source, out, to=target, options=ckconv.Options(**case.options))
        made[name] = tensors(out)

    assert "experts.gate_up_proj" in "".join(load_file(sources["memory"] / "model.safetensors"))
    assert made["memory"] == made["saved"]


def test_a_layer_without_one_of_the_two_is_refused(tmp_path: Path) -> None:
    case = next(cases("olmoe"))
    source = in_memory(case, tmp_path / "memory")
    kept = load_file(source / "model.safetensors")
    del kept["model.layers.0.mlp.experts.down_proj"]
    save_file(source / "model.safetensors", kept)

    with pytest.raises(CkconvError, match=r"no tensor for layers\.\{n\}\.ffn\.experts\.down\.weight"):
        ckconv.convert(source, tmp_path / "out.gguf", to="gguf")
