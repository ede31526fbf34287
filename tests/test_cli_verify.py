"""``ckconv verify``: every way a bump file can be wrong is found, whatever its checksum says."""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from bump_broken import Bump
from checkpoints import Decoder, save_gguf
from family_cases import cases, checkpoint
from gguf import GGMLQuantizationType as Q, GGUFReader
from gguf_copies import gguf_copy
from models import Model
from safetensors.numpy import load_file

FLOAT = Model(hidden=48, heads=4, kv_heads=2, ffn=72, vocab=33, context=7, qkv_bias=True)
MODELS = {
    "f32-padded": FLOAT,
    "bf16": Model(matrix=Q.BF16, norm=Q.BF16, context=5),
    "q4_k_m": Model(
        hidden=256, ffn=256, vocab=9, context=3, matrix=Q.Q4_K,
        types={"token_embd.weight": Q.Q6_K, "blk.1.attn_v.weight": Q.Q6_K, "attn_output.weight": Q.F16},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    source: Path
    out: Path
    slots: dict[str, tuple[int, int]]

    @property
    def data(self) -> bytes:
        return self.out.read_bytes()


@pytest.fixture(scope="module", params=MODELS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A converted model: its source, the bump file, and slot name -> (offset, bytes), all three worked out here."""
    from ckconv.cli import run

    model = MODELS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    source = model.write(folder / "m.gguf")
    assert run(["-q", "convert", str(source), str(folder / "m.bump"), "--bump-version", "3"]) == 0
    return Case(source, folder / "m.bump", slots_of(model))


def slots_of(model: Model) -> dict[str, tuple[int, int]]:
    names = {
        "token_emb": "token_embd", "wq": "blk.0.attn_q", "wk": "blk.0.attn_k", "wv": "blk.0.attn_v",
        "wo": "blk.0.attn_output", "w1": "blk.0.ffn_up", "w2": "blk.0.ffn_down",
    }  # fmt: skip
    types = {}
    for n in range(model.layers):
        for slot, name in names.items():
            kind = model.type_of(name.replace("blk.0", f"blk.{n}") + ".weight", (1, 1)).name
            types[slot if slot == "token_emb" else f"layer.{n}.{slot}"] = kind if kind.endswith("_K") else "F32"
    twin = Bump(
        model.layers, model.vocab, model.hidden, model.ffn, model.heads, model.kv_heads, model.context, types=types
    )  # fmt: skip
    found, at = {}, 0x84 + 14 * model.layers + 4
    for name, _, size in twin.slots():
        found[name] = at, size
        at += size
    return found


def resealed(data: bytes) -> bytes:
    """The same bytes under a checksum that fits them: only a look at the tensors can tell."""
    return data[:0x40] + hashlib.sha256(data[0x80:]).digest() + data[0x60:]


def broken(case: Case, folder: Path, data: bytes) -> Path:
    path = folder / "broken.bump"
    path.write_bytes(data)
    shutil.copy(case.out.with_name("config.json"), folder / "config.json")
    return path


def test_untouched_output_passes(made: Case, ckconv) -> None:
    assert made.out.stat().st_size == max(at + size for at, size in made.slots.values())
    result = ckconv("verify", made.out, made.source)
    assert result.code == 0
    assert "structure and padding are valid, payload sha256 " in result.out
    assert made.data[0x40:0x60].hex() in result.out
    assert ckconv("verify", made.out).code == 0


def test_flipped_bit_in_every_slot(made: Case, tmp_path: Path, ckconv) -> None:
    rng = random.Random(5)
    for name, (at, size) in made.slots.items():
        place = at + rng.randrange(size)
        data = bytearray(made.data)
        data[place] ^= 1 << rng.randrange(8)
        path = broken(made, tmp_path, bytes(data))
        for arguments in (("verify", path), ("verify", path, made.source)):
            result = ckconv(*arguments)
            assert (result.code, result.out) == (5, "")
            assert "error[bump.checksum]" in result.err
            assert hashlib.sha256(data[0x80:]).hexdigest() in result.err
        assert f"{name} (" in result.err, "held against its source, the tensor is named"
        path.write_bytes(resealed(bytes(data)))
        result = ckconv("verify", path, made.source, "--json")
        assert result.code == 5
        error = json.loads(result.err.splitlines()[-1])["error"]
        assert error["tensor"] == name
        assert error["code"] in ("verify.tensor", "verify.padding")


@pytest.mark.parametrize("byte", [*range(0, 0x40, 3), 0x40, 0x5F, 0x60, 0x7F, 0x80, 0x83])
def test_flipped_bit_in_the_header(byte: int, made: Case, tmp_path: Path, ckconv) -> None:
    data = bytearray(made.data)
    data[byte] ^= 1 << (byte % 8)
    result = ckconv("verify", broken(made, tmp_path, bytes(data)), made.source)
    assert result.code == 5
    assert result.err.startswith("ckconv: error[")


def test_flipped_bits_in_the_dtype_table(made: Case, tmp_path: Path, ckconv) -> None:
    table = made.slots["token_emb"][0] - 0x84
    for position in range(table):
        data = bytearray(made.data)
        data[0x84 + position] ^= 1 << (position % 8)
        result = ckconv("verify", broken(made, tmp_path, bytes(data)), made.source)
        assert result.code == 5, position


@pytest.mark.parametrize(("cut", "word"), [(-1, "incomplete"), (None, "1 byte after")])
def test_truncated_and_longer_copies(cut: int | None, word: str, made: Case, tmp_path: Path, ckconv) -> None:
    path = broken(made, tmp_path, made.data[:cut] + (b"" if cut else b"\0"))
    assert ckconv("verify", path).code == 3
    result = ckconv("verify", path, made.source)
    assert result.code == 5, "held against its source, a file that cannot be read is a failed verification"
    assert "error[bump.extent]" in result.err
    assert word in result.err


# --- faults that a right checksum hides


@pytest.fixture
def plain(tmp_path: Path, ckconv) -> Case:
    source = FLOAT.write(tmp_path / "m.gguf")
    assert ckconv("convert", source, tmp_path / "m.bump", "--no-source-record").code == 0
    return Case(source, tmp_path / "m.bump", slots_of(FLOAT))


def swapped(data: bytes, at: int, size: int, first: int, second: int) -> bytes:
    """Two runs of ``size`` bytes, counted from ``at``, in each other's place."""
    a, b = at + first * size, at + second * size
    out = bytearray(data)
    out[a : a + size], out[b : b + size] = data[b : b + size], data[a : a + size]
    assert bytes(out) != data
    return bytes(out)


E, D, F = 48, 16, 80  # aligned sizes of FLOAT; its head of 12 rows has 16 stored ones

#: what -> (slot, bytes of one piece, the two pieces that change places, canonical name)
SWAPS = {
    "heads of wq": ("layer.0.wq", D * E * 4, 0, 3, "layers.0.attention.q.weight"),
    "heads of wk": ("layer.1.wk", D * E * 4, 0, 1, "layers.1.attention.k.weight"),
    "heads of wv": ("layer.0.wv", D * E * 4, 0, 1, "layers.0.attention.v.weight"),
    "heads of wo": ("layer.1.wo", E * D * 4, 1, 2, "layers.1.attention.output.weight"),
    "heads of bq": ("layer.0.bq", D * 4, 0, 1, "layers.0.attention.q.bias"),
    "gate and up": ("layer.0.w1", F * E * 4, 0, 1, "layers.0.ffn.gate.weight"),
    "rows of w2": ("layer.1.w2", F * 4, 5, 6, "layers.1.ffn.down.weight"),
    "rows of the embedding": ("token_emb", E * 4, 0, 32, "token_embedding.weight"),
    "two rows of a RoPE pair": ("layer.0.wq", E * 4, 0, 6, "layers.0.attention.q.weight"),
    "elements of a norm": ("final_ln_weight", 4, 0, 47, "output_norm.weight"),
}


@pytest.mark.parametrize("what", SWAPS)
def test_swapped(what: str, plain: Case, ckconv) -> None:
    slot, size, first, second, canonical = SWAPS[what]
    plain.out.write_bytes(resealed(swapped(plain.data, plain.slots[slot][0], size, first, second)))
    assert ckconv("verify", plain.out).code == 0, "alone, the file is sound"
    result = ckconv("verify", plain.out, plain.source)
    assert result.code == 5
    assert f"error[verify.tensor]: {plain.out}: {slot} ({canonical}) differs from" in result.err
    if what == "rows of w2":
        assert "2 of 48 rows, from 5 on, are not what the source holds" in result.err
    if what == "gate and up":
        assert "layers.0.ffn.up.weight" in result.err


#: where in the padding -> (slot, byte)
PADDING = {
    "rows of a head": ("layer.0.wq", 12 * E * 4),
    "last row of the last head": ("layer.0.wk", 2 * D * E * 4 - 1),
    "head of a bias": ("layer.1.bv", 15 * 4),
    "column of wo": ("layer.0.wo", 12 * 4),
    "row of w1": ("layer.0.w1", 72 * E * 4),
    "row of w1's second half": ("layer.0.w1", (F + 72) * E * 4 + 3),
    "column of w2": ("layer.1.w2", 79 * 4),
    "end of b1": ("layer.0.b1", (F + 72) * 4),
}


@pytest.mark.parametrize("where", PADDING)
@pytest.mark.parametrize("bit", [0x80, 1], ids=["minus zero", "a value"])
def test_padding_that_is_not_zero(where: str, bit: int, plain: Case, ckconv) -> None:
    slot, byte = PADDING[where]
    data = bytearray(plain.data)
    data[plain.slots[slot][0] + byte | (3 if bit == 0x80 else 0)] = bit
    plain.out.write_bytes(resealed(bytes(data)))
    for arguments in (("verify", plain.out), ("verify", plain.out, plain.source)):
        result = ckconv(*arguments)
        assert result.code == 5
        assert "error[verify.padding]" in result.err
        assert slot in result.err
        assert "holds non-zero padding in stored row" in result.err


def test_padding_between_tensors_of_a_gguf_that_is_not_zero(tmp_path: Path, ckconv) -> None:
    source = save_gguf(tmp_path / "m.gguf", Decoder(hidden=60), "llama", permuted=True)
    (tmp_path / "copy.gguf").write_bytes(source.read_bytes())
    norm = next(one for one in GGUFReader(source).tensors if one.name == "blk.0.attn_norm.weight")
    behind = norm.data_offset + norm.n_bytes
    assert behind % 32
    with source.open("r+b") as file:
        file.seek(behind)
        assert file.read(1) == b"\0"
        file.seek(behind)
        file.write(b"\1")
    for arguments in (("verify", source), ("verify", source, tmp_path / "copy.gguf")):
        result = ckconv(*arguments)
        assert result.code == 5
        assert f"error[verify.padding]: {source}: m.gguf holds non-zero padding from byte {behind:,} on" in result.err


@pytest.mark.parametrize("slot", ["pos_emb", "layer.0.bo", "layer.1.b2", "final_ln_bias", "layer.0.b1"])
def test_placeholder_that_is_not_zero(slot: str, plain: Case, ckconv) -> None:
    at, _ = plain.slots[slot]
    data = bytearray(plain.data)
    data[at + 1] = 1
    plain.out.write_bytes(resealed(bytes(data)))
    assert ckconv("verify", plain.out).code == 0
    result = ckconv("verify", plain.out, plain.source)
    assert result.code == 5
    assert f"{slot} (" in result.err
    assert "is not zero, but the source has no such tensor" in result.err


def test_every_fault_is_named_up_to_ten(plain: Case, ckconv) -> None:
    data = bytearray(plain.data)
    for at, _ in plain.slots.values():
        data[at] ^= 1
    plain.out.write_bytes(resealed(bytes(data)))
    result = ckconv("verify", plain.out, plain.source)
    assert result.code == 5
    assert len(result.err.splitlines()) == 12
    assert f"... and {len(plain.slots) - 1 - 10} more" in result.err


# --- sources


def test_wrong_source(plain: Case, tmp_path: Path, ckconv) -> None:
    other = replace(FLOAT, seed=2).write(tmp_path / "other.gguf")
    result = ckconv("verify", plain.out, other)
    assert result.code == 5
    assert "token_emb (token_embedding.weight) differs from token_embd.weight: 33 of 33 rows, from 0 on" in result.err


def test_source_of_another_shape(plain: Case, tmp_path: Path, ckconv) -> None:
    result = ckconv("verify", plain.out, Model(vocab=32).write(tmp_path / "other.gguf"))
    assert result.code == 5
    assert "token_emb (token_embedding.weight) has shape [33, 48], token_embd.weight has [32, 64]" in result.err


def test_source_with_fewer_and_with_more_layers(plain: Case, tmp_path: Path, ckconv) -> None:
    fewer = replace(FLOAT, layers=1).write(tmp_path / "fewer.gguf")
    result = ckconv("verify", plain.out, fewer)
    assert result.code == 5
    assert "layer.1.wq (layers.1.attention.q.weight) is not in the source" in result.err
    more = replace(FLOAT, layers=3).write(tmp_path / "more.gguf")
    result = ckconv("verify", plain.out, more)
    assert result.code == 5
    assert "blk.2.attn_norm.weight of the source is not in the output" in result.err


def test_source_that_is_no_model(plain: Case, tmp_path: Path, ckconv) -> None:
    (tmp_path / "empty.gguf").write_bytes(b"")
    assert ckconv("verify", plain.out, tmp_path / "empty.gguf").code == 3
    assert ckconv("verify", plain.out, tmp_path / "nowhere.gguf").code == 3


def test_quantized_output_is_no_copy_of_floats(tmp_path: Path, ckconv) -> None:
    k = Model(hidden=256, ffn=256, heads=4, vocab=5, context=2, matrix=Q.Q4_K)
    assert ckconv("convert", k.write(tmp_path / "k.gguf"), tmp_path / "m.bump", "--no-source-record").code == 0
    result = ckconv("verify", tmp_path / "m.bump", replace(k, matrix=Q.F32).write(tmp_path / "f.gguf"))
    assert result.code == 5
    assert "token_emb (token_embedding.weight) differs from token_embd.weight: " in result.err


@pytest.mark.parametrize(
    ("name", "quantize", "types", "said"),
    [
        ("m.gguf", "q8_0", "Q8_0", "q8_0"),
        ("m.gguf", "q4_k_m", "Q5_0, Q8_0", "q4_k_m"),
        ("m.gguf", "mxfp4_moe", "Q8_0", "mxfp4_moe"),
        ("m/", "affine:4:32", "MLX 4-bit group 32 BF16", "TYPE, the type or recipe that made them,"),
    ],
)
def test_a_quantized_output_of_floats_names_the_flag(
    name: str, quantize: str, types: str, said: str, fixtures: Path, tmp_path: Path, ckconv
) -> None:
    call = (fixtures / "hf" / "qwen3-tied-bf16", f"{tmp_path}/{name}", "--quantize", quantize)
    assert ckconv("convert", *call, *(["--to", "mlx"] if name == "m/" else [])).code == 0
    result = ckconv("verify", tmp_path / name, call[0])
    assert result.code == 5
    assert f": 15 tensors that are floats in the source, quantized ({types})\n" in result.err
    assert "general.file_type" not in result.err
    assert result.err.splitlines()[-1].startswith(f"hint: --quantize {said} asks for these types")
    assert ckconv("verify", tmp_path / name, call[0], "--quantize", quantize).code == 0


@pytest.mark.parametrize(("to", "said"), [("gguf", "q8_0 "), ("bump", "q8_0 "), ("mlx", "TYPE,")])
def test_an_output_of_other_blocks_names_both_flags(to: str, said: str, fixtures: Path, tmp_path: Path, ckconv) -> None:
    source, out = fixtures / "kquants" / "llama64.Q4_K_M.gguf", tmp_path / "m"
    quantize = "affine:4:32" if to == "mlx" else "q8_0"
    flags = ["--dequantize", "--quantize", quantize]
    more = ["--no-source-record"] if to == "bump" else []
    assert ckconv("convert", source, f"{out}/", "--to", to, *flags, *more).code == 0
    result = ckconv("verify", out, source)
    first, last = result.err.splitlines()
    assert re.search(r"verify.content\]: .*: 1[36] tensors that are of another type in the source, quantized \(", first)
    assert last.startswith(f"hint: --dequantize --quantize {said}")
    assert (result.code, ckconv("verify", out, source, *flags).code) == (5, 0)


@pytest.mark.parametrize(
    ("key", "quoted"),
    [
        ("tokenizer.ggml.add_space_prefix=false", "tokenizer.ggml.add_space_prefix=false"),
        ("qwen3.context_length=100", "qwen3.context_length=100"),
        ("general.name=A name", "'general.name=A name'"),
    ],
)
def test_keys_that_were_set_are_named_by_the_flag(
    key: str, quoted: str, fixtures: Path, tmp_path: Path, ckconv
) -> None:
    source, out, flags = fixtures / "hf" / "qwen3-tied-bf16", tmp_path / "m.gguf", ["--set-meta", key]
    assert ckconv("convert", source, out, *flags).code == 0
    result = ckconv("verify", out, source)
    assert result.err.splitlines()[-1].startswith(f"hint: repeat the options of the conversion: --set-meta {quoted};")
    assert (result.code, ckconv("verify", out, source, *flags).code) == (5, 0)


def test_rope_order_is_undone_and_a_wrong_record_of_it_is_found(plain: Case, tmp_path: Path, ckconv) -> None:
    kept = tmp_path / "kept" / "m.bump"
    kept.parent.mkdir()
    assert ckconv("convert", plain.source, kept, "--rope-layout", "interleaved").code == 0
    assert ckconv("verify", kept, plain.source).code == 0
    config = kept.with_name("config.json")
    config.write_text(config.read_text().replace('"interleaved"', '"split"'))
    result = ckconv("verify", kept, plain.source)
    assert result.code == 5
    assert "layer.0.wq (layers.0.attention.q.weight) differs" in result.err
    assert "wv" not in result.err


# --- what is left out on purpose


def test_drop_names_what_may_be_missing(tmp_path: Path, ckconv) -> None:
    model = replace(FLOAT, extra_tensors={"rope_freqs.weight": (6,)})
    source = model.write(tmp_path / "m.gguf")
    three = ("--bump-version", "3", "--no-source-record")
    assert ckconv("convert", source, tmp_path / "m.bump", *three, "--drop", "rope_frequencies").code == 0
    result = ckconv("verify", tmp_path / "m.bump", source)
    assert result.code == 5
    assert "rope_freqs.weight of the source is not in the output" in result.err
    for glob in ("rope_frequencies", "rope_freqs.weight", "rope_*"):
        assert ckconv("verify", tmp_path / "m.bump", source, "--drop", glob).code == 0


def test_dropped_bias_is_a_placeholder(tmp_path: Path, ckconv) -> None:
    source = FLOAT.write(tmp_path / "m.gguf")
    assert ckconv("convert", source, tmp_path / "m.bump", "--drop", "*.q.bias", "--no-source-record").code == 0
    assert ckconv("verify", tmp_path / "m.bump", source).code == 5
    assert ckconv("verify", tmp_path / "m.bump", source, "--drop", "*.q.bias").code == 0
    assert ckconv("verify", tmp_path / "m.bump", source, "--drop", "*.k.bias").code == 5


def test_drop_excuses_absence_and_nothing_else(plain: Case, ckconv) -> None:
    data = bytearray(plain.data)
    data[plain.slots["layer.0.bq"][0]] ^= 1
    plain.out.write_bytes(resealed(bytes(data)))
    assert ckconv("verify", plain.out, plain.source, "--drop", "*").code == 5


# --- GGUF


def test_gguf_against_itself_and_against_another(tmp_path: Path, ckconv) -> None:
    model = Model(arch="frobnicator", extra_tensors={"odd[0].weight": (3, 4)})
    a, b = model.write(tmp_path / "a.gguf"), replace(model, seed=2).write(tmp_path / "b.gguf")
    assert ckconv("verify", a, a).code == 0
    result = ckconv("verify", a, b)
    assert result.code == 5
    assert "a.gguf: token_embd.weight differs from token_embd.weight: 96 of 96 rows" in result.err
    fewer = replace(model, extra_tensors={}).write(tmp_path / "c.gguf")
    result = ckconv("verify", fewer, a)
    assert result.code == 5
    assert "odd[0].weight of the source is not in the output" in result.err


def test_gguf_without_tensors_needs_no_configuration(tmp_path: Path, ckconv) -> None:
    from gguf_builder import gguf

    (tmp_path / "vocabulary.gguf").write_bytes(gguf([("general.architecture", "str", "llama2")]))
    assert ckconv("verify", tmp_path / "vocabulary.gguf").code == 0


# --- reports


def test_json(plain: Case, ckconv) -> None:
    shown = ckconv("--json", "verify", plain.out, plain.source).json
    assert next(iter(shown)) == "schema"
    expected = {
        "schema": 2, "path": str(plain.out), "source": str(plain.source), "format": "bump", "version": 3,
        "tensors": 26, "placeholders": 10, "compared": True, "payload_sha256": plain.data[0x40:0x60].hex(),
    }  # fmt: skip
    assert {key: shown[key] for key in expected} == expected
    alone = ckconv("verify", plain.out, "--json").json
    assert (alone["source"], alone["compared"]) == (None, False)


def test_quiet_says_nothing(plain: Case, ckconv) -> None:
    result = ckconv("-q", "verify", plain.out, plain.source)
    assert (result.code, result.out, result.err) == (0, "", "")


Run = Callable[..., object]


def test_verification_of_a_conversion_names_the_target(
    tmp_path: Path, ckconv: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer with a fault: two heads in each other's place. Nothing gets published."""
    from ckconv.io import stored

    real = stored.stored_pieces

    def reversed_rows(piece):
        def make(reader):
            chunk, changed = piece(reader)
            return chunk[::-1].copy(), changed

        return piece._replace(make=make)

    def faulty(reader, layout, conversion):
        return (reversed_rows(piece) for piece in real(reader, layout, conversion))

    monkeypatch.setattr(stored, "stored_pieces", faulty)
    source = FLOAT.write(tmp_path / "m.gguf")
    result = ckconv("convert", source, tmp_path / "m.bump")
    assert result.code == 5
    assert f"{tmp_path / 'm.bump'}: " in result.err
    assert ".tmp" not in result.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf"]


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("rope_theta", 77.0, "rope_theta is 77.0, 10000.0 in the source"),
        ("rms_norm_eps", 0.5, "norm_eps is 0.5, 1e-05 in the source"),
    ],
)
def test_configuration_that_is_not_the_sources(key: str, value: float, sentence: str, plain: Case, ckconv) -> None:
    """The engine computes with what stands beside the file; no tensor and no checksum tells of it."""
    config = plain.out.with_name("config.json")
    document = json.loads(config.read_text())
    assert key in document
    config.write_text(json.dumps({**document, key: value}))
    result = ckconv("verify", plain.out, plain.source)
    assert (result.code, result.out) == (5, "")
    assert result.err.splitlines() == [f"ckconv: error[verify.config]: {plain.out}: {sentence}"]


@pytest.mark.parametrize("name", ["m.bump", "m.gguf"])
def test_another_context_length_has_to_be_asked_for_again(name: str, tmp_path: Path, ckconv) -> None:
    source = FLOAT.write(tmp_path / "source.gguf")
    out = tmp_path / name
    assert ckconv("convert", source, out, "--context", 3).code == 0
    if name.endswith(".bump"):
        assert ckconv("verify", out, source).code == 0, "the source record says it"
        (tmp_path / f"{name}.source.zip").unlink()
    assert ckconv("verify", out, source, "--context", 3).code == 0
    assert ckconv("verify", out, source, "--weights").code == 0
    result = ckconv("verify", out, source)
    assert result.code == 5
    assert "context" in result.err
    assert ckconv("verify", out, source, "--context", 4).code == 5


def test_zeros_that_are_added_may_be_there_or_not(tmp_path: Path, ckconv) -> None:
    """A bump file has a slot for every bias; a model read back from one need not keep the zeros in it."""
    without = FLOAT.write(tmp_path / "a.gguf")
    assert ckconv("convert", without, tmp_path / "m.bump").code == 0
    assert ckconv("verify", without, tmp_path / "m.bump").code == 0

    tied = tmp_path / "tied.gguf"
    replace(FLOAT, head="copy").write(tied)
    assert ckconv("verify", tied, without).code == 0
    assert ckconv("verify", without, tied).code == 0
    own = replace(FLOAT, head="own").write(tmp_path / "own.gguf")
    result = ckconv("verify", own, without)
    assert result.code == 5
    assert "output.weight differs from token_embd.weight: 33 of 33 rows" in result.err


def test_rounded_values_are_said_to_be_rounded(tmp_path: Path, ckconv) -> None:
    source = Model().write(tmp_path / "m.gguf")
    assert ckconv("convert", source, tmp_path / "m.bump", "--dtype", "f16", "--allow-lossy").code == 0
    result = ckconv("verify", tmp_path / "m.bump", source)
    assert result.code == 0
    assert "verified 20/20 tensors" in result.out
    assert ", 15 of them rounded, " in result.out
    assert ckconv("verify", tmp_path / "m.bump", source, "--json").json["rounded"] == 15


def test_metadata_that_was_asked_for_is_no_fault_of_a_conversion(tmp_path: Path, ckconv) -> None:
    source = Model().write(tmp_path / "m.gguf")
    path = tmp_path / "other.gguf"
    assert ckconv("convert", source, path, "--set-meta", "llama.rope.freq_base=500000").code == 0
    result = ckconv("verify", path, source)
    assert result.code == 5
    assert "rope_theta is 500000.0, 10000.0 in the source" in result.err


@pytest.mark.parametrize(("name", "code"), [("none.bump", "input.missing"), ("m.bump/none", "input.missing")])
def test_an_output_that_is_not_there_is_no_failed_verification(made: Case, name: str, code: str, ckconv) -> None:
    result = ckconv("verify", made.out.parent / name, made.source)

    assert result.code == 3
    assert f"error[{code}]" in result.err


@pytest.mark.parametrize(
    ("flags", "name", "said"),
    [
        ((), "Hf_Llama-Tied_BF16", ""),
        (("add_bos_token", "add_eos_token"), "Hf Llama Tied Bf16", ""),
        ((), "Hf_Llama-Tied", "general.name is 'Hf_Llama-Tied'"),
        (("eos_token_id",), "Hf Llama Tied Bf16", "tokenizer.ggml.eos_token_id is missing"),
        (("/general.file_type",), "Hf Llama Tied Bf16", ""),
    ],
)
def test_of_what_another_program_made_spellings_and_its_readers_defaults_pass(
    fixtures: Path, flags: tuple[str, ...], name: str, said: str, tmp_path: Path, ckconv
) -> None:
    source = shutil.copytree(fixtures / "hf" / "llama-tied-bf16", tmp_path / "hf-llama-tied-bf16")
    assert ckconv("convert", source, tmp_path / "m.gguf").code == 0
    keys = [key.removeprefix("/") if key.startswith("/") else f"tokenizer.ggml.{key}" for key in flags]
    gguf_copy(tmp_path / "m.gguf", tmp_path / "n.gguf", keys={"general.name": name}, without=keys)
    result = ckconv("verify", tmp_path / "n.gguf", source)
    assert (result.code, said in result.err) == (5 if said else 0, True)


@pytest.mark.parametrize(
    ("to", "output", "named", "change", "said"),
    [
        ("hf", "m/", "m/model.safetensors", "", ""),
        ("hf", "m/", "m/model.safetensors", "generation_config.json", "generation_config.json is missing"),
        ("mlx", "m/", "m/model.safetensors", "", ""),
        ("mlx", "m/", "m/model.safetensors", "tokenizer_config.json", "tokenizer_config.json is missing"),
        ("hf", "m.safetensors", "m.safetensors", "", ""),
    ],
)
def test_a_file_is_compared_with_what_is_its_own_beside_it(
    to: str, output: str, named: str, change: str, said: str, fixtures: Path, tmp_path: Path, ckconv
) -> None:
    (tmp_path / "train.py").write_text("of the folder's owner")
    source = fixtures / "gguf" / "llama-tied-bf16.auto.gguf"
    assert ckconv("convert", source, f"{tmp_path}/{output}", "--to", to).code == 0
    if change:
        (tmp_path / output / change).unlink()
    result = ckconv("verify", tmp_path / named, source)
    assert (result.code, said in result.err) == (5 if said else 0, True)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"attention.key_length": 8, "attention.value_length": 8}, ""),
        ({"attention.value_length": 16}, "granite.attention.value_length = 16"),
        ({"attention.value_length": 8.0}, "granite.attention.value_length is 8.0 (f32); expected 8 (u32)"),
        ({"rope.freq_base": 5e5}, "rope_theta is 500000.0, 10000.0 in the source"),
        ({"/general.file_type": 0}, ""),
    ],
)
def test_sizes_that_llama_cpp_takes_may_be_said_or_not(
    keys: dict[str, int], said: str, fixtures: Path, tmp_path: Path, ckconv
) -> None:
    left_out = ["granite.rope.freq_base", "general.file_type"]
    without = gguf_copy(fixtures / "zoo/granite.f32.gguf", tmp_path / "a.gguf", without=left_out)
    full = {key.removeprefix("/") if key.startswith("/") else f"granite.{key}": value for key, value in keys.items()}
    stated = gguf_copy(without, tmp_path / "b.gguf", keys=full)
    found = ckconv("verify", stated, without)
    assert (found.code, said in found.err) == (5 if said else 0, True), found.err
    assert [ckconv("verify", without, stated).code, ckconv("diff", stated, without).code] == [found.code] * 2


