from __future__ import annotations

import json
import os
import random
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import safetensors
from safetensors_builder import checkpoint, mutated, sound, write_index

from ckconv.errors import CkconvError
from ckconv.formats.checkpoints import open_checkpoint
from ckconv.formats.safetensors.files import CheckpointFiles, read_checkpoint_files

FIXTURES = Path(__file__).parent.parent / "fixtures" / "hf"
ONE, TWO, THREE = (f"model-{n:05d}-of-00003.safetensors" for n in (1, 2, 3))
SHARDS = {
    ONE: {"a": ("F32", [4]), "b": ("F16", [3])},
    TWO: {"c": ("BF16", [2, 2])},
    THREE: {"d": ("U8", [5]), "e": ("F32", []), "f": ("F32", [0])},
}
INDEX = "model.safetensors.index.json"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A sound checkpoint of three shards."""
    return checkpoint(tmp_path / "model", SHARDS)


def fault(path: Path, exit_code: int = 3) -> CkconvError:
    with pytest.raises(CkconvError) as caught:
        read_checkpoint_files(path)
    assert caught.value.exit_code == exit_code
    assert caught.value.message.isprintable()
    return caught.value


def remap(root: Path, **changes: Any) -> None:
    """Change entries of the weight map; ``None`` takes one out."""
    index = json.loads((root / INDEX).read_text())
    index["weight_map"] = {k: v for k, v in {**index["weight_map"], **changes}.items() if v is not None}
    write_index(root, **index)


# ---- sound checkpoints


@pytest.mark.parametrize("name", ["qwen2-tied-bf16", "llama-untied-f16-sharded", "gpt2-hub-f32"])
def test_fixtures(name: str) -> None:
    root = FIXTURES / name
    files = read_checkpoint_files(root)
    expected = {}
    for path in root.glob("*.safetensors"):
        with safetensors.safe_open(path, "np") as opened:
            expected |= {key: opened.get_slice(key).get_shape() for key in opened.keys()}  # noqa: SIM118
    assert {t.name: list(t.shape) for t in files.tensors} == expected
    assert files.config == json.loads((root / "config.json").read_text())
    assert files.root == root
    assert [path.name for path in files.side_files] == sorted(
        path.name for path in root.glob("*.json") if not path.name.endswith(".index.json")
    )


def test_shards_are_in_the_order_of_their_names(root: Path) -> None:
    files = read_checkpoint_files(root)
    assert files.index_path == root / INDEX
    assert [shard.path.name for shard in files.shards] == [ONE, TWO, THREE]
    assert [t.name for t in files.tensors] == ["a", "b", "c", "d", "e", "f"]
    assert files.config is None
    assert files.side_files == ()


def test_the_index_itself_can_be_named(root: Path) -> None:
    assert read_checkpoint_files(root / INDEX) == read_checkpoint_files(root)


def test_an_index_of_a_single_file(tmp_path: Path) -> None:
    files = read_checkpoint_files(checkpoint(tmp_path, {"model.safetensors": SHARDS[ONE]}))
    assert [shard.path.name for shard in files.shards] == ["model.safetensors"]
    assert files.index_path is not None


def test_one_file_without_an_index(tmp_path: Path) -> None:
    (tmp_path / "anything.safetensors").write_bytes(sound(SHARDS[ONE]))
    files = read_checkpoint_files(tmp_path)
    assert (files.index_path, [t.name for t in files.tensors]) == (None, ["a", "b"])


def test_a_file_named_by_itself_has_side_files_only_with_a_config(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(sound(SHARDS[ONE]))
    (tmp_path / "README.md").write_text("of something else")
    assert read_checkpoint_files(path).side_files == ()
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    files = read_checkpoint_files(path)
    assert files.config == {"model_type": "llama"}
    assert [side.name for side in files.side_files] == ["README.md", "config.json"]


def test_a_relative_path(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    assert len(read_checkpoint_files(Path(ONE)).tensors) == 6, "any shard names its set"
    assert len(read_checkpoint_files(Path(INDEX)).tensors) == 6
    assert len(read_checkpoint_files(Path()).tensors) == 6


def test_weights_that_go_by_other_names_may_lie_beside(root: Path) -> None:
    (root / "consolidated.safetensors").write_bytes(sound({"x": ("U8", [1])}))
    assert len(read_checkpoint_files(root).tensors) == 6


@pytest.mark.parametrize("metadata", [{}, None, [], {"total_size": 39.0}, {"total_size": 78}, {"total_size": "39"}])
def test_no_loader_reads_the_metadata_of_an_index(root: Path, metadata: object) -> None:
    checkpoint(root, SHARDS, metadata=metadata)
    files = read_checkpoint_files(root)
    assert (sum(t.extent.nbytes for t in files.tensors), files.notes) == (39, ())


@pytest.mark.parametrize("stale", [True, False])
@pytest.mark.parametrize("names", [[*SHARDS], ["model.safetensors"], ["pytorch_model.bin"]])
def test_a_complete_set_is_read_without_its_index_or_beside_that_of_another(
    names: list[str], stale: bool, root: Path
) -> None:
    contents = {name: sound(tensors) for name, tensors in zip(names, SHARDS.values(), strict=False)}
    if names == ["pytorch_model.bin"]:
        contents = {names[0]: (FIXTURES.parent / "pytorch" / "archive.bin").read_bytes()}
    for name in SHARDS:
        (root / name).unlink()
    for name, data in contents.items():
        (root / name).write_bytes(data)
    remap(root, **dict.fromkeys("abcdef", "model-00001-of-00010.safetensors"))
    if not stale:
        (root / INDEX).unlink()

    index = open_checkpoint(root)

    assert [path.name for path in index.files] == [*contents]
    assert index.notes == ((f"{INDEX} names none of the files that are there, and is not read",) if stale else ())
    assert index.shard_index is None
    assert open_checkpoint(root / [*contents][-1]).stored == index.stored


# ---- the download cache


@pytest.fixture
def snapshot(root: Path, tmp_path: Path) -> Path:
    """The checkpoint as huggingface_hub's cache holds it."""
    repository = tmp_path / "hub" / "models--owner--name"
    blobs, snapshot = repository / "blobs", repository / "snapshots" / "0123abcd"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (root / "config.json").write_text("{}")
    for n, path in enumerate(sorted(root.iterdir())):
        shutil.copy(path, blobs / f"{n:064x}")
        (snapshot / path.name).symlink_to(Path("../../blobs") / f"{n:064x}")
    return snapshot


