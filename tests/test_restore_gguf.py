"""A checkpoint out of the GGUF that was made of it, and of its tower's: byte for byte with the record beside it."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from checkpoints import Raw, save
from conftest import FIXTURES, Result
from family_cases import RECORDS, cases, checkpoint, stored_as
from gguf import GGUFReader
from products import shown
from safetensors import deserialize
from test_record import packed
from test_towers_back import WHOLE
from tower_cases import recordings, with_tokens

from ckconv import Options, convert
from ckconv.record import keep as keeping

Ckconv = Callable[..., Result]

RECORDED = recordings()

#: Family -> its first case that llama.cpp's converter makes a GGUF of.
FAMILIES = {
    path.stem: case
    for path in sorted(RECORDS.glob("*.json"))
    for case in [next((case for case in cases(path.stem) if case.recorded.get("converter")), None)]
    if case is not None and "base" not in case.options
}

#: What a repository has beside the weights that no GGUF holds.
BESIDE = {
    "README.md": "A card.\n",
    "chat_template.jinja": "{{ messages }}",
    "generation_config.json": '{"temperature":0.6,   "eos_token_id": 1}',
    "video_preprocessor_config.json": "{ }\n",
}


def dealt_out(root: Path, shards: int) -> Path:
    """A checkpoint stored again: backwards, with a header's own metadata, and in so many files."""
    stored = dict(deserialize((root / "model.safetensors").read_bytes()))
    tensors = {name: Raw(one["dtype"], tuple(one["shape"]), bytes(one["data"])) for name, one in stored.items()}
    (root / "model.safetensors").unlink()
    save(root, None, dict(reversed(tensors.items())), shards=shards, metadata={"format": "pt", "made": "by hand"})
    for name, text in BESIDE.items():
        (root / name).write_text(text)
    return root


def contents(root: Path, *, without: frozenset[str] = frozenset()) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in root.iterdir() if path.name not in without}


def halves(name: str, root: Path, ckconv: Ckconv, *, shards: int = 1) -> Path:
    """A checkpoint, and beside it its text model, its tower and the record."""
    source = dealt_out(with_tokens(RECORDED[name], root / "source"), shards)
    done = ckconv("convert", source, root / "text.gguf", "--mmproj", root / "mmproj.gguf", "--source-record")
    assert done.code == 0, done.err
    assert (root / "text.gguf.source.zip").exists()
    return source


def kinds_of_whole(row: tuple[str, int]) -> set[object]:
    """A tower, a text model, and the number of shards."""
    config = RECORDED[row[0]]["config"]
    return {row[1], ("whole", config["model_type"]), ("text", config.get("text_config", {}).get("model_type"))}


SEEING = product([*WHOLE, "internvl_chat-bf16", "ultravox-f16", "ultravox-bf16"], [3, 1])


@pytest.mark.usefixtures("unrefused")
@pytest.mark.parametrize("row", shown(SEEING, kinds_of_whole, lambda row: f"{row[0]}-{row[1]}"))
def test_a_model_that_sees_comes_back_out_of_its_two_files(
    row: tuple[str, int], ckconv: Ckconv, tmp_path: Path
) -> None:
    name, shards = row
    source = halves(name, tmp_path, ckconv, shards=shards)

    done = ckconv("convert", tmp_path / "text.gguf", tmp_path / "mmproj.gguf", f"{tmp_path}/back/")

    assert "made again from text.gguf.source.zip, byte for byte: source" in done.out, done.err
    assert contents(tmp_path / "back") == contents(source)
    checked = ckconv("verify", tmp_path / "back", tmp_path / "text.gguf", tmp_path / "mmproj.gguf")
    assert checked.code == 0, checked.err


@pytest.mark.parametrize("name", ["gemma3-f16", "qwen3_vl-bf16"])
def test_the_weights_are_not_in_the_record(name: str, ckconv: Ckconv, tmp_path: Path) -> None:
    source = halves(name, tmp_path, ckconv)

    whole = (source / "model.safetensors").stat().st_size
    with zipfile.ZipFile(tmp_path / "text.gguf.source.zip") as archive:
        kept = sum(item.file_size for item in archive.infolist() if item.filename.startswith("parts/"))
        document = json.loads(archive.read("record.json"))
    header = int.from_bytes((source / "model.safetensors").read_bytes()[:8], "little") + 8
    kernel = [tensor for called, tensor in RECORDED[name]["tensors"].items() if "patch_embed.proj.weight" in called]
    apart = sum(2 * shape[0] * shape[1] * shape[2] * shape[3] * shape[4] for _, shape in kernel)
    assert (kept, document["schema"]) == (header + apart, 3)
    assert kept < whole / 2


TEXTS = [
    ("hf/qwen2-tied-bf16", "safetensors", []),
    ("hf/llama-untied-f16-sharded", "safetensors", ["--max-shard-size", "50KB"]),
    ("hf/phi3-bf16", "safetensors", []),
    ("mlx/llama-tied-bf16.q4g64", "mlx", []),
    ("zoo/olmo2", "safetensors", []),
]