@pytest.mark.parametrize(("factor", "code"), [(1 + 2**-23, 0), (1 + 2**-21, 5), (-1, 5)])
def test_exponentials_of_another_program_are_off_by_less_than_the_last_place(
    factor: float, code: int, tmp_path: Path, ckconv
) -> None:
    """torch computes ``-exp(A_log)`` in float32; what is next to the exact number is as right as the nearest."""
    case = next(case for case in cases() if str(case) == "falcon_mamba-tied")
    source = checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    assert ckconv("convert", source, tmp_path / "m.gguf").code == 0
    stored = next(tensor for tensor in GGUFReader(tmp_path / "m.gguf").tensors if tensor.name == "blk.0.ssm_a")
    exact = -np.exp(load_file(source / "model.safetensors")["backbone.layers.0.mixer.A_log"].astype(np.float64))
    near = np.nextafter(stored.data, np.where(stored.data > exact, -np.inf, np.inf).astype(np.float32))
    changed = near if factor == 1 + 2**-23 else stored.data * np.float32(factor)
    gguf_copy(tmp_path / "m.gguf", tmp_path / "n.gguf", tensors={"blk.0.ssm_a": changed})
    result = ckconv("verify", tmp_path / "n.gguf", source)
    assert (result.code, "blk.0.ssm_a" in result.err) == (code, code == 5)


