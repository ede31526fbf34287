"""What was copied from where, as the thread that writes says it to the one that looks."""

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import FIXTURES

import ckconv
from ckconv.core.tensors import Extent
from ckconv.engine import handed, store
from ckconv.engine.copies import PIECE_BYTES, Copies, Copy, Made, noted
from ckconv.engine.following import Following, Growth, Telling
from ckconv.engine.handed import BLOCK_BYTES, Handed
from ckconv.engine.lookback import LookBack
from ckconv.engine.pipeline import Pipeline
from ckconv.engine.readonce import RUN_BYTES, ReadOnce
from ckconv.engine.store import Store
from ckconv.errors import OutputError
from ckconv.io.files import CHUNK

A, B = Path("a"), Path("b")

Looking = Callable[[ReadOnce, Extent, Path, bytes], bool]


@pytest.mark.parametrize(
    ("place", "path", "offset", "nbytes", "known"),
    [
        (1000, A, 100, 4096, 4096),
        (1000, A, 100, 10_000, 8192),  # two copies that go on where the other ended are one
        (5000, A, 4100, 10_000, 4192),
        (9192, B, 7, 4096, 4096),
        (9192, B, 7, 5000, 4096),
        (1000, A, 101, 10, 0),
        (1000, B, 100, 10, 0),
        (999, A, 99, 10, 0),
        (13_288, A, 9, 16, 0),  # too few to be remembered
        (20_000, A, 9, 16, 0),
    ],
)
def test_bytes_are_those_that_they_were_copied_from(
    place: int, path: Path, offset: int, nbytes: int, known: int
) -> None:
    found: list[Copy] = []
    for copy in (Copy(1000, 4096, A, 100), Copy(5096, 4096, A, 4196), Copy(9192, 4096, B, 7), Copy(13_288, 16, A, 9)):
        noted(found, copy)
    copies = Copies()
    copies.add(found)
    assert copies.same(place, path, offset, nbytes) == known


def test_copies_that_were_noted_one_by_one_are_known_at_once() -> None:
    """Who asks waits for many bytes, and is to be told of all of them: else it is woken for each."""
    copies = Copies()
    for at in range(0, 40_000, 10_000):
        copies.add([Copy(500 + at, 10_000, A, at)])
    copies.add([Copy(40_500, 10_000, B, 40_000)])
    assert copies.same(600, A, 100, 100_000) == 39_900
    assert copies.same(40_500, B, 40_000, 100_000) == 10_000


def test_what_lies_before_is_forgotten() -> None:
    copies = Copies()
    copies.add([Copy(0, 5000, A, 0), Copy(5000, 5000, B, 0)])
    assert copies.same(5000, B, 0, 10) == 10
    assert copies.same(0, A, 0, 10) == 0


def against_a_file(files: ReadOnce, extent: Extent, source: Path, data: bytes) -> bool:
    return files.are_same([(extent[:2], (source, 0), len(data))])


def against_memory(files: ReadOnce, extent: Extent, source: Path, data: bytes) -> bool:
    return files.stores([extent], 0, memoryview(data))


def nowhere(files: ReadOnce, extent: Extent, source: Path, data: bytes) -> bool:
    return True


def backwards(files: ReadOnce, extent: Extent, source: Path, data: bytes) -> bool:
    path, begin, nbytes = extent
    half = nbytes // 2
    pairs = [((path, begin + at), (source, at), n) for at, n in ((half, nbytes - half), (0, half))]
    return [files.are_same([pair]) for pair in pairs] == [True, True]


