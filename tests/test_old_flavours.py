"""Every kind of bump file that the engine's scripts have ever written is read, or named with what reads it.

Files are put together by :mod:`bump_broken` (version 3), :mod:`bump4_builder` (the layouts of versions 4 and 5) and
:mod:`trained_builder`; what the layouts hold is held against them in ``test_readers_bump5.py``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bump4_builder import Built, build
from bump_broken import Bump
from gguf_copies import arrays_of
from trained_builder import Trained

import ckconv as library

LAYOUTS = {
    "4-A": build("A", head=True),
    "4-B": build("B", bias=True, pairs=True),
    "4-C": build("C", content="osctm", pairs=True),
    "4-D": build("D", head=True, pairs=True),
    "4-E": build("E"),
    "5-D": build("D", version=5, content="osctm", pairs=True),
    "5-E": build("E", version=5, head=True),
    "5-F": build("F", version=5, head=True),
}


def rewritten(built: Built, marker: str) -> dict[str, Any]:
    """The manifest as the builders of the v4 engine leave it: offsets in memory beside those in the file."""
    entries = [{**entry, "runtime_offset": entry["file_offset"] + 64} for entry in built.entries]
    return {"format": marker, "generated": "now", "model": {"name": "m"}, "missing": [], "entries": entries}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("marker", ["", "ck-bumpwgt4-manifest-v1", "ck-bumpwgt4-merged-v1"])
def test_a_layout_is_named_with_and_without_the_manifests_of_its_time(
    layout: str, marker: str, tmp_path: Path, ckconv: Any
) -> None:
    built = LAYOUTS[layout]
    path = built.write(tmp_path, manifest=rewritten(built, marker) if marker else None)

    shown = ckconv("inspect", "--json", path).json
    assert (shown["version"], shown["container"]["layout"]) == (int(layout[0]), layout)
    assert ckconv("verify", path).code == 0


@pytest.mark.parametrize("layout", ["5-E", "5-F"])
@pytest.mark.parametrize("coded", [30, 31, 5])
def test_layout_e_with_the_list_of_weights_of_another_engine(
    coded: int, layout: str, tmp_path: Path, ckconv: Any
) -> None:
    """April's scripts give a byte to 14 weights a layer, of which they write seven or nine; rows are Hugging Face's."""
    built = LAYOUTS[layout]
    length = int.from_bytes(built.data[0x80:0x84], "little")
    more = coded - length
    body = coded.to_bytes(4, "little") + bytes(coded) + built.data[0x84 + length : built.end]
    data = built.data[:0x50] + hashlib.sha256(body).digest() + built.data[0x70:0x80] + body + built.data[built.end :]
    entries = [{**entry, "file_offset": entry["file_offset"] + more} for entry in built.entries]
    path = built.write(tmp_path, data=data, manifest={**built.manifest(), "entries": entries})

    assert f"container\tlayout\t{layout}\n" in ckconv("inspect", path).out
    built.write(tmp_path, manifest=built.manifest(), config={"rms_norm_eps": 1e-5})
    library.convert(path, tmp_path / "whole.gguf")
    built.write(tmp_path, data=data, manifest={**built.manifest(), "entries": entries})
    library.convert(path, tmp_path / "again.gguf")
    assert (tmp_path / "whole.gguf").read_bytes() == (tmp_path / "again.gguf").read_bytes()


def test_layout_d_of_version_4_says_that_the_january_engine_computes_it_wrong(tmp_path: Path, ckconv: Any) -> None:
    path = LAYOUTS["4-D"].write(tmp_path)

    assert (
        "January 2026 loads the file without a complaint" in ckconv("inspect", "--json", path).json["container"]["note"]
    )
    assert "note" not in ckconv("inspect", "--json", LAYOUTS["4-A"].write(tmp_path)).json["container"]


def bump2(folder: Path) -> Path:
    bump = Bump()
    path = bump.write(folder)
    path.write_bytes(b"BUMPWGT2".ljust(128, b"\0") + bump.payload())
    return path


def flat(folder: Path) -> Path:
    bump = Bump()
    path = bump.write(folder)
    path.write_bytes(bump.payload())
    return path


def dummy(folder: Path) -> Path:
    path = folder / "weights.bump"
    path.write_bytes(b"BUMPWGT4".ljust(128, b"\0") + bytes(256))
    entries = [{"name": "token_emb", "dtype": "fp32", "file_offset": 128, "size": 256, "runtime_offset": 0}]
    marker = {"format": "ck-bumpwgt4-dummy-v1", "generated": "dummy", "model": "dummy", "missing": []}
    (folder / "weights_manifest.json").write_text(json.dumps({**marker, "entries": entries}))
    return path


def wrapped_alone(folder: Path) -> Path:
    path = Trained("llama").write(folder, wrapped="april")
    path.with_name("weights_manifest.json").unlink()
    return path


def headerless_alone(folder: Path) -> Path:
    path = Trained("llama").write(folder)
    path.with_name("weights_manifest.json").unlink()
    return path


def unfinished(folder: Path) -> Path:
    """As the engine's script leaves it where it finds no template: it writes the header last."""
    path = LAYOUTS["5-D"].write(folder)
    path.write_bytes(bytes(128) + path.read_bytes()[128:])
    return path


