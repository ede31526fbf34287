"""Record what mistral-common and llama.cpp make of Mistral's own tokenizers: fixtures/tokenizers/mistral.json.

    python scripts/record_mistral.py LLAMA_CPP_SOURCES

Needs mistral-common with sentencepiece, and torch. Words are the first of a ``tekken.json`` of mistral-common's, which
leaves their ids as they are but for longer words.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import mistral_common  # noqa: E402
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer  # noqa: E402
from test_reference_checkpoints import TEXTS, TOKENIZERS, keys_of, sha256, tensors_of, with_tokenizer  # noqa: E402

from ckconv.tokenizer.checkpoint import parse_sentencepiece  # noqa: E402

_TEKKEN = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
_WORDS, _SPECIAL = 1500, 40


def words() -> dict[str, Any]:
    """A small ``tekken.json``."""
    document = json.loads(_TEKKEN.read_bytes())
    named = MistralTokenizer.from_file(str(_TEKKEN)).instruct_tokenizer.tokenizer
    sizes = {"default_vocab_size": _WORDS + _SPECIAL, "default_num_special_tokens": _SPECIAL}
    special = [named.id_to_piece(number) for number in range(_SPECIAL - 4)]
    config = {**document["config"], **sizes, "num_vocab_tokens": _WORDS, "special": special}
    return {
        "rows": _WORDS + _SPECIAL,
        "config": config,
        "words": [item["token_bytes"] for item in document["vocab"][:_WORDS]],
    }


def recorded(sources: str, kind: str, case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The case, and what the two make of it."""
    own = with_tokenizer(folder / kind, kind, json.loads(json.dumps(case)))
    out = folder / f"{kind}.gguf"
    script = [sys.executable, f"{sources}/convert_hf_to_gguf.py", str(own), "--outfile", str(out), "--outtype", "f32"]
    subprocess.run([*script, "--mistral-format", "--disable-mistral-community-chat-template"], check=True)
    file = next(path for path in own.iterdir() if path.name == "tekken.json" or ".model." in path.name)
    tokenizer = MistralTokenizer.from_file(str(file)).instruct_tokenizer.tokenizer
    special = {
        tokenizer.id_to_piece(n) for n in range(tokenizer.n_words) if tokenizer.is_special(n) or n == tokenizer.unk_id
    }
    texts = [n for n, text in enumerate(TEXTS) if not any(word in text for word in special)]
    return {
        **case,
        "keys": keys_of(out),
        "tensors": {name: sha256(data).hexdigest() for name, data in tensors_of(out).items()},
        "texts": texts,
        "ids": [tokenizer.encode(TEXTS[n], bos=True, eos=False) for n in texts],
    }


def main(sources: str) -> None:
    """Record both kinds."""
    model = (TOKENIZERS / "sentencepiece-bpe.model").read_bytes()
    cases = {"tekken": words(), "sentencepiece": {"rows": len(parse_sentencepiece(model, limit=1 << 20).pieces)}}
    with tempfile.TemporaryDirectory() as made:
        found = {kind: recorded(sources, kind, case, Path(made)) for kind, case in cases.items()}
    versions = {name: importlib.metadata.version(name) for name in ("mistral-common", "sentencepiece", "tiktoken")}
    text = json.dumps({"versions": versions, **found}, separators=(",", ":"))
    (TOKENIZERS / "mistral.json").write_text(text + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
