"""What is being written is hashed behind whoever writes it, and is what was written."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path
from queue import SimpleQueue

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckconv.core.tensors import Extent
from ckconv.engine import behind, following, handed, reread
from ckconv.engine.behind import Behind
from ckconv.engine.copies import PIECE_BYTES
from ckconv.engine.following import Following, Growth
from ckconv.engine.handed import BLOCK_BYTES, Block, Handed
from ckconv.engine.pace import AbandonedError, Mark
from ckconv.engine.readonce import ReadOnce
from ckconv.engine.reread import FileHash
from ckconv.engine.workers import Stage
from ckconv.errors import InputError, OutputError
from ckconv.publish.files import open_regular
from ckconv.system import is_cached

SMALL = 16 << 10


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a few pages."""
    monkeypatch.setattr(behind, "STEP", SMALL)
    monkeypatch.setattr(reread, "HASHED_AT_ONCE", 3000)


def digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def written(tmp_path: Path, content: bytes, name: str = "file") -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


@given(offset=st.integers(0, 9000), steps=st.lists(st.integers(1, 40_000), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_the_digest_is_that_of_the_bytes(
    tmp_path_factory: pytest.TempPathFactory, offset: int, steps: list[int]
) -> None:
    content = os.urandom(50_000)
    path = written(tmp_path_factory.mktemp("hash"), content)
    with pytest.MonkeyPatch.context() as patch, path.open("rb") as file:
        patch.setattr(reread, "HASHED_AT_ONCE", SMALL)
        hashing, until = FileHash(file.fileno(), offset), 0
        for step in steps:
            until = min(until + step, len(content) - offset)
            hashing.read_to(until)
            assert (hashing.nbytes, hashing.digest) == (until, digest(content[offset : offset + until]))


def test_a_hole_is_zeros_and_stays_a_hole(tmp_path: Path, small: None) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(b"begin")
        file.seek(1 << 20)
        file.write(b"end")
    before = path.stat().st_blocks
    with path.open("rb") as file:
        hashing = FileHash(file.fileno(), 0)
        hashing.read_to(path.stat().st_size)
    assert hashing.digest == digest(path.read_bytes())
    assert path.stat().st_blocks == before


def test_a_file_that_ends_early_is_hashed_as_far_as_it_goes(tmp_path: Path) -> None:
    path = written(tmp_path, b"x" * 5000)
    with path.open("rb") as file:
        hashing = FileHash(file.fileno(), 1000)
        hashing.read_to(9000)
    assert (hashing.nbytes, hashing.digest) == (4000, digest(b"x" * 4000))


@pytest.mark.needs("cached")
def test_what_was_just_written_is_in_memory(tmp_path: Path) -> None:
    """Else all of it would be asked to be read ahead, and nobody would see it."""
    path = written(tmp_path, b"x" * 5000)
    with path.open("rb") as file:
        assert is_cached(file.fileno(), 0)
        assert is_cached(file.fileno(), 4999)


def test_files_are_hashed_while_they_are_written(tmp_path: Path, small: None) -> None:
    content = os.urandom(100_000)
    first, second = (written(tmp_path, b"head" + bytes(100_000), name) for name in ("1", "2"))
    growth = Growth([Extent(first, 4, 100_000), Extent(second, 4, 100_000)])
    whole, part = Extent(first, 0, 100_004), Extent(second, 4, 100_000)
    hashing = Behind([whole, part], growth, open_regular)
    try:
        for path in (first, second):
            with path.open("r+b", buffering=0) as file:
                file.seek(4)
                for at in range(0, 100_000, 7_000):
                    file.write(content[at : at + 7_000])
                    growth.tell(path, min(100_004, 4 + at + 7_000))
        assert (hashing.has(whole), hashing.has(Extent(second, 0, 4))) == (True, False)
        assert (hashing.digest(whole), hashing.digest(part)) == (digest(b"head" + content), digest(content))
    finally:
        hashing.stop()


def test_blocks_that_are_handed_over_are_hashed_between_what_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the file is something else than what is handed: so it is seen which of the two is hashed."""
    monkeypatch.setattr(handed, "SMALLEST", 10 / BLOCK_BYTES)
    path, blocks = written(tmp_path, b"head" + b"f" * 100), {4: b"a" * 20, 24: b"b" * 9, 50: b"c" * 30}
    extent = Extent(path, 0, 104)
    growth = Growth([Extent(path, 4, 100)])
    begun = SimpleQueue[None]()
    begin = Handed.begin
    monkeypatch.setattr(Handed, "begin", lambda self: (begin(self), begun.put(None)))
    hashing = Behind([extent], growth, open_regular)
    try:
        begun.get()
        for offset, data in blocks.items():
            memory = growth.handed.borrow()
            memory[: len(data)] = data
            block = Block(growth.place(path, offset), memoryview(memory)[: len(data)], memory)
            growth.handed.hand(block, lambda: None)
        growth.tell(path, 104)
        expected = b"head" + blocks[4] + b"f" * 26 + blocks[50] + b"f" * 24
        assert hashing.digest(extent) == digest(expected)
    finally:
        hashing.stop()


def test_who_looks_is_told_of_the_last_byte_when_it_is_hashed(tmp_path: Path) -> None:
    """He asks for the digest then, and there may be no thread that he could wait for."""
    path, seen = tmp_path / "file", []
    growth = Growth([Extent(path, 0, 100)], alone=True)
    growth.hashed_by(lambda: seen.append((growth.is_written(path, 100), growth._looking.written)), lambda: False)
    growth.tell(path, 100)
    assert (seen, growth._looking.written) == ([(True, 0)], 100)


@pytest.fixture
def hashes(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Threads that hash."""
    seen: set[int] = set()
    read_to = FileHash.read_to

    def noted(self: FileHash, until: int) -> None:
        seen.add(threading.get_ident())
        read_to(self, until)

    monkeypatch.setattr(FileHash, "read_to", noted)
    return seen


@pytest.mark.parametrize("after", range(6))
def test_a_thread_goes_on_when_a_processor_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashes: set[int], after: int
) -> None:
    monkeypatch.setattr(behind, "STEP", SMALL)
    content, me = os.urandom(100_000), threading.get_ident()
    path = written(tmp_path, b"head" + content)
    growth = Growth([Extent(path, 4, 100_000)], alone=True)
    hashing = Behind([Extent(path, 0, 100_004)], growth, open_regular)
    try:
        for number in range(5):
            assert growth.left == 100_000 - 20_000 * number
            if number == after:
                assert [growth.help(), growth.help()] == [True, False]
            growth.tell(path, 20_004 + 20_000 * number)
        if after == 5:
            assert not growth.help()
        assert hashing.digest(Extent(path, 0, 100_004)) == digest(b"head" + content)
    finally:
        hashing.stop()
    assert (me in hashes, len(hashes - {me})) == (after > 0, after < 5)
    assert growth.help() is False


def test_who_is_not_helped_goes_on_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashes: set[int]) -> None:
    """The user may have no more threads."""
    path = written(tmp_path, bytes(100))
    growth = Growth([Extent(path, 0, 100)], alone=True)
    hashing = Behind([Extent(path, 0, 100)], growth, open_regular)

    def refuses(self: Stage) -> None:
        raise OutputError("system", "a thread cannot be started")

    monkeypatch.setattr(Stage, "start", refuses)
    try:
        growth.tell(path, 50)
        assert growth.help() is False
        assert len(growth.handed.borrow()) == PIECE_BYTES
        growth.tell(path, 100)
        assert hashing.digest(Extent(path, 0, 100)) == digest(bytes(100))
    finally:
        hashing.stop()
    assert hashes == {threading.get_ident()}


