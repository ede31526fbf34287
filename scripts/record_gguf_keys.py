"""Record the metadata keys that llama.cpp's loader reads of each architecture, out of its sources.

    python scripts/record_gguf_keys.py SOURCES VERSION > tests/gguf_keys.json

``SOURCES`` is a checkout of llama.cpp, ``VERSION`` what to call it. The tables of ``ckconv/families`` are
held against the result.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ckconv.families.catalog import FAMILIES  # noqa: E402

#: Architecture -> file of src/models with its load_arch_hparams, where that is called otherwise.
FILES = {
    "ernie4_5": "ernie4-5", "ernie4_5-moe": "ernie4-5", "glm4moe": "glm4-moe", "gpt-oss": "openai-moe",
    "granitemoe": "granite-moe", "hunyuan-dense": "hunyuan-vl",
    "granitehybrid": "granite-hybrid", "falcon-h1": "falcon-h1", "granite_swa": "granite-swa",
    "hy_v3": "hy-v3", "nemotron_h": "nemotron-h",
    "nemotron_h_moe": "nemotron-h", "seed_oss": "seed-oss", "pangu-embedded": "pangu-embed",
    "spark2_5": "spark2-5", "llama-embed": "llama", "graniteswitch": "granite-switch", "hrm_text": "hrm-text",
    "hunyuan_vl": "hunyuan-vl", "paddleocr": "ernie4-5", "deepseek2-ocr": "deepseek2ocr", "mistral4": "deepseek2",
}  # fmt: skip

#: ``ml.get_key(LLM_KV_NAME, into, false)``: without the last argument the key has to be there.
CALL = re.compile(r"ml\.get_(?:key_or_arr|key|arr_n|arr)\((LLM_KV_\w+),([^;]*?)\)(?=[;) &|{])")
#: ``{ LLM_KV_NAME, "%s.name" },`` of ``src/llama-arch.cpp``.
NAME = re.compile(r'\{\s*(LLM_KV_\w+),\s*"%s\.([^"]+)"\s*\}')


def body(source: str, signature: str) -> str:
    """A function, up to the first line that begins with a brace."""
    start = source.index(signature)
    return source[start : source.index("\n}", start)]


def without_other_architectures(function: str) -> str:
    """Without the blocks ``if (arch == LLM_ARCH_X) {`` of four spaces, which no architecture here enters."""
    return re.sub(r"\n    if \(arch == LLM_ARCH_.*?\n    \}", "", function, flags=re.DOTALL)


def calls(function: str, names: dict[str, str]) -> dict[str, bool]:
    """Key -> whether the loader insists on it."""
    without = re.compile(r"false|, 0\.0f$")  # a number that was meant for a default is no true
    return {names[kv]: not without.search(rest) for kv, rest in CALL.findall(function) if kv in names}


def main(sources: str, version: str) -> None:
    """Print what the sources say."""
    root = Path(sources) / "src"
    names = dict(NAME.findall((root / "llama-arch.cpp").read_text()))
    model = (root / "llama-model.cpp").read_text()
    vocabulary = calls((root / "llama-vocab.cpp").read_text(), names)
    common = calls(without_other_architectures(body(model, "void llama_model_base::load_hparams(")), names)
    pattern = calls(body(model, "void llama_model_base::load_swa_pattern("), names)
    read = {}
    for name in sorted({family.gguf for family in FAMILIES.values() if family.gguf}):
        own = body((root / "models" / f"{FILES.get(name, name)}.cpp").read_text(), "::load_arch_hparams(")
        found = {**vocabulary, **common, **calls(own, names), **(pattern if "load_swa_pattern(" in own else {})}
        read[name] = {key: "required" if required else "optional" for key, required in sorted(found.items())}
    document = {"llama.cpp": version, "names": sorted(names.values()), "read": read}
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
