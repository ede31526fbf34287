"""The bytes around the tensors of a checkpoint, as the safetensors package and other loaders want them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors
from conftest import FIXTURES
from mlx_vectors import raw_tensors
from outputs import contents

from ckconv.api import convert
from ckconv.core.options import Options
from ckconv.formats.safetensors.container import encode_header
from ckconv.formats.safetensors.write import natural

GGUF = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"
HF = FIXTURES / "hf" / "llama-tied-bf16"


def header_of(path: Path) -> tuple[int, dict[str, object]]:
    """(where the data begins, the header)."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return 8 + length, json.loads(data[8 : 8 + length])


def test_a_header_is_padded_and_its_metadata_stand_first_and_sorted() -> None:
    made = encode_header([("b", "F32", (2, 1), 8), ("ä", "U8", (), 1)], {"z": "1", "format": "pt"})

    assert len(made) % 8 == 0
    assert int.from_bytes(made[:8], "little") == len(made) - 8
    assert made[8:].rstrip(b" ").decode() == (
        '{"__metadata__":{"format":"pt","z":"1"},'
        '"b":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},'
        '"ä":{"dtype":"U8","shape":[],"data_offsets":[8,9]}}'
    )


def test_no_metadata_no_key() -> None:
    assert b"__metadata__" not in encode_header([("a", "U8", (1,), 1)], {})


def test_layer_2_is_before_layer_10() -> None:
    names = ["l.10.w", "l.2.w", "l.2.b", "a"]
    assert sorted(names, key=natural) == ["a", "l.2.b", "l.2.w", "l.10.w"]


def test_wide_types_stand_first_so_that_every_tensor_is_aligned(tmp_path: Path) -> None:
    convert(GGUF, str(tmp_path / "out"), to="safetensors")

    start, header = header_of(tmp_path / "out" / "model.safetensors")
    assert start % 8 == 0
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    sizes = [{"F32": 4, "BF16": 2}[entry["dtype"]] for entry in entries.values()]
    assert sizes == sorted(sizes, reverse=True)
    ends = 0
    for entry in entries.values():
        assert entry["data_offsets"][0] == ends
        ends = entry["data_offsets"][1]


@pytest.mark.parametrize("limit", [0, 1, 60_000, 10**9])
def test_the_package_opens_every_shard_and_the_index_names_each_tensor_once(tmp_path: Path, limit: int) -> None:
    report = convert(HF, str(tmp_path / "out"), to="safetensors", options=Options(max_shard_bytes=limit))

    files = sorted((tmp_path / "out").glob("*.safetensors"))
    names: dict[str, str] = {}
    total = 0
    for path in files:
        start, _ = header_of(path)
        held = path.stat().st_size - start
        total += held
        with safetensors.safe_open(path, "numpy") as file:
            assert file.metadata() == {"format": "pt"}
            keys = list(file.keys())
        assert limit in (0,) or held <= limit or len(keys) == 1
        names |= dict.fromkeys(keys, path.name)
    assert report.verified == 20
    assert set(names) == set(raw_tensors(HF / "model.safetensors"))
    index = tmp_path / "out" / "model.safetensors.index.json"
    assert index.exists() == (len(files) > 1)
    if len(files) > 1:
        document = json.loads(index.read_text())
        assert document["weight_map"] == names
        assert document["metadata"] == {"total_parameters": 98_624, "total_size": total}
        count = len(files)
        assert [path.name for path in files] == [f"model-{n + 1:05}-of-{count:05}.safetensors" for n in range(count)]


def test_a_file_is_called_as_asked_and_has_its_configuration_beside_it(tmp_path: Path) -> None:
    convert(HF, str(tmp_path / "x.safetensors"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "x.safetensors"]


def test_shards_of_a_named_file_have_its_name(tmp_path: Path) -> None:
    report = convert(HF, str(tmp_path / "x.safetensors"), options=Options(max_shard_bytes=100_000))
    assert [file.path.name for file in report.files] == ["x-00001-of-00002.safetensors", "x-00002-of-00002.safetensors"]
    assert (tmp_path / "x.safetensors.index.json").exists()
    assert report.verified == 20


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    made = []
    for name in ("a", "b"):
        convert(GGUF, str(tmp_path / name), to="safetensors")
        made.append(contents(tmp_path / name))
    assert made[0] == made[1]


def test_metadata_are_set_dropped_and_carried(tmp_path: Path) -> None:
    convert(
        HF,
        str(tmp_path / "a"),
        to="safetensors",
        options=Options(set_meta=(("__metadata__.author", "A"), ("__metadata__.note", "B"))),
    )
    convert(tmp_path / "a", str(tmp_path / "b"), to="safetensors", options=Options(drop_meta=("no*",)))

    _, first = header_of(tmp_path / "a" / "model.safetensors")
    _, second = header_of(tmp_path / "b" / "model.safetensors")
    assert first["__metadata__"] == {"author": "A", "format": "pt", "note": "B"}
    assert second["__metadata__"] == {"author": "A", "format": "pt"}


def test_side_files_are_carried_byte_for_byte(tmp_path: Path) -> None:
    convert(HF, str(tmp_path / "out"), to="safetensors")

    beside = {path.name for path in HF.iterdir()} - {"model.safetensors"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == beside | {"model.safetensors"}
    for name in beside:
        assert (tmp_path / "out" / name).read_bytes() == (HF / name).read_bytes()