def test_a_snapshot_of_the_cache(snapshot: Path) -> None:
    files = read_checkpoint_files(snapshot)
    assert len(files.tensors) == 6
    assert files.config == {}
    assert read_checkpoint_files(snapshot / INDEX) == files
    assert files.tensors[0].extent.path == snapshot / ONE


def test_a_part_of_a_pipeline_in_a_snapshot(snapshot: Path) -> None:
    part = snapshot / "text_encoder"
    part.mkdir()
    for path in [path for path in snapshot.iterdir() if path.is_symlink()]:
        (part / path.name).symlink_to(Path("..") / path.readlink())
        path.unlink()
    assert len(read_checkpoint_files(part).tensors) == 6


def test_a_snapshot_through_a_link(snapshot: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(snapshot)
    assert len(read_checkpoint_files(tmp_path / "latest").tensors) == 6


def test_a_link_within_the_directory(root: Path) -> None:
    (root / "weights").mkdir()
    (root / ONE).rename(root / "weights" / "first")
    (root / ONE).symlink_to("weights/first")
    assert len(read_checkpoint_files(root).tensors) == 6


def test_a_blob_that_is_a_link_is_refused(snapshot: Path, root: Path) -> None:
    blob = Path(os.path.realpath(snapshot / ONE))
    blob.unlink()
    blob.symlink_to(root / ONE)
    assert fault(snapshot).code == "index.path"


def test_blobs_that_is_a_link_is_refused(snapshot: Path, tmp_path: Path) -> None:
    blobs = snapshot.parent.parent / "blobs"
    blobs.rename(tmp_path / "elsewhere")
    blobs.symlink_to(tmp_path / "elsewhere")
    assert fault(snapshot).code == "index.path"


@pytest.mark.parametrize("parts", [("models--x", "snap", "r"), ("data--x", "snapshots", "r"), ("blobs", "r")])
def test_blobs_beside_other_directories_are_refused(parts: tuple[str, ...], root: Path, tmp_path: Path) -> None:
    target = tmp_path.joinpath(*parts)
    shutil.copytree(root, target)
    blobs = target.parent.parent / "blobs"
    blobs.mkdir(exist_ok=True)
    (target / ONE).rename(blobs / "hash")
    (target / ONE).symlink_to(blobs / "hash")
    assert fault(target).code == "index.path"


def test_a_blob_that_is_gone(snapshot: Path) -> None:
    Path(os.path.realpath(snapshot / TWO)).unlink()
    error = fault(snapshot)
    assert (error.code, error.message) == ("index.missing", f"{TWO} is missing (it should hold 1 tensor)")


# ---- row 34: names that lead elsewhere


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../secret.safetensors", "index names '../secret.safetensors', outside the model directory"),
        ("/etc/passwd", "index names '/etc/passwd', outside the model directory"),
        ("..", "index names '..', outside the model directory"),
        ("a/../../x.safetensors", "outside the model directory"),
        ("..\\x.safetensors", "outside the model directory"),
        ("\\\\host\\x.safetensors", "outside the model directory"),
        ("sub/x.safetensors", "index names 'sub/x.safetensors', which is not a plain file name"),
        ("./x.safetensors", "which is not a plain file name"),
        ("sub\\x.safetensors", "which is not a plain file name"),
        ("", "index names '', which is not a plain file name"),
        (".", "which is not a plain file name"),
        ("x\0.safetensors", "index names 'x\\x00.safetensors', which holds a NUL character"),
        ("config.json", "index names 'config.json', which is not a safetensors file"),
        ("\x1b[2J", "index names '\\x1b[2J', which is not a safetensors file"),
    ],
)
def test_names_in_the_index(name: str, message: str, root: Path) -> None:
    remap(root, a=name)
    error = fault(root)
    assert (error.code, error.path) == ("index.path", str(root / INDEX))
    assert message in error.message


