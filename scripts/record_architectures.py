"""Record which architectures llama.cpp, mlx-lm and transformers know: ckconv/families/other_programs/.

    python scripts/record_architectures.py LLAMA_CPP

LLAMA_CPP is the sources' folder, as in ``vendor/llama.cpp`` of llama-cpp-python's source distribution; mlx-lm and
transformers are those installed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "ckconv" / "families" / "other_programs" / "architectures.toml"


def loaded(path: Path) -> ModuleType:
    """A Python file by itself."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table(text: str, name: str) -> list[str]:
    """The keys of a dictionary of texts in Python's source."""
    found = re.search(rf"^{name}\b[^{{]*{{(.*?)^}}", text, re.DOTALL | re.MULTILINE)
    assert found, name
    return re.findall(r'^\s*"([^"]+)":', found[1], re.MULTILINE)


def main() -> None:
    """Write the file anew."""
    sources = Path(sys.argv[1])
    conversion = (sources / "conversion" / "__init__.py").read_text()
    library = re.findall(r'LLM_ARCH_\w+,\s*"([^"]+)"', (sources / "src" / "llama-arch.cpp").read_text())
    converted = vars(loaded(sources / "gguf-py" / "gguf" / "constants.py").VisionProjectorType)
    computed = re.findall(r'PROJECTOR_TYPE_\w+,\s*"([^"]+)"', (sources / "tools/mtmd/clip-impl.h").read_text())

    from mlx_lm.utils import MODEL_REMAPPING
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    folder = importlib.util.find_spec("mlx_lm.models")
    assert folder is not None
    places = folder.submodule_search_locations or []
    files = [path for place in places for path in Path(place).glob("*.py")]
    modules = {path.stem for path in files if "class ModelArgs" in path.read_text()}

    rows = {
        "gguf": set(library) - {"(unknown)", "clip"},
        "classes": table(conversion, "TEXT_MODEL_MAP"),
        "towers": table(conversion, "MMPROJ_MODEL_MAP"),
        "projectors": {*computed, *(value for key, value in converted.items() if not key.startswith("_"))},
        "mlx_lm": {*modules, *MODEL_REMAPPING},
        "transformers": CONFIG_MAPPING_NAMES,
    }
    version = {name: importlib.metadata.version(name) for name in ("mlx-lm", "transformers")}
    lines = [
        "# Architectures that other programs know, for sentences about one that ckconv does not. Of llama.cpp:",
        "# gguf, general.architecture; classes and towers, what its converter reads; projectors, clip.projector_type.",
        "# mlx_lm and transformers: model types.",
        f"# Recorded by scripts/record_architectures.py: llama.cpp of llama-cpp-python's {sources.parent.parent.name}, "
        f"mlx-lm {version['mlx-lm']},",
        f"# transformers {version['transformers']}.",
    ]
    for name, found in rows.items():
        lines += [f'{name} = """', *wrapped(found), '"""']
    RECORDED.write_text("\n".join(lines) + "\n")


def wrapped(names: Iterable[str]) -> list[str]:
    """Words in lines."""
    return textwrap.wrap(" ".join(sorted(names)), 118, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    main()
