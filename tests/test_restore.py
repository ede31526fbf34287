"""The way back: what was converted to bump comes back byte for byte, and nothing else is ever passed off as it."""

from __future__ import annotations

import filecmp
import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import bf16, save
from conftest import FIXTURES, Result
from gemma3_checkpoint import ONE_BASE, configure
from gguf import GGMLQuantizationType as Q
from models import Model
from outputs import contents
from test_record import packed

from ckconv.api import open_model
from ckconv.record import keep as keeping

Ckconv = Callable[..., Result]


@dataclass(frozen=True)
class Trip:
    """A source, how it becomes a bump, and the format that it was."""

    source: str
    to: str
    flags: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return FIXTURES / self.source

    @property
    def id(self) -> str:
        return " ".join([self.source, *self.flags])


V3, V5, DECODE = ("--bump-version", "3"), ("--bump-version", "5"), ("--dequantize",)
EMBEDDING = ("--decode", "token_embedding.weight")

TRIPS = [
    *(Trip(f"gguf/{name}.gguf", "gguf", V3) for name in ("llama-tied-bf16.auto", "qwen2-tied-bf16.auto")),
    Trip("gguf/llama-bias-f32.f32.gguf", "gguf", V5),
    Trip("gguf/llama-bias-f32.f32.gguf", "gguf", ("--bump-version", "4")),
    Trip("gguf/llama-tied-bf16.auto.gguf", "gguf", (*V5, "--rope-layout", "split")),
    Trip("gguf/llama-tied-bf16.auto.gguf", "gguf", (*V3, "--dtype", "keep")),
    Trip("gguf/llama-tied-bf16.auto.gguf", "gguf", (*V3, "--dtype", "f16", "--allow-lossy")),
    Trip("gguf/llama-untied-f16-sharded.auto.gguf", "gguf", V5),
    Trip("gguf/phi3-bf16.auto.gguf", "gguf", (*V3, "--drop", "output.weight")),
    Trip("gguf/qwen3-tied-bf16.auto.gguf", "gguf", V5),
    Trip("gguf-split/llama-untied-f32-00002-of-00003.gguf", "gguf", V5),
    Trip("kquants/llama64.Q4_K_M.gguf", "gguf", (*V5, *DECODE)),
    *(Trip(f"hf/{name}", "safetensors", V3) for name in ("llama-tied-bf16", "qwen2-tied-bf16")),
    Trip("hf/llama-bias-f32", "safetensors", V5),
    Trip("hf/llama-tied-bf16", "safetensors", V5),
    Trip("hf/llama-untied-f16-sharded", "safetensors", V5),
    Trip("hf/llama-untied-f16-sharded/model.safetensors.index.json", "safetensors", V5),
    Trip("hf/phi3-bf16", "safetensors", (*V3, "--drop", "output.weight")),
    Trip("hf/qwen3-tied-bf16", "safetensors", V5),
    Trip("mlx/llama-tied-bf16.q4g64", "mlx", (*V5, *EMBEDDING)),
    Trip("mlx/llama-untied-f32.q4g32", "mlx", (*V5, *DECODE)),
    Trip("mlx/qwen3-tied-bf16.q4g64", "mlx", (*V5, *EMBEDDING)),
]

#: Beside the models in the fixtures, and no part of them.
FOREIGN = {"mlx_logits.json", "ref_logits.json"}


def files_of(path: Path) -> dict[str, bytes]:
    """The files of a source: its directory, or its set of shards, or itself."""
    folder = path if path.is_dir() else path.parent
    if path.name.endswith(".gguf"):
        names = [p.name for p in folder.iterdir() if p == path or ("-of-" in path.name and p.suffix == ".gguf")]
    else:
        names = [p.name for p in folder.iterdir() if p.name not in FOREIGN]
    return {name: (folder / name).read_bytes() for name in names}