def test_several_bad_names_are_listed(root: Path) -> None:
    remap(root, a="../x", b="../y")
    assert fault(root).details == ("index names '../y', outside the model directory",)


def test_a_link_out_of_the_directory(root: Path, tmp_path: Path) -> None:
    (root / ONE).rename(tmp_path / "outside.safetensors")
    (root / ONE).symlink_to("../outside.safetensors")
    error = fault(root)
    target = os.path.realpath(tmp_path / "outside.safetensors")
    assert error.code == "index.path"
    assert error.message == f"index names '{ONE}', a link to '{target}', outside the model directory"


def test_a_directory_whose_name_begins_alike_is_outside(root: Path, tmp_path: Path) -> None:
    (tmp_path / "model-other").mkdir()
    (root / ONE).rename(tmp_path / "model-other" / "x")
    (root / ONE).symlink_to("../model-other/x")
    assert fault(root).code == "index.path"


@pytest.mark.parametrize("name", [ONE, INDEX, "config.json", "tokenizer.json", "any.model.v3", "README.md"])
def test_no_file_of_a_directory_may_be_a_link_out_of_it(name: str, root: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("{}")
    (root / name).unlink(missing_ok=True)
    (root / name).symlink_to(tmp_path / "secret")
    error = fault(root)
    assert error.code == "index.path"
    assert "outside the model directory" in error.message


def test_one_file_that_is_a_link_out_of_its_directory(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(sound(SHARDS[ONE]))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").symlink_to(tmp_path / "weights")
    assert fault(tmp_path / "model").code == "index.path"
    # Whoever names the link itself means it.
    assert len(read_checkpoint_files(tmp_path / "model" / "model.safetensors").tensors) == 2


@pytest.mark.parametrize(
    "kind", ["directory", "FIFO", "socket", pytest.param("character device", marks=pytest.mark.needs("root"))]
)
def test_shards_that_are_no_files(kind: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / ONE).unlink()
    if kind == "directory":
        (root / ONE).mkdir()
    elif kind == "FIFO":
        os.mkfifo(root / ONE)
    elif kind == "socket":
        monkeypatch.chdir(root)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(ONE)
    else:
        os.mknod(root / ONE, 0o020644, os.makedev(1, 3))
    error = fault(root)
    assert error.code == "index.path"
    assert error.message == f"index names '{ONE}', which is a {kind} and not a regular file"


def test_a_link_loop(root: Path) -> None:
    (root / ONE).unlink()
    (root / ONE).symlink_to(ONE)
    assert fault(root).code == "input.unreadable"


def test_a_name_too_long_for_any_file(root: Path) -> None:
    remap(root, a="x" * 5000 + ".safetensors")
    error = fault(root)
    assert error.code == "input.unreadable"


# ---- row 35: the index and the shards disagree


def test_missing_shards_are_counted(root: Path) -> None:
    (root / ONE).unlink()
    (root / THREE).unlink()
    error = fault(root)
    assert (error.code, error.message) == ("index.missing", f"{ONE} is missing (it should hold 2 tensors)")
    assert error.details == (f"{THREE} is missing (it should hold 3 tensors)",)


def test_a_shard_without_the_others(root: Path) -> None:
    for name in (INDEX, TWO, THREE):
        (root / name).unlink()
    error = fault(root)
    assert (error.code, error.found, error.allowed) == ("index.missing", 1, 3)
    assert error.message == "1 of 3 shards is there, and no index"
    assert (fault(root / ONE).code, fault(root / ONE).message) == (error.code, error.message)


def test_an_index_of_which_some_shards_are_there_is_incomplete_whatever_lies_beside(root: Path) -> None:
    (root / ONE).unlink()
    (root / "model.safetensors").write_bytes(sound(SHARDS[TWO]))
    error = fault(root)
    assert error.code == "index.missing"
    assert error.hint is not None
    assert error.hint.endswith("or name 'model.safetensors' instead of the directory")
    assert len(read_checkpoint_files(root / "model.safetensors").tensors) == 1


@pytest.mark.parametrize(
    ("changes", "messages"),
    [
        ({"a": TWO}, [f"{ONE} holds 1 tensor that the index lists in {TWO}: 'a'"]),
        ({"d": ONE, "e": ONE}, [f"{THREE} holds 2 tensors that the index lists in {ONE}: 'd', 'e'"]),
        ({"a": None}, [f"{ONE} holds 1 tensor that the index does not list: 'a'"]),
        (
            {"x": ONE, "w1": TWO, "w2": TWO, "w3": TWO, "w4": TWO},
            [
                f"{ONE} lacks 1 tensor that the index lists there: 'x'",
                f"{TWO} lacks 4 tensors that the index lists there: 'w1', 'w2', 'w3', ...",
            ],
        ),
        (
            {"a": None, "\x1b": TWO},
            [
                f"{ONE} holds 1 tensor that the index does not list: 'a'",
                f"{TWO} lacks 1 tensor that the index lists there: '\\x1b'",
            ],
        ),
    ],
)
def test_shards_are_read_whole_whatever_the_index_lists(
    changes: dict[str, Any], messages: list[str], root: Path
) -> None:
    remap(root, **changes)
    files = read_checkpoint_files(root)
    assert (len(files.tensors), [*files.notes]) == (6, messages)


def test_a_tensor_in_two_shards(root: Path) -> None:
    (root / TWO).write_bytes(sound({**SHARDS[TWO], "a": ("F32", [4])}))
    error = fault(root)
    assert (error.code, error.message) == ("index.mismatch", f"{ONE} and {TWO} both hold 1 tensor: 'a'")


@pytest.mark.parametrize("extra", ["model-00004-of-00003.safetensors", "model.safetensors", "model-x.safetensors"])
def test_weights_that_the_index_does_not_name(extra: str, root: Path) -> None:
    (root / extra).write_bytes(sound({"x": ("U8", [1])}))
    error = fault(root)
    assert error.code == "index.mismatch"
    assert error.message == f"'{extra}' is not named in the index, and some loaders would read it"
    assert len(read_checkpoint_files(root / INDEX).tensors) == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "index is not a JSON object: it is a list"),
        ("{", "index is not a JSON object: column 2"),
        ("{}", "weight_map is missing; an object of file names is required"),
        ('{"weight_map": []}', "weight_map is a list; an object of file names is required"),
        ('{"weight_map": {}}', "weight_map is empty"),
        ('{"weight_map": {"a": 1}}', "weight_map has a number for 'a'; file names only"),
        ('{"weight_map": {"a": null}}', "weight_map has null for 'a'; file names only"),
        (f'{{"weight_map": {{"a": "{ONE}", "a": "{ONE}"}}}}', "key 'a' appears twice in one object of the index"),
    ],
)
def test_broken_index(text: str, message: str, root: Path) -> None:
    (root / INDEX).write_text(text)
    error = fault(root)
    assert error.code == "index.json"
    assert message in error.message
    assert error.hint == "move it away: the files that are there are a whole model without it"
    (root / INDEX).unlink()
    assert len(read_checkpoint_files(root).tensors) == 6


