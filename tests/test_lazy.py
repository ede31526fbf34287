"""Classes whose methods are compiled late behave as those of the standard library, field for field."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
import typing
from dataclasses import FrozenInstanceError, field
from functools import cached_property
from typing import Any

import pytest

from ckconv import lazy


@lazy.dataclass(frozen=True, slots=True)
class Lazy:
    name: str
    count: int = 3
    notes: dict[str, int] = field(default_factory=dict)
    hidden: str = field(default="h", repr=False)

    @property
    def twice(self) -> int:
        return 2 * self.count


@dataclasses.dataclass(frozen=True, slots=True)
class Standard:
    name: str
    count: int = 3
    notes: dict[str, int] = field(default_factory=dict)
    hidden: str = field(default="h", repr=False)

    @property
    def twice(self) -> int:
        return 2 * self.count


@lazy.dataclass(frozen=True)
class Remembers:
    first: int

    @cached_property
    def square(self) -> int:
        return self.first**2


@lazy.dataclass(frozen=True, eq=False)
class Alone:
    name: str


class LazyPair(lazy.NamedTuple):
    left: int
    right: str = "r"

    @property
    def both(self) -> str:
        return f"{self.left}{self.right}"


class StandardPair(typing.NamedTuple):
    left: int
    right: str = "r"

    @property
    def both(self) -> str:
        return f"{self.left}{self.right}"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(("a",), {}), (("a", 4), {}), (("a",), {"count": 5, "notes": {"n": 1}}), ((), {"hidden": "x", "name": "b"})],
)
def test_an_object_is_made_shown_and_taken_apart_as_the_standard_one(
    arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    one, other = Lazy(*arguments, **named), Standard(*arguments, **named)
    assert repr(one) == repr(other).replace("Standard", "Lazy")
    assert dataclasses.asdict(one) == dataclasses.asdict(other)
    assert one.twice == other.twice
    assert Lazy.__match_args__ == Standard.__match_args__
    assert (Lazy.__qualname__, Lazy.__module__) == ("Lazy", __name__)


@pytest.mark.parametrize("arguments", [(), ("a", 1, {}, "h", 2)])
def test_wrong_arguments_are_refused_before_and_after_the_first_object(arguments: tuple[Any, ...]) -> None:
    for _ in range(2):
        with pytest.raises(TypeError):
            Lazy(*arguments)
        Lazy("a")


def test_two_objects_do_not_share_what_a_factory_makes() -> None:
    assert Lazy("a").notes is not Lazy("a").notes


def test_objects_are_equal_by_their_fields_and_their_class() -> None:
    assert Lazy("a") == Lazy("a")
    assert Lazy("a") != Lazy("b")
    standard: object = Standard("a")
    assert Lazy("a") != standard
    assert Remembers(1) == Remembers(1)
    assert hash(Remembers(1)) == hash(Remembers(1))
    assert Alone("a") != Alone("a")
    assert len({Remembers(1), Remembers(1), Remembers(2)}) == 2


def test_an_object_cannot_be_changed() -> None:
    one = Lazy("a")
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'name'"):
        one.name = "b"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del one.name
    assert Remembers(3).square == 9


def test_copies_have_other_values_where_they_are_asked_for() -> None:
    for replace in (lazy.replace, dataclasses.replace):
        assert replace(Lazy("a", 4), name="b") == Lazy("b", 4)
        with pytest.raises(TypeError):
            replace(Lazy("a"), nothing=1)
    assert [item.name for item in dataclasses.fields(Lazy)] == ["name", "count", "notes", "hidden"]


@pytest.mark.parametrize("one", [Lazy("a", 4, {"n": 1}), Remembers(2), LazyPair(1), LazyPair(2, "x")])
def test_objects_come_back_from_bytes_and_copies(one: Any) -> None:
    assert pickle.loads(pickle.dumps(one)) == one
    assert copy.copy(one) == one
    assert copy.deepcopy(one) == one


@pytest.mark.parametrize(("arguments", "named"), [((1,), {}), ((1, "x"), {}), ((), {"right": "y", "left": 2})])
def test_a_tuple_is_made_shown_and_taken_apart_as_the_standard_one(
    arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    one, other = LazyPair(*arguments, **named), StandardPair(*arguments, **named)
    assert tuple(one) == tuple(other)
    assert hash(one) == hash(other)
    assert repr(one) == repr(other).replace("Standard", "Lazy")
    assert one._asdict() == other._asdict()
    assert tuple(one._replace(left=9)) == tuple(other._replace(left=9))
    assert tuple(LazyPair._make((5, "z"))) == tuple(StandardPair._make((5, "z")))
    assert one.both == other.both
    assert (LazyPair._fields, LazyPair._field_defaults) == (StandardPair._fields, StandardPair._field_defaults)


@pytest.mark.parametrize("arguments", [(), (1, "x", 2)])
def test_a_tuple_takes_as_many_values_as_it_has_fields(arguments: tuple[Any, ...]) -> None:
    for _ in range(2):
        with pytest.raises(TypeError):
            LazyPair(*arguments)
        LazyPair(1)
    with pytest.raises(AttributeError):
        LazyPair(1).left = 2  # type: ignore[misc]


@lazy.dataclass(slots=True)
class Changing:
    name: str
    count: int = 3


def test_what_is_not_frozen_changes_and_has_no_hash() -> None:
    one = Changing("x")
    one.count += 1
    assert (one, one == Changing("x")) == (Changing("x", 4), False)
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_a_regular_expression_is_what_the_standard_library_makes_of_it() -> None:
    words = lazy.regex(r"(?P<first>[a-z]+) ([a-z]+)", re.IGNORECASE)
    found = words.fullmatch("Some words")
    assert found is not None
    assert (found["first"], words.sub("-", "two words, more"), words.search("1")) == ("Some", "-, more", None)
    assert words.groups == 2