@pytest.mark.parametrize("looking", [against_a_file, against_memory, backwards, nowhere])
@pytest.mark.parametrize("begin", [0, 1, 4096, 777])
@pytest.mark.parametrize("flipped", [None, 0, PIECE_BYTES, 3 * BLOCK_BYTES + 5])
@pytest.mark.parametrize("nbytes", [4 * BLOCK_BYTES + 321, 3 * BLOCK_BYTES + 6 + 20 * CHUNK])
def test_who_follows_hashes_and_compares_what_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nbytes: int, begin: int, flipped: int | None, looking: Looking
) -> None:
    source, target, data = tmp_path / "in", tmp_path / "out", os.urandom(nbytes)
    source.write_bytes(data)
    target.write_bytes(bytes(begin))
    extent = Extent(target, begin, len(data))
    growth = Growth([extent])
    wrong = data if flipped is None else data[:flipped] + bytes([data[flipped] ^ 1]) + data[flipped + 1 :]

    def write(fd: int, content: memoryview, offset: int) -> int:
        return os.pwrite(fd, wrong[offset - begin : offset - begin + len(content)], offset)

    monkeypatch.setattr("ckconv.engine.store.write_some", write)
    whole = Extent(target, 0, begin + len(data))

    def look() -> tuple[bool, bytes]:
        with ReadOnce({}, growth, hashed=[whole]) as files:
            return looking(files, extent, source, data), files.digest(whole)

    fd, read = os.open(target, os.O_RDWR), os.open(source, os.O_RDONLY)
    try:
        with Following(growth, look) as following:
            back = LookBack(growth.copies, growth.handed, growth.place(target, begin))
            with Pipeline(fd, offset=begin, followers=[Telling(growth, target, begin)], back=back) as pipeline:
                pipeline.copy(read, 0, len(data), path=source)
                pipeline.finish()
            same, digest = following.result()
    finally:
        os.close(fd)
        os.close(read)
    assert same is (flipped is None or looking is nowhere)
    assert digest == hashlib.sha256(target.read_bytes()).digest()


def test_bytes_that_were_read_back_as_they_were_meant_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, data = tmp_path / "in", tmp_path / "out", os.urandom(8 * CHUNK)
    source.write_bytes(data)
    growth = Growth([Extent(target, 0, len(data))])
    monkeypatch.setattr("ckconv.io.files.read_into", lambda *_: pytest.fail("it is read again"))

    def look() -> bool:
        with ReadOnce({}, growth) as files:
            return files.are_same([((target, 0), (source, 0), len(data))])

    fd, read = os.open(target, os.O_RDWR | os.O_CREAT), os.open(source, os.O_RDONLY)
    try:
        with (
            Following(growth, look) as following,
            Pipeline(
                fd, followers=[Telling(growth, target, 0)], back=LookBack(growth.copies, growth.handed)
            ) as pipeline,
        ):
            pipeline.copy(read, 0, len(data), path=source)
            pipeline.finish()
            assert following.result()
    finally:
        os.close(fd)
        os.close(read)


def test_of_files_that_were_read_none_is_held(tmp_path: Path) -> None:
    data = os.urandom(3 * RUN_BYTES)
    extents = [Extent(tmp_path / f"{number}", 0, len(data)) for number in range(20)]
    for extent in extents:
        extent.path.write_bytes(data)
    held = []
    with ReadOnce(hashed=extents) as files:
        for extent in extents:
            assert files.stores([extent], 0, memoryview(data))
            held.append(sum(bool(reading._held) for reading in files._readings.values()))
        assert files.stores(extents[:1], 0, memoryview(data))  # it is read again
        assert [files.digest(extent) for extent in extents] == [hashlib.sha256(data).digest()] * len(extents)
        assert not any(reading._held for reading in files._readings.values())
    assert held == [1] * len(extents)