def test_git_lfs_pointers_in_place_of_shards(root: Path) -> None:
    for name in (TWO, THREE):
        (root / name).write_text(
            "version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 4100000000\n"
        )
    error = fault(root)
    assert (error.code, error.hint) == ("st.lfs-pointer", "run `git lfs pull`")
    assert error.message == f"{TWO} is a git-lfs pointer for a 4.1 GB object"
    assert error.details == (f"{THREE} is a git-lfs pointer for a 4.1 GB object",)


def test_a_broken_shard_is_named(root: Path) -> None:
    (root / TWO).write_bytes((root / TWO).read_bytes()[:-1])
    error = fault(root)
    assert (error.code, error.path) == ("st.offsets", str(root / TWO))


# ---- row 36, and directories that leave open what to read


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["pytorch_model.bin"], "pytorch_model.bin"),
        (["consolidated.00.pth", "params.json"], "consolidated.00.pth"),
        (["model.PT", "optimizer.pt"], "model.PT"),
        (["model.ckpt", "training_args.bin", "scheduler.pt", "rng_state.pth"], "model.ckpt"),
        (["pytorch_model.bin", "other.bin"], "pytorch_model.bin"),
    ],
)
def test_pickles_are_taken_where_there_is_nothing_else(names: list[str], chosen: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"PK\3\4")
    error = fault(tmp_path, exit_code=4)
    assert (error.code, Path(str(error.path)).name) == ("hf.pickle", chosen)  # without a reader of pickles


