"""Mistral's own checkpoints: what transformers saves of the same model is what comes out, byte for byte."""

from __future__ import annotations

import json
import shutil
import unicodedata
from hashlib import sha256
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
from checkpoints import Array, Decoder, as_mixtral, bf16, save, save_file
from conftest import FIXTURES
from consumers import LIBRARY
from gguf_copies import bytes_of
from llama_cpp_vocabulary import ids_by_file
from safetensors.numpy import load_file
from test_readers_pytorch import torch_pickle

TOKENIZERS = FIXTURES / "tokenizers"
TEXTS: list[str] = json.loads((TOKENIZERS / "texts.json").read_bytes())
DECODER = Decoder(layers=2, hidden=64, ffn=128)
MIXTURE = Decoder(layers=2, hidden=64, experts=4)

#: Source: ``STATE_DICT_MAPPING`` of transformers' ``convert_mistral_weights_to_hf.py``, the other way round.
NAMES = {
    "model.embed_tokens": "tok_embeddings", "lm_head": "output", "model.norm": "norm", "model.layers": "layers",
    "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3", "block_sparse_moe": "feed_forward",
    "post_attention_layernorm": "ffn_norm", "input_layernorm": "attention_norm",
}  # fmt: skip
PARAMS = {
    "dim": 64, "n_layers": 2, "head_dim": 16, "hidden_dim": 128, "n_heads": 4, "n_kv_heads": 2, "norm_eps": 1e-5,
    "vocab_size": 40, "rope_theta": 10000.0, "max_seq_len": 128, "sliding_window": None, "use_biases": False,
}  # fmt: skip


MOE = {"num_experts": 4, "num_experts_per_tok": 2}


def reference_name(name: str) -> str:
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


def neighbors(matrix: np.ndarray, heads: int) -> np.ndarray:
    """The inverse of ``permute_for_rope`` of the same script: halves of a head become pairs."""
    rows, columns = matrix.shape
    moved = matrix.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2)
    return np.ascontiguousarray(moved).reshape(rows, columns)


def written(root: Path, **params: Any) -> tuple[Path, Path]:
    """The same model as transformers saves it, and as Mistral does."""
    mixture = "moe" in params and params["moe"] == MOE
    decoder, family = (MIXTURE, "mixtral") if mixture else (DECODER, "mistral")
    tensors = as_mixtral(decoder.tensors()) if mixture else dict(decoder.tensors())
    theirs = save(root / "transformers", decoder.config(family, sliding_window=None), tensors)
    own = root / "own"
    own.mkdir()
    heads = {"q_proj": 4, "k_proj": 2}
    moved = {
        reference_name(name): next((neighbors(a, n) for part, n in heads.items() if part in name), a)
        for name, a in tensors.items()
    }
    save_file(own / "consolidated.safetensors", moved)
    (own / "params.json").write_text(json.dumps({**PARAMS, **params}))
    return theirs, own


@pytest.mark.parametrize("target", ["hf", "gguf", "mlx"])
@pytest.mark.parametrize("family", ["mistral", "mixtral"])
def test_the_tensors_are_those_of_the_model_that_transformers_saves(
    tmp_path: Path, ckconv, target: str, family: str
) -> None:
    mixture = family == "mixtral"
    theirs, own = written(tmp_path, **({"moe": MOE, "hidden_dim": 64} if mixture else {}))
    made = []
    for source in (theirs, own):
        out = tmp_path / (f"{source.name}.gguf" if target == "gguf" else f"{source.name}-{target}")
        result = ckconv("convert", source, f"{out}{'' if target == 'gguf' else '/'}", "--to", target)
        assert result.code == 0, result.err
        assert ckconv("verify", out, source).code == 0
        if target == "gguf":
            made.append(bytes_of(out))
        else:
            made.append({"": (out / "model.safetensors").read_bytes()})
            config = json.loads((out / "config.json").read_text())
            assert (config["model_type"], config["hidden_size"]) == (family, 64)
            assert (config["max_position_embeddings"], config["rope_theta"]) == (128, 10000.0)
            assert not (out / "params.json").exists()
            assert (source is own) == ("params.json is left out" in result.out)
    if target == "hf":  # a copy of what transformers saved keeps the order of its file
        made[0] = {"": (tmp_path / "own-hf" / "model.safetensors").read_bytes()}
        assert ckconv("diff", "--weights", theirs, tmp_path / "own-hf").code == 0
    assert made[0] == made[1]
    assert ckconv("diff", "--weights", theirs, own).code == 0


def same_as_whole(tmp_path: Path, ckconv, own: Path, expected: dict[str, bytes]) -> None:
    result = ckconv("convert", own, tmp_path / "parts.gguf")
    assert result.code == 0, result.err
    assert bytes_of(tmp_path / "parts.gguf") == expected
    assert ckconv("verify", tmp_path / "parts.gguf", own).code == 0