def test_no_piece_of_a_word_asks_for_an_unknown_token(fixtures: Path, tmp_path: Path, ckconv) -> None:
    """llama.cpp's converter names none where a SentencePiece model alone says it: its tokenizer has bytes instead."""
    source, key = tmp_path / "hf", "tokenizer.ggml.unknown_token_id"
    assert ckconv("convert", fixtures / "gguf/gemma3-text-bf16.auto.gguf", f"{source}/").code == 0
    assert ckconv("convert", source, tmp_path / "m.gguf").code == 0
    gguf_copy(tmp_path / "m.gguf", tmp_path / "n.gguf", without=[key])
    assert [ckconv("verify", tmp_path / f"{name}.gguf", source).code for name in "mn"] == [0, 0]
    assert ckconv("diff", tmp_path / "m.gguf", tmp_path / "n.gguf").code == 0  # the types of tokens say which it is
    gguf_copy(tmp_path / "m.gguf", tmp_path / "n.gguf", keys={key: 1})
    assert key in ckconv("diff", tmp_path / "m.gguf", tmp_path / "n.gguf").out


def test_a_damaged_source_proves_nothing(tmp_path: Path, ckconv) -> None:
    """What no tensor holds, such as a vocabulary, is compared with nothing; the source's own checksum covers it."""
    from conftest import FIXTURES

    source, out = tmp_path / "a" / "m.bump", tmp_path / "b" / "m.gguf"
    for path in (source, out):
        path.parent.mkdir()
    model = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"
    assert ckconv("convert", model, source, "--bump-version", "5").code == 0
    assert ckconv("convert", model, out, "--set-meta", "general.name=m").code == 0
    assert ckconv("verify", out, source, "--weights").code == 0

    entries = json.loads((source.parent / "weights_manifest.json").read_text())["entries"]
    entry = next(entry for entry in entries if entry["name"].startswith("vocab"))
    data = bytearray(source.read_bytes())
    data[entry["file_offset"] + entry["size"] - 1] ^= 1
    source.write_bytes(data)

    result = ckconv("verify", out, source)
    assert result.code == 5
    assert f"error[bump.checksum]: {source}: the payload sha256 is wrong" in result.err
