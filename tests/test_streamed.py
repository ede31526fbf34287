"""A side file that is not held is written in pieces, and is the same file."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
from conftest import FIXTURES

import ckconv
from ckconv.core import metadata as streamed
from ckconv.core.metadata import StreamedText, digest_of, pieces_of, side_file
from ckconv.errors import VerifyError
from ckconv.io.files import holds
from ckconv.publish.files import create, write_file

SOURCES = ["gguf/llama-tied-bf16.auto.gguf", "gguf/phi3-bf16.auto.gguf", "hf/qwen2-tied-bf16", "hf/gpt2-hub-f32"]


def halves(text: bytes) -> Iterator[bytes]:
    yield text[: len(text) // 2]
    yield text[len(text) // 2 :]


def test_what_is_small_is_held_and_made_once() -> None:
    made: list[int] = []
    assert side_file(lambda: iter([made.append(1) or b"ab", b"cd"])) == b"abcd"
    assert made == [1]


def test_what_is_large_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "MAX_IN_MEMORY", 3)
    text = side_file(lambda: halves(b"abcd"))
    assert isinstance(text, StreamedText)
    assert (len(text), digest_of(text)) == (4, sha256(b"abcd").hexdigest())
    assert b"".join(pieces_of(text)) == b"abcd" == b"".join(pieces_of(text))


@pytest.mark.parametrize("source", SOURCES)
def test_files_beside_a_model_are_the_same_whether_they_are_held_or_not(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for held, name in ((streamed.MAX_IN_MEMORY, "held"), (0, "streamed")):
        monkeypatch.setattr(streamed, "MAX_IN_MEMORY", held)
        out = tmp_path / name
        ckconv.convert(FIXTURES / source, f"{out}/", to="safetensors", checksums=True)
        ckconv.verify(out, FIXTURES / source)
        ckconv.convert(FIXTURES / source, f"{out}/", to="safetensors", checksums=True, force=True)
    names = {path.name for path in (tmp_path / "held").iterdir()}
    assert names == {path.name for path in (tmp_path / "streamed").iterdir()}
    assert "tokenizer.json" in names
    for name in names:
        assert (tmp_path / "held" / name).read_bytes() == (tmp_path / "streamed" / name).read_bytes(), name


@pytest.mark.parametrize("there", [b"abcd", b"abce", b"abc", b"abcde", b""])
@pytest.mark.parametrize("held", [True, False])
def test_a_file_holds_this_very_content_or_does_not(there: bytes, held: bool, tmp_path: Path) -> None:
    path = tmp_path / "there"
    path.write_bytes(there)
    content = b"abcd" if held else StreamedText(4, sha256(b"abcd").hexdigest(), lambda: halves(b"abcd"))
    assert holds(path, content) is (there == b"abcd")


def test_a_text_that_is_another_one_the_second_time_is_not_written(tmp_path: Path) -> None:
    content = StreamedText(4, sha256(b"abcd").hexdigest(), lambda: halves(b"abce"))
    with pytest.raises(VerifyError) as caught:
        write_file(create(tmp_path / "out"), content, tmp_path / "out")
    assert caught.value.code == "verify.file"