@pytest.fixture
def halves(tmp_path: Path, ckconv) -> tuple[Path, dict[str, bytes], list[dict[str, Array]]]:
    """A checkpoint without weights, the GGUF of them in one file, and they in two parts; BF16."""
    own = written(tmp_path)[1]
    whole = own / "consolidated.safetensors"
    tensors = {name: bf16(array) for name, array in load_file(whole).items()}
    save_file(whole, tensors)
    assert ckconv("convert", own, tmp_path / "whole.gguf").code == 0
    whole.unlink()
    names = sorted(tensors)
    return own, bytes_of(tmp_path / "whole.gguf"), [{name: tensors[name] for name in names[n::2]} for n in (0, 1)]


def test_shards_with_an_index_are_the_model_in_one_file(tmp_path: Path, ckconv, halves: Any) -> None:
    own, expected, parts = halves
    shards = {f"consolidated-0000{n}-of-00002.safetensors": part for n, part in enumerate(parts, 1)}
    for name, part in shards.items():
        save_file(own / name, part)
    index = {"metadata": {}, "weight_map": {name: file for file, part in shards.items() for name in part}}
    (own / "consolidated.safetensors.index.json").write_text(json.dumps(index))

    same_as_whole(tmp_path, ckconv, own, expected)

    assert ckconv("convert", own, f"{tmp_path}/hf/", "--to", "hf").code == 0
    assert not [path.name for path in (tmp_path / "hf").iterdir() if path.name.startswith("consolidated")]


def pickled(path: Path, tensors: dict[str, Array]) -> None:
    torch_pickle(path, {name: (one.dtype, list(one.shape), one.data) for name, one in tensors.items()})


@pytest.mark.parametrize("ending", ["pth", "pt"])
def test_files_of_different_tensors_are_put_together(tmp_path: Path, ckconv, halves: Any, ending: str) -> None:
    """As Mixtral 8x7B was published, in eight files."""
    own, expected, parts = halves
    for n, part in enumerate(parts):
        pickled(own / f"consolidated.0{n}.{ending}", part)

    same_as_whole(tmp_path, ckconv, own, expected)


def test_shares_of_every_matrix_are_refused_by_name(tmp_path: Path, ckconv, halves: Any) -> None:
    """As Meta's larger models: as many files as processors, each with a share of every matrix."""
    own, _, parts = halves
    for n in range(2):
        pickled(own / f"consolidated.0{n}.pth", parts[0])

    result = ckconv("convert", own, tmp_path / "m.gguf")

    assert (result.code, "error[hf.shares]" in result.err) == (4, True)
    assert "each of 2 files has a share of every matrix" in result.err
    assert ckconv("inspect", own).code == 4


def test_a_context_that_nothing_says_is_noted(tmp_path: Path, ckconv) -> None:
    _, own = written(tmp_path, max_seq_len=None)
    result = ckconv("convert", own, tmp_path / "m.gguf")
    assert "params.json names no context length: 32,768" in result.out
    field = gguf.GGUFReader(tmp_path / "m.gguf").fields["llama.context_length"]
    assert field.contents() == 32768


def test_a_base_of_rope_that_two_readers_take_for_two_numbers_is_asked_for(tmp_path: Path, ckconv) -> None:
    """mistral-inference: 1,000,000; transformers' converter: 10,000. Beside a window both had 10,000."""
    _, own = written(tmp_path, rope_theta=None)
    assert "params.json has no rope_theta" in ckconv("inspect", own).out
    assert ckconv("convert", own, tmp_path / "m.gguf").code == 4
    (own / "params.json").write_text(json.dumps({**PARAMS, "rope_theta": None, "sliding_window": 32}))
    assert ckconv("convert", own, tmp_path / "m.gguf", "--context", "32").code == 0
    assert gguf.GGUFReader(tmp_path / "m.gguf").fields["llama.rope.freq_base"].contents() == 10000.0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"moe": {"num_experts": 8}}, "what params.json says of moe is not num_experts and num_experts_per_tok"),
        ({"moe": {**MOE, "route_every_n": 1}}, "what params.json says of moe is not num_experts and"),
        (
            {"vision_encoder": {"hidden_size": 32}},
            "params.json says vision_encoder, which is not part of Mistral's decoders",
        ),
        ({"yarn": {"factor": 2}}, "params.json says yarn, which is not part of Mistral's decoders"),
    ],
)
def test_params_that_say_more_than_a_decoder_are_named_and_not_converted(
    tmp_path: Path, ckconv, more: dict[str, Any], said: str
) -> None:
    _, own = written(tmp_path, **more)
    assert said in ckconv("inspect", own).out
    assert ckconv("convert", own, tmp_path / "m.gguf").code == 4


# Tokenizers: what scripts/record_mistral.py has of mistral-common and of llama.cpp's --mistral-format.


