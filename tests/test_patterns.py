"""Patterns of an adapter's author: what ``re`` answers, in bounded time."""

from __future__ import annotations

import random
import re
import time
import warnings
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from ckconv.errors import InputError, UnsupportedError
from ckconv.formats.peft.read import ModuleKeys, Selection
from ckconv.io import json as documents
from ckconv.io.json import Clock

ATOMS = [
    *("a", "b", "q", ".", r"\.", r"\d", r"\w", r"\s", r"\D", "1", "_", r"\n", "\n", "é", "²", "٣"),
    *("[ab]", "[^a]", "[a-q]", "[]a]", "[[a]", r"[\d_]", "[a-]", r"\b", "^", "$", r"\Z", r"\A"),
]
REPEATS = ["*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{,2}", "{1,}"]


def generated(rng: random.Random, depth: int) -> str:
    """An expression."""
    kind = rng.random()
    if depth <= 0 or kind < 0.4:
        return rng.choice(ATOMS)
    if kind < 0.55:
        return generated(rng, depth - 1) + generated(rng, depth - 1)
    if kind < 0.7:
        opening = rng.choice(["(", "(?:"])
        return f"{opening}{generated(rng, depth - 1)}|{generated(rng, depth - 1)})"
    if kind < 0.8:
        return f"({generated(rng, depth - 1)})"
    if kind < 0.97:
        return generated(rng, depth - 1) + rng.choice(REPEATS)
    return f"{generated(rng, depth - 1)}|{generated(rng, depth - 1)}"


def test_the_answer_is_that_of_re() -> None:
    rng = random.Random(7)
    compared = 0
    for _ in range(3000):
        text = generated(rng, 5)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = re.compile(text)
        except re.error:
            with pytest.raises(InputError):
                Selection({"target_modules": text}, Clock())
            continue
        whole, end = Selection({"target_modules": text}, Clock()), ModuleKeys([f"(?:{text})"], "rank_pattern", Clock())
        ending = re.compile(rf"(.*\.)?((?:{text}))$")
        for _ in range(8):
            name = "".join(rng.choice("abq.12_é٣ x") for _ in range(rng.randrange(7)))
            found = whole.holds(name), end.first(name) is not None
            assert found == (expected.fullmatch(name) is not None, ending.match(name) is not None), (text, name)
            compared += 1
    assert compared > 15_000


@pytest.mark.parametrize(
    ("pattern", "name"),
    [("(a|a)" * 30 + "b", "a" * 40), ("(?:a|a)*" * 9 + "$", "a" * 60 + "!")],
)
def test_what_takes_too_long_is_refused(pattern: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_SECONDS", 0.05)
    began = time.monotonic()
    with pytest.raises(UnsupportedError, match=r"patterns take more than 0\.05 seconds"):
        Selection({"target_modules": pattern}, Clock()).holds(name)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("text", ["(", "a)", "[a", "*a", "^*", "[b-a]", r"a\q", "a\\", "a{3,2}", r"\m", "(?|a)"])
def test_what_python_does_not_compile_is_no_expression(text: str) -> None:
    with pytest.raises(InputError, match="is not a regular expression"):
        Selection({"target_modules": text}, Clock())


@pytest.mark.parametrize(
    "text",
    [
        "a{e}",
        "a{}",
        "a{e<=1}",
        "((a{999}){999}){999}",
        f"({'a' * 4000}){{999}}",
        "(" * 3000 + ")" * 3000,
        "a" * 5000,
    ],
)
def test_what_is_read_otherwise_than_by_python_or_too_large_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedError, match="is an expression that ckconv does not match"):
        Selection({"target_modules": text}, Clock())


MODULES = [
    f"model.layers.{layer}.{part}"
    for layer in (0, 1, 11)
    for part in ("self_attn.q_proj", "self_attn.k_proj", "mlp.experts.3.up_proj", "mlp.gate")
]
MODULES += ["lm_head", "model.embed_tokens", "h.0.attn.c_attn", "q_proj", "model.layers", "model"]
PATTERNS = [
    *("q_proj", "self_attn.q_proj", r"self_attn\.q_proj", ".*q_proj", r".*\.(q_proj|k_proj)", "lm_head", "q.proj"),
    *(r"model\.layers\.\d+\.self_attn\..*", "^model.*", "layers.1.*", "layers", "layers.0.self_attn.q_proj", "", "."),
    *(r"model.layers.(0|11)\..*proj", "gate|up_proj", "embed_tokens", "mlp.experts.[0-3].up_proj", "h", "attn|model"),
    *(r"layers\.1", r".*layers\.(?:0|1)\..*?(?:q|k)_proj$", r"\bmodel\.layers\.[\d]{1,}\.(?:mlp|self_attn)\.\w+"),
]

LAYERS = [None, "layers", ["h", "layers"], r"model\.layers", "experts", "", "(?:h|lay.+)", [r"(?P<kind>\w+)", "h"]]


@pytest.mark.live
def test_modules_are_those_of_peft() -> None:
    other = import_module("peft.utils.other")
    tuners = import_module("peft.tuners.tuners_utils")
    rng = random.Random(3)

    def some() -> Any:
        return rng.choice([None, rng.choice(PATTERNS), rng.sample(PATTERNS, rng.randrange(4))])

    for _ in range(400):
        keys = rng.sample(PATTERNS, rng.randrange(1, 5))
        document = {
            "target_modules": some() or ["q_proj"],
            "exclude_modules": some(),
            "modules_to_save": rng.choice([None, rng.sample(PATTERNS, 2)]),
            "layers_to_transform": rng.choice([None, 0, [], [0, 11], [3]]),
            "layers_pattern": rng.choice(LAYERS),
        }
        found, selection = ModuleKeys(keys, "rank_pattern", Clock()), Selection(document, Clock())
        given = SimpleNamespace(target_parameters=None, **document)
        for module in MODULES:
            number = found.first(module)
            assert (module if number is None else keys[number]) == other.get_pattern_key(keys, module), (keys, module)
            chosen = tuners.check_target_module_exists(given, module)
            expected = bool(chosen) and type(chosen).__name__ != "_ExcludedModule"
            assert selection.holds(module) == expected, (document, module)


def test_a_key_for_every_module_of_a_large_model_is_found() -> None:
    keys = [f"model.layers.{layer}.mlp.experts.{e}.up_proj" for layer in range(48) for e in range(64)]
    found = ModuleKeys(keys, "rank_pattern", Clock())
    assert [found.first(key) for key in keys] == list(range(len(keys)))


@pytest.mark.parametrize("field", ["exclude_modules", "target_modules", "feedforward_modules", "layers_pattern"])
def test_an_error_names_the_field_of_the_pattern(field: str) -> None:
    with pytest.raises(InputError, match=rf"'\(' of {field} is not a regular expression"):
        Selection({field: "("}, Clock())
    with pytest.raises(UnsupportedError, match=f"of {field} is an expression that ckconv does not match"):
        Selection({field: "a{e}"}, Clock())
