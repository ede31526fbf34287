"""``verify OUT SRC`` is right about every output of every conversion, and notices whatever is changed in one."""

from __future__ import annotations

import hashlib
import json
import random
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import FIXTURES

sys.path.insert(0, str(FIXTURES.parent / "scripts"))
import bitflips

from ckconv.core import __version__
from ckconv.record.conversion import sealed

LLAMA = FIXTURES / "gguf/llama-tied-bf16.auto.gguf"
QWEN2 = FIXTURES / "hf/qwen2-tied-bf16"


@pytest.mark.product("values")
@pytest.mark.parametrize("target", ["m.gguf", "hf/", "mlx/"])
@pytest.mark.parametrize("version", ["3", "4", "5"])
def test_a_way_back_out_of_a_bump_file_is_what_the_bump_file_makes(
    version: str, target: str, tmp_path: Path, ckconv
) -> None:
    to = ("--to", target.strip("/").replace("hf", "safetensors")) if target.endswith("/") else ()
    for source in (LLAMA, QWEN2):
        folder = tmp_path / source.name
        (folder / "bump").mkdir(parents=True)
        bump = folder / "bump" / "m.bump"
        assert ckconv("convert", source, bump, "--bump-version", version, "-q").code == 0
        for more in ((), ("--no-source-record",)):
            out = folder / f"back{len(more)}" / target
            out.parent.mkdir()
            assert ckconv("convert", bump, f"{out}/" if to else out, *to, *more, "-q").code == 0
            result = ckconv("verify", out, bump)
            assert result.code == 0, (source.name, more, result.err)


#: Options that change what the output says: they have to be asked for again.
ASKED = [
    ("m.gguf", ("--set-meta", "tokenizer.chat_template=EVIL"), "tokenizer.chat_template"),
    ("m.gguf", ("--set-meta", "tokenizer.ggml.eos_token_id=7"), "tokenizer.ggml.eos_token_id"),
    ("m.gguf", ("--drop-meta", "tokenizer.ggml.bos_token_id"), "tokenizer.ggml.bos_token_id is missing"),
    ("m.gguf", ("--context", "32"), "llama.context_length"),
    ("m.bump", ("--context", "32"), "context"),
    ("hf/", ("--context", "32"), "max_position_embeddings"),
    ("mlx/", ("--context", "32"), "max_position_embeddings"),
]


@pytest.mark.parametrize(("target", "options", "named"), ASKED, ids=lambda value: "".join(value)[:40])
def test_what_was_asked_for_is_asked_for_again_or_recorded(
    target: str, options: tuple[str, ...], named: str, tmp_path: Path, ckconv
) -> None:
    to = ("--to", target.strip("/").replace("hf", "safetensors")) if target.endswith("/") else ()
    to += ("--no-source-record",) if target.endswith(".bump") else ()  # which says it, too
    out = tmp_path / target
    assert (
        ckconv("convert", LLAMA, f"{out}/" if target.endswith("/") else out, *to, *options, "--record", "-q").code == 0
    )
    record = out / "ckconv.json" if target.endswith("/") else tmp_path / f"{target}.ckconv.json"
    assert record.exists()
    assert ckconv("verify", out, LLAMA).code == 0
    record.unlink()
    assert ckconv("verify", out, LLAMA, *options).code == 0
    assert ckconv("verify", out, LLAMA, "--weights").code == 0
    result = ckconv("verify", out, LLAMA)
    assert (result.code, result.out) == (5, "")
    assert named in result.err
    assert "repeat the options of the conversion" in result.err