def test_who_was_broken_off_is_not_helped_and_has_no_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C where nobody has it held back."""
    path = written(tmp_path, bytes(100))
    growth = Growth([Extent(path, 0, 100)], alone=True)
    hashing = Behind([Extent(path, 0, 100)], growth, open_regular)

    def broken_off(self: FileHash, until: int) -> None:
        raise KeyboardInterrupt

    try:
        with monkeypatch.context() as patch:
            patch.setattr(FileHash, "read_to", broken_off)
            with pytest.raises(KeyboardInterrupt):
                growth.tell(path, 50)
        assert not growth.help()
        growth.tell(path, 100)
        with pytest.raises(AbandonedError):
            hashing.digest(Extent(path, 0, 100))
    finally:
        hashing.stop()


def test_whoever_hands_waits_when_who_hashes_has_what_he_waits_for() -> None:
    """Else each of the two would wait for the other one."""
    assert (handed.WAITING - 1) * BLOCK_BYTES >= handed.STEP


@pytest.mark.parametrize("helped", [True, False])
def test_who_was_helped_hears_of_what_is_wrong(tmp_path: Path, helped: bool) -> None:
    path = written(tmp_path, bytes(100))
    growth = Growth([Extent(path, 0, 200)], alone=True)
    hashing = Behind([Extent(path, 0, 200)], growth, open_regular)
    try:
        growth.tell(path, 50)
        assert not helped or growth.help()
        growth.tell(path, 200)
        with pytest.raises(OutputError, match="ends early"):
            hashing.digest(Extent(path, 0, 200))
        assert growth.help() is False
    finally:
        hashing.stop()


@pytest.mark.parametrize("alone", [True, False])
def test_what_is_around_tensors_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool) -> None:
    """Behind the tensors of one file, places are counted as in the next one, which may be handed over already."""
    monkeypatch.setattr(handed, "SMALLEST", 0)
    first, second = (written(tmp_path, b"head" + b"f" * 50 + b"tail", name) for name in ("1", "2"))
    growth = Growth([Extent(path, 4, 50) for path in (first, second)], alone=alone)
    whole = [Extent(path, 0, 58) for path in (first, second)]
    hashing = Behind(whole, growth, open_regular)
    try:
        while not growth.handed.wanted and not alone:
            time.sleep(0.001)
        growth.tell(first, 4)
        for path in (first, second):
            memory = growth.handed.borrow()
            memory[:50] = b"h" * 50
            block = Block(growth.place(path, 4), memoryview(memory)[:50], memory)
            growth.handed.hand(block, lambda: None)
        growth.tell(first, 54)
        growth.tell(second, 54)
        expected = digest(b"head" + b"h" * 50 + b"tail")
        assert [hashing.digest(extent) for extent in whole] == [expected] * 2
    finally:
        hashing.stop()


def test_whoever_hands_waits_for_whoever_hashes_and_for_nobody_when_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handed, "BLOCK_BYTES", 100)
    blocks, told = Handed(), []

    def hand(place: int) -> None:
        memory = blocks.borrow()
        blocks.hand(Block(place, memoryview(memory), memory), lambda: told.append(place))

    for place in range(0, 1000, 100):
        hand(place)  # nobody hashes
    assert (blocks.next(0), told, len(blocks._spare)) == (None, [], handed.RESTING + 1)
    blocks.begin()
    for place in range(0, 100 * handed.WAITING, 100):
        hand(place)
    assert told == []
    ends = threading.Timer(0.05, blocks.end)
    ends.start()
    hand(400)
    ends.join()
    assert (told, blocks.next(0)) == ([400], None)
    hand(500)  # and nobody hashes again


def test_memory_that_was_just_hashed_is_not_the_first_to_be_filled_again() -> None:
    blocks = Handed()
    blocks.begin()
    seen = []
    for place in range(0, 20 * BLOCK_BYTES, BLOCK_BYTES):
        memory = blocks.borrow()
        seen.append(id(memory))
        blocks.hand(Block(place, memoryview(memory), memory), lambda: None)
        found = blocks.next(place)
        assert found is not None
        blocks.done(found)
    assert len(set(seen)) == handed.RESTING + 1
    assert all(one not in seen[n + 1 : n + handed.RESTING + 1] for n, one in enumerate(seen))


def test_who_hashes_ends_when_he_is_stopped_or_nobody_writes(tmp_path: Path) -> None:
    path = written(tmp_path, bytes(100))
    growth = Growth([Extent(path, 0, 100)])
    Behind([Extent(path, 0, 100)], growth, open_regular).stop()
    growth.tell(path, 100)  # and nobody is waited for

    growth = Growth([Extent(path, 0, 100)])
    hashing = Behind([Extent(path, 0, 100)], growth, open_regular)
    growth.abandon()
    with pytest.raises(AbandonedError):
        hashing.digest(Extent(path, 0, 100))


def test_what_cannot_be_hashed_is_an_error_of_its_file(tmp_path: Path) -> None:
    path, missing = written(tmp_path, bytes(100)), tmp_path / "missing"
    for extent, error, code in (
        (Extent(path, 0, 200), OutputError, "input.changed"),
        (Extent(missing, 0, 1), InputError, "input.missing"),
    ):
        growth = Growth([extent])
        hashing = Behind([extent], growth, open_regular)
        growth.tell(extent.path, extent.nbytes)
        with pytest.raises(error) as info:
            hashing.digest(extent)
        assert (info.value.code, info.value.path) == (code, str(extent.path))


def test_who_looks_and_fails_leaves_nobody_waiting_for_him(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who hashes waits for more than the writer may write before it is looked at."""
    monkeypatch.setattr(following, "LEAD", 1 << 10)
    monkeypatch.setattr(behind, "STEP", 1 << 19)
    path = written(tmp_path, bytes(1 << 20))
    extent = Extent(path, 0, 1 << 20)
    growth, begun = Growth([extent]), SimpleQueue[None]()

    def fail() -> None:
        with ReadOnce({}, growth, hashed=[extent]):
            growth.wait_for(path, 1 << 10)
            begun.put(None)
            raise KeyError("a fault")

    with Following(growth, fail) as looking:
        growth.tell(path, 1 << 10)
        begun.get()
        for until in range(2 << 10, (1 << 20) + 1, 1 << 10):
            growth.tell(path, until)
        with pytest.raises(KeyError):
            looking.result()


def test_a_mark_that_is_ended_stays_so() -> None:
    mark = Mark(0)
    mark.end()
    mark.set(1)
    waiting = threading.Thread(target=mark.wait, args=[10], daemon=True)
    waiting.start()
    waiting.join(timeout=10)
    assert (waiting.is_alive(), mark.value, mark.ended) == (False, 1, True)


def test_one_processor_keeps_a_piece_in_its_cache_and_two_let_blocks_rest() -> None:
    blocks = Handed(alone=True)
    first = blocks.borrow()
    blocks.give_back(first)
    assert blocks.borrow() is first
    blocks.share(alone=False)
    blocks.give_back(first)
    others = [blocks.borrow() for _ in range(2)]
    assert (len(first), *map(len, others)) == (PIECE_BYTES, BLOCK_BYTES, BLOCK_BYTES)
