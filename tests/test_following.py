"""Who reads behind a writer gets what is written, no earlier; and nobody waits for what will not come."""

from __future__ import annotations

import math
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from ckconv.core.tensors import Extent
from ckconv.engine import following
from ckconv.engine.following import LEAD, Following, Growth
from ckconv.engine.pace import AbandonedError
from ckconv.engine.workers import Stage
from ckconv.errors import Interrupted

FIRST, SECOND = Path("first"), Path("second")


def growth() -> Growth:
    return Growth([Extent(FIRST, 100, 1000), Extent(SECOND, 10, 50)])


class Interrupting(SimpleQueue[None]):
    """A queue at which a signal comes once."""

    def __init__(self) -> None:
        super().__init__()
        self.waited, self.raised = False, False

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        if not self.raised:
            self.raised = True
            raise Interrupted(2)
        super().put(item)

    def get(self, block: bool = True, timeout: float | None = None) -> None:
        self.waited = True
        super().get()


def test_what_waits_gets_on_when_the_bytes_are_there() -> None:
    grows, seen = growth(), []

    def read() -> str:
        for path, until in ((FIRST, 100), (FIRST, 600), (SECOND, 60), (Path("other"), 10**9)):
            grows.wait_for(path, until)
            seen.append((path.name, until))
        return "all"

    with Following(grows, read) as reading:
        grows.tell(FIRST, 600)
        grows.tell(FIRST, 1100)
        grows.tell(SECOND, 60)
        assert reading.result() == "all"
    assert seen == [("first", 100), ("first", 600), ("second", 60), ("other", 10**9)]


def test_the_writer_waits_for_a_reader_that_is_far_behind() -> None:
    """And not for one that has ended."""
    grows = Growth([Extent(FIRST, 0, 4 * LEAD)])
    order = []

    def read() -> None:
        for until in (LEAD, 2 * LEAD, 3 * LEAD):
            grows.wait_for(FIRST, until)
            order.append(f"read {until // LEAD}")

    with Following(grows, read) as reading:
        while math.isinf(grows._looking._wanted.value):  # the reader has not asked for anything
            pass
        for until in (LEAD, 2 * LEAD, 3 * LEAD, 4 * LEAD):
            grows.tell(FIRST, until)
            order.append(f"wrote {until // LEAD}")
        reading.result()
    assert order.index("wrote 3") > order.index("read 1")


def test_one_who_hashes_and_one_who_looks_wait_each_for_his_own() -> None:
    grows, seen = growth(), []

    def read() -> None:
        grows.wait_for(FIRST, 400)
        seen.append("looked")

    def hash_() -> None:
        grows.wait_for(FIRST, 800, hashing=True)
        seen.append("hashed")

    with Following(grows, read) as looking, Following(grows, hash_) as hashing:
        grows.tell(FIRST, 400)
        looking.result()
        assert seen == ["looked"]
        grows.tell(FIRST, 800)
        hashing.result()
    assert seen == ["looked", "hashed"]


def test_the_writer_waits_for_one_who_hashes_far_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "UNHASHED", 100)
    grows = growth()
    order, begun = [], SimpleQueue[None]()

    def hash_() -> None:
        grows.wait_for(FIRST, 200, hashing=True)
        begun.get()
        order.append("hashed")
        grows.unhashed()

    with Following(grows, hash_) as hashing:
        while math.isinf(grows._hashing._wanted.value):
            pass
        grows.tell(FIRST, 300)
        begun.put(None)
        grows.tell(FIRST, 301)  # returns when nobody hashes any more
        order.append("wrote")
        hashing.result()
    assert order == ["hashed", "wrote"]


def test_nobody_waits_for_a_writer_that_gave_up() -> None:
    grows = growth()
    with Following(grows, lambda: grows.wait_for(FIRST, 1100)) as reading:
        grows.tell(FIRST, 600)
        grows.abandon()
        with pytest.raises(AbandonedError):
            reading.result()


def test_a_signal_in_the_middle_of_waking_somebody_does_not_leave_him_waiting() -> None:
    """It comes when the writer has noted that the reader need not be woken again, and has not woken it yet."""
    grows = growth()
    grows._looking._written._woken = woken = Interrupting()
    with Following(grows, lambda: grows.wait_for(FIRST, 600)):
        while not woken.waited:
            pass
        with pytest.raises(Interrupted):
            grows.tell(FIRST, 600)
    assert woken.raised


def test_a_signal_before_the_thread_starts_waits_for_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(stage: Stage) -> None:
        raise Interrupted(2)

    monkeypatch.setattr(Stage, "start", interrupted)
    ran = []
    with pytest.raises(Interrupted), Following(growth(), lambda: ran.append("work")):
        raise AssertionError("it did not start")
    assert ran == []
