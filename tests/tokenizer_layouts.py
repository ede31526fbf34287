"""Every way in which the files of a checkpoint say that a tokenizer has tokens besides its words.

``python tokenizer_layouts.py`` asks ``AutoTokenizer`` of each and writes ``fixtures/tokenizers/layouts.json``.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent.parent / "fixtures" / "tokenizers"
RECORDED = FOLDER / "layouts.json"
#: Rows of the embedding, above all tokens.
ROWS = 336
TEXTS = ["hello world", "hello<|new|>", "hello<think>", "the lazy dog<|new|><think>", "hello there[PAD]"]

#: Base -> ``tokenizer.json``, ``tokenizer.model``, class, words, a word.
BASES = {
    "bpe": ("bpe.json", "", "PreTrainedTokenizerFast", 305, "he"),
    "json": ("pieces.json", "", "LlamaTokenizer", 320, "he"),
    "pieces": ("", "pieces.model", "LlamaTokenizer", 320, "he"),
    "both": ("pieces.json", "pieces.model", "LlamaTokenizer", 320, "he"),
    "fast": ("pieces.json", "pieces.model", "PreTrainedTokenizerFast", 320, "he"),
}
#: Where tokens are said: as transformers 5 saves them, as 4 does, as older ones did, and by some files alone.
PLACES = (
    "json",
    "json+decoder",
    "json+added+map",
    "decoder",
    "added+map",
    "added",
    "named",
    "json+named",
    "json+added",
)
#: (content, special, id behind the words; ``None`` for that of the word).
TOKENS: dict[str, list[tuple[str, bool, int | None]]] = {
    "next": [("<|new|>", True, 0), ("<think>", False, 1)],
    "turned": [("<think>", False, 1), ("<|new|>", True, 0)],
    "gap": [("<|new|>", True, 0), ("<think>", False, 6)],
    "word": [("WORD", False, None), ("<|new|>", True, 0)],
    "special": [("WORD", True, None)],
    "again": [("WORD", False, 3), ("<think>", False, 4)],
}


class Layout(NamedTuple):
    """Files of a tokenizer."""

    base: str
    places: str
    tokens: str

    @property
    def name(self) -> str:
        return "-".join(self)

    def write(self, folder: Path) -> Path:
        """The files, without a model."""
        document, model, kind, words, word = BASES[self.base]
        folder.mkdir(parents=True, exist_ok=True)
        settings: dict[str, Any] = {"tokenizer_class": kind, "bos_token": "<s>", "eos_token": "</s>"}
        settings |= {"unk_token": "<unk>"}
        said = json.loads((FOLDER / "layouts" / document).read_text("utf-8")) if document else {}
        ids = said["model"]["vocab"] if said else {"he": 259}
        added = [
            {"id": ids[word] if at is None else words + at, "content": word if text == "WORD" else text}
            | {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": special}
            for text, special, at in TOKENS[self.tokens]
        ]
        places = self.places.split("+")
        if said and "json" in places:
            said["added_tokens"] += added
        if "decoder" in places:
            settings["added_tokens_decoder"] = {
                str(token["id"]): {key: value for key, value in token.items() if key != "id"}
                for token in [*said.get("added_tokens", ()), *added]
            }
        if "added" in places:
            _write(folder / "added_tokens.json", {token["content"]: token["id"] for token in added})
        if "map" in places:
            special = [token["content"] for token in added if token["special"]]
            _write(folder / "special_tokens_map.json", {"pad_token": special[0]} if special else {"pad_token": "</s>"})
        if "named" in places:
            settings |= {"pad_token": "[PAD]", "additional_special_tokens": [added[0]["content"]]}
        _write(folder / "tokenizer_config.json", settings)
        if said:
            _write(folder / "tokenizer.json", said)
        if model:
            shutil.copy(FOLDER / "layouts" / model, folder / "tokenizer.model")
        if not (folder / "config.json").exists():
            _write(folder / "config.json", {"model_type": "llama"})
        return folder


def _write(path: Path, document: object) -> None:
    path.write_text(json.dumps(document), "utf-8")


LAYOUTS = [
    Layout(*parts) for parts in product(BASES, PLACES, TOKENS) if not (parts[0] == "pieces" and "json" in parts[1])
]


def asked(layout: Layout, texts: list[str]) -> dict[str, Any]:
    """What ``AutoTokenizer`` says: the added tokens, those with a role, and the ids of texts."""
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        made = transformers.AutoTokenizer.from_pretrained(layout.write(Path(folder)))
    added = [[number, token.content, token.special] for number, token in sorted(made.added_tokens_decoder.items())]
    roles = {name: getattr(made, f"{name}_token_id") for name in ("bos", "eos", "unk", "pad")}
    return {"added": added, "roles": roles, "ids": [made(text)["input_ids"] for text in texts]}


if __name__ == "__main__":
    found = {layout.name: asked(layout, TEXTS) for layout in LAYOUTS}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(said)}" for name, said in found.items())
    RECORDED.write_text(f"{{\n{lines}\n}}\n", "utf-8")
    sys.exit()