def test_a_bump_files_conversion_record_is_in_its_source_record(tmp_path: Path, ckconv) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        out = tmp_path / place / "m.bump"
        options = ("--dtype", "f32", "--context", "16", "--record", "--checksums", "-q")
        assert ckconv("convert", QWEN2, out, *options).code == 0
    archive = tmp_path / "a" / "m.bump.source.zip"
    assert archive.read_bytes() == (tmp_path / "b" / "m.bump.source.zip").read_bytes()
    names = {path.name for path in (tmp_path / "a").iterdir()}
    assert names == {"m.bump", "m.bump.source.zip", "m.bump.sha256", "config.json"}
    with zipfile.ZipFile(archive) as members:
        document = json.loads(members.read("ckconv.json"))
        source = json.loads(members.read("record.json"))
    assert document["options"] == {"dtype": "f32", "context": 16}
    assert (source["schema"], "options" in source) == (2, False)
    sums = {item["name"]: item["sha256"] for item in document["outputs"]}
    files = {name: (tmp_path / "a" / name).read_bytes() for name in ("m.bump", "config.json")}
    assert sums == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}

    result = ckconv("verify", tmp_path / "a" / "m.bump", QWEN2, "--json")
    assert (result.code, json.loads(result.out)["conversion_record"]) == (0, str(archive))
    assert ckconv("convert", tmp_path / "a" / "m.bump", tmp_path / "back/", "--to", "safetensors", "-q").code == 0
    for path in QWEN2.iterdir():
        assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes()


def test_without_a_source_record_the_conversion_record_of_a_bump_lies_beside_it(tmp_path: Path, ckconv) -> None:
    """As versions before it was in the source record wrote it."""
    out, record = tmp_path / "m.bump", tmp_path / "m.bump.ckconv.json"
    assert ckconv("convert", QWEN2, out, "--context", "16", "--record", "--no-source-record", "-q").code == 0
    assert record.exists()
    assert ckconv("verify", out, QWEN2).code == 0
    assert ckconv("convert", QWEN2, tmp_path / "again.bump", "--context", "16", "-q").code == 0
    (tmp_path / "again.bump").replace(out)
    (tmp_path / "again.bump.source.zip").replace(tmp_path / "m.bump.source.zip")
    assert ckconv("verify", out, QWEN2).code == 0
    assert ckconv("verify", out, QWEN2).code == 0
    record.write_bytes(record.read_bytes().replace(b'"context": 16', b'"context": 17'))
    assert ckconv("verify", out, QWEN2).code == 3


@pytest.mark.parametrize(("target", "name"), [("m.bump", "m.bump.ckconv.json"), ("m.gguf", "m.gguf.sha256")])
def test_a_list_of_an_earlier_output_is_noted_and_noticed(target: str, name: str, tmp_path: Path, ckconv) -> None:
    out = tmp_path / target
    options = ("--record", "--checksums", "--no-source-record")
    assert ckconv("convert", LLAMA, out, *options, "-q").code == 0
    result = ckconv("convert", LLAMA, out, "--context", "32", "--force", "--record")
    assert result.code == 0
    assert f"{name} is already there and is not part of this output: remove it" in result.out
    assert ckconv("verify", out, LLAMA).code == 5
    for path in (tmp_path / name, tmp_path / f"{target}.sha256"):
        path.unlink(missing_ok=True)
    assert ckconv("verify", out, LLAMA).code == 0


def test_a_bump_of_a_bump_keeps_what_was_asked_for(tmp_path: Path, ckconv) -> None:
    first, second, third = (tmp_path / name / "m.bump" for name in "abc")
    for path in (first, second, third):
        path.parent.mkdir()
    assert ckconv("convert", QWEN2, first, "--context", "16", "--record", "-q").code == 0
    assert ckconv("convert", first, second, "--bump-version", "5", "--dtype", "f32", "-q").code == 0
    assert ckconv("convert", first, third, "--bump-version", "5", "--context", "8", "-q").code == 0
    with zipfile.ZipFile(f"{second}.source.zip") as members:
        assert "ckconv.json" not in members.namelist()
        assert json.loads(members.read("record.json"))["options"] == {"dtype": "f32", "context": 16}
    for out, source in ((second, first), (third, first)):
        assert ckconv("verify", out, source).code == 0


