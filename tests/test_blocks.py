"""Blocks that are handed from the thread that writes to the one that looks: what is found in them, and what is not."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ckconv.core.tensors import Extent
from ckconv.engine.blocks import BLOCK_BYTES, Block, Blocks
from ckconv.engine.following import Following, Growth, Telling
from ckconv.engine.pipeline import Pipeline
from ckconv.engine.readonce import ReadOnce

A, B = Path("a"), Path("b")

Looking = Callable[[ReadOnce, Extent, Path, bytes], bool]


def block_of(place: int, data: bytes, stored: bytes | None = None) -> Block:
    block = Block()
    block.meant[: len(data)] = data
    block.stored[: len(data)] = data if stored is None else stored
    block.read_back(place, len(data))
    return block


@pytest.mark.parametrize(
    ("at", "nbytes", "path", "offset", "found"),
    [
        (0, 4096, A, 100, True),
        (0, 8192, A, 100, True),  # two copies that go on where the other ended are one
        (4095, 2, A, 4195, True),
        (8192, 4096, B, 7, True),
        (8192, 4097, B, 7, None),
        (0, 4096, A, 101, None),
        (0, 4096, B, 100, None),
        (4096, 4096, B, 7, None),
        (12288, 16, A, 9, None),  # too few to be remembered
        (13000, 1, A, 0, None),
    ],
)
def test_bytes_are_a_copy_of_what_they_were_copied_from(
    at: int, nbytes: int, path: Path, offset: int, found: bool | None
) -> None:
    block = block_of(0, os.urandom(16384))
    block.copied(0, 4096, A, 100)
    block.copied(4096, 4096, A, 4196)
    block.copied(8192, 4096, B, 7)
    block.copied(12288, 16, A, 9)
    assert block.is_copy(at, nbytes, path, offset) is found


def test_what_was_stored_otherwise_is_no_copy() -> None:
    block = block_of(0, bytes(8192), bytes(8000) + b"\1" + bytes(191))
    block.copied(0, 4096, A, 0)
    block.copied(4096, 4096, B, 0)
    assert (block.is_copy(0, 4096, A, 0), block.is_copy(4096, 4096, B, 0)) == (True, False)


def test_a_block_that_is_used_again_knows_of_no_copy() -> None:
    block = block_of(0, bytes(4096))
    block.copied(0, 4096, A, 0)
    block.clear()
    assert block.is_copy(0, 4096, A, 0) is None


def test_blocks_are_taken_in_order_and_what_nobody_took_is_read() -> None:
    blocks = Blocks(2)
    first, second = blocks.free(), blocks.free()
    first.read_back(100, 50)
    second.read_back(150, 50)
    blocks.add(first)
    blocks.add(second)
    assert blocks.take(90) == (None, 10)
    assert blocks.take(120) == (first, 20)
    assert blocks.take(150) == (second, 0)
    assert blocks.take(200) == (None, BLOCK_BYTES)
    blocks.add(first)
    blocks.add(second)
    assert blocks.free() is first  # there are two in all, and nobody came for it
    assert blocks.take(100) == (None, 50)


def test_blocks_before_what_is_asked_for_are_used_again() -> None:
    blocks = Blocks(1)
    block = blocks.free()
    block.read_back(0, 10)
    blocks.add(block)
    assert blocks.take(10) == (None, BLOCK_BYTES)
    assert blocks.free() is block


def against_a_file(files: ReadOnce, extent: Extent, source: Path, data: bytes) -> bool:
    return files.are_same([(extent[:2], (source, 0), len(data))])


def against_memory(files: ReadOnce, extent: Extent, source: Path, data: bytes) -> bool:
    return files.stores([extent], 0, memoryview(data))


@pytest.mark.parametrize("looking", [against_a_file, against_memory])
@pytest.mark.parametrize("begin", [0, 1, 4096, 777])
@pytest.mark.parametrize("flipped", [None, 0, BLOCK_BYTES, 3 * BLOCK_BYTES + 5])
def test_who_follows_hashes_and_compares_what_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: int, flipped: int | None, looking: Looking
) -> None:
    source, target, data = tmp_path / "in", tmp_path / "out", os.urandom(4 * BLOCK_BYTES + 321)
    source.write_bytes(data)
    target.write_bytes(bytes(begin))
    extent = Extent(target, begin, len(data))
    growth = Growth([extent])
    wrong = data if flipped is None else data[:flipped] + bytes([data[flipped] ^ 1]) + data[flipped + 1 :]

    def write(fd: int, content: memoryview, offset: int) -> int:
        return os.pwrite(fd, wrong[offset - begin : offset - begin + len(content)], offset)

    monkeypatch.setattr("ckconv.engine.pipeline.write_some", write)

    def look() -> tuple[bool, bytes]:
        with ReadOnce({}, growth, hashed=[Extent(target, 0, begin + len(data))]) as files:
            same = looking(files, extent, source, data)
            return same, files.digest(Extent(target, 0, begin + len(data)))

    fd, read = os.open(target, os.O_RDWR), os.open(source, os.O_RDONLY)
    try:
        with Following(growth, look) as following:
            place = growth.place(target, begin)
            followers = [Telling(growth, target, begin)]
            with Pipeline(fd, offset=begin, followers=followers, blocks=growth.blocks, place=place) as pipeline:
                pipeline.copy(read, 0, len(data), path=source)
                pipeline.finish()
            same, digest = following.result()
    finally:
        os.close(fd)
        os.close(read)
    assert same is (flipped is None)
    assert digest == hashlib.sha256(target.read_bytes()).digest()


def test_who_reads_in_another_order_finds_the_same(tmp_path: Path) -> None:
    source, target, data = tmp_path / "in", tmp_path / "out", os.urandom(40 * BLOCK_BYTES)
    source.write_bytes(data)
    growth = Growth([Extent(target, 0, len(data))])
    half = len(data) // 2

    def look() -> list[bool]:
        with ReadOnce({}, growth, hashed=[Extent(target, 0, len(data))]) as files:
            pairs = [((target, at), (source, at), half) for at in (half, 0)]
            return [files.are_same([pair]) for pair in pairs]

    fd, read = os.open(target, os.O_RDWR | os.O_CREAT), os.open(source, os.O_RDONLY)
    try:
        with (
            Following(growth, look) as following,
            Pipeline(fd, followers=[Telling(growth, target, 0)], blocks=growth.blocks) as pipeline,
        ):
            pipeline.copy(read, 0, len(data), path=source)
            pipeline.finish()
            assert following.result() == [True, True]
    finally:
        os.close(fd)
        os.close(read)