@pytest.mark.parametrize(("source", "to", "flags"), TEXTS)
def test_a_text_model_comes_back(source: str, to: str, flags: list[str], ckconv: Ckconv, tmp_path: Path) -> None:
    made = ckconv("convert", FIXTURES / source, f"{tmp_path}/made/", "--to", "gguf", "--source-record", *flags)
    assert made.code == 0, made.err

    done = ckconv("convert", tmp_path / "made", f"{tmp_path}/back/")  # the record says to what

    assert "byte for byte" in done.out, done.err
    foreign = frozenset({"mlx_logits.json", "ref_logits.json"})
    assert contents(tmp_path / "back") == contents(FIXTURES / source, without=foreign)
    assert ckconv("verify", tmp_path / "back", tmp_path / "made").code == 0
    assert f"({to})" in ckconv("verify", tmp_path / "made").out


@pytest.mark.parametrize(
    ("file", "tensor"), [("text.gguf", "token_embd.weight"), ("mmproj.gguf", "v.blk.0.attn_q.weight")]
)
def test_a_file_that_has_changed_is_not_passed_off_as_the_source(
    file: str, tensor: str, ckconv: Ckconv, tmp_path: Path
) -> None:
    halves("gemma3-f16", tmp_path, ckconv)
    data = bytearray((tmp_path / file).read_bytes())
    data[next(one.data_offset for one in GGUFReader(tmp_path / file).tensors if one.name == tensor)] ^= 1
    (tmp_path / file).write_bytes(data)

    done = ckconv("convert", tmp_path / "text.gguf", tmp_path / "mmproj.gguf", f"{tmp_path}/back/")

    assert (done.code, "error[record.foreign]" in done.err) == (5, True), done.err
    assert "model.safetensors would not be the file that was converted" in done.err
    assert not (tmp_path / "back").exists()
    flags = ["--no-source-record"]
    assert ckconv("convert", tmp_path / "text.gguf", tmp_path / "mmproj.gguf", f"{tmp_path}/back/", *flags).code == 0


def test_the_text_model_alone_is_no_whole(ckconv: Ckconv, tmp_path: Path) -> None:
    halves("gemma3-f16", tmp_path, ckconv)

    done = ckconv("convert", tmp_path / "text.gguf", f"{tmp_path}/back/", "--to", "hf")

    assert "it is of a text model and its tower; name the tower's file, too" in done.out, done.err
    assert json.loads((tmp_path / "back" / "config.json").read_text())["model_type"] == "gemma3_text"


def test_a_record_of_a_text_model_says_nothing_of_a_tower(ckconv: Ckconv, tmp_path: Path) -> None:
    halves("gemma3-f16", tmp_path, ckconv)
    text = ["convert", tmp_path / "text.gguf", f"{tmp_path}/text/", "--to", "hf"]
    assert ckconv(*text).code == 0
    again = ["convert", tmp_path / "text", tmp_path / "text.gguf", "--source-record", "--force"]
    assert ckconv(*again).code == 0

    done = ckconv("convert", tmp_path / "text.gguf", tmp_path / "mmproj.gguf", f"{tmp_path}/back/")

    assert "its source is the text model alone" in done.out, done.err


def test_other_options_ask_for_another_file(ckconv: Ckconv, tmp_path: Path) -> None:
    halves("gemma3-f16", tmp_path, ckconv)

    flags = ["--dtype", "f32"]
    done = ckconv("convert", tmp_path / "text.gguf", tmp_path / "mmproj.gguf", f"{tmp_path}/back/", *flags)

    assert "--dtype asks for another file than the source was" in done.out, done.err


def kinds_of_family(family: str) -> set[object]:
    """Types of a checkpoint and of its GGUF, how many axes a tensor has, and how its family stores values and rows."""
    case = FAMILIES[family]
    stored = {(dtype, len(shape)) for dtype, shape, *_ in case.recorded["tensors"].values()}
    made = {(kind, len(shape)) for kind, shape, *_ in case.recorded["converter"]["tensors"].values()}
    return {*stored, *made, *stored_as(family)}


@pytest.mark.parametrize("family", shown(FAMILIES, kinds_of_family))
def test_every_family_comes_back(family: str, tmp_path: Path) -> None:
    case = FAMILIES[family]
    source = checkpoint(case.recorded, tmp_path / "source", case.tokenizer)

    options = Options(**case.options)  # a tower that is left out, products that are rounded
    convert(source, tmp_path / "made.gguf", options=replace(options, source_record="always"))
    convert(tmp_path / "made.gguf", f"{tmp_path}/back/")

    assert contents(tmp_path / "back") == contents(source)


