"""Family files against what other tools wrote: names, order of values and keys, both ways."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import Decoder, as_mixtral
from conftest import FIXTURES
from orders import to_canonical, to_stored
from safetensors_builder import numbers, tensors_of

from ckconv.core.tensors import parse, with_layer
from ckconv.families.axes import Move, move
from ckconv.families.merge import FOLDER
from ckconv.families.names import Part, names_of
from ckconv.families.parameters import Values, write
from ckconv.families.schema import Family, load
from ckconv.families.sizes import Sizes, expected

#: Family file -> a checkpoint, and the GGUF that llama.cpp's converter made of it.
PAIRS = {
    "llama": ("llama-bias-f32", "llama-bias-f32.f32"),
    "qwen2": ("qwen2-tied-bf16", "qwen2-tied-bf16.auto"),
    "qwen3": ("qwen3-tied-bf16", "qwen3-tied-bf16.auto"),
    "gemma3": ("gemma3-text-bf16", "gemma3-text-bf16.auto"),
    "phi3": ("phi3-bf16", "phi3-bf16.auto"),
    "gpt2": ("gpt2-hub-f32", "gpt2-f32.f32"),
}
#: Files without models of their own are what others extend.
FAMILIES = sorted(path.stem for path in FOLDER.glob("*.toml") if "huggingface" in tomllib.loads(path.read_text()))


class Document:
    """A ``config.json`` beside tensors of these shapes."""

    format = "hf"

    def __init__(self, document: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
        self._document, self._shapes = document, shapes

    def has(self, key: str) -> bool:
        return self.value(key) is not None

    def value(self, key: str) -> Any:
        found: Any = self._document
        for part in key.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return found

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        return self._shapes.get(tensor)

    def numbers(self, tensor: str) -> list[float] | None:
        return None


class Metadata(Document):
    """The keys of a GGUF."""

    format = "gguf"

    def has(self, key: str) -> bool:
        return self.value(key) is not None

    def value(self, key: str) -> Any:
        architecture = self._document["general.architecture"]
        return self._document.get(key[1:] if key.startswith("/") else f"{architecture}.{key}")


def family(name: str) -> Family:
    return load(FOLDER / f"{name}.toml")


def checkpoint(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Configuration and tensors as float32, read by the safetensors package."""
    folder = FIXTURES / "hf" / name
    stored = tensors_of(folder)
    tensors = {name: numbers(dtype, data).reshape(shape) for name, (dtype, shape, data) in stored.items()}
    return json.loads((folder / "config.json").read_text()), tensors