def test_a_conversion_record_that_a_source_record_does_not_announce_is_refused(tmp_path: Path, ckconv) -> None:
    out, archive = tmp_path / "m.bump", tmp_path / "m.bump.source.zip"
    assert ckconv("convert", QWEN2, out, "--record", "-q").code == 0
    with zipfile.ZipFile(archive) as members:
        held = {name: members.read(name) for name in members.namelist()}
    for change, code in (
        ({"ckconv.json": held["ckconv.json"].replace(b'"schema": 1', b'"schema": 3')}, "record.conversion"),
        ({"ckconv.json": held["ckconv.json"].replace(b'"bytes": ', b'"bytes": 1')}, "record.conversion"),
        ({"record.json": held["record.json"].replace(b'"schema": 2', b'"schema": 1, "options": {}')}, "record.content"),
        ({"ckconv.json": None}, "record.content"),
    ):
        with zipfile.ZipFile(archive, "w") as members:
            for name, data in sorted({**held, **change}.items()):
                if data is not None:
                    members.writestr(_member(name), data)
        result = ckconv("verify", out, QWEN2)
        assert (result.code in (3, 5), code in result.err) == (True, True), (change.keys(), result.err)


def _member(name: str) -> zipfile.ZipInfo:
    """As ckconv writes it."""
    info = zipfile.ZipInfo(name)
    info.external_attr, info.create_version, info.extract_version = 0o100644 << 16, 10, 10
    return info


def test_the_source_record_of_a_bump_says_what_was_asked_for(tmp_path: Path, ckconv) -> None:
    out = tmp_path / "m.bump"
    assert ckconv("convert", QWEN2, out, "--context", "16", "--drop", "*.q.bias", "-q").code == 0

    assert ckconv("verify", out, QWEN2).code == 0
    assert ckconv("verify", out, QWEN2, "--context", "32").code == 5, "what is given counts"
    (tmp_path / "m.bump.source.zip").unlink()
    assert ckconv("verify", out, QWEN2).code == 5


def test_a_conversion_record_says_what_was_done_and_nothing_of_where(tmp_path: Path, ckconv) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        out = tmp_path / place / "m.gguf"
        assert ckconv("convert", QWEN2, out, "--dtype", "f32", "--context", "16", "--record", "-q").code == 0
    raw = (tmp_path / "a" / "m.gguf.ckconv.json").read_bytes()
    assert raw == (tmp_path / "b" / "m.gguf.ckconv.json").read_bytes()
    document = json.loads(raw)
    assert document["schema"] == 1
    assert document["options"] == {"dtype": "f32", "context": 16}
    assert (document["format"], document["adapters"], document["template"]) == ("gguf", [], None)
    sums = {item["name"]: item["sha256"] for item in document["sources"]}
    assert sums == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in QWEN2.iterdir()}
    sums = {item["name"]: item["sha256"] for item in document["outputs"]}
    others = {path.name: path for path in (tmp_path / "a").iterdir() if not path.name.endswith(".ckconv.json")}
    assert sums == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in others.items()}


def test_a_record_or_a_source_that_was_changed_is_noticed(tmp_path: Path, ckconv) -> None:
    source, out = tmp_path / "source.gguf", tmp_path / "m.gguf"
    source.write_bytes(LLAMA.read_bytes())
    assert ckconv("convert", source, out, "--record", "-q").code == 0
    record = tmp_path / "m.gguf.ckconv.json"
    text = record.read_text()
    for before, after in (('"dtype"', '"dtypf"'), ('"schema": 1', '"schema": 3'), ("{", "z"), ('"0.', '"1.')):
        if before in text:
            record.write_text(text.replace(before, after, 1))
            assert ckconv("verify", out).code == 3, before
    record.write_text(text)
    assert ckconv("verify", out, source).code == 0
    data = bytearray(source.read_bytes())
    data[-1] ^= 1
    source.write_bytes(data)
    result = ckconv("verify", out, source)
    assert result.code == 5
    assert "source.gguf is not the file that was converted" in result.err