def test_a_drafter_has_no_record(tmp_path: Path) -> None:
    """Its checkpoint cannot be read without the directory of its model."""
    case = next(case for case in cases("dflash") if case.recorded.get("converter"))
    source = checkpoint(case.recorded, tmp_path / "source", case.tokenizer)

    config = {**case.recorded["config"], "num_hidden_layers": case.recorded["config"]["num_target_layers"]}
    base = checkpoint({**case.recorded, "config": config}, tmp_path / "base", case.tokenizer)
    report = convert(source, tmp_path / "made.gguf", options=Options(source_record="always", base=base))

    assert not (tmp_path / "made.gguf.source.zip").exists()
    assert "no source record: a drafter's would need the configuration" in " ".join(report.plan.notes)


def test_a_batch_finds_what_is_there(ckconv: Ckconv, tmp_path: Path) -> None:
    words = ["batch", FIXTURES / "hf/qwen2-tied-bf16", "--to", "gguf", "--into", tmp_path / "out", "--source-record"]

    statuses = [json.loads(ckconv(*words).out.splitlines()[0])["status"] for _ in range(2)]

    assert statuses == ["converted", "there"]
    (tmp_path / "out/qwen2-tied-bf16/model.gguf.source.zip").unlink()
    assert ckconv(*words).code == 6


def test_what_does_not_fit_is_said(ckconv: Ckconv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "MAX_ARCHIVE", 1000)

    done = ckconv("convert", FIXTURES / "hf/qwen2-tied-bf16", tmp_path / "m.gguf", "--source-record")

    assert "of the source would not come back out of the gguf, and a record keeps 1,000\n" in done.out, done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf"]


REFUSED = [
    (["m/", "--to", "mlx", "--source-record"], "--source-record is for gguf and bump, and the output is mlx"),
    (["-", "--to", "bump", "--source-record"], "stdout has none"),
    (["m.gguf", "--source-record", "--no-source-record"], "exclude each other"),
    (["-", "--to", "gguf", "--source-record"], "stdout has none"),
]


@pytest.mark.parametrize(("words", "why"), REFUSED)
def test_a_flag_without_a_say_is_refused(words: list[str], why: str, ckconv: Ckconv, tmp_path: Path) -> None:
    target, *flags = words
    place = target if target == "-" else tmp_path / target

    done = ckconv("convert", FIXTURES / "hf/qwen2-tied-bf16", place, *flags)

    assert (done.code, why in done.err) == (2, True), done.err


def test_a_gguf_has_no_record_of_a_gguf(ckconv: Ckconv, tmp_path: Path) -> None:
    done = ckconv("convert", FIXTURES / "gguf/llama-bias-f32.f32.gguf", tmp_path / "m.gguf", "--source-record")
    assert "beside a gguf it is of a checkpoint, and this source is a gguf" in done.out, done.err


def test_both_records_lie_side_by_side(ckconv: Ckconv, tmp_path: Path) -> None:
    source = FIXTURES / "hf/qwen2-tied-bf16"
    assert ckconv("convert", source, tmp_path / "m.gguf", "--source-record", "--record").code == 0

    listed = json.loads((tmp_path / "m.gguf.ckconv.json").read_text())["outputs"]
    assert [file["name"] for file in listed] == ["m.gguf", "m.gguf.source.zip"]
    assert ckconv("verify", tmp_path / "m.gguf", source, "--rebuild").code == 0


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda d: d["files"][0].pop("sha256"), "record.json"),
        (lambda d: d.update(schema=4), "record.json"),
        (lambda d: d.update(schema=1, bump={"payload_sha256": "0" * 64, "rope_layout": "", "family": ""}), "foreign"),
    ],
)
def test_a_record_that_is_none_is_refused(
    change: Callable[[dict[str, object]], None], code: str, ckconv: Ckconv, tmp_path: Path
) -> None:
    assert ckconv("convert", FIXTURES / "hf/qwen2-tied-bf16", tmp_path / "m.gguf", "--source-record").code == 0
    record = tmp_path / "m.gguf.source.zip"
    with zipfile.ZipFile(record) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    document = json.loads(members["record.json"])
    change(document)
    record.write_bytes(packed({**members, "record.json": json.dumps(document).encode()}))

    for words in (["convert", tmp_path / "m.gguf", f"{tmp_path}/back/", "--to", "hf"], ["verify", tmp_path / "m.gguf"]):
        done = ckconv(*words)
        assert (done.code in (3, 5), code in done.err) == (True, True), done.err
    assert not (tmp_path / "back").exists()


def test_a_record_beside_another_model_is_not_used_unseen(ckconv: Ckconv, tmp_path: Path) -> None:
    assert ckconv("convert", FIXTURES / "hf/qwen2-tied-bf16", tmp_path / "m.gguf", "--source-record").code == 0
    shutil.copy(tmp_path / "m.gguf.source.zip", tmp_path / "other.gguf.source.zip")
    done = ckconv("convert", FIXTURES / "hf/phi3-bf16", tmp_path / "other.gguf")
    assert "other.gguf.source.zip is already there and is not part of this output" in done.out

    done = ckconv("convert", tmp_path / "other.gguf", f"{tmp_path}/back/", "--to", "hf")

    assert (done.code, "--no-source-record" in done.err) == (3, True), done.err
