"""BUMPWGT4 in its five layouts and BUMPWGT5 in its two, sound and broken, with and without documents beside them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bump4_builder import Built, Sizes, build, with_footer
from gguf import GGMLQuantizationType as Q
from hypothesis import example, given, settings, strategies as st
from models import Model

from ckconv.comparison.verify import verify_index
from ckconv.core.tensors import TensorIndex
from ckconv.errors import CkconvError, InputError, OutputError, UnsupportedError
from ckconv.formats.bump.read import open_bump
from ckconv.io.files import Files, FileSource, PipeSource
from ckconv.io.rows import RowReader, canonical_pieces

EVEN = Sizes(hidden=32, ffn=48, heads=4, kv=2, head=16)

#: name -> (layout the reader should see, RoPE rows, file)
SOUND: dict[str, tuple[str, str, Built]] = {
    "A": ("4-A", "split", build("A")),
    "A with head": ("4-A", "split", build("A", head=True)),
    "A without padding": ("4-A", "split", build("A", sizes=EVEN)),
    "B": ("4-B", "interleaved", build("B", bias=True, pairs=True)),
    "C": ("4-C", "interleaved", build("C", content="osm", pairs=True)),
    "C with scores": ("4-C", "interleaved", build("C", content="osctm", bias=True, pairs=True)),
    "C with no tokenizer": ("4-C", "interleaved", build("C", pairs=True)),
    "D": ("4-D", "interleaved", build("D", pairs=True)),
    "D with head and tokenizer": ("4-D", "interleaved", build("D", head=True, content="osctm", pairs=True)),
    "D like qwen3": ("4-D", "split", build("D", qk_norm=True)),
    "D like gemma3": ("4-D", "split", build("D", qk_norm=True, post_norms=True, head=True, content="osctm")),
    "E": ("4-E", "split", build("E")),
    "E with head": ("4-E", "split", build("E", head=True)),
    "E with tokenizer": ("4-E", "split", build("E", content="osm")),
    "E with both": ("4-E", "split", build("E", content="osm", head=True)),
    "5": ("5-D", "interleaved", build("D", version=5, head=True, content="osctm", pairs=True)),
    "5 without scores": ("5-D", "interleaved", build("D", version=5, content="ostm", pairs=True)),
    "5 of the other script of v6.6": ("5-F", "split", build("F", version=5, head=True)),
    "5 of the other script": ("5-E", "split", build("E", version=5, head=True, content="osm")),
}
# A layout with all norms is taken for gemma3, whose norms are stored plus one.
SHIFTED = {"D like gemma3"}


def values(index: TensorIndex) -> dict[str, np.ndarray]:
    """Canonical name -> canonical values; zero placeholders left out."""
    found = {}
    with Files() as files:
        for name, tensor in index.tensors.items():
            rows = np.concatenate([rows for _, rows in canonical_pieces(RowReader(tensor, files))])
            array = rows.view(np.float32).reshape(tensor.shape)
            if not tensor.may_be_absent or array.any():
                found[name] = array
    return found


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("documents", ["none", "manifest"])
def test_layout_is_recognized_and_read(name: str, documents: str, tmp_path: Path) -> None:
    layout, rows, built = SOUND[name]
    path = built.write(tmp_path, manifest=built.manifest() if documents == "manifest" else None)
    index = open_bump(path)
    assert (index.facts["layout"], index.facts["rope_layout"]) == (layout, rows)
    assert same(values(index), built.weights)
    stored = {item.name: item.extent for item in index.facts["tokenizer"] or ()}
    assert {n: built.data[e.offset : e.offset + e.nbytes] for n, e in stored.items()} == built.content
    assert verify_index(index).payload_sha256
    family = "gemma3" if name in SHIFTED else "qwen3" if "q_norm" in str(built.weights.keys()) else "llama"
    assert index.config is not None
    assert index.config.family == family


@pytest.mark.parametrize("name", SOUND)
def test_a_flipped_bit_is_found(name: str, tmp_path: Path) -> None:
    _, _, built = SOUND[name]
    rng = np.random.default_rng(3)
    for at in rng.integers(built.start, built.end, 8):
        data = bytearray(built.data)
        data[at] ^= 1 << int(rng.integers(8))
        path = built.write(tmp_path, data=bytes(data))
        with pytest.raises(CkconvError) as caught:
            verify_index(open_bump(path))
        assert caught.value.code in ("bump.checksum", "bump.extent")


def test_extended_zero_bytes_are_checked(tmp_path: Path) -> None:
    data = bytearray(build("D").data)
    data[0x83] = 7
    with pytest.raises(InputError, match="reserved byte 0x83 is 0x07, not zero") as caught:
        open_bump(build("D").write(tmp_path, data=bytes(data)))
    assert (caught.value.code, caught.value.offset) == ("bump.header", 0x83)


def put(built: Built, at: int, data: bytes) -> bytes:
    return built.data[:at] + data + built.data[at + len(data) :]


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


D, D5, A = build("D"), build("D", version=5), build("A")
TALL = build("D", sizes=Sizes(layers=1))

#: id -> (file, code, fragment)
BROKEN: dict[str, tuple[bytes, str, str]] = {
    "short header": (D.data[:100], "bump.header", "100 bytes, a bump header has 128"),
    "version of another magic": (put(D, 8, u32(5)), "bump.magic", "magic BUMPWGT4 with version 5"),
    "model type": (put(D, 0x0C, u32(2)), "bump.header", "model_type is 2, 1 expected"),
    "no layers": (put(D, 0x10, u32(0)), "bump.header", "num_layers is 0"),
    "absurd layers": (put(D, 0x10, u32(2**32 - 1)), "bump.header", "num_layers is 4294967295"),
    "no heads": (put(D, 0x24, u32(0)), "bump.header", "num_heads is 0"),
    "heads": (put(D, 0x28, u32(3)), "bump.header", "num_heads 2 is not a multiple of num_kv_heads 3"),
    "aligned below real": (put(D, 0x30, u32(19)), "bump.header", "aligned_embed 19 is below embed 20"),
    "aligned absurd": (put(D, 0x37, b"\x7f"), "bump.extent", "the FP32 vectors of 2 layers alone are"),
    "reserved": (put(D, 0x7A, b"\x01"), "bump.header", "reserved byte 0x7a is 0x01, not zero"),
    "table length": (
        put(D, 0x98, u32(31)),
        "bump.dtype-table",
        "the table has 31 entries, 32 or 33 or 36 or 37 expected",
    ),
    "table too long": (put(A, 0x80, u32(999)), "bump.dtype-table", "the table has 999 entries"),
    "table cut off": (D.data[:160], "bump.dtype-table", "ends at 188, the file has 160"),
    "file ends before it": (D.data[:150], "bump.dtype-table", "the file ends before the dtype table"),
    "unknown code": (put(D, 0x9C, b"\x63"), "bump.dtype-table", "token_emb has dtype code 99, which no weights have"),
    "norm that is no FP32": (
        put(D, 0x9E, b"\x02"),
        "bump.dtype-table",
        "layer.0.ln1_gamma has dtype code 2, it is always FP32",
    ),
    "rows that are no blocks": (
        put(D, 0x9C, b"\x09"),
        "bump.dtype-table",
        "token_emb is Q8_0 with rows of 20; blocks hold 32",
    ),
    "payload short": (
        D.data[:-7],
        "bump.extent",
        f"final_ln_bias ends at byte {len(D.data):,}, the file has {len(D.data) - 7:,}",
    ),
    "payload long": (D.data + b"PK", "bump.extent", "2 bytes after final_ln_bias"),
    "more layers than bytes": (put(D, 0x10, u32(9)), "bump.dtype-table", "the table has 32 entries, 130 or 131 or"),
    "tokenizer that is not there": (put(D, 0x54, u32(40)), "bump.extent", "the file has"),
    # Row 50 of the design's table of malformed input.
    "50 no footer": (D5.data[: D5.end], "bump.metadata", "footer magic 'BUMPV5MD' not found 48 bytes before the end"),
    "50 file ends in the table": (D5.data[:190], "bump.metadata", "the file ends at byte 190"),
    "50 metadata size past the start": (
        D5.data[: D5.end] + with_footer(b"{}", size=2**63),
        "bump.metadata",
        "the footer declares 9,223,372,036,854,775,808 bytes of metadata, at most",
    ),
    "50 metadata sha": (
        D5.data[: D5.end] + with_footer(b"{}", sha=bytes(32)),
        "bump.metadata",
        f"the metadata sha256 is wrong: stored {'00' * 32}, computed {hashlib.sha256(b'{}').hexdigest()}",
    ),
    "50 not JSON": (
        D5.data[: D5.end] + with_footer(b"{nope"),
        "bump.metadata",
        "metadata is not a JSON object: column 2",
    ),
    "50 not an object": (D5.data[: D5.end] + with_footer(b"[]"), "bump.metadata", "metadata is not a JSON object"),
    "50 duplicate key": (D5.data[: D5.end] + with_footer(b'{"a":1,"a":2}'), "bump.metadata", "'a' appears twice"),
    "50 deep": (D5.data[: D5.end] + with_footer(b'{"a":' + b"[" * 9999), "bump.metadata", "nested 10,000 deep"),
    "50 trailing": (D5.data + b"x", "bump.metadata", "footer magic"),
    "50 payload eaten by metadata": (
        D5.data[: D5.end - 4] + with_footer(b"{}"),
        "bump.extent",
        "final_ln_bias ends at byte",
    ),
}


@pytest.mark.parametrize(("data", "code", "fragment"), BROKEN.values(), ids=BROKEN)
def test_broken_file(data: bytes, code: str, fragment: str, tmp_path: Path, ckconv) -> None:
    path = tmp_path / "m.bump"
    path.write_bytes(data)
    for verb in ("inspect", "verify"):
        result = ckconv(verb, path)
        assert (result.code, result.out) == (3, "")
        assert f"error[{code}]: {path}: " in result.err
        assert fragment in result.err


def entry(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    return next(e for e in manifest["entries"] if e["name"] == name)


def change(which: str, /, **fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: entry(manifest, which).update(fields)


BAD_MANIFESTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "past the end": (
        change("final_ln_bias", file_offset=10**9),
        "'final_ln_bias' is at 1,000,000,000 to 1,000,000,080, the payload",
    ),
    "in the header": (change("token_emb", file_offset=0), "'token_emb' is at 0 to 880, the payload at 188 to"),
    "absurd offset": (change("token_emb", file_offset=2**80), "entry #1 lacks name, dtype, file_offset or size"),
    "negative": (change("token_emb", size=-1), "entry #1 lacks"),
    "a float": (change("token_emb", size=880.0), "entry #1 lacks"),
    "true": (change("token_emb", size=True), "entry #1 lacks"),
    "overlap": (
        change("layer.0.wk", file_offset=entry(D.manifest(), "layer.0.wq")["file_offset"] + 4),
        "inside 'layer.0.w",
    ),
    "size": (change("layer.1.bk", size=36), "layer.1.bk has 36 bytes, its shape and type make it 40"),
    "type": (change("layer.1.w2", dtype="q8_0"), "layer.1.w2 is 'q8_0', the file's dtype table says fp32"),
    "type that is not text": (change("layer.1.w2", dtype=3), "lacks name, dtype, file_offset or size"),
    "name that is no slot": (
        change("layer.1.w2", name="layer.1.w9\x1b[2J"),
        "weights_manifest.json has no entry layer.1.w2",
    ),
    "layer that is not there": (change("layer.1.w2", name="layer.2.w2"), "has no entry layer.1.w2"),
    "twice": (change("layer.1.bo", name="layer.0.bo"), "'layer.0.bo' is listed twice"),
    "extra": (
        lambda m: m["entries"].append({"name": "x", "dtype": "u8", "file_offset": D.end, "size": 0}),
        "'x' is not a slot of this layout",
    ),
    "a norm that the table has not": (change("layer.0.bo", name="layer.0.q_norm", size=40), "no entry layer.1.q_norm"),
    "no entries": (lambda m: m.pop("entries"), "has no list of entries"),
    "entries that are no list": (lambda m: m.update(entries={"a": 1}), "has no list of entries"),
    "an entry that is no object": (lambda m: m["entries"].insert(0, 7), "entry #1 lacks"),
}


@pytest.mark.parametrize("name", BAD_MANIFESTS)
def test_manifest_that_does_not_fit(name: str, tmp_path: Path, ckconv) -> None:
    broken, fragment = BAD_MANIFESTS[name]
    manifest = deepcopy(D.manifest())
    broken(manifest)
    path = D.write(tmp_path, manifest=manifest)
    result = ckconv("verify", path)
    assert result.code == 3
    assert f"error[bump.metadata]: {path}: " in result.err
    assert fragment in result.err
    assert "\x1b" not in result.err
    assert "move it away" in result.err


def test_manifest_that_is_no_json(tmp_path: Path, ckconv) -> None:
    path = D.write(tmp_path)
    (tmp_path / "weights_manifest.json").write_text('{"entries": [], "entries": []}')
    result = ckconv("inspect", path)
    assert (result.code, "error[bump.metadata]" in result.err) == (3, True)


def test_manifest_offsets_decide(tmp_path: Path) -> None:
    """Entries may be aligned in the file as long as the manifest says where they are."""
    manifest = deepcopy(D.manifest())
    payload, at = b"", D.start
    for item in manifest["entries"]:
        gap = -at % 64
        data = D.data[item["file_offset"] : item["file_offset"] + item["size"]]
        payload += bytes(gap) + data
        item["file_offset"] = at + gap
        at += gap + len(data)
    path = D.write(tmp_path, manifest=manifest, data=D.data[: D.start] + payload)
    index = open_bump(path)
    assert all(tensor.extents[0].offset % 64 == 0 for name, tensor in index.tensors.items() if "ffn.up" not in name)
    weights = {**D.weights}
    for n in range(2):  # built in split order, read as the pairs that a llama's file holds
        for x, heads in (("q", 2), ("k", 1)):
            key = f"layers.{n}.attention.{x}.weight"
            rows = weights[key].reshape(heads, -1, 2, 20)
            weights[key] = rows.swapaxes(1, 2).reshape(weights[key].shape)
    assert same(values(index), weights)


def test_aliases_and_absent_biases(tmp_path: Path) -> None:
    built = build("D", head=True, pairs=True)
    manifest = deepcopy(built.manifest())
    names = {"token_emb": "embed_tokens.weight", "output.weight": "lm_head.weight", "final_ln_weight": "norm.weight"}
    kept = [e for e in manifest["entries"] if not e["name"].rpartition(".")[2].startswith("b")]
    manifest["entries"] = [
        {
            "name": names.get(e["name"], e["name"]),
            "dtype": e["dtype"],
            "offset": e["file_offset"],
            "size_bytes": e["size"],
        }
        for e in kept
        if e["name"] != "final_ln_bias"
    ]
    index = open_bump(built.write(tmp_path, manifest=manifest))
    assert same(values(index), built.weights)
    assert not any(tensor.may_be_absent for tensor in index.tensors.values())


CONFIG = {"model": "qwen2", "num_layers": 2, "embed_dim": 20, "rms_eps": 1e-6, "rope_theta": 5000.0}


def test_metadata_alone_is_enough(tmp_path: Path) -> None:
    built = build("D", version=5, bias=True, metadata={"schema_version": 1, "config": CONFIG})
    index = open_bump(built.write(tmp_path))
    config = index.config
    assert config is not None
    assert (config.family, config.norm_eps, config.rope_theta) == ("qwen2", 1e-6, 5000.0)
    assert same(values(index), built.weights)
    assert [checksum.what for checksum in index.checksums] == ["payload", "metadata"]


@pytest.mark.parametrize(
    ("where", "layout"),
    [("metadata", "split"), ("manifest", "half"), ("config", "split"), ("template", None), ("config", "interleaved")],
)
def test_rope_layout_is_read_wherever_it_stands(where: str, layout: str | None, tmp_path: Path) -> None:
    said = {"rope_layout": layout}
    template = {"kernels": {"rope_qk": "rope_forward_qk_split"}}
    metadata = {"config": said} if where == "metadata" else {"template": template} if where == "template" else {}
    pairs = layout == "interleaved"
    built = build("D", version=5, pairs=pairs, metadata=metadata)
    path = built.write(
        tmp_path,
        manifest=built.manifest(config=said) if where == "manifest" else None,
        config={**said, "model_type": "llama"} if where == "config" else None,
    )
    index = open_bump(path)
    assert index.facts["rope_layout"] == ("interleaved" if pairs else "split")
    assert same(values(index), built.weights)


@pytest.mark.parametrize(
    ("config", "fragment"),
    [
        ({"num_hidden_layers": 3}, "num_hidden_layers is 3, the file's header says 2"),
        ({"num_key_value_heads": 2}, "num_key_value_heads is 2, the file's header says 1"),
        ({"head_dim": 12}, "head_dim is 12, the file's header says 10"),
        ({"intermediate_size": 29}, "intermediate_size is 29, the file's header says 28"),
        ({"rope_theta": 1.0}, "config.json: rope_theta is '1.0', the file's metadata says '5000.0'"),
        ({"rope_layout": "diagonal"}, "rope_layout is 'diagonal', split or pairwise expected"),
        ({"rope_layout": 7}, "rope_layout is '7'"),
        ({"vocab_size": "many"}, "vocab_size must be a whole number"),
    ],
)
def test_configuration_contradicts(config: dict[str, Any], fragment: str, tmp_path: Path, ckconv) -> None:
    built = build("D", version=5, bias=True, metadata={"config": CONFIG})
    result = ckconv("inspect", built.write(tmp_path, config=config))
    assert result.code == 3
    assert "error[model.config]" in result.err
    assert fragment in result.err


def test_architecture_without_rules(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="ckconv does not know the model_type 'gemma4_text_moe'"):
        open_bump(build("D").write(tmp_path, config={"model_type": "gemma4_text_moe"}))


def test_blocks_of_the_other_script_are_not_taken_for_ggmls(tmp_path: Path, ckconv) -> None:
    """Its Q4_K has the size of ggml's and another packing."""
    sizes = Sizes(layers=1, hidden=256, ffn=256, heads=2, kv=2, head=128, vocab=3)
    built = build("E", sizes=sizes)
    matrices = {"token_emb", "wq", "wk", "wv", "wo", "w1", "w2"}
    table = bytes([6, 0, 6, 6, 6, 6, 0, 6, 6, 0])
    payload = b"".join(
        bytes(e["size"] // 4 // 256 * 144)
        if e["name"].rpartition(".")[2] in matrices
        else built.data[e["file_offset"] : e["file_offset"] + e["size"]]
        for e in built.entries
    )
    body = u32(len(table)) + table + payload
    data = built.data[:0x50] + hashlib.sha256(body).digest() + bytes(16) + body
    path = built.write(tmp_path, data=data)
    index = open_bump(path)
    assert index.facts["layout"] == "4-E"
    assert len(index.unknown) == 8
    assert "not ggml's" in index.facts["note"]
    result = ckconv("convert", path, tmp_path / "out.bump", "--bump-version", 5)
    assert (result.code, "no slot for" in result.err) == (4, True)


def test_a_pipe_shows_the_header(tmp_path: Path) -> None:
    with (tmp_path / "f").open("wb") as file:
        file.write(D5.data)
    with (tmp_path / "f").open("rb") as file:
        index = open_bump(Path("-"), source=PipeSource(file))
    assert index.facts["header"].num_layers == 2
    assert not index.tensors


@settings(deadline=None)
@example(0x80, b"\x16")  # the length of a table whose codes belong to no slots
@given(st.integers(0, 0xC0), st.binary(min_size=1, max_size=4))
def test_no_header_makes_it_stumble(tmp_path_factory: pytest.TempPathFactory, at: int, junk: bytes) -> None:
    path = tmp_path_factory.mktemp("junk") / "m.bump"
    for built in (TALL, A, D5):
        path.write_bytes(put(built, at, junk))
        with contextlib.suppress(CkconvError):
            verify_index(open_bump(path))


HEADS = {"wq": 4, "wk": 2, "wv": 2}


@pytest.mark.parametrize("slot", ["wq", "wk", "wv", "w1", "output.weight", "q_norm"])
def test_swapped_parts_with_a_right_checksum_are_found(slot: str, tmp_path: Path, ckconv) -> None:
    source = Model(arch="qwen3", head_dim=16, qk_norm=True, head="own").write(tmp_path / "m.gguf")
    path = tmp_path / "m.bump"
    assert ckconv("convert", source, path, "--bump-version", 4, "--no-source-record").code == 0
    manifest = json.loads((tmp_path / "weights_manifest.json").read_text())
    name = slot if slot == "output.weight" else f"layer.1.{slot}"
    found = entry(manifest, name)
    start, half = found["file_offset"], found["size"] // HEADS.get(slot, 2)
    data = bytearray(path.read_bytes())
    data[start : start + 2 * half] = data[start + half : start + 2 * half] + data[start : start + half]
    data[0x58:0x78] = hashlib.sha256(data[0x98:]).digest()
    path.write_bytes(data)
    assert ckconv("verify", path).code == 0
    result = ckconv("verify", path, source)
    assert result.code == 5
    assert f"error[verify.tensor]: {path}: {name}" in result.err


@pytest.mark.parametrize("version", [4, 5])
def test_every_document_may_be_missing(version: int, tmp_path: Path, ckconv) -> None:
    model = Model(arch="gemma3", head_dim=16, qk_norm=True, post_norms=True, matrix=Q.Q8_0, head="own")
    source = model.write(tmp_path / "m.gguf")
    path = tmp_path / "m.bump"
    ckconv("convert", source, path, "--bump-version", version)
    for gone in ("weights_manifest.json", "config.json", None):
        assert ckconv("verify", path, source, "--weights").code == 0
        if gone:
            (tmp_path / gone).unlink()


def test_going_on_from_a_bump_file(tmp_path: Path, ckconv) -> None:
    """bump 5 -> bump 4 -> bump 5 gives the tensors of the first again."""
    source = Model(arch="qwen3", head_dim=16, qk_norm=True).write(tmp_path / "m.gguf")
    for number, (start, version) in enumerate(((source, 5), (None, 4), (None, 5))):
        folder = tmp_path / str(number)
        folder.mkdir()
        start = start or tmp_path / str(number - 1) / "m.bump"
        assert ckconv("convert", start, folder / "m.bump", "--bump-version", version).code == 0
        assert ckconv("verify", folder / "m.bump", source).code == 0


@pytest.mark.parametrize("version", [4, 5])
def test_flipped_bits_of_the_header_which_no_checksum_covers(version: int, tmp_path: Path, ckconv) -> None:
    tokens = tuple(f"t{n}" for n in range(96))
    source = Model(tokens=tokens, merges=("t 1", "t 2")).write(tmp_path / "m.gguf")
    path = tmp_path / "m.bump"
    assert ckconv("convert", source, path, "--bump-version", version).code == 0
    data = path.read_bytes()
    assert int.from_bytes(data[0x54:0x58], "little") == sum(len(token) + 1 for token in tokens)
    for manifest in (True, False):
        if not manifest:
            path.with_name("weights_manifest.json").unlink()
        assert ckconv("verify", path, source, "--weights").code == 0
        for byte in range(0x98):
            changed = bytearray(data)
            changed[byte] ^= 1 << (byte % 8)
            path.write_bytes(changed)
            result = ckconv("verify", path)
            assert result.code in (3, 5), (hex(byte), manifest)
        path.write_bytes(data)


@pytest.mark.parametrize("version", [4, 5])
def test_map_that_the_engine_would_follow_elsewhere(version: int, tmp_path: Path, ckconv) -> None:
    """The loader reads the map and nothing of the file but the bytes that it names."""
    source = Model(qkv_bias=True, tokens=tuple(f"t{n}" for n in range(96))).write(tmp_path / "m.gguf")
    path, beside = tmp_path / "m.bump", tmp_path / "weights_manifest.map"
    assert ckconv("convert", source, path, "--bump-version", version, "--map").code == 0
    result = ckconv("verify", path)
    assert result.code == 0
    assert ", weights_manifest.map fits\n" in result.out
    assert ckconv("verify", path, "--json").json["map"] is True

    lines = beside.read_text().splitlines()
    at = {line.split("|")[0]: number for number, line in enumerate(lines)}
    one, other = at["layer.0.wk"], at["layer.0.wv"]
    offsets = [lines[n].split("|")[2] for n in (one, other)]
    wrong = {
        "layer.0.wk is fp32": [*lines[:one], lines[one].replace(*offsets, 1), *lines[one + 1 :]],
        "layer.1.w1 is q8_0": [line.replace("w1|fp32", "w1|q8_0") if "layer.1" in line else line for line in lines],
        "token_emb is missing": [line for line in lines if "token_emb" not in line],
        "'layer.7.wq' is not in the file": [*lines, lines[one].replace("layer.0.wk", "layer.7.wq")],
        "'layer.0.wk' is listed twice": [*lines, lines[one]],
        "is not name|dtype|file_offset": [*lines, "layer.0.wk|fp32|many|1|2"],
    }
    for sentence, changed in wrong.items():
        assert changed != lines
        beside.write_text("\n".join(changed) + "\n")
        result = ckconv("verify", path)
        assert (result.code, result.out) == (5, ""), sentence
        assert f"error[verify.map]: {beside}: " in result.err
        assert sentence in result.err
    assert ckconv("inspect", path).code == 0, "nobody else follows it"


class Cut(FileSource):
    """A file that is cut to ``left`` bytes behind the back of its reader, once its header is read."""

    left = 0

    def read_at(self, offset: int, nbytes: int) -> bytes:
        return super().read_at(offset, nbytes) if offset < 200 else super().read_at(offset, nbytes)[: self.left]


@pytest.mark.parametrize("left", [0, 1, 47])
def test_a_file_that_is_cut_while_it_is_read(left: int, tmp_path: Path, ckconv) -> None:
    source = Model().write(tmp_path / "m.gguf")
    assert ckconv("convert", source, tmp_path / "m.bump", "--bump-version", 5).code == 0
    with Cut(tmp_path / "m.bump") as cut:
        cut.left = left
        with pytest.raises(OutputError, match="it has changed") as caught:
            open_bump(tmp_path / "m.bump", source=cut)
    assert caught.value.code == "input.changed"
