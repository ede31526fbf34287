"""Broken and hostile bump files: the code and the sentence for each, through every command that reads one."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from bump_broken import BAD_CONFIGS, BROKEN, FILE, SOUND, Bump, K, put, with_layers
from checkpoints import Decoder, save
from hypothesis import given, strategies as st
from outputs import names

from ckconv import Options, convert
from ckconv.errors import CkconvError, InputError, UnsupportedError
from ckconv.formats.bump.read import open_bump
from ckconv.io.files import PipeSource

resource = pytest.importorskip("resource")  # of POSIX


def beside(folder: Path, data: bytes, **changes: object) -> Path:
    """``data`` as a file, with the sound model's configuration, changed, beside it."""
    config = {**SOUND.config(), **changes}
    (folder / "config.json").write_text(json.dumps({key: v for key, v in config.items() if v is not None}))
    path = folder / "m.bump"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(("data", "code", "fragments"), BROKEN.values(), ids=BROKEN)
def test_broken_file(data: bytes, code: str, fragments: tuple[str, ...], tmp_path: Path, ckconv) -> None:
    config = K.config() if data[0x18:0x1C] == K.header()[0x18:0x1C] else {}
    path = beside(tmp_path, data, **config)
    with pytest.raises(InputError) as caught:
        open_bump(path)
    error = caught.value
    assert (error.code, error.path, error.exit_code) == (code, str(path), 3)
    told = "\n".join([error.message, *error.details])
    for fragment in fragments:
        assert fragment in told
    for arguments in (("inspect", path), ("verify", path), ("convert", path, tmp_path / "out.bump")):
        result = ckconv(*arguments)
        assert (result.code, result.out) == (3, "")
        assert f"ckconv: error[{code}]: {path}: " in result.err
        assert fragments[0] in result.err
    assert names(tmp_path) == ["config.json", "m.bump"]


@pytest.mark.parametrize(("changes", "fragment"), BAD_CONFIGS.values(), ids=BAD_CONFIGS)
def test_configuration_contradicts(changes: dict, fragment: str, tmp_path: Path, ckconv) -> None:
    path = beside(tmp_path, FILE, **changes)
    for arguments in (("inspect", path), ("verify", path), ("convert", path, tmp_path / "out.bump")):
        result = ckconv(*arguments)
        assert result.code == 3
        assert "error[model.config]" in result.err
        assert fragment in result.err.replace("\\\\x1b", "\\x1b")
    assert names(tmp_path) == ["config.json", "m.bump"]


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("", "config.json"),
        ("[]", "config.json"),
        ("{", "config.json"),
        ('{"hidden_size": 40, "hidden_size": 40}', "twice"),
        ("[" * 100_000, "config.json"),
        ('{"hidden_size": NaN}', "config.json"),
        ('{"hidden_size": 1' + "0" * 100_000 + "}", "config.json"),
    ],
    ids=["empty", "list", "cut off", "duplicate", "depth bomb", "NaN", "endless number"],
)
def test_configuration_is_no_json_object(text: str, fragment: str, tmp_path: Path, ckconv) -> None:
    path = SOUND.write(tmp_path)
    (tmp_path / "config.json").write_text(text)
    result = ckconv("inspect", path)
    assert result.code == 3
    assert "error[model.config]" in result.err
    assert fragment in result.err


@pytest.mark.parametrize(
    "model_type", ["frobnicator", "", ["llama"], 7, "\x1b[2J"], ids=["unknown", "empty", "list", "number", "escape"]
)
def test_model_type_without_rules(model_type: object, tmp_path: Path, ckconv) -> None:
    result = ckconv("inspect", beside(tmp_path, FILE, model_type=model_type))
    assert result.code == 4
    assert "error[model.architecture]" in result.err
    assert "ckconv does not know the model_type" in result.err
    assert "\x1b" not in result.err


