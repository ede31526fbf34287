"""An output is never written where files of an earlier one would be loaded along with it, or instead of it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import FIXTURES, Result

from ckconv.publish.journal import Journal, Place

Ckconv = Callable[..., Result]

LLAMA = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"
QWEN2 = FIXTURES / "hf" / "qwen2-tied-bf16"
SHARDS = ("--max-shard-size", "50kB")


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("--to", "safetensors"), ("--to", "safetensors", *SHARDS)),
        (("--to", "safetensors", *SHARDS), ("--to", "safetensors")),
        (("--to", "safetensors", *SHARDS), ("--to", "safetensors", "--max-shard-size", "100kB")),
        (("--to", "mlx", *SHARDS), ("--to", "mlx")),
    ],
    ids=lambda flags: " ".join(flags),
)
def test_what_loaders_would_read_along_is_refused(
    first: tuple[str, ...], second: tuple[str, ...], tmp_path: Path, ckconv: Ckconv
) -> None:
    out = tmp_path / "out"
    assert ckconv("convert", LLAMA, f"{out}/", *first).code == 0
    before = content(out)

    refused = ckconv("convert", LLAMA, f"{out}/", *second, "--force")

    assert refused.code == 6
    assert "error[output.exists]" in refused.err
    assert "loaders would take it for part of the output" in refused.err
    assert content(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


#: Documents of an earlier model, beside weights that are replaced.
OLD = {"chat_template.jinja": b'{{ "OLD" }}', "special_tokens_map.json": b"{}", "vocab.json": b"{}", "notes.txt": b"-"}


def earlier(out: Path, ckconv: Ckconv) -> dict[str, bytes]:
    assert ckconv("convert", QWEN2, f"{out}/", "--to", "hf").code == 0
    for name, text in OLD.items():
        (out / name).write_bytes(text)
    (out / "additional_chat_templates").mkdir()
    (out / "additional_chat_templates" / "tools.jinja").write_bytes(b"old")
    return content(out)


def test_documents_of_another_model_go_with_what_is_replaced(tmp_path: Path, ckconv: Ckconv) -> None:
    """transformers would load chat_template.jinja of the earlier model with the new one."""
    out, fresh = tmp_path / "out", tmp_path / "fresh"
    earlier(out, ckconv)
    assert ckconv("convert", LLAMA, f"{fresh}/", "--to", "hf").code == 0

    done = ckconv("convert", LLAMA, f"{out}/", "--to", "hf", "--force")

    assert done.code == 0, done.err
    for name in ("tools.jinja", "chat_template.jinja", "special_tokens_map.json", "vocab.json"):
        assert name in next(
            line for line in done.out.splitlines() if "note: removed, as loaders would take them" in line
        )
    assert content(out) == {**content(fresh), "notes.txt": b"-"}
    assert ckconv("verify", out, LLAMA).code == 0


def test_side_files_alone_replace_all_of_them(tmp_path: Path, ckconv: Ckconv) -> None:
    flags = ("--to", "hf", "--side-files-only")
    assert ckconv("convert", LLAMA, f"{tmp_path}/out/", *flags).code == 0
    before = content(tmp_path / "out")
    (tmp_path / "out" / "merges.txt").write_bytes(b"old")

    done = ckconv("convert", LLAMA, f"{tmp_path}/out/", *flags, "--force")

    assert done.code == 0, done.err
    assert "removed, as loaders would take it for part of the output: merges.txt" in done.out
    assert content(tmp_path / "out") == before


def test_documents_are_there_again_where_the_output_is_not_published(
    tmp_path: Path, ckconv: Ckconv, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = earlier(tmp_path / "out", ckconv)
    give = Journal.give_name

    def full(journal: Journal, place: Place) -> None:
        if place == ("tokenizer.json",):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        give(journal, place)

    monkeypatch.setattr(Journal, "give_name", full)
    refused = ckconv("convert", LLAMA, f"{tmp_path}/out/", "--to", "hf", "--force")

    assert (refused.code, content(tmp_path / "out")) == (6, before)
    assert (tmp_path / "out" / "additional_chat_templates" / "tools.jinja").read_bytes() == b"old"


def test_without_force_nothing_is_removed(tmp_path: Path, ckconv: Ckconv) -> None:
    (tmp_path / "merges.txt").write_bytes(b"old")

    refused = ckconv("convert", LLAMA, tmp_path / "model.safetensors")

    assert refused.code == 6
    assert "merges.txt would remain, and loaders would take it for part of the output" in refused.err
    assert "--force removes it" in refused.err
    assert content(tmp_path) == {"merges.txt": b"old"}


def test_what_is_read_is_not_removed(tmp_path: Path, ckconv: Ckconv) -> None:
    """The source is a tokenizer's neighbor: whatever lies beside it belongs to it."""
    shutil.copytree(QWEN2, tmp_path / "q")
    (tmp_path / "q" / "config.json").unlink()
    before = content(tmp_path / "q")

    ckconv("convert", tmp_path / "q" / "model.safetensors", f"{tmp_path}/q/", "--to", "hf", "--force")

    assert content(tmp_path / "q") == before


