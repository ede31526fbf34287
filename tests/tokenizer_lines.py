"""Small files of RWKV's and PLaMo's tokenizers, as their own are written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

#: Behind every byte come two line feeds as number 261, as in RWKV's own file.
WORDS: list[str | bytes] = [
    *("\t\t", "\t\n", "\t ", "\n\t", "\n\n", " the", "the", "th", "then", "'s", "'\"", "\\\\", "\\n", "it's", "日本"),
    *("日", "é", b"\xe6\x97", b"\xf0\x9f", "\u2028", "🙂", "User", ": "),
]  # fmt: skip
PIECES = {"▁": -3.5, "a": -4.0, "b": -4.25, "ab": -5.5, "abc": -9.0, "c": -4.5, "bc": -6.0, "日本": -7.0, "日": -8.5}


class Case(NamedTuple):
    """A checkpoint's files of its tokenizer, and llama.cpp's name of the kind."""

    kind: str
    rows: int
    file: str
    settings: Mapping[str, Any]
    config: Mapping[str, Any] = {}


def every_byte() -> list[str | bytes]:
    return [chr(n) if n < 128 else bytes([n]) for n in range(256)]


def rwkv(words: list[str | bytes]) -> str:
    """As RWKV's file is written."""
    lengths = (len(word.encode() if isinstance(word, str) else word) for word in words)
    return "".join(f"{n} {word!r} {length}\n" for n, (word, length) in enumerate(zip(words, lengths, strict=True), 1))


def plamo(pieces: Mapping[str, float]) -> str:
    special = [(f"<|plamo:{name}|>", 0.0, "UNKNOWN" if name == "unk" else "CONTROL") for name in
               ("unk", "bos", "eos", "pad", "op")]  # fmt: skip
    own = [*special, *((f"<0x{n:02X}>", 0.0, "BYTE") for n in range(256)), ("<|plamo:tool|>", -1.5, "NORMAL")]
    rows = [*own, *((text, score, "NORMAL") for text, score in pieces.items())]
    return "".join(json.dumps([*row, 1, 0, 0, 0], ensure_ascii=False) + "\n" for row in rows)


_ENDS = {"bos_token": "<s>", "eos_token": "\n\n", "add_bos_token": False, "chat_template": "{{ messages }}"}
_NAMED = {f"{name}_token": f"<|plamo:{name}|>" for name in ("unk", "bos", "eos", "pad")}
CASES = {
    "rwkv": Case("rwkv", 290, rwkv([*every_byte(), *WORDS]), _ENDS, {"bos_token_id": 1, "eos_token_id": 2}),
    "rwkv-bare": Case("rwkv", 257 + len(WORDS), rwkv([*every_byte(), *WORDS]), {}, {"pad_token_id": 3}),
    "plamo": Case("plamo2", 280, plamo(PIECES), {**_NAMED, "add_bos_token": True, "chat_template": "{{ messages }}"}),
    "plamo-bare": Case("plamo2", 262 + len(PIECES), plamo(PIECES), {}),
}
FILES = {"rwkv": "rwkv_vocab_v20230424.txt", "plamo2": "tokenizer.jsonl"}


def beside(root: Path, case: Case) -> Path:
    """The files without tensors."""
    root.mkdir(exist_ok=True)
    (root / FILES[case.kind]).write_text(case.file)
    (root / "tokenizer_config.json").write_text(json.dumps(case.settings))
    (root / "config.json").write_text(json.dumps(case.config))
    return root