@pytest.mark.parametrize("version", [4, 5])
def test_other_versions_are_never_taken_for_version_3(version: int, tmp_path: Path) -> None:
    path = beside(tmp_path, put(f"BUMPWGT{version}".encode() + FILE[8:], "version", version))
    with pytest.raises(CkconvError) as caught:
        open_bump(path)
    assert caught.value.exit_code in (3, 4)


def test_without_configuration_the_header_is_described_and_verify_says_what_is_missing(tmp_path: Path, ckconv) -> None:
    path = SOUND.write(tmp_path)
    (tmp_path / "config.json").rename(tmp_path / "elsewhere.json")
    shown = ckconv("inspect", path, "--json").json
    assert shown["container"]["header.hidden_size"] == 40
    assert shown["tensors"] == []
    found = ckconv("verify", path)
    assert found.code == 3
    assert "error[bump.config]" in found.err
    assert "hint: put config.json beside it" in found.err
    assert ckconv("verify", path, "--config", tmp_path / "elsewhere.json").code == 0
    assert ckconv("verify", path, "--config", tmp_path / "nowhere.json").code == 3
    result = ckconv("convert", path, tmp_path / "out.bump")
    assert (result.code, "hint: put config.json beside it" in result.err) == (3, True)
    assert not (tmp_path / "out.bump").exists()


def test_sound_file_lists_every_slot(tmp_path: Path, ckconv) -> None:
    shown = ckconv("inspect", SOUND.write(tmp_path), "--json").json
    sizes = [tensor["bytes"] for tensor in shown["tensors"]]
    assert sum(sizes) == len(SOUND.payload())
    assert shown["tensors"][0]["offset"] == 0x80 + 4 + 32
    assert [t["name"] for t in shown["tensors"]][:3] == [
        "token_embedding.weight",
        "position_embedding.weight",
        "layers.0.attention_norm.weight",
    ]
    assert ckconv("verify", tmp_path / "m.bump").code == 0


NUMBERINGS = {
    "codes 6 and 7 are the old numbering": (replace(K, types={"w2": "Q6_K"}), "v3"),
    "codes 7 and 8 are the new one": (replace(K, types={"w2": "Q6_K"}, codes="v4"), "v4"),
    "only code 6": (K, "v3"),
    "only code 8": (replace(K, matrix="Q6_K", codes="v4"), "v4"),
    "only code 7, by size: Q6_K": (replace(K, matrix="Q6_K"), "v3"),
    "only code 7, by size: Q4_K": (replace(K, codes="v4"), "v4"),
    "code 7 and floats, by size": (replace(K, types={"wo": "F32", "token_emb": "BF16"}, codes="v4"), "v4"),
    "code 8 by size: Q8_0": (replace(K, matrix="Q8_0"), "v3"),
    "code 9": (replace(K, matrix="Q8_0", codes="v4"), "v4"),
}


@pytest.mark.parametrize(("model", "numbering"), NUMBERINGS.values(), ids=NUMBERINGS)
def test_numbering_of_the_table(model: Bump, numbering: str, tmp_path: Path, ckconv) -> None:
    shown = ckconv("inspect", model.write(tmp_path), "--json").json
    assert shown["container"]["dtype_codes"] == numbering
    assert shown["tensors"][0]["dtype"] == model.type_of("token_emb")
    matrices = {t["name"]: t["dtype"] for t in shown["tensors"]}
    assert matrices["layers.1.ffn.down.weight"] == model.type_of("layer.1.w2")
    assert ckconv("verify", tmp_path / "m.bump").code == 0


@pytest.mark.parametrize("layers", [1000, 65_536])
def test_many_layers_without_payload_are_refused_at_once(layers: int, tmp_path: Path) -> None:
    path = tmp_path / "m.bump"
    path.write_bytes(with_layers(layers))
    started = time.monotonic()
    with pytest.raises(InputError) as caught:
        open_bump(path, config={**SOUND.config(), "num_hidden_layers": layers})
    assert caught.value.code == "bump.extent"
    assert f"the FP32 vectors of {layers:,} layers alone" in caught.value.message
    assert time.monotonic() - started < 1