def there_and_back(ckconv: Ckconv, source: Path, to: str, folder: Path, *flags: str) -> dict[str, bytes]:
    folder.mkdir(exist_ok=True)
    done = ckconv("convert", source, f"{folder}/bump/", "--to", "bump", *flags)
    assert done.code == 0, done.err
    done = ckconv("convert", folder / "bump", f"{folder}/back/", "--to", to)
    assert done.code == 0, done.err
    assert "made again from weights.bump.source.zip, byte for byte" in done.out
    return contents(folder / "back")


@pytest.mark.parametrize("trip", TRIPS, ids=lambda trip: trip.id)
def test_there_and_back_is_the_same_bytes(trip: Trip, tmp_path: Path, ckconv: Ckconv) -> None:
    back = there_and_back(ckconv, trip.path, trip.to, tmp_path, *trip.flags)

    was = files_of(trip.path)
    assert back.keys() == was.keys()
    assert [name for name in was if back[name] != was[name]] == []


#: Models in which something is hard to bring back: how they are made, flags, and what the record must say.
MODELS: dict[str, tuple[Model, tuple[str, ...]]] = {
    "a head that is the embedding": (Model(head="copy"), V3),
    "a head of its own that is dropped": (Model(head="own"), (*V3, "--drop", "output.weight")),
    "rope frequencies": (Model(extra_tensors={"rope_freqs.weight": (8,)}), (*V3, "--drop", "rope_frequencies")),
    "an unknown tensor": (Model(extra_tensors={"extra.thing": (3, 5)}), (*V3, "--drop", "extra.*")),
    "padded rows and heads": (Model(hidden=48, ffn=72, heads=4, kv_heads=4, vocab=33), V3),
    "float16": (Model(matrix=Q.F16, norm=Q.F16), V3),
    "K-quants": (Model(hidden=256, ffn=512, vocab=40, matrix=Q.Q4_K, types={"ffn_down.weight": Q.Q6_K}), V3),
    "Q8_0": (Model(matrix=Q.Q8_0), V5),
    "biases": (Model(all_bias=True), V5),
    "a tokenizer": (Model(vocab=4, tokens=("a", "b", "c", "ab"), merges=("a b",)), V5),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_hard_to_bring_back(name: str, tmp_path: Path, ckconv: Ckconv) -> None:
    model, flags = MODELS[name]
    source = model.write(tmp_path / "m.gguf")
    assert there_and_back(ckconv, source, "gguf", tmp_path, *flags) == {"m.gguf": source.read_bytes()}


def test_bytes_between_tensors_come_back(tmp_path: Path, ckconv: Ckconv) -> None:
    model = Model(vocab=33, hidden=48, ffn=72, norm=Q.F32, extra_tensors={"extra.thing": (3,)})
    source = model.write(tmp_path / "m.gguf")
    index = open_model(source).index
    last = max(tensor.extent.offset + tensor.extent.nbytes for tensor in index.stored)
    gaps = [t.extent.offset + t.extent.nbytes for t in index.stored if (t.extent.offset + t.extent.nbytes) % 32]
    data = bytearray(source.read_bytes())
    for at in set(gaps) - {last}:
        data[at] = 7
    source.write_bytes(data)
    again = there_and_back(ckconv, source, "gguf", tmp_path, *V3, "--drop", "extra.*")
    assert again == {"m.gguf": bytes(data)}


def patched(folder: Path, name: str, changes: Callable[[dict[str, np.ndarray]], None]) -> Path:
    """A copy of a checkpoint whose stored arrays (raw bytes) are changed in place."""
    copy = folder / Path(name).name
    shutil.copytree(FIXTURES / name, copy)
    for path in copy.glob("*.safetensors"):
        data = bytearray(path.read_bytes())
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        view = np.frombuffer(data, np.uint8)[8 + length :]
        changes({key: view[slice(*f["data_offsets"])] for key, f in header.items() if key != "__metadata__"})
        path.write_bytes(data)
    return copy


def test_every_bit_pattern_of_sixteen_bits_comes_back(tmp_path: Path, ckconv: Ckconv) -> None:
    every = np.arange(1 << 16, dtype=np.uint16)

    def fill(arrays: dict[str, np.ndarray]) -> None:
        for array in arrays.values():
            words = array.view(np.uint16)
            words[:] = np.resize(every, len(words)) + np.uint16(len(words) // 3)

    for name in ("hf/llama-tied-bf16", "hf/llama-untied-f16-sharded"):
        source = patched(tmp_path, name, fill)
        back = there_and_back(ckconv, source, "safetensors", tmp_path / f"to {source.name}", *V5)
        assert back == files_of(source), "signaling NaNs with their payloads too"


def test_norms_too_small_for_one_plus_w_are_kept(tmp_path: Path, ckconv: Ckconv) -> None:
    def shrink(arrays: dict[str, np.ndarray]) -> None:
        for key, array in arrays.items():
            if "input_layernorm" in key:
                array.view(np.uint16)[:3] = [0x2EDC, 0x8000, 0x0001]  # 1e-10, -0.0 and the smallest there is
            elif "q_norm" in key:
                array.view(np.uint16)[:] = 0x3F00  # 0.5

    source = patched(tmp_path, "hf/gemma3-text-bf16", shrink)
    configure(source, ONE_BASE)
    assert there_and_back(ckconv, source, "safetensors", tmp_path, *V5) == files_of(source)
    record = record_of(tmp_path / "bump" / "weights.bump.source.zip")
    norms = {key for key in open_model(source).tensors if key.endswith("attention_norm.weight")}
    stored = [t for t in open_model(source).index.stored if "input_layernorm" in t.name]
    kept = runs_of(record)
    assert norms
    assert {(t.extent.offset, t.extent.nbytes) for t in stored} <= kept
    rotated = [t for t in open_model(source).index.stored if "q_norm" in t.name]
    assert not {(t.extent.offset, t.extent.nbytes) for t in rotated} & kept, "0.5 comes back by itself"


def eight_bits(folder: Path, still: slice) -> Path:
    """An MLX llama whose matrices are Q8_0 in other order; rows ``still`` of each are zeros by their scale."""
    rng = np.random.default_rng(3)
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "hidden_size": 64,
        "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 48,
        "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "quantization": {"group_size": 64, "bits": 8, "mode": "affine"},
    }  # fmt: skip

    def module(rows: int) -> dict[str, Any]:
        scale = rng.integers(1, 99, (rows, 1)).astype(np.float32) / 256
        scale[still] = 0
        weight = rng.integers(0, 1 << 32, (rows, 16), dtype=np.uint32)
        return {"weight": weight, "scales": bf16(scale), "biases": bf16(-128 * scale + np.float32(0))}

    tensors: dict[str, Any] = {}
    embedding = module(48)
    for name in ("model.embed_tokens", "lm_head"):
        tensors |= {f"{name}.{kind}": array for kind, array in embedding.items()}
    names = [f"self_attn.{p}_proj" for p in "qkvo"] + [f"mlp.{p}_proj" for p in ("gate", "up", "down")]
    for name in names:
        tensors |= {f"model.layers.0.{name}.{kind}": array for kind, array in module(64).items()}
    for name in ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm"):
        tensors[f"model.{name}.weight"] = bf16(rng.standard_normal(64))
    return save(folder / "m", config, tensors, metadata={"format": "mlx"})


def test_a_triple_whose_head_is_the_embedding(tmp_path: Path, ckconv: Ckconv) -> None:
    source = eight_bits(tmp_path, slice(0, 0))

    assert there_and_back(ckconv, source, "mlx", tmp_path, *V5) == files_of(source)
    record = record_of(tmp_path / "bump" / "weights.bump.source.zip")
    assert record["aliases"] == {"output.weight": "token_embedding.weight"}
    assert len(runs_of(record)) == 1, "the header, and nothing of the tensors"


def test_zeros_that_lose_their_sign_are_kept_row_by_row(tmp_path: Path, ckconv: Ckconv) -> None:
    """Q8_0 stores no bias: -128 times a scale of 0 is -0.0, and MLX had 0.0."""
    source = eight_bits(tmp_path, slice(5, 8))

    assert there_and_back(ckconv, source, "mlx", tmp_path, *V5) == files_of(source)
    runs = runs_of(record_of(tmp_path / "bump" / "weights.bump.source.zip"))
    biases = [t.extent for t in open_model(source).index.stored if t.name.endswith("biases")]
    assert len(biases) == 9
    assert {(extent.offset + 2 * 5, 2 * 3) for extent in biases} <= runs


# --- what the record is


def record_of(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        document: dict[str, Any] = json.loads(archive.read("record.json"))
        return document


def runs_of(record: dict[str, Any]) -> set[tuple[int, int]]:
    """What is kept of files that hold tensors."""
    return {tuple(run) for f in record["files"] if f["tensors"] for kept in f["kept"] for run in kept["runs"]}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Model(vocab=40, context=6).write(tmp_path / "m.gguf")


@pytest.fixture
def bump(source: Path, tmp_path: Path, ckconv: Ckconv) -> Path:
    assert ckconv("convert", source, tmp_path / "m.bump").code == 0
    return tmp_path / "m.bump"


def beside(bump: Path) -> Path:
    return bump.with_name(f"{bump.name}.source.zip")


def test_side_files_are_in_the_record_under_their_names(tmp_path: Path, ckconv: Ckconv) -> None:
    source = FIXTURES / "hf" / "llama-tied-bf16"
    assert ckconv("convert", source, tmp_path / "m.bump").code == 0
    with zipfile.ZipFile(tmp_path / "m.bump.source.zip") as archive:
        for path in source.glob("*.json"):
            assert archive.read(f"files/{path.name}") == path.read_bytes()


def test_the_record_is_bound_to_the_payload_and_deterministic(source: Path, tmp_path: Path, ckconv: Ckconv) -> None:
    made = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        copy = shutil.copy(source, tmp_path / folder / "m.gguf")
        done = ckconv("convert", copy, tmp_path / folder / "out.bump", "--json")
        planned = ckconv("convert", copy, tmp_path / "x.bump", "-n", "--json").json
        path = beside(tmp_path / folder / "out.bump")
        assert planned["source_record"] == path.stat().st_size
        assert record_of(path)["bump"]["payload_sha256"] == done.json["payload_sha256"]
        made.append(path.read_bytes())
    assert made[0] == made[1]
    assert b"a/m.gguf" not in made[0]


def test_contents_are_kept_once(tmp_path: Path, ckconv: Ckconv) -> None:
    zeros = Model(extra_tensors={"a.mask": (9, 9), "b.mask": (9, 9)})
    path = zeros.write(tmp_path / "m.gguf")
    index = open_model(path).index
    data = bytearray(path.read_bytes())
    one, two = (t.extent for t in index.stored if t.name.endswith("mask"))
    data[two.offset : two.offset + two.nbytes] = data[one.offset : one.offset + one.nbytes]
    path.write_bytes(data)
    back = there_and_back(ckconv, path, "gguf", tmp_path, *V3, "--drop", "*.mask")
    assert back == {"m.gguf": bytes(data)}
    with zipfile.ZipFile(tmp_path / "bump" / "weights.bump.source.zip") as archive:
        assert sum(info.file_size == one.nbytes for info in archive.infolist()) == 1
    assert record_of(tmp_path / "bump" / "weights.bump.source.zip")["left_out"] == ["a.mask", "b.mask"]


def test_no_record_grows_without_bound(
    source: Path, tmp_path: Path, ckconv: Ckconv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "MAX_RECORD", 1000)
    kept = ["convert", source, tmp_path / "m.bump"]
    monkeypatch.setattr(keeping, "SHARE", 10**9)
    done = ckconv(*kept)
    assert done.code == 0
    assert "note: no source record: " in done.out
    assert "would not come back out of the bump file, and a record keeps 1,000; --source-record keeps" in done.out
    assert not beside(tmp_path / "m.bump").exists()
    assert ckconv(*kept, "--force", "--source-record").code == 0  # which the note names
    assert beside(tmp_path / "m.bump").exists()
    monkeypatch.setattr(keeping, "MAX_ARCHIVE", 1000)  # more than the flag keeps
    done = ckconv(*kept, "--force")
    assert (done.code, "a record keeps 1,000" in done.out, "--source-record" in done.out) == (0, True, False)


def test_blocks_that_were_decoded_come_back_whatever_their_size(
    tmp_path: Path, ckconv: Ckconv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "MAX_RECORD", 1000)
    source = FIXTURES / "kquants/llama64.Q4_K_M.gguf"
    assert ckconv("convert", source, tmp_path / "m.bump", "--dequantize").code == 0
    assert ckconv("convert", tmp_path / "m.bump", tmp_path / "back.gguf").code == 0
    assert (tmp_path / "back.gguf").read_bytes() == source.read_bytes()


def test_no_record_where_none_is_asked_for_or_has_a_place(source: Path, tmp_path: Path, ckconv: Ckconv) -> None:
    assert ckconv("convert", source, tmp_path / "m.bump", "--no-source-record").code == 0
    assert ckconv("convert", source, "-", "--to", "bump").code == 0
    assert not list(tmp_path.glob("*.zip"))


def test_a_record_of_what_was_there_before_is_named(source: Path, bump: Path, tmp_path: Path, ckconv: Ckconv) -> None:
    done = ckconv("convert", source, bump, "--context", "3", "--no-source-record", "--force")
    assert done.code == 0, done.err
    note = "m.bump.source.zip is already there and is not part of this output: remove it"
    assert f"note: {note}" in done.out


def test_a_record_that_is_there_is_not_overwritten(source: Path, tmp_path: Path, ckconv: Ckconv) -> None:
    (tmp_path / "m.bump.source.zip").write_bytes(b"mine")
    done = ckconv("convert", source, tmp_path / "m.bump")
    assert (done.code, (tmp_path / "m.bump.source.zip").read_bytes()) == (6, b"mine")
    assert "output.exists" in done.err
    assert not (tmp_path / "m.bump").exists()


# --- where the source comes back, and where it does not


def test_targets_of_one_file(source: Path, bump: Path, tmp_path: Path, ckconv: Ckconv) -> None:
    assert ckconv("convert", bump, tmp_path / "other name.gguf").code == 0
    assert (tmp_path / "other name.gguf").read_bytes() == source.read_bytes()
    assert ckconv("convert", bump, f"{tmp_path}/into/", "--to", "gguf").code == 0
    assert (tmp_path / "into" / "m.gguf").read_bytes() == source.read_bytes()


def test_a_set_of_shards_under_another_name(tmp_path: Path, ckconv: Ckconv) -> None:
    first = FIXTURES / "gguf-split" / "llama-untied-f32-00001-of-00003.gguf"
    assert ckconv("convert", first, tmp_path / "m.bump").code == 0
    assert ckconv("convert", tmp_path / "m.bump", tmp_path / "n.gguf").code == 0
    made = {path.name.removeprefix("n"): path.read_bytes() for path in tmp_path.glob("n-*.gguf")}
    assert made == {name.removeprefix("llama-untied-f32"): data for name, data in files_of(first).items()}


def test_one_safetensors_file_by_its_name(tmp_path: Path, ckconv: Ckconv) -> None:
    source = FIXTURES / "hf" / "qwen2-tied-bf16" / "model.safetensors"
    assert ckconv("convert", source, f"{tmp_path}/bump/", "--to", "bump").code == 0
    (tmp_path / "out").mkdir()
    done = ckconv("convert", tmp_path / "bump", tmp_path / "out" / "renamed.safetensors")
    assert done.code == 0, done.err
    assert (tmp_path / "out" / "renamed.safetensors").read_bytes() == source.read_bytes()


def test_a_record_moves_on_with_the_tensors(source: Path, bump: Path, tmp_path: Path, ckconv: Ckconv) -> None:
    done = ckconv("convert", bump, f"{tmp_path}/next/", "--to", "bump", *V3, "--rope-layout", "interleaved")
    assert done.code == 0, done.err
    assert ckconv("verify", tmp_path / "next").code == 0
    assert ckconv("convert", tmp_path / "next", tmp_path / "back.gguf").code == 0
    assert (tmp_path / "back.gguf").read_bytes() == source.read_bytes()

    beside(tmp_path / "next" / "weights.bump").unlink()
    done = ckconv("convert", tmp_path / "next", f"{tmp_path}/last/", "--to", "bump", *V3)
    assert "no source record: there is none beside weights.bump" in done.out


NOT_USED = {
    "no record": ((), "no source record beside it (m.bump.source.zip)"),
    "another type": (("--dtype", "f16", "--allow-lossy"), "the source record is not used: --dtype, --allow-lossy asks"),
    "metadata": (("--set-meta", "general.name=x"), "the source record is not used: --set-meta asks"),
    "shards": (("--max-shard-size", "1MB"), "the source record is not used: --max-shard-size asks"),
}


@pytest.mark.parametrize("case", NOT_USED)
def test_otherwise_the_report_says_why_not(case: str, bump: Path, tmp_path: Path, ckconv: Ckconv) -> None:
    flags, note = NOT_USED[case]
    if case == "no record":
        beside(bump).unlink()
    done = ckconv("convert", bump, tmp_path / "x.gguf", *flags, "-n")
    assert done.code == 0, done.err
    assert f"note: {note}" in done.out


def test_what_adapters_changed_is_not_the_source(tmp_path: Path, ckconv: Ckconv) -> None:
    source, adapter = FIXTURES / "hf" / "qwen2-tied-bf16", FIXTURES / "lora" / "qwen2-r4-all"
    assert ckconv("convert", source, f"{tmp_path}/plain/", "--to", "bump").code == 0
    done = ckconv("convert", tmp_path / "plain", f"{tmp_path}/back/", "--to", "safetensors", "--adapter", adapter, "-n")
    assert done.code == 0
    assert "made again" not in done.out
    done = ckconv(
        "convert", source, f"{tmp_path}/merged/", "--to", "bump", "--adapter", adapter, "--dtype", "f32", "-n"
    )
    assert "note: no source record is written" in done.out
    assert "source record beside it" not in done.out


# --- records that do not belong, and bumps that are not what they were


@pytest.fixture
def other(tmp_path: Path, ckconv: Ckconv) -> Path:
    (tmp_path / "other").mkdir()
    source = Model(vocab=40, context=6, seed=2).write(tmp_path / "other" / "m.gguf")
    assert ckconv("convert", source, tmp_path / "other" / "m.bump").code == 0
    return tmp_path / "other" / "m.bump"


def test_a_foreign_record_is_refused(bump: Path, other: Path, tmp_path: Path, ckconv: Ckconv) -> None:
    shutil.copy(beside(other), beside(bump))
    for status, arguments in (
        (3, ("convert", bump, tmp_path / "x.gguf")),
        (3, ("convert", bump, f"{tmp_path}/next/", "--to", "bump")),
        (5, ("verify", bump)),
    ):
        done = ckconv(*arguments)
        assert done.code == status
        assert "error[record.foreign]" in done.err
        assert "belongs to another bump file" in done.err
        assert "hint: move it away; convert and batch ignore it with --no-source-record\n" in done.err
    assert not (tmp_path / "x.gguf").exists()
    assert ckconv("convert", bump, f"{tmp_path}/next/", "--to", "bump", "--no-source-record").code == 0


def test_a_bump_that_is_read_otherwise_than_it_was_written_is_refused(
    bump: Path, tmp_path: Path, ckconv: Ckconv
) -> None:
    config = bump.with_name("config.json")
    config.write_text(config.read_text().replace('"split"', '"interleaved"'))
    done = ckconv("convert", bump, tmp_path / "x.gguf")
    assert (done.code, (tmp_path / "x.gguf").exists()) == (3, False)
    assert "was written with rope_layout 'split', config.json beside it says 'interleaved'" in done.err


def test_a_flipped_bit_never_comes_back_as_the_source(bump: Path, tmp_path: Path, ckconv: Ckconv) -> None:
    data = bytearray(bump.read_bytes())
    data[len(data) // 3] ^= 4
    bump.write_bytes(data)
    done = ckconv("convert", bump, tmp_path / "x.gguf")
    assert done.code == 5
    assert f"error[bump.checksum]: {bump}: the payload sha256 is wrong" in done.err
    assert not (tmp_path / "x.gguf").exists()


def test_any_byte_of_the_record_changed_or_missing_is_an_error(bump: Path, tmp_path: Path, ckconv: Ckconv) -> None:
    whole = beside(bump).read_bytes()
    for at in range(0, len(whole), 37):
        for data in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            beside(bump).write_bytes(data)
            done = ckconv("convert", bump, tmp_path / "x.gguf")
            assert done.code == 3, (at, done.out)
            assert "error[record." in done.err
    assert not (tmp_path / "x.gguf").exists()


def rewritten(bump: Path, change: Callable[[dict[str, Any], dict[str, bytes]], object]) -> None:
    """The record beside a bump file, well-formed, saying something else."""
    with zipfile.ZipFile(beside(bump)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    document = json.loads(members.pop("record.json"))
    change(document, members)
    document["files"][0]["kept"] = [kept for kept in document["files"][0]["kept"] if kept["runs"]]
    wanted = {f"parts/{kept['sha256']}" for file in document["files"] for kept in file["kept"]}
    beside(bump).write_bytes(
        packed({**{name: members[name] for name in wanted}, "record.json": json.dumps(document).encode()})
    )


def keep(document: dict[str, Any], members: dict[str, bytes], offset: int, data: bytes) -> None:
    digest = sha256(data).hexdigest()
    document["files"][0]["kept"].append({"sha256": digest, "runs": [[offset, len(data)]]})
    members[f"parts/{digest}"] = data


def no_header(document: dict[str, Any], members: dict[str, bytes]) -> None:
    document["files"][0]["kept"] = []


def other_header(document: dict[str, Any], members: dict[str, bytes]) -> None:
    header = bytearray(next(iter(members.values())))
    header[8] ^= 1  # the number of tensors
    no_header(document, members)
    keep(document, members, 0, bytes(header))


def part_of_a_row(document: dict[str, Any], members: dict[str, bytes]) -> None:
    keep(document, members, document["files"][0]["size"] - 6, b"123456")


def another_tensor(document: dict[str, Any], members: dict[str, bytes]) -> None:
    document["aliases"] = {"layers.0.attention.k.weight": "layers.0.attention.v.weight"}


def another_shape(document: dict[str, Any], members: dict[str, bytes]) -> None:
    document["aliases"] = {"layers.0.attention.k.weight": "layers.0.ffn.up.weight"}


def another_family(document: dict[str, Any], members: dict[str, bytes]) -> None:
    document["bump"]["family"] = "qwen2"


def longer(document: dict[str, Any], members: dict[str, bytes]) -> None:
    document["files"][0]["size"] += 1 << 50


LIES = {
    no_header: (3, "record.files", "keeps files that are no source: 'm.gguf': starts with"),
    other_header: (3, "record.files", "keeps files that are no source: 'm.gguf'"),
    part_of_a_row: (3, "record.files", "it keeps parts of rows of"),
    another_tensor: (5, "verify.tensor", "differs from blk.0.attn_k.weight"),
    another_shape: (3, "record.files", "'blk.0.attn_k.weight', which the bump file holds in another shape"),
    another_family: (3, "record.foreign", "was written with model 'qwen2', config.json beside it says 'llama'"),
    longer: (3, "record.files", "bytes after the last tensor"),
}


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_record_that_lies_makes_nothing(
    lie: Callable[[dict[str, Any], dict[str, bytes]], object], bump: Path, tmp_path: Path, ckconv: Ckconv
) -> None:
    rewritten(bump, lie)
    done = ckconv("convert", bump, tmp_path / "x.gguf")
    code, error, sentence = LIES[lie]
    assert (done.code, done.out) == (code, "")
    assert f"error[{error}]" in done.err
    assert sentence in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "m.bump", "m.bump.source.zip", "m.gguf"]


def test_verify_says_what_the_record_is_of(bump: Path, ckconv: Ckconv) -> None:
    assert "m.bump.source.zip belongs to it: m.gguf (gguf)" in ckconv("verify", bump).out
    assert ckconv("verify", bump, "--json").json["source_record"] == str(beside(bump))
    beside(bump).unlink()
    assert ckconv("verify", bump, "--json").json["source_record"] is None


def test_a_directory_gets_what_the_record_says_without_being_told(tmp_path: Path, ckconv) -> None:
    source = FIXTURES / "hf" / "qwen3-tied-bf16"
    assert ckconv("convert", source, f"{tmp_path}/b/", "--to", "bump").code == 0
    assert ckconv("convert", tmp_path / "b" / "weights.bump", f"{tmp_path}/back/").code == 0
    assert filecmp.cmp(tmp_path / "back" / "model.safetensors", source / "model.safetensors", shallow=False)
    (tmp_path / "b" / "weights.bump.source.zip").unlink()
    result = ckconv("convert", tmp_path / "b" / "weights.bump", f"{tmp_path}/again/")
    assert (result.code, "does not say which format to write" in result.err) == (2, True)
    (tmp_path / "d.gguf").mkdir()
    result = ckconv("convert", source, tmp_path / "d.gguf")
    assert (result.code, "d.gguf' is a directory and does not say which format" in result.err) == (2, True)


@pytest.mark.product("values")
@pytest.mark.parametrize(
    "flags", [(), ("--no-verify",), ("--no-source-record",), ("--no-source-record", "--no-verify")]
)
@pytest.mark.parametrize("target", ["back.gguf", "back/", "again.bump", "-"])
def test_a_damaged_bump_becomes_nothing_else(
    bump: Path, flags: tuple[str, ...], target: str, tmp_path: Path, ckconv: Ckconv
) -> None:
    index = open_model(bump).index
    tensor = index.tensors["layers.0.attention_norm.weight"]
    data = bytearray(bump.read_bytes())
    data[tensor.extents[0].offset + 3] ^= 0x80
    bump.write_bytes(data)
    (tmp_path / "o").mkdir()

    done = ckconv(
        "convert",
        bump,
        target if target == "-" else f"{tmp_path}/o/{target}",
        "--to",
        "bump" if target == "again.bump" else "gguf",
        *flags,
    )

    assert done.code == 5
    assert f"error[bump.checksum]: {bump}: the payload sha256 is wrong" in done.err
    assert done.out == ""
    assert list((tmp_path / "o").iterdir()) == []


def test_a_shard_s_name_is_taken_for_one(tmp_path: Path, ckconv: Ckconv) -> None:
    shards = FIXTURES / "gguf-split"
    assert ckconv("convert", shards / "llama-untied-f32-00001-of-00003.gguf", tmp_path / "m.bump").code == 0
    (tmp_path / "o").mkdir()
    assert ckconv("convert", tmp_path / "m.bump", tmp_path / "o/name-00001-of-00003.gguf").code == 0
    assert sorted(p.name for p in (tmp_path / "o").iterdir()) == [f"name-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