HOSTILE = [
    {"options": {"set_meta": ["a"]}}, {"options": {"set_meta": [["a", "b", "c"]]}}, {"options": {"set_meta": {"a": 1}}},
    {"options": {"drop": "abc"}}, {"options": {"dequantize": "yes"}}, {"options": {"created": "x"}},
    {"options": {"created": 10**30}}, {"options": {"no": 1}},
    {"options": []}, {"options": {"file_name": "x"}}, {"template": 1}, {"adapters": [{"name": 1}]}, {"adapters": [1]},
    {"outputs": [{"name": 1, "sha256": "0"}]}, {"outputs": {}}, {"outputs": None}, {"sources": [[]]}, {"schema": True},
]  # fmt: skip


@pytest.mark.parametrize("change", HOSTILE, ids=lambda change: json.dumps(change)[:40])
def test_a_record_that_says_what_none_says_is_refused(change: dict[str, object], tmp_path: Path, ckconv) -> None:
    out, record = tmp_path / "m.gguf", tmp_path / "m.gguf.ckconv.json"
    out.write_bytes(LLAMA.read_bytes())
    document = {
        "schema": 1,
        "ckconv": __version__,
        "options": {},
        "template": None,
        "adapters": [],
        "sources": [],
        "outputs": [],
    }
    document["outputs"] = [{"name": "m.gguf", "sha256": hashlib.sha256(LLAMA.read_bytes()).hexdigest()}]
    record.write_bytes(sealed(document))
    assert ckconv("verify", out, LLAMA).code == 0
    record.write_bytes(sealed({**document, **change}))
    result = ckconv("verify", out, LLAMA)
    assert (result.code, "[record.conversion]" in result.err) == (3, True), result.err


def test_merged_adapters_are_named_again(tmp_path: Path, ckconv) -> None:
    base, lora = FIXTURES / "hf/qwen2-tied-bf16", FIXTURES / "lora/qwen2-r4-all"
    out = tmp_path / "m.gguf"
    assert ckconv("convert", base, out, "--adapter", f"{lora}=0.5", "--record", "-q").code == 0
    assert ckconv("verify", out, base, "--adapter", f"{lora}=0.5").code == 0
    assert ckconv("verify", out, base, "--adapter", f"{lora}=0.25").code == 5
    result = ckconv("verify", out, base)
    assert result.code == 2
    assert "--adapter qwen2-r4-all" in result.err


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_side_files_are_compared_and_parsed(name: str, tmp_path: Path, ckconv) -> None:
    out = tmp_path / "out"
    assert ckconv("convert", QWEN2, f"{out}/", "--to", "safetensors", "-q").code == 0
    path = out / name
    whole = path.read_bytes()
    path.write_bytes(b"z" + whole[1:])
    assert ckconv("verify", out).code == 3
    assert ckconv("verify", out, QWEN2).code in (3, 5)
    document = json.loads(whole)
    path.write_text(json.dumps({**document, "something": 1}, indent=2))
    result = ckconv("verify", out, QWEN2)
    assert result.code == 5
    assert f"{name}: 'something' is 1; expected none" in result.err
    path.write_text(json.dumps(document))  # the same in one line
    assert ckconv("verify", out, QWEN2).code == 0
    path.unlink()
    assert ckconv("verify", out, QWEN2).code in (3, 5)


# ---- checksums beside a model