HUGE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))
from ckconv.cli import run
sys.exit(run(["inspect", sys.argv[1]]))
"""


def test_absurd_header_takes_no_memory(tmp_path: Path) -> None:
    data = FILE
    for name in ("num_layers", "vocab", "context"):
        data = put(data, name, (1 << 31) - 1)
    path = beside(tmp_path, data[:0x80] + b"\xff" * 4 + data[0x84:])
    done = subprocess.run([sys.executable, "-c", HUGE, str(path)], capture_output=True, text=True, timeout=20)
    assert done.returncode == 3
    assert "num_layers is 2,147,483,647" in done.stderr


def test_huge_vocabulary_is_only_arithmetic(tmp_path: Path) -> None:
    path = beside(tmp_path, put(put(FILE, "vocab", (1 << 31) - 1), "context", 1), vocab_size=None)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError) as caught:
        open_bump(path, config={**SOUND.config(), "vocab_size": (1 << 31) - 1, "max_position_embeddings": 1})
    assert caught.value.code == "bump.extent"
    assert "token_emb ends at byte 412,316,86" in caught.value.message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_pipe_is_described_without_a_neighbor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(beside(tmp_path, FILE, num_hidden_layers=77).parent)
    index = open_bump(Path("-"), source=PipeSource(io.BytesIO(FILE)))
    assert index.facts["header"].num_layers == 2
    assert not index.tensors


def test_pipe_through_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ckconv", "inspect", "-"]
    done = subprocess.run(command, input=FILE, capture_output=True, cwd=Path(__file__).parents[1])
    assert done.returncode == 0
    assert b"header.num_layers\t2" in done.stdout
    done = subprocess.run(command, input=FILE[:150], capture_output=True, cwd=Path(__file__).parents[1])
    assert done.returncode == 3
    assert b"bump.dtype-table" in done.stderr


def opened(folder: SimpleNamespace, data: bytes) -> None:
    path = folder.path / "m.bump"
    path.write_bytes(data)
    with contextlib.suppress(InputError, UnsupportedError):
        open_bump(path, config=SOUND.config())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    return SimpleNamespace(path=tmp_path_factory.mktemp("bump"))


@given(at=st.integers(0, 0x80 + 40), value=st.binary(min_size=1, max_size=9))
def test_any_header_gives_an_index_or_a_clean_error(folder: SimpleNamespace, at: int, value: bytes) -> None:
    opened(folder, FILE[:at] + value + FILE[at + len(value) :])


@given(cut=st.integers(0, len(FILE) - 1))
def test_every_prefix_is_refused(folder: SimpleNamespace, cut: int) -> None:
    path = folder.path / "cut.bump"
    path.write_bytes(FILE[:cut])
    with pytest.raises(InputError) as caught:
        open_bump(path, config=SOUND.config())
    assert caught.value.code.startswith("bump.")


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("tables", [True, False])
def test_the_base_is_read_where_transformers_5_says_it(version: int, tables: bool, tmp_path: Path) -> None:
    stored = {name: array for name, array in Decoder().tensors().items() if name != "lm_head.weight"}
    config = Decoder().config(rope_theta=1e6, tie_word_embeddings=True)
    source = save(tmp_path / "hf", config, stored)
    options = Options(bump_version=version, source_record=False)
    convert(source, f"{tmp_path}/out/", to="bump", options=options)
    document = {**config, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}} if tables else config
    kept = {key: value for key, value in document.items() if not (tables and key == "rope_theta")}
    (tmp_path / "out" / "config.json").write_text(json.dumps(kept))

    (path,) = (tmp_path / "out").glob("*.bump")
    config_read = open_bump(path).config
    assert config_read is not None
    assert config_read.rope_theta == 1e6