def with_tokenizer(root: Path, kind: str, recorded: dict[str, Any]) -> Path:
    """A checkpoint with a ``tekken.json`` of the recorded words, or a SentencePiece model under Mistral's name."""
    rows = recorded["rows"]
    decoder = Decoder(layers=1, hidden=16, heads=1, kv_heads=1, ffn=16, vocab=rows)
    tensors = {reference_name(name): array for name, array in decoder.tensors().items()}
    root.mkdir(parents=True)
    for name in tensors:
        if name.endswith(("wq.weight", "wk.weight")):
            tensors[name] = neighbors(tensors[name], 1)
    save_file(root / "consolidated.safetensors", tensors)
    sizes = {"dim": 16, "n_layers": 1, "head_dim": 16, "hidden_dim": 16, "n_heads": 1, "n_kv_heads": 1}
    params = {**PARAMS, **sizes, "vocab_size": rows, "max_position_embeddings": 128}
    params = {key: value for key, value in params.items() if value is not None and key != "max_seq_len"}
    (root / "params.json").write_text(json.dumps(params))
    if kind == "sentencepiece":
        shutil.copy(TOKENIZERS / "sentencepiece-bpe.model", root / "tokenizer.model.v3")
        return root
    vocab = [{"rank": n, "token_bytes": word, "token_str": None} for n, word in enumerate(recorded["words"])]
    special = [
        {"rank": n, "token_str": word, "is_control": True} for n, word in enumerate(recorded["config"].pop("special"))
    ]
    (root / "tekken.json").write_text(
        json.dumps({"config": recorded["config"], "vocab": vocab, "special_tokens": special})
    )
    return root


def keys_of(path: Path) -> dict[str, Any]:
    """Keys of the model and of its tokenizer; lists as the digest of them."""
    fields = {key: field.contents() for key, field in gguf.GGUFReader(path).fields.items()}
    return {
        key: sha256(json.dumps(value).encode()).hexdigest() if isinstance(value, list) else value
        for key, value in fields.items()
        if key.startswith(("tokenizer.", "llama."))
    }


#: Of SentencePiece llama.cpp's converter does not say how it splits a text: it does that in one way only.
_MORE = {"sentencepiece": {"tokenizer.ggml.pre": "default"}, "tekken": {}}


@pytest.mark.parametrize("kind", ["tekken", "sentencepiece"])
def test_words_are_those_that_llama_cpps_converter_writes(kind: str, tmp_path: Path, ckconv) -> None:
    recorded = json.loads((TOKENIZERS / "mistral.json").read_bytes())[kind]
    own = with_tokenizer(tmp_path / "own", kind, recorded)

    assert ckconv("convert", own, tmp_path / "m.gguf").code == 0

    assert keys_of(tmp_path / "m.gguf") == {**recorded["keys"], **_MORE[kind]}
    found = {name: sha256(data).hexdigest() for name, data in bytes_of(tmp_path / "m.gguf").items()}
    assert found == recorded["tensors"]


@pytest.mark.parametrize("kind", ["tekken", "sentencepiece"])
def test_ids_of_hostile_texts_are_those_of_mistral_common(kind: str, tmp_path: Path, ckconv) -> None:
    recorded = json.loads((TOKENIZERS / "mistral.json").read_bytes())[kind]
    own = with_tokenizer(tmp_path / "own", kind, recorded)
    texts = [TEXTS[n] for n in recorded["texts"]]
    assert len(texts) > 600

    for to in ("hf", "mlx"):
        assert ckconv("convert", own, f"{tmp_path}/{to}/", "--to", to).code == 0
        library = tokenizers.Tokenizer.from_file(str(tmp_path / to / "tokenizer.json"))
        assert [library.encode(text).ids for text in texts] == recorded["ids"]
        settings = json.loads((tmp_path / to / "tokenizer_config.json").read_text())
        assert (settings["bos_token"], settings["eos_token"], settings["unk_token"]) == ("<s>", "</s>", "<unk>")
        assert ckconv("verify", tmp_path / to, own).code == 0

    assert ckconv("convert", own, tmp_path / "m.gguf").code == 0
    if LIBRARY:
        made = ids_by_file(tmp_path / "m.gguf", texts)
        marks = [n for n, ids in enumerate(made) if ids != recorded["ids"][n]]
        assert all(any(unicodedata.combining(c) or unicodedata.category(c)[0] == "M" for c in texts[n]) for n in marks)
        assert len(marks) < 10


def test_words_that_cannot_be_said_are_left_out_by_name(tmp_path: Path, ckconv) -> None:
    _, own = written(tmp_path)
    (own / "tekken.json").write_text(json.dumps({"config": {}, "vocab": []}))

    for to in ("hf", "gguf"):
        out = ckconv("convert", own, f"{tmp_path}/{to}.gguf" if to == "gguf" else f"{tmp_path}/{to}/", "--to", to).out
        assert "tekken.json has no sizes" in out


def test_a_bump_file_of_it_has_no_source_record(tmp_path: Path, ckconv) -> None:
    _, own = written(tmp_path)
    result = ckconv("convert", own, f"{tmp_path}/b/", "--to", "bump")
    assert result.code == 0, result.err
    assert "no source record is written: the source has no config.json" in result.out
    result = ckconv("convert", tmp_path / "b", f"{tmp_path}/back/", "--to", "hf")
    assert result.code == 0, result.err
    assert ckconv("diff", "--weights", own, tmp_path / "back").code == 0