def test_several_pickles_want_their_index(tmp_path: Path) -> None:
    for name in ("pytorch_model.bin", "pytorch_model-00001-of-00002.bin"):
        (tmp_path / name).write_bytes(b"PK\3\4")
    error = fault(tmp_path)
    assert (error.code, "2 pickle files and no index" in error.message) == ("hf.ambiguous", True)
    assert "fetch pytorch_model.bin.index.json" in str(error.hint)


def test_pickles_beside_safetensors_are_ignored(root: Path) -> None:
    (root / "training_args.bin").write_bytes(b"PK\3\4")
    assert len(read_checkpoint_files(root).tensors) == 6


@pytest.mark.parametrize(
    ("names", "hint"), [([], None), (["notes.txt"], None), (["a.gguf"], "name the file instead of the directory")]
)
def test_a_directory_without_weights(names: list[str], hint: str | None, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).touch()
    error = fault(tmp_path)
    said = (
        "no model: no safetensors, GGUF or bump file, no adapter"
        if hint is None
        else "no safetensors file and no index"
    )
    assert (error.code, error.message) == ("hf.no-weights", f"the directory holds {said}")
    assert error.hint is None if hint is None else hint in error.hint


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a.safetensors", "b.safetensors"], "2 safetensors files and no index: 'a.safetensors', 'b.safetensors'"),
        ([ONE, "model.safetensors"], f"2 safetensors files and no index: '{ONE}', 'model.safetensors'"),
        (["a.safetensors.index.json", "b.safetensors.index.json"], "2 indexes: "),
    ],
)
def test_several_candidates(names: list[str], message: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_bytes(sound(SHARDS[ONE]))
    error = fault(tmp_path)
    assert (error.code, error.found) == ("hf.ambiguous", len(names))
    assert message in error.message
    assert INDEX in error.hint


def test_of_two_sets_of_shards_one_is_named(root: Path) -> None:
    pair = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for name, tensors in zip(pair, (SHARDS[ONE], SHARDS[TWO]), strict=True):
        (root / name).write_bytes(sound(tensors))
    (root / INDEX).unlink()
    error = fault(root)
    assert (error.code, error.found) == ("hf.ambiguous", 2)
    assert error.message.startswith("5 safetensors files of 2 sets and no index: ")
    assert error.hint == f"name one of them instead of the directory, whose set is read: '{pair[0]}' or '{ONE}'"
    assert {tensor.name for tensor in read_checkpoint_files(root / pair[0]).tensors} == {"a", "b", "c"}


def test_of_a_set_of_shards_and_a_whole_file_one_is_named(root: Path) -> None:
    (root / INDEX).unlink()
    (root / "model.safetensors").write_bytes(sound(SHARDS[ONE]))
    error = fault(root)
    assert (error.code, error.found) == ("hf.ambiguous", 2)
    assert error.message.startswith("4 safetensors files of 2 sets and no index: ")
    assert error.hint == f"name one of them instead of the directory, whose set is read: '{ONE}' or 'model.safetensors'"
    assert [tensor.name for tensor in read_checkpoint_files(root / "model.safetensors").tensors] == ["a", "b"]


def test_the_usual_name_goes_before_others(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(sound(SHARDS[ONE]))
    (tmp_path / "adapter_model.safetensors").write_bytes(sound(SHARDS[TWO]))
    assert [t.name for t in read_checkpoint_files(tmp_path).tensors] == ["a", "b"]


def test_nothing_there(tmp_path: Path) -> None:
    assert fault(tmp_path / "none").code == "input.missing"
    assert fault(tmp_path / "none.index.json").code == "input.missing"
    assert fault(tmp_path / "nul\0").code == "input.missing"


@pytest.mark.needs("user")
def test_a_directory_that_may_not_be_listed(root: Path) -> None:
    root.chmod(0)
    try:
        assert fault(root).code == "input.unreadable"
    finally:
        root.chmod(0o700)


# ---- row 37, its first half


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "configuration is not a JSON object: it is a list"),
        ("", "configuration is not a JSON object: column 1"),
        ("\ufeff{}", "configuration is not a JSON object"),
        ('{"a": 1, "a": 2}', "key 'a' appears twice in the configuration"),
        ('{"a": infinity}', "configuration is not a JSON object: column 7"),
        ('{"a": 1e999}', "'1e999' is larger than any float64"),
        ("[" * 10_000, "configuration is nested 10,000 deep"),
    ],
)
def test_broken_config(text: str, message: str, root: Path) -> None:
    (root / "config.json").write_text(text)
    error = fault(root)
    assert (error.code, error.path) == ("model.config", str(root / "config.json"))
    assert message in error.message


