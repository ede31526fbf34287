"""Record what llama.cpp makes of texts: fixtures/tokenizers/names.json and vocabularies/*.json.

    LLAMA_CPP_LIBRARY=... python scripts/record_tokenizers.py [FOLDER of ggml-vocab-*.gguf]

Without a folder `names.json`: one byte-level vocabulary, trained on the texts without cutting them, so that every cut
of a pre-tokenizer shows in the ids, and its ids under every name of ckconv/tokenizer/pretokenizers.toml. With one
`vocabularies/`: the real ones of llama.cpp's sources (`models/` in the sdist of llama-cpp-python), cut to the words
that the texts need, which leaves the ids as they are but for their numbers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from llama_cpp_vocabulary import ids_by_file, ids_of, said_by  # noqa: E402

from ckconv.tokenizer.vocabulary import pre_tokenizers  # noqa: E402

FIXTURES = ROOT / "fixtures" / "tokenizers"
TEXTS: list[str] = json.loads((FIXTURES / "texts.json").read_bytes())
#: Words that llama.cpp takes for special ones by their text are no part of a trained vocabulary.
_SPECIAL = ("<s>", "</s>", "<|", "[PAD]", "<unk>", "<0x")
_PLAIN = [text for text in TEXTS if not any(word in text for word in _SPECIAL)]
_SIZE, _LONGEST = 6000, 24
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

Keys = dict[str, Any]


def trained() -> Keys:
    """The vocabulary whose merges cross every boundary."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=_SIZE, min_frequency=1, initial_alphabet=alphabet, max_token_length=_LONGEST, show_progress=False
    )
    tokenizer.train_from_iterator(_PLAIN, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "model": "gpt2",
        "tokens": tokens,
        "token_type": [NORMAL] * len(tokens),
        "merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]],
        "bos_token_id": 0,
        "eos_token_id": 1,
        "add_bos_token": False,
        "add_eos_token": False,
    }


def record_names() -> None:
    """Its ids under every name, names with the same ones together."""
    keys = trained()
    results: dict[str, list[str]] = {}
    for name in pre_tokenizers():
        ids = ids_of({**keys, "pre": name}, _PLAIN)
        if ids is None:
            print(f"{name}: this llama.cpp does not know it")
            continue
        results.setdefault(json.dumps(ids, separators=(",", ":")), []).append(name)
    lines = [f'{{"names":{json.dumps(names)},"ids":{ids}}}' for ids, names in results.items()]
    texts = [TEXTS.index(text) for text in _PLAIN]
    head = f'"keys":{json.dumps(keys, separators=(",", ":"))},\n"texts":{json.dumps(texts, separators=(",", ":"))}'
    (FIXTURES / "names.json").write_text(f'{{{head},\n"results":[\n' + ",\n".join(lines) + "\n]}\n")


def record_vocabulary(path: Path) -> None:
    """A real vocabulary, cut, with the ids that llama.cpp makes with the whole; with the cut one it makes the same."""
    keys = said_by(path)
    if keys["model"] == "bert":
        keys = {"bos_token_id": 101, **keys}  # llama.cpp's default, which no longer fits
    wanted = ids_by_file(path, TEXTS)
    assert wanted is not None
    kept = sorted(_kept(keys, {number for ids in wanted for number in ids}))
    new = {number: n for n, number in enumerate(kept)}
    made = _cut(keys, kept, new)
    ids = [[new[number] for number in one] for one in wanted]
    assert ids_of(made, TEXTS) == ids, path
    body = ",\n".join(json.dumps(one, separators=(",", ":")) for one in ids)
    text = f'{{"keys":{json.dumps(made, separators=(",", ":"))},\n"ids":[\n{body}\n]}}\n'
    (FIXTURES / "vocabularies").mkdir(exist_ok=True)
    (FIXTURES / "vocabularies" / f"{path.stem.removeprefix('ggml-vocab-')}.json").write_text(text)


def _kept(keys: Keys, used: set[int]) -> Iterator[int]:
    """The tokens that stand in the ids, what they are made of, bytes, special ones, and those that set the scale."""
    tokens, types = keys["tokens"], keys["token_type"]
    numbers = {token: n for n, token in enumerate(tokens)}
    words = {tokens[number] for number in used}
    parts = {word[a:b] for word in words for a in range(len(word)) for b in range(a + 1, len(word) + 1)}
    found = used | {numbers[part] for part in parts if part in numbers}
    found |= {n for n, kind in enumerate(types) if kind in (BYTE, UNKNOWN) and not tokens[n].startswith("[PAD")}
    found |= {value for key, value in keys.items() if key.endswith("_token_id")}
    if keys["model"] == "gpt2":
        found |= {n for n, token in enumerate(tokens) if len(token) == 1}
    if keys["model"] == "t5":
        normal = [n for n, kind in enumerate(types) if kind == NORMAL]
        found |= {min(normal, key=keys["scores"].__getitem__), max(normal, key=keys["scores"].__getitem__)}
    yield from found


def _cut(keys: Keys, kept: Sequence[int], new: Mapping[int, int]) -> Keys:
    made = dict(keys)
    for key in ("tokens", "token_type", "scores"):
        if key in keys:
            made[key] = [keys[key][number] for number in kept]
    if "merges" in keys:
        words = set(made["tokens"])
        halves = (merge.split(" ") for merge in keys["merges"] if not merge.startswith(" "))
        made["merges"] = [f"{a} {b}" for a, b in halves if {a, b, a + b} <= words]
    return made | {key: new[value] for key, value in keys.items() if key.endswith("_token_id") and value in new}


if __name__ == "__main__":
    if len(sys.argv) < 2:
        record_names()
    for vocabulary in (path for folder in sys.argv[1:] for path in sorted(Path(folder).glob("*vocab-*.gguf"))):
        record_vocabulary(vocabulary)
        print(vocabulary.name)