def test_checksums_that_lie_beside_a_model_are_read(tmp_path: Path, ckconv) -> None:
    out = tmp_path / "m.gguf"
    out.write_bytes(LLAMA.read_bytes())
    digest = hashlib.sha256(out.read_bytes()).hexdigest()
    wrong = digest[:-1] + ("0" if digest[-1] != "0" else "1")
    for name in ("m.gguf.sha256", "SHA256SUMS"):
        path = tmp_path / name
        for line in ("{}  m.gguf\n", "{} *m.gguf\r\n", "SHA256 (m.gguf) = {}\n"):
            path.write_text(line.format(digest))
            result = ckconv("verify", out)
            assert result.code == 0
            assert f"every file is as {name} lists it" in result.out
            path.write_text(line.format(wrong))
            result = ckconv("verify", out)
            assert result.code == 5
            assert f"the SHA-256 of m.gguf is {digest}, {wrong} is listed" in result.err
        path.write_text("no checksum\n")
        assert ckconv("verify", out).code == 3
        path.unlink()
    (tmp_path / "m.gguf.sha256").write_text(wrong)
    assert ckconv("verify", out).code == 5
    (tmp_path / "m.gguf.sha256").unlink()
    (tmp_path / "SHA256SUMS").write_text(f"{wrong}  another.gguf\n")
    result = ckconv("verify", out)
    assert (result.code, "another.gguf is listed and missing" in result.err) == (5, True)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--to", "bump"], "weights.bump"),
        (["--to", "gguf", "--record"], "model.gguf"),
        (["--to", "gguf", "--source-record"], "model.gguf"),
        (["--to", "mlx", "--record"], "model.safetensors"),
    ],
)
def test_a_directory_lacks_the_file_that_a_record_in_it_is_of(
    flags: list[str], name: str, tmp_path: Path, ckconv
) -> None:
    out = tmp_path / "out"
    assert ckconv("convert", QWEN2, f"{out}/", *flags, "-q").code == 0
    assert ckconv("verify", out).code == 0
    other = (out / name).rename(out / f"other-{name}")
    result = ckconv("verify", out)
    assert (result.code, f"{name} is listed and missing" in result.err) == (5, True), result.err
    assert ckconv("verify", other).code == 0, "a file that is named is another model"


def test_checksums_of_a_directory_cover_every_file(tmp_path: Path, ckconv) -> None:
    out = tmp_path / "out"
    assert ckconv("convert", QWEN2, f"{out}/", "--to", "mlx", "--checksums", "-q").code == 0
    assert ckconv("verify", out, "--json").json["checksums"] == str(out / "SHA256SUMS")
    for path in sorted(out.iterdir()):
        if path.name == "SHA256SUMS":
            continue
        whole = path.read_bytes()
        path.write_bytes(whole + b"\n")
        assert ckconv("verify", out).code in (3, 5), path.name
        path.write_bytes(whole)
    (out / "README.md").write_text("mine")
    assert ckconv("verify", out).code == 0
    (out / "special_tokens_map.json").unlink()
    result = ckconv("verify", out)
    assert result.code == 5
    assert "special_tokens_map.json is listed and missing" in result.err


# ---- every bit


def test_a_flipped_bit_is_found_wherever_it_is(tmp_path: Path) -> None:
    """A sample; ``scripts/bitflips.py`` takes as many as one likes."""
    made = list(bitflips.outputs(tmp_path))
    for output, path, byte, bit in bitflips.flips(made, 40, random.Random(11)):
        status, said = bitflips.flipped(output, path, byte, bit)
        assert status in (3, 5), (output.options, path.name, byte, bit, said)


def test_each_of_two_bump_files_in_a_directory_has_documents_of_its_own(tmp_path: Path, ckconv) -> None:
    sources = {name: FIXTURES / f"gguf/{name}.auto.gguf" for name in ("llama-tied-bf16", "qwen2-tied-bf16")}
    for name, source in sources.items():
        assert ckconv("convert", source, tmp_path / f"{name}.bump", "--checksums", "--record", "-q").code == 0
    for name, source in sources.items():
        result = ckconv("verify", tmp_path / f"{name}.bump", source)
        assert result.code == 0, result.err


@pytest.mark.parametrize(("options", "opened"), [(("--to", "gguf"), "*.gguf"), (("--to", "bump"), "weights.bump")])
def test_checksums_of_records_count_for_the_file_that_they_are_about(
    options: tuple[str, ...], opened: str, tmp_path: Path, ckconv
) -> None:
    out = tmp_path / "out"
    assert ckconv("convert", LLAMA, f"{out}/", *options, "--record", "--checksums", "-q").code == 0
    model, sums = next(out.glob(opened)), out / "SHA256SUMS"
    right = sums.read_text()
    for line in right.splitlines():
        wrong = ("0" if line[0] != "0" else "1") + line[1:]
        sums.write_text(right.replace(line, wrong))
        result = ckconv("verify", model, LLAMA)
        assert (result.code, "[verify.checksum]" in result.err) == (5, True), line
    sums.write_text(right)
    assert ckconv("verify", model, LLAMA).code == 0