@pytest.mark.parametrize("word", ["Infinity", "-Infinity", "NaN"])
def test_a_config_may_say_what_transformers_4_wrote_for_numbers_that_json_has_not(word: str, root: Path) -> None:
    (root / "config.json").write_text(f'{{"time_step_limit": [0.0, {word}]}}')
    config = read_checkpoint_files(root).config
    assert repr(config) == repr({"time_step_limit": [0.0, float(word)]})


def test_no_config(root: Path) -> None:
    files = read_checkpoint_files(root)
    assert files.config is None


def test_side_files_are_named_and_not_opened(root: Path) -> None:
    carried = ["config.json", "tokenizer.json", "tokenizer.model", "chat_template.jinja", "README.md", "LICENSE.txt"]
    for name in [*carried, "optimizer.pt", ".gitattributes", "notes.txt"]:
        (root / name).write_text("{}" if name == "config.json" else "\xff not JSON")
    (root / "tokenizer").mkdir()
    assert [path.name for path in read_checkpoint_files(root).side_files] == sorted(carried)


def test_a_side_file_that_is_a_device(root: Path) -> None:
    os.mkfifo(root / "tokenizer.json")
    error = fault(root)
    assert error.code == "index.path"
    assert error.message == "the directory holds 'tokenizer.json', which is a FIFO and not a regular file"


# ---- mutations


def outcome(root: Path) -> CheckpointFiles | CkconvError:
    try:
        return read_checkpoint_files(root)
    except CkconvError as error:
        return error


@pytest.mark.parametrize("name", [INDEX, "config.json"])
def test_mutated_documents_end_in_an_error_or_in_the_same_tensors(name: str, root: Path) -> None:
    config = {"model_type": "llama", "rope": {"theta": 1e4, "x": [1, 2]}, "tie": True, "eps": 1e-05, "id": None}
    (root / "config.json").write_text(json.dumps(config))
    original, tensors = (root / name).read_bytes(), read_checkpoint_files(root).tensors
    rng = random.Random(7)
    results = []
    for _ in range(400):
        (root / name).unlink()  # ext4 waits for the disk where a file is written again
        (root / name).write_bytes(mutated(original, rng))
        results.append(outcome(root))
    errors = [result for result in results if isinstance(result, CkconvError)]
    assert all("".join([error.message, *error.details]).isprintable() for error in errors)
    assert all(error.exit_code in (3, 4) for error in errors)
    assert all(result.tensors == tensors for result in results if isinstance(result, CheckpointFiles))
    assert 100 < len(errors) < 400