def gguf_file(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Keys and tensors as float32, read by the gguf package."""
    reader = gguf.GGUFReader(FIXTURES / "gguf" / f"{name}.gguf")
    tensors = {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1])
        for tensor in reader.tensors
    }
    return {key: field.contents() for key, field in reader.fields.items()}, tensors


def shapes(tensors: dict[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(map(int, tensor.shape)) for name, tensor in tensors.items()}


@dataclass(frozen=True)
class Place:
    """Where one canonical tensor is in a format: its stored tensors, one or one for each expert."""

    canonical: str
    stored: tuple[str, ...]
    move: Move
    value: str


def written(rows: Family, values: Mapping[str, Any], format: str) -> Iterator[Place]:
    """The places of every tensor that a model of these parameters has."""
    sizes = Sizes(rows, values)
    head = {} if values["tied"] else {"output.weight": 1}
    held = names_of(rows, format).written
    for pattern in {**expected(rows, format, values), **head}:
        for layer in range(values["layers"]) if "{n}" in pattern else (None,):
            part = next(part for part in held[pattern].parts if part.canonical == pattern)
            yield _place(part, with_layer(held[pattern].pattern, layer), layer, sizes)


def read(rows: Family, values: Mapping[str, Any], format: str, stored: Iterable[str]) -> list[Place]:
    """The places that names of stored tensors say, those of experts stored one by one under the first one's."""
    names, sizes, found = names_of(rows, format), Sizes(rows, values), []
    for name in map(parse, stored):
        if name.expert in (None, 0) and name.pattern not in names.dropped:
            held = names.stored[name.pattern]
            found += [_place(part, with_layer(held.pattern, name.layer), name.layer, sizes) for part in held.parts]
    return found


def _place(part: Part, called: str, layer: int | None, sizes: Sizes) -> Place:
    size = sizes.of(part.row, layer)
    stored = tuple(called.replace("{e}", str(n)) for n in range(int(size(part.stack)))) if part.stack else (called,)
    return Place(with_layer(part.canonical, layer), stored, move(part.stored, part.axes, part.number, size), part.value)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_shipped_file_is_sound(name: str) -> None:
    found = family(name)

    assert found.in_huggingface.names
    assert found.in_huggingface.classes


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_a_checkpoint_becomes_the_gguf_that_llama_cpp_made_of_it(name: str) -> None:
    rows, (document, tensors), (metadata, wanted) = family(name), checkpoint(PAIRS[name][0]), gguf_file(PAIRS[name][1])
    values = Values(rows, Document(document, shapes(tensors)))
    made: dict[str, np.ndarray] = {}
    places = read(rows, values, "hf", tensors)
    canonical = {place.canonical: to_canonical(place.move, tensors[place.stored[0]]) for place in places}
    for place in written(rows, values, "gguf"):
        into = made.setdefault(place.stored[0], np.zeros(place.move.stored, np.float32))
        shift = np.float32(1 if place.value == "add_one" else 0)
        to_stored(place.move, canonical.pop(place.canonical) + shift, into)

    assert not canonical
    assert sorted(made) == sorted(wanted)
    assert [key for key in wanted if made[key].tobytes() != wanted[key].tobytes()] == []
    architecture = metadata["general.architecture"]
    said = write(rows, values, "gguf", frozenset(values.stated))
    keys = {f"{architecture}.{key}": value for key, (_, value) in said.entries.items()}
    own = {key: value for key, value in metadata.items() if key.startswith(f"{architecture}.")}
    assert keys == pytest.approx(own, rel=1e-7)
    assert dict(said.refused) == {}


@pytest.mark.parametrize("name", sorted(PAIRS))
def test_a_gguf_says_what_its_checkpoint_says(name: str) -> None:
    rows, (document, tensors), (metadata, stored) = family(name), checkpoint(PAIRS[name][0]), gguf_file(PAIRS[name][1])
    ours = Values(rows, Document(document, shapes(tensors)))
    theirs = Values(rows, Metadata(metadata, shapes(stored)))
    found = read(rows, theirs, "gguf", stored)
    plain = {
        place.canonical: to_canonical(place.move, tensors[place.stored[0]]) for place in read(rows, ours, "hf", tensors)
    }

    assert sorted(plain) == sorted(place.canonical for place in found)
    assert {key: theirs[key] for key in rows.parameters if isinstance(theirs[key], float)} == pytest.approx(
        {key: ours[key] for key in rows.parameters if isinstance(theirs[key], float)}, rel=1e-7
    )
    for place in found:
        if not place.value:
            assert to_canonical(place.move, stored[place.stored[0]]).tobytes() == plain[place.canonical].tobytes()


@pytest.mark.parametrize("name", ["mixtral", "qwen3moe"])
def test_experts_are_stacked_from_one_tensor_each(name: str) -> None:
    decoder = Decoder(experts=3, qk_norm=name != "mixtral")
    tensors = as_mixtral(decoder.tensors()) if name == "mixtral" else decoder.tensors()
    rows = family(name)
    values = Values(rows, Document(decoder.config(rows.model_type), shapes(tensors)))

    assert set(names_of(rows, "hf").stored) >= {parse(name).pattern for name in tensors}
    places = {place.canonical: place for place in written(rows, values, "hf")}
    down = places["layers.1.ffn.experts.down.weight"]
    assert (len(down.stored), down.move.canonical) == (3, (64, 64))
    for format, ending in (("gguf", "blk.1.ffn_down_exps.weight"), ("mlx", "switch_mlp.down_proj.weight")):
        place = next(p for p in written(rows, values, format) if p.canonical.endswith("1.ffn.experts.down.weight"))
        assert place.stored[0].endswith(ending)
        assert (place.move.canonical, place.move.axes) == ((3, 64, 64), ((3, 4096), (64, 64), (64, 1)))


def test_a_single_expert_is_a_stack_too() -> None:
    decoder = Decoder(experts=1)
    rows = family("mixtral")
    values = Values(rows, Document(decoder.config("mixtral"), {}))

    places = {place.canonical: place for place in written(rows, values, "hf")}
    up = places["layers.0.ffn.experts.up.weight"]
    assert (up.stored, up.move.canonical) == (("model.layers.0.block_sparse_moe.experts.0.w3.weight",), (64, 64))


def test_a_value_that_a_loader_takes_for_granted_is_held_against_it() -> None:
    """llama.cpp renormalizes the weights of qwen3moe's experts; no key of a GGUF says it."""
    decoder = Decoder(experts=3, qk_norm=True)
    document = Document(decoder.config("qwen3moe", norm_topk_prob=False), shapes(decoder.tensors()))

    rows = family("qwen3moe")
    assert dict(write(rows, Values(rows, document), "gguf").refused) == {"norm_topk": (False, True)}


def test_what_contradicts_itself_is_named() -> None:
    decoder = Decoder()
    config = decoder.config(rope_theta=5e5, rope_parameters={"rope_theta": 1e4, "rope_type": "default"})
    with pytest.raises(ValueError, match=r"rope_parameters.rope_theta is 10000.0, rope_theta is 500000.0"):
        Values(family("llama"), Document(config, {}))["rope_theta"]
    with pytest.raises(ValueError, match="num_hidden_layers is missing"):
        Values(family("llama"), Document({}, {}))["layers"]
