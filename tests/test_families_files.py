"""What holds for every shipped family file: what its tensors are called; its cases and its page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import gguf
import pytest
from family_cases import ROOT, families as with_cases

from ckconv.families import catalog
from ckconv.families.adapters import PATHS, modules_of, recorded_paths
from ckconv.families.catalog import FAMILIES, Family
from ckconv.families.merge import FOLDER, is_family

FILES = {path.stem: tomllib.loads(path.read_text()) for path in sorted(FOLDER.glob("*.toml"))}
SHIPPED = sorted(name for name, table in FILES.items() if "huggingface" in table)

#: Of its decoder and encoder only names and sizes are known, and no engine computes it.
NAMES_ONLY = {"whisper"}

#: Rows of every decoder, whose models a row of [engines] refuses where llama.cpp does not load the tensor.
INHERITED = {"output", "rope_freqs"}
#: Tensors of a class that llama.cpp's loader does not have, in models that a row of [engines] refuses.
REFUSED = {"minicpm3": {"L.attn_q"}}
#: Drafters' tensors, which the published package has no names for.
REFUSED |= {"dflash": {"fc"}, "dspark": {"fc", "markov_w1", "markov_w2", "conf_proj"}}
REFUSED |= {"gemma4_dspark": REFUSED["dspark"], "eagle3": {"fc", "d2t"}}
REFUSED |= {"gemma4_assistant": {"nextn.pre_projection", "nextn.post_projection"}}

#: Tensors of architectures that only llama.cpp's own copy has, under names of their own.
REFUSED |= {"hrm_text": {"hrm.z_l_init"}}
REFUSED |= {
    "deepseek_v4": {f"output_hc_{name}" for name in ("fn", "base", "scale")}
    | {f"L.hc_{part}_{name}" for part in ("attn", "ffn") for name in ("fn", "base", "scale")}
    | {f"L.{part}_compressor_{name}" for part in ("attn", "indexer") for name in ("kv", "gate", "norm", "ape")}
    | {"L.attn_kv", "L.attn_output_a", "L.attn_output_b", "L.ffn_gate_tid2eid"}
}
_LORA = {f"L.{name}.lora_{kind}" for name in ("attn_q", "attn_k", "attn_v", "attn_output") for kind in "ab"}
REFUSED |= {"granite_switch": _LORA | {f"L.ffn_{name}.lora_{kind}" for name in ("gate", "up", "down") for kind in "ab"}}

#: Families whose draft layers llama.cpp's own copy of the package has, and the published one of 0.19 has not.
DRAFTED = {
    "deepseek_v3",
    "exaone4",
    "glm4_moe_lite",
    "mimo_v2_flash",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
    "step3p5",
}
REFUSED |= {"mimo_v2_flash": {"L.layer_output_norm"}}
#: Likewise those with a head that ranks.
RANKED = {"qwen3_classifier", "qwen3_reranker"}

#: Architectures that only llama.cpp's own copy has; their tensors have names that other architectures have, too.
NEWER = {"cohere2moe", "deepseek32", "dflash", "gemma4-assistant", "granite_swa", "hy_v3", "laguna", "maple", "mellum"}
NEWER |= {
    "bailingmoe3",
    "deepseek4",
    "eagle3",
    "graniteswitch",
    "hrm_text",
    "minimax-01",
    "muse-glimmer",
    "nanbeige",
    "spark2_5",
    "talkie",
}

ARCHITECTURES = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}

#: MiniMax M3's indexer has names that the published package has for none.
NEWER |= {"minimax-m3", "qwen4exp"}
REFUSED |= {"minimax_m3": {"L.indexer.q_norm", "L.indexer.q_proj", "L.indexer.k_proj"}}
#: Likewise Qwen 4's, its streams and its n-grams.
_STREAMS = {f"L.hc_{part}_{name}" for part in ("attn", "ffn") for name in ("norm", "down", "up", "inject")}
_NGRAMS = {f"L.ple_{name}" for name in ("key", "value", "norm_key", "norm_query", "norm_conv", "conv1d")}
REFUSED |= {"qwen4_exp": _STREAMS | _NGRAMS | {f"output_hc_{name}" for name in ("norm", "down", "up")}}
REFUSED["qwen4_exp"] |= {"L.indexer.q_norm", "L.indexer.q_proj", "L.indexer.k_proj"}


@pytest.mark.parametrize("family", [pytest.param(f, id=f.name) for f in FAMILIES.values() if f.gguf])
def test_tensors_of_a_gguf_are_called_as_the_gguf_package_says_for_the_architecture(family: Family) -> None:
    assert (family.gguf in ARCHITECTURES) != (family.gguf in NEWER)
    named = gguf.TENSOR_NAMES if family.gguf in NEWER else gguf.MODEL_TENSORS[ARCHITECTURES[family.gguf]]
    tensors = [*named]
    tensors += [kind for kind in gguf.TENSOR_NAMES if "NEXTN_" in kind.name and family.name in DRAFTED]
    tensors += [gguf.MODEL_TENSOR.CLS_OUT] if family.name in RANKED else []
    (root, layer), *_ = family.prefixes["gguf"]
    stacks = {f"{letter}.": stack.prefixes.get("gguf", "") for letter, stack in family.stacks.items()}
    letters = {**{prefix: letter for letter, prefix in stacks.items()}, layer: "L."}
    letters |= {root: "M."} if root else {}
    known = {gguf.TENSOR_NAMES[kind].replace("{bid}", "{n}") for kind in tensors} | INHERITED
    known = {
        next(
            (name.replace(text, letter, 1) for text, letter in letters.items() if text and name.startswith(text)), name
        )
        for name in known
    }
    cells = [cell for row in family.tensors.values() for cell in row.cells.get("gguf", ())]

    names = {re.sub(r"^=|\.(weight|bias|scale)$", "", cell.name) for cell in cells}
    names = {f"L.{name[2:]}" if stacks.get(name[:2]) == layer else name for name in names}
    assert names - known == REFUSED.get(family.name, set())


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.toml")), ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_file_is_found_however_its_tables_are_written(path: Path) -> None:
    """Files are looked for by their text before they are parsed: inline tables, dotted keys, headers."""
    text = path.read_text("utf-8")
    said = tomllib.loads(text)
    assert is_family(text) == ("huggingface" in said)


def test_no_family_says_again_what_is_harmless_in_all() -> None:
    rows = {path: tomllib.loads(path.read_text()).get("config", {}) for path in sorted(FOLDER.rglob("*.toml"))}
    every = rows.pop(FOLDER / "pretrained.toml")["harmless"]
    again = {str(path.relative_to(FOLDER)): {*row.get("harmless", ())} & {*every} for path, row in rows.items()}
    assert {path: keys for path, keys in again.items() if keys} == {}


def test_the_index_has_what_the_families_are_called() -> None:
    """A family that is not in it is not known: python scripts/record_modules.py writes it anew."""
    assert json.loads(catalog.INDEX.read_bytes()) == catalog.index_of_files()


def test_the_index_of_modules_is_what_the_families_say() -> None:
    """Without a base an adapter's families are looked up in it: python scripts/record_modules.py writes it anew."""
    made = recorded_paths(modules_of(FAMILIES[name] for name in FAMILIES))
    assert json.loads(PATHS.read_bytes()) == json.loads(json.dumps(made))


def test_every_shipped_family_has_cases() -> None:
    assert set(SHIPPED) - NAMES_ONLY == set(with_cases())


def test_the_page_about_families_says_what_is_recorded() -> None:
    script = ROOT / "scripts" / "families_page.py"
    assert subprocess.run([sys.executable, script, "--check"], check=False).returncode == 0
