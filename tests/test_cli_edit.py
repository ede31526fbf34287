"""``ckconv edit``: other metadata, the same tensors, and no byte of the old file touched."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import gguf
import pytest
from conftest import FIXTURES
from safetensors import safe_open

LLAMA = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"
QWEN2 = FIXTURES / "hf" / "qwen2-tied-bf16"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copy(LLAMA, tmp_path / "model.gguf"))


def value(path: Path, key: str) -> object:
    field = gguf.GGUFReader(path).fields.get(key)
    return field and field.contents()


def tensors(path: Path) -> dict[str, bytes]:
    return {tensor.name: tensor.data.tobytes() for tensor in gguf.GGUFReader(path).tensors}


def test_a_new_file_has_the_other_header(model: Path, ckconv) -> None:
    before = model.read_bytes()
    found = ckconv(
        "edit", model, model.with_name("new.gguf"), "--set-meta", "general.license=mit", "--drop-meta", "general.name"
    )

    assert found.code == 0, found.err
    new = model.with_name("new.gguf")
    assert (value(new, "general.license"), value(new, "general.name")) == ("mit", None)
    assert tensors(new) == tensors(model)
    assert model.read_bytes() == before


def test_in_place_a_new_file_takes_the_name(model: Path, ckconv) -> None:
    held, old = tensors(model), model.stat().st_ino
    before = model.read_bytes()
    with model.open("rb") as reader:
        assert ckconv("edit", model, "--in-place", "--set-meta", "general.license=mit").code == 0
        assert reader.read() == before, "whoever reads the old file goes on reading it"

    assert model.stat().st_ino != old
    assert value(model, "general.license") == "mit"
    assert tensors(model) == held
    assert [path.name for path in model.parent.iterdir()] == [model.name]


def test_in_place_a_name_that_says_another_format_stays(model: Path, ckconv) -> None:
    misnamed = model.rename(model.with_name("model.bump"))
    assert ckconv("edit", misnamed, "--in-place", "--set-meta", "general.license=mit").code == 0
    assert value(misnamed, "general.license") == "mit"


def test_the_digest_beside_it_is_written_anew(model: Path, ckconv) -> None:
    listed = model.with_name("model.gguf.sha256")
    subprocess.run(f"sha256sum {model.name} > {listed.name}", shell=True, check=True, cwd=model.parent)
    before = listed.read_text()

    assert ckconv("edit", model, "--in-place", "--set-meta", "general.license=mit").code == 0

    assert listed.read_text() != before
    assert subprocess.run(["sha256sum", "-c", listed.name], cwd=model.parent, check=False).returncode == 0


@pytest.mark.parametrize("name", ["SHA256SUMS", "ckconv.json", "model.gguf.ckconv.json"])
def test_what_speaks_of_its_bytes_is_not_made_a_lie(name: str, model: Path, ckconv) -> None:
    model.with_name(name).write_text(f"{'0' * 64}  {model.name}\n")
    before = model.read_bytes()

    found = ckconv("edit", model, "--in-place", "--set-meta", "general.license=mit")

    assert (found.code, found.out) == (2, "")
    may = "may describe" if name == "ckconv.json" else "describes"  # it is malformed
    assert f"error[usage.in-place]: {model}: {name} beside it {may} its present bytes" in found.err
    assert model.read_bytes() == before


def test_the_value_may_be_a_file(model: Path, ckconv) -> None:
    template = model.with_name("t.jinja")
    template.write_text("{% for m in messages %}\n{{ m }}\n{% endfor %}")
    assert ckconv("edit", model, "--in-place", "--set-meta", f"tokenizer.chat_template=@{template}").code == 0
    assert value(model, "tokenizer.chat_template") == template.read_text()

    template.write_bytes(b"\xff")
    found = ckconv("edit", model, "--in-place", "--set-meta", f"tokenizer.chat_template=@{template}")
    assert found.code == 3
    assert "error[input.text]" in found.err
    missing = ckconv("edit", model, "--in-place", "--set-meta", "a=@/no/such/file")
    assert (missing.code, "error[input.missing]" in missing.err) == (3, True)


def test_a_checkpoint_keeps_what_lies_beside_it(tmp_path: Path, ckconv) -> None:
    source = shutil.copytree(QWEN2, tmp_path / "source")
    (source / "NOTICE.txt").write_text("of whom it is")
    assert ckconv("edit", source, f"{tmp_path}/new/", "--set-meta", "note=hi").code == 0

    with safe_open(tmp_path / "new" / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt", "note": "hi"}
    assert (tmp_path / "new" / "NOTICE.txt").read_text() == "of whom it is"
    assert (tmp_path / "new" / "config.json").read_bytes() == (QWEN2 / "config.json").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["--in-place"], 2, "nothing would change"),
        (["--set-meta", "a=b"], 2, "give either DST or --in-place"),
        (["new.gguf", "--in-place", "--set-meta", "a=b"], 2, "give either DST or --in-place"),
        (["--in-place", "--set-meta", "general.alignment=64"], 2, "the tensors decide it"),
        (["--in-place", "--drop-meta", "nope*"], 2, "matches no key"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], code: int, error: str, model: Path, ckconv) -> None:
    before = model.read_bytes()
    found = ckconv("edit", model, *arguments)
    assert (found.code, error in found.err) == (code, True)
    assert model.read_bytes() == before


def test_a_list_that_names_others_of_the_directory_is_in_nobodys_way(model: Path, ckconv) -> None:
    zeros, edit = "0" * 64, ("edit", model, "--in-place", "--set-meta", "general.license=mit")
    sums = model.with_name("SHA256SUMS")
    sums.write_text(f"{zeros}  b{model.name}\n{zeros}  sub/{model.name}\n")
    assert ckconv(*edit).code == 0
    for line in (f"{zeros}  ./{model.name}", f"{zeros} *{model.name}", f"SHA256 ({model.name}) = {zeros}"):
        sums.write_text(f"{zeros}  other\n{line}\n")
        found = ckconv(*edit)
        assert (found.code, "SHA256SUMS beside it describes its present bytes" in found.err) == (2, True)
    with sums.open("wb") as file:
        file.truncate(1 << 40)
    assert "may describe its present bytes: has 1,099,511,627,776 bytes" in ckconv(*edit).err


def test_only_one_file_is_edited_in_place(model: Path, ckconv) -> None:
    link = model.with_name("link.gguf")
    link.symlink_to(model)
    for path in (QWEN2, FIXTURES / "gguf-split" / "llama-untied-f32-00001-of-00003.gguf", link):
        found = ckconv("edit", path, "--in-place", "--set-meta", "a=b")
        assert (found.code, "error[usage.in-place]" in found.err) == (2, True)