@pytest.mark.parametrize("verify", [True, False])
def test_what_is_written_is_read_back_whoever_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: bool
) -> None:
    """The digest is of what is in the file."""
    read, write = Store.read, store.write_some
    spoilt = threading.Event()

    def reads(self: Store, buffer: memoryview, position: int) -> bool:
        found = read(self, buffer, position)
        if len(buffer) > 1000:
            spoilt.set()
            buffer[500] ^= 1  # as if the file had it
        return found

    monkeypatch.setattr(Store, "read", reads)
    monkeypatch.setattr(handed, "SMALLEST", 0)
    begun = threading.Event()
    begin = Handed.begin
    monkeypatch.setattr(Handed, "begin", lambda self: (begin(self), begun.set()))
    monkeypatch.setattr(store, "write_some", lambda *given: (begun.wait(10), write(*given))[1])
    target = tmp_path / "m.gguf"
    report = ckconv.convert(FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf", target, verify=verify)
    assert spoilt.is_set()
    assert report.sha256 != hashlib.sha256(target.read_bytes()).digest().hex()


def test_memory_is_known_as_long_as_it_is_there() -> None:
    rows = np.zeros(3 * 4096, np.uint8)
    made, copies = Made(rows), Copies()
    copies.add([Copy(0, 8192, made, 0), Copy(8192, 4096, made, 8192)])
    assert copies.same(100, rows, 100, 8000) == 8000
    assert copies.same(8192, rows, 8192, 4000) == 4000
    assert copies.same(8192, rows, 0, 10_000) == 0
    assert copies.same(8192, rows.copy(), 8192, 10_000) == 0
    assert copies.same(8192, A, 8192, 10_000) == 0
    del rows
    assert copies.same(8192, np.zeros(3 * 4096, np.uint8), 8192, 10_000) == 0


@pytest.mark.parametrize("flipped", [None, 5, PIECE_BYTES + 7])
@pytest.mark.parametrize("known", [True, False])
def test_rows_are_placed_in_any_order_and_counted_in_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool, flipped: int | None
) -> None:
    """Two arrays, the second one written first; what the file has otherwise than it was meant is not known."""
    one, other = (np.frombuffer(os.urandom(n), np.uint8).reshape(2, -1) for n in (2 * PIECE_BYTES, PIECE_BYTES // 2))
    wrong = one.tobytes() + other.tobytes()
    if flipped is not None:
        wrong = wrong[:flipped] + bytes([wrong[flipped] ^ 1]) + wrong[flipped + 1 :]
    target = tmp_path / "out"
    head, growth = 100, Growth([Extent(target, 0, 100 + len(wrong))])

    def write(fd: int, content: memoryview, offset: int) -> int:
        within = offset - head
        return os.pwrite(fd, wrong[within : within + len(content)] if within >= 0 else content, offset)

    monkeypatch.setattr("ckconv.engine.store.write_some", write)
    fd = os.open(target, os.O_RDWR | os.O_CREAT)
    try:
        with Pipeline(
            fd, followers=[Telling(growth, target, 0)], back=LookBack(growth.copies, growth.handed)
        ) as pipeline:
            pipeline.put(bytes(head))
            late = pipeline.place(other, head + one.nbytes, known=known)
            early = pipeline.place(one, head, known=known)
            with pytest.raises(AssertionError, match="placed at"):
                pipeline.take(late)
            pipeline.take(early)
            pipeline.take(late)
            assert pipeline.position == head + len(wrong)
            pipeline.finish()
    finally:
        os.close(fd)
    assert target.read_bytes() == bytes(head) + wrong
    if not known:
        expected = [0, 0, 0]
    else:
        expected = [0 if flipped == 5 else 100, 0 if flipped not in (None, 5) else PIECE_BYTES, other.nbytes]
    assert [
        min(growth.same(target, head, one, 0, 100), 100),
        growth.same(target, head + PIECE_BYTES, one, PIECE_BYTES, one.nbytes),
        growth.same(target, head + one.nbytes, other, 0, one.nbytes),
    ] == expected


def test_rows_that_were_read_back_as_they_were_meant_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, rows = tmp_path / "out", np.frombuffer(os.urandom(3 * CHUNK), np.uint8)
    extent = Extent(target, 0, rows.nbytes)
    growth = Growth([extent])
    monkeypatch.setattr("ckconv.io.files.read_into", lambda *_: pytest.fail("it is read again"))

    def look() -> tuple[bool, bytes]:
        with ReadOnce({}, growth, hashed=[extent]) as files:
            return files.stores([extent], 0, rows), files.digest(extent)

    fd = os.open(target, os.O_RDWR | os.O_CREAT)
    try:
        with (
            Following(growth, look) as following,
            Pipeline(
                fd, followers=[Telling(growth, target, 0)], back=LookBack(growth.copies, growth.handed)
            ) as pipeline,
        ):
            pipeline.take(pipeline.place(rows, 0, known=True))
            pipeline.finish()
            assert following.result() == (True, hashlib.sha256(rows).digest())
    finally:
        os.close(fd)


def test_an_array_without_values_takes_no_place(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    try:
        with Pipeline(fd) as pipeline:
            pipeline.take(pipeline.place(np.zeros((0, 4), np.float32), 0))
            pipeline.finish()
    finally:
        os.close(fd)
    assert (tmp_path / "out").read_bytes() == b""


def test_what_is_placed_too_late_is_not_written_to_the_file_that_has_the_number_by_then(tmp_path: Path) -> None:
    """A thread that nobody waits for any more, as a signal came while somebody did."""
    fd = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    try:
        with Pipeline(fd, back=LookBack(Copies(), Handed())) as pipeline:
            pipeline.take(pipeline.place(b"meant", 0))
        with pytest.raises(OutputError):
            pipeline.place(b"other", 0)
    finally:
        os.close(fd)
    assert (tmp_path / "out").read_bytes() == b"meant"


def test_threads_that_read_back_at_once_do_not_share_memory(tmp_path: Path) -> None:
    class Emptied(list[bytearray]):
        """Another thread takes the last one after this one has looked."""

        def __bool__(self) -> bool:
            return True

    class Kept(Store):
        def write(self, data: memoryview, position: int) -> None:
            """Nothing changes."""

    (tmp_path / "out").write_bytes(b"rows")
    fd = os.open(tmp_path / "out", os.O_RDONLY)
    try:
        back = LookBack(Copies(), Handed())
        back._spare = Emptied()
        for data in (b"rows", b"rose"):
            rows = np.frombuffer(data, np.uint8)
            assert bool(back.place(Kept(fd, 0, seekable=True), memoryview(rows), 0, Made(rows))) is (data == b"rows")
        assert len(back._spare) == 1
    finally:
        os.close(fd)


class Told:
    """What a stream of pieces says: how much may be heard of, and the blocks that were handed over."""

    def __init__(self, store: Store) -> None:
        self.handed, self._store, self._at = Handed(), store, 0
        self.handed.begin()
        self.back = LookBack(Copies(), self.handed, 1000)

    def write(self, data: bytes) -> int:
        self._store.write(memoryview(data), self._at)
        self._at += len(data)
        return self.back.written(self._store, memoryview(data), self._at - len(data), lambda: None)

    def blocks(self) -> list[tuple[int, int]]:
        return [(block.place, len(block.bytes)) for block in self.handed._blocks]


def test_pieces_are_gathered_and_nobody_hears_of_them_before_they_are_handed_over(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w+b") as file:
        told = Told(Store(file.fileno(), 0, seekable=True))
        piece, most = os.urandom(PIECE_BYTES), BLOCK_BYTES
        assert [told.write(piece) for _ in range(4)] == [0, 0, 0, most]
        assert told.blocks() == [(1000, most)]
        assert [told.write(data) for data in (piece[: PIECE_BYTES // 2 + 1], piece, piece, piece)] == [0] * 4
        assert told.write(piece) == most - PIECE_BYTES // 2 + 1  # it does not fit in any more
        assert told.back.hand(lambda: None) == PIECE_BYTES
        assert told.back.hand(lambda: None) == 0
        assert told.blocks() == [(1000, most), (1000 + most, most - PIECE_BYTES // 2 + 1)]  # the last one is too small
        assert b"".join(block.bytes for block in told.handed._blocks) == (tmp_path / "out").read_bytes()[:-PIECE_BYTES]


def test_a_piece_that_cannot_be_read_back_is_not_handed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handed, "SMALLEST", 0)
    with (tmp_path / "out").open("w+b") as file:
        told = Told(Store(file.fileno(), 0, seekable=True))
        assert told.write(bytes(100)) == 0
        read = Store.read
        monkeypatch.setattr(Store, "read", lambda *_: False)
        assert told.write(bytes(50)) == 150
        monkeypatch.setattr(Store, "read", read)
        assert told.write(bytes(30)) == 0
        assert told.back.hand(lambda: None) == 30
    assert told.blocks() == [(1000, 100), (1150, 30)]