def called(model: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        built = LAYOUTS["5-D"]
        return built.write(folder, manifest={"model": model, "config": {"model": model}, "entries": built.entries})

    return make


V1 = "only the v1 runtime that the engine generates for bump 3 reads that"
NAMED = {
    "bump 2": (bump2, 4, "bump.flavour", V1),
    "no header": (flat, 4, "bump.flavour", V1),
    "zeros": (dummy, 4, "bump.flavour", "zeros for a smoke test of the engine"),
    "wrapped without its manifest": (wrapped_alone, 3, "bump.metadata", "what the engine trained, and no"),
    "headerless without its manifest": (
        headerless_alone,
        3,
        "bump.magic",
        "its weights_manifest.json has to be beside it",
    ),
    "unfinished": (unfinished, 3, "bump.magic", "the engine's script stopped before it wrote one"),
    "gemma 4": (called("gemma4"), 4, "model.architecture", "ckconv reads no bump file of a gemma4_text: the engine"),
    "a tower": (called("qwen3_vl_vision"), 4, "model.architecture", "does not know the model_type 'qwen3_vl_vision'"),
}


@pytest.mark.parametrize("what", NAMED)
@pytest.mark.parametrize("command", ["inspect", "convert", "verify"])
def test_what_is_not_read_is_named_with_what_reads_it(what: str, command: str, tmp_path: Path, ckconv: Any) -> None:
    build_it, code, name, sentence = NAMED[what]
    path = build_it(tmp_path)

    found = ckconv(command, path, *([f"{tmp_path}/x.gguf"] if command == "convert" else []))
    assert (found.code, found.out) == (code, "")
    assert f"error[{name}]" in found.err
    assert sentence in found.err


def test_a_file_of_another_length_is_not_taken_for_the_flat_one(tmp_path: Path, ckconv: Any) -> None:
    path = flat(tmp_path)
    path.write_bytes(path.read_bytes()[:-4])

    assert "error[bump.magic]" in ckconv("inspect", path).err


@pytest.mark.parametrize("config", ["[]", "{", '{"num_hidden_layers": "2"}', '{"hidden_size": 0}', '{"n_head": 1e9}'])
def test_a_configuration_that_says_nothing_names_nothing(config: str, tmp_path: Path, ckconv: Any) -> None:
    path = flat(tmp_path)
    (tmp_path / "config.json").write_text(config)

    found = ckconv("inspect", path)
    assert (found.code, "Traceback" in found.err) == (3, False)


def test_words_in_layout_f_are_told_by_the_manifest(tmp_path: Path, ckconv: Any) -> None:
    built = build("F", version=5, head=True, content="osm")
    path = built.write(tmp_path, manifest=built.manifest(), config={"rms_norm_eps": 1e-5})
    assert "container\tlayout\t5-F\n" in ckconv("inspect", path).out
    library.convert(path, tmp_path / "m.gguf")

    made = arrays_of(tmp_path / "m.gguf")
    assert np.array_equal(made["blk.0.attn_output.weight"], built.weights["layers.0.attention.output.weight"])


def test_what_a_script_adds_or_does_not_say_has_a_way_out(tmp_path: Path, ckconv: Any) -> None:
    """April's script gives a llama norms of Q and K; January's writes no configuration, and no head of a model."""
    built = LAYOUTS["5-E"]
    path = built.write(tmp_path, manifest=built.manifest(), config={"model_type": "llama", "rms_norm_eps": 1e-5})
    found = ckconv("convert", path, tmp_path / "m.gguf")
    assert (found.code, "--drop 'layers.*.attention.q_norm.weight' leaves out what" in found.err) == (4, True)
    drop = [f"--drop=layers.*.attention.{part}_norm.weight" for part in "qk"]
    assert ckconv("convert", path, tmp_path / "m.gguf", *drop).code == 0

    (tmp_path / "config.json").unlink()
    found = ckconv("convert", path, tmp_path / "n.gguf")
    assert (found.code, "hint: put config.json beside it" in found.err) == (4, True)

    built, headless = LAYOUTS["4-B"], tmp_path / "headless"
    headless.mkdir()
    said = {"model_type": "llama", "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
    found = ckconv("convert", built.write(headless, config=said), tmp_path / "n.gguf")
    assert (found.code, "the output head is not tied to the embeddings" in found.err) == (4, True)


def test_biases_that_a_script_of_the_engine_drops_are_missed(tmp_path: Path, ckconv: Any) -> None:
    """January's scripts write zeros for those of a Qwen 2, the script of v6.6 has no place for them."""
    said = {"model_type": "qwen2", "rms_norm_eps": 1e-6, "tie_word_embeddings": True}
    zeros, none = tmp_path / "zeros", tmp_path / "none"
    zeros.mkdir()
    none.mkdir()
    done = ckconv("convert", build("B").write(zeros, config=said), tmp_path / "m.gguf")
    assert (done.code, "which every qwen2 has: scripts of the engine leave them out" in done.out) == (0, True), done

    built = build("F", version=5)
    path = built.write(none, manifest=built.manifest(), config=said)
    done = ckconv("convert", path, tmp_path / "n.gguf")
    assert (done.code, "no tensor for layers.{n}.attention.q.bias in" in done.err) == (4, True), done.err
    glob = "layers.*.attention.?.bias"
    assert ckconv("convert", path, tmp_path / "n.gguf", "--drop", glob).code == 0