BUMP5 = ("--to", "bump", "--bump-version", "5")


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        (("--to", "hf"), ("--to", "bump"), "model.safetensors"),
        (("--to", "mlx", *SHARDS), ("--to", "bump"), "model-00001-of-00005.safetensors and 5 more"),
        (("--to", "bump"), ("--to", "hf"), "weights.bump"),
        (BUMP5, ("--to", "hf", "--side-files-only"), "weights.bump"),
        (("--to", "bump"), ("--to", "hf", "--config-out", "elsewhere.json"), "weights.bump"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_no_weights_stay_beside_the_configuration_of_another_model(
    first: tuple[str, ...], second: tuple[str, ...], left: str, tmp_path: Path, ckconv: Ckconv
) -> None:
    """Qwen 2's weights would be read as what a llama's config.json says."""
    out = tmp_path / "out"
    assert ckconv("convert", QWEN2, f"{out}/", *first).code == 0
    before = content(out)
    second = tuple(str(tmp_path / word) if word == "elsewhere.json" else word for word in second)

    refused = ckconv("convert", LLAMA, f"{out}/", *second, "--force")

    assert (refused.code, content(out)) == (6, before)
    assert f"{left} would remain, and the config.json there would be of another model" in refused.err


@pytest.mark.parametrize("second", [("--to", "bump"), BUMP5], ids=lambda flags: flags[-1])
def test_documents_of_another_bump_file_go_with_it(second: tuple[str, ...], tmp_path: Path, ckconv: Ckconv) -> None:
    """The engine would map the new weights by the old weights_manifest.map."""
    assert ckconv("convert", QWEN2, f"{tmp_path}/out/", *BUMP5, "--map").code == 0
    assert ckconv("convert", LLAMA, f"{tmp_path}/fresh/", *second).code == 0

    done = ckconv("convert", LLAMA, f"{tmp_path}/out/", *second, "--force")

    assert done.code == 0, done.err
    assert "weights_manifest.map" in done.out
    assert content(tmp_path / "out") == content(tmp_path / "fresh")


def test_a_gguf_beside_a_checkpoint_changes_nothing_of_it(tmp_path: Path, ckconv: Ckconv) -> None:
    """Who opens the directory reads the checkpoint, who opens the file the GGUF: the two share no file."""
    before = earlier(tmp_path / "out", ckconv)

    assert ckconv("convert", LLAMA, f"{tmp_path}/out/", "--to", "gguf", "--force").code == 0

    after = content(tmp_path / "out")
    assert after.pop("model.gguf")
    assert after == before


@pytest.mark.parametrize("flags", [("--to", "safetensors"), ("--to", "safetensors", *SHARDS), ("--to", "mlx")])
def test_what_is_replaced_is_not_left_over(flags: tuple[str, ...], tmp_path: Path, ckconv: Ckconv) -> None:
    out = tmp_path / "out"
    for _ in range(2):
        done = ckconv("convert", LLAMA, f"{out}/", *flags, "--force")
        assert done.code == 0, done.err
        (out / "notes.txt").write_text("mine")
    assert (out / "notes.txt").is_file()


def test_a_map_that_is_written_anew_is_not_left_over(tmp_path: Path, ckconv: Ckconv) -> None:
    for source in (LLAMA, FIXTURES / "gguf" / "qwen3-tied-bf16.auto.gguf"):
        done = ckconv("convert", source, f"{tmp_path}/out/", "--to", "bump", "--bump-version", "5", "--map", "--force")
        assert done.code == 0, done.err
    assert ckconv("verify", tmp_path / "out").code == 0


def test_a_file_of_another_name_is_nobodys_part(tmp_path: Path, ckconv: Ckconv) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"another")
    assert ckconv("convert", LLAMA, tmp_path / "mine.safetensors").code == 0
