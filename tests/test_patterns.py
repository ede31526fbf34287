"""Patterns of an adapter's author: what ``re`` answers, in steps that are linear in pattern times name."""

from __future__ import annotations

import random
import re
import warnings
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from ckconv.errors import InputError, UnsupportedError
from ckconv.formats.peft.config import ModuleKeys, Selection
from ckconv.formats.peft.patterns import MAX_COUNT, STATES_A_CHARACTER, NoPattern, NotMatched, Pattern, Steps, automaton

ATOMS = [
    *("a", "b", "q", ".", r"\.", r"\d", r"\w", r"\s", r"\D", "1", "_", r"\n", "\n", "é", "²", "٣"),
    *("[ab]", "[^a]", "[a-q]", "[]a]", "[[a]", r"[\d_]", "[a-]", r"\b", "^", "$", r"\Z", r"\A"),
]
REPEATS = ["*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{,2}", "{1,}"]
#: Steps for each character of a pattern and each of a name, and one more for its end.
STEPS = 24


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


def hostile(rng: random.Random) -> tuple[str, str]:
    """An expression over which backtracking takes long, and a name that almost matches."""
    letter = rng.choice(["a", ".", "[a-z]", r"\w", "(?:a)", "[ab]"])
    core = rng.choice(
        [
            f"({letter}|{letter})",
            f"{letter}?",
            f"{letter}*",
            f"({letter}+)+",
            f"({letter}|{letter}{letter})+",
            f"({letter}{letter}?)*",
            f"({letter}*){letter}",
            f".*({letter}|{letter}|{letter})",
            f"{letter}{{1,9}}",
            rf"(?:\.?{letter})+",
            f"(({letter}|b)+c?)+",
        ]
    )
    pattern = core * rng.randrange(1, 12) + rng.choice(["b", "$", r"\.b", "(c|d)", ""])
    return pattern, "a" * rng.randrange(1, 20) + rng.choice(["", "!", ".b", "\n"])


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
            with pytest.raises((NoPattern, NotMatched)):
                automaton(text)
            continue
        try:
            pattern = Pattern(text, Steps())
        except NotMatched:
            continue
        for _ in range(8):
            name = "".join(rng.choice("abq.12_\né²٣ x") for _ in range(rng.randrange(7)))
            found = pattern.fully_matches(name), pattern.matches(name)
            assert found == (expected.fullmatch(name) is not None, expected.match(name) is not None), (text, name)
            compared += 1
    assert compared > 15_000


def test_states_are_at_most_a_few_for_each_character() -> None:
    pieces = ["a", "|", "()", "(a|)", f"a{{{MAX_COUNT}}}", f"a{{,{MAX_COUNT}}}", f"a{{{MAX_COUNT},}}", "a*", "^", r"\b"]
    rng = random.Random(13)
    texts = ["".join(rng.choice(pieces) for _ in range(rng.randrange(1, 9))) for _ in range(3000)]
    texts += [hostile(rng)[0] for _ in range(1000)] + [generated(rng, 5) for _ in range(1000)]
    accepted = 0
    for text in [*pieces, *texts]:
        try:
            states = automaton(text).states
        except (NoPattern, NotMatched):
            continue
        accepted += 1
        assert len(states) <= STATES_A_CHARACTER * len(text), text
    assert accepted > 3_000


def test_steps_are_linear_in_pattern_times_name() -> None:
    rng = random.Random(11)
    accepted = 0
    for _ in range(10_000):
        text, name = hostile(rng)
        steps = Steps()
        try:
            pattern = Pattern(text, steps)
        except NotMatched:
            continue
        before = steps.taken
        assert before <= 1000 * len(text)
        pattern.fully_matches(name)
        accepted += 1
        assert steps.taken - before <= STEPS * len(text) * (len(name) + 1), (text, name)
    assert accepted > 7_000


def test_a_known_pattern_follows_many_names_in_one_step_a_character() -> None:
    text = r"(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:q_proj|k_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\.mlp)"
    steps = Steps()
    pattern = Pattern(text, steps)
    names = [f"model.layers.{layer}.self_attn.{part}_proj" for layer in range(99) for part in "qkvo"]
    assert not any(map(pattern.fully_matches, names))
    before = steps.taken
    assert not any(map(pattern.fully_matches, names))
    assert steps.taken - before <= sum(map(len, names))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("(", NoPattern),
        ("a)", NoPattern),
        ("[a", NoPattern),
        ("*a", NoPattern),
        ("^*", NoPattern),
        ("[b-a]", NoPattern),
        (r"a\q", NoPattern),
        ("a\\", NoPattern),
        ("a{3,2}", NoPattern),
        (r"(a)\1", NotMatched),
        ("(?=a)", NotMatched),
        ("(?P<idx>layers)", NotMatched),
        ("(?i)a", NotMatched),
        ("(a*)*", NotMatched),
        ("(ab){3}", NotMatched),
        ("a{1000}", NotMatched),
        ("a++", NotMatched),
        ("(" * 40 + "a" + ")" * 40, NotMatched),
        ("a" * 5000, NotMatched),
    ],
)
def test_what_is_no_expression_and_what_is_not_accepted(text: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        automaton(text)


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
            "layers_pattern": rng.choice([None, "layers", ["h", "layers"], r"model\.layers", "experts", ""]),
        }
        found, selection = ModuleKeys(keys, "rank_pattern", Steps()), Selection(document, Steps())
        config = SimpleNamespace(target_parameters=None, **document)
        for module in MODULES:
            number = found.first(module)
            assert (module if number is None else keys[number]) == other.get_pattern_key(keys, module), (keys, module)
            chosen = tuners.check_target_module_exists(config, module)
            expected = bool(chosen) and type(chosen).__name__ != "_ExcludedModule"
            assert selection.holds(module) == expected, (document, module)


def test_a_key_for_every_module_of_a_large_model_costs_little() -> None:
    steps = Steps()
    keys = [f"model.layers.{layer}.mlp.experts.{e}.up_proj" for layer in range(48) for e in range(64)]
    found = ModuleKeys(keys, "rank_pattern", steps)
    assert [found.first(key) for key in keys] == list(range(len(keys)))
    assert steps.taken < 100 * len(keys)


def test_more_patterns_and_names_than_can_be_matched_in_reasonable_time_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="its patterns take more than 20,000,000 steps"):
        ModuleKeys([f"(a|b){n}" for n in range(1_000_000)], "rank_pattern", Steps())


@pytest.mark.parametrize("field", ["exclude_modules", "target_modules", "feedforward_modules", "layers_pattern"])
def test_an_error_names_the_field_of_the_pattern(field: str) -> None:
    with pytest.raises(InputError, match=rf"'\(' of {field} is not a regular expression"):
        Selection({field: "("}, Steps())
    with pytest.raises(UnsupportedError, match=f"of {field} is an expression that ckconv does not match"):
        Selection({field: "(?P<idx>layers)"}, Steps())
