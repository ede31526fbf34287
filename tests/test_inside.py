"""Models in other files: shards of a training run, archives, pipes, programs, NumPy's."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import FIXTURES, Result
from distributed_builder import Piece, distributed
from packed_checkpoints import arrays_of
from safetensors.numpy import load_file

from ckconv.core.tensors import Extent
from ckconv.io.standins import Assembly, Box, Pieces

Run = Callable[..., Result]
DISTRIBUTED = FIXTURES / "pytorch" / "distributed"
GGUF = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"
HF = FIXTURES / "hf" / "qwen2-tied-bf16"


# ---- torch.distributed


def test_what_four_processes_saved_is_one_model(tmp_path: Path, ckconv: Run) -> None:
    done = ckconv("convert", DISTRIBUTED, f"{tmp_path}/out/", "--to", "hf")
    assert done.code == 0, done.err
    made, wanted = arrays_of(tmp_path / "out"), load_file(DISTRIBUTED.with_suffix(".safetensors"))
    assert {name: raw.data for name, raw in made.items()} == {name: a.tobytes() for name, a in wanted.items()}
    assert ckconv("verify", tmp_path / "out", DISTRIBUTED).code == 0
    assert ckconv("convert", DISTRIBUTED, tmp_path / "m.gguf").code == 0
    assert ckconv("diff", DISTRIBUTED, tmp_path / "m.gguf").code == 0


def test_the_directory_of_a_run_has_the_configuration(tmp_path: Path, ckconv: Run) -> None:
    run = tmp_path / "checkpoint-7"
    (run / "pytorch_model_fsdp_0").mkdir(parents=True)
    for path in DISTRIBUTED.iterdir():
        place = run if path.name == "config.json" else run / "pytorch_model_fsdp_0"
        (place / path.name).write_bytes(path.read_bytes())
    for named in (run, run / "pytorch_model_fsdp_0"):
        found = ckconv("inspect", named)
        assert (found.code, "config\tfamily\tllama" in found.out) == (0, True), found.err


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


WHOLE = values(6, 4, 5)


def cut(*edges: tuple[int, ...]) -> list[Piece]:
    """Parts of :data:`WHOLE`, cut along each axis at these edges."""
    starts = [(0, *edge) for edge in edges]
    ends = [(*edge, length) for edge, length in zip(edges, WHOLE.shape, strict=True)]
    return [
        ((a, b, c), WHOLE[a:d, b:e, c:f])
        for a, d in zip(starts[0], ends[0], strict=True)
        for b, e in zip(starts[1], ends[1], strict=True)
        for c, f in zip(starts[2], ends[2], strict=True)
    ]


@pytest.mark.parametrize(
    "edges", [((), (), ()), ((1, 4), (), ()), ((), (2,), ()), ((), (), (1, 3)), ((3,), (1,), ()), ((2, 4), (), (2,))]
)
def test_chunks_along_one_axis_or_the_first_and_another(
    tmp_path: Path, ckconv: Run, edges: tuple[tuple[int, ...], ...]
) -> None:
    tensors = {"model.a.weight": (WHOLE.shape, cut(*edges)), "model.b": ((), [((), values())])}
    distributed(tmp_path / "in", tensors)
    done = ckconv("convert", tmp_path / "in", f"{tmp_path}/out.safetensors")
    assert done.code == 0, done.err
    found = load_file(tmp_path / "out.safetensors")
    assert np.array_equal(found["a.weight"], WHOLE)
    assert found["b"] == values()


ROWS: dict[str, Any] = {"model.a": (WHOLE.shape, cut((2,), (), ()))}

BROKEN: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a file elsewhere": (ROWS, {"path": "../__0_0.distcp"}, "in '../__0_0.distcp', not in one beside it"),
    "a file of the root": (ROWS, {"path": "/etc/passwd"}, "not in one beside it"),
    "a file that is not there": (ROWS, {"path": "__9_0.distcp"}, "there is no such file"),
    "a chunk behind the end": (ROWS, {"offset": 1 << 40}, "the file has "),
    "a chunk too long": (ROWS, {"length": 1 << 40}, "the download looks truncated"),
    "a chunk too short": (ROWS, {"length": 50}, "a chunk of 'model.a' "),
    "a negative place": (ROWS, {"offset": -1}, "does not describe a checkpoint"),
    "a place that is no number": (ROWS, {"offset": 1.5}, "does not describe a checkpoint"),
    "another type": (ROWS, {"dtype": "float16"}, "is not F16 [2, 4, 5], as .metadata says"),
    "a type of torch that is none": (ROWS, {"dtype": "complex128"}, "names torch.complex128"),
    "a chunk without a place": (ROWS, {"drop": 1}, "is in no file, not in one beside it"),
    "compressed chunks": (ROWS, {"transforms": ["zstd"]}, "compressed or encrypted"),
    "a program": (ROWS, {"extra": os.system}, "names posix.system; only tensors are read, nothing is executed"),
    "a hole": ({"model.a": (WHOLE.shape, cut((2,), (), ())[:1])}, {}, "has chunks that do not fill a tensor"),
    "one chunk twice": ({"model.a": (WHOLE.shape, cut((3,), (), ())[:1] * 2)}, {}, "chunks that do not fill"),
    "an overlap": (
        {"model.a": (WHOLE.shape, [((0, 0, 0), WHOLE[:4]), ((2, 0, 0), WHOLE[4:])])}, {}, "has chunks that overlap"
    ),
    "cut along three axes": ({"model.a": (WHOLE.shape, cut((3,), (2,), (2,)))}, {}, "cut along more axes"),
    "a chunk of other axes": ({"model.a": (WHOLE.shape, [((0,), WHOLE.reshape(-1))])}, {}, "of other axes"),
    "no tensors of a model": (ROWS, {"place": "optimizer"}, "and none of a model"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_distributed_checkpoint_that_contradicts_itself(tmp_path: Path, ckconv: Run, name: str) -> None:
    tensors, changes, sentence = BROKEN[name]
    distributed(tmp_path / "in", tensors, **changes)
    done = ckconv("convert", tmp_path / "in", f"{tmp_path}/out.safetensors")
    assert (done.code in (3, 4), sentence in done.err) == (True, True), done.err
    assert not (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("length", [0, 1, 100, 2000])
def test_a_description_that_ends_early(tmp_path: Path, ckconv: Run, length: int) -> None:
    root = distributed(tmp_path / "in", ROWS)
    (root / ".metadata").write_bytes((root / ".metadata").read_bytes()[:length][:-1] + b"." * (length == 1))
    done = ckconv("inspect", root)
    assert (done.code, "dcp.metadata" in done.err) == (3, True), done.err


def test_any_run_of_bytes_of_a_gathered_tensor(tmp_path: Path) -> None:
    """Against the tensor itself, of every beginning and length."""
    path, at, boxes = tmp_path / "chunks", 0, []
    with open(path, "wb") as file:
        for start, piece in cut((2, 3), (1,), ()):
            boxes.append(Box(Extent(path, at, piece.nbytes), start, piece.shape))
            at += file.write(piece.tobytes())
    made, wanted = Pieces([b"head", Assembly(WHOLE.shape, 4, boxes), b"tail"]), b"head" + WHOLE.tobytes() + b"tail"
    assert made.size == len(wanted)
    for first in range(0, len(wanted), 7):
        for last in (first + 1, first + 3, first + 50, len(wanted)):
            assert made.fetch(first, min(last, len(wanted)) - first) == wanted[first:last]


# ---- archives, pipes, programs


def tarred(path: Path, source: Path, mode: Any = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        archive.add(source, source.name)
    return path


def test_an_archive_of_a_checkpoint_or_of_a_file(tmp_path: Path, ckconv: Run) -> None:
    for source in (HF, GGUF):
        archive = tarred(tmp_path / f"{source.name}.tar", source)
        assert ckconv("diff", archive, source).code == 0
        assert ckconv("convert", archive, f"{tmp_path}/{source.name}.mlx/", "--to", "mlx").code == 0
        assert ckconv("verify", f"{tmp_path}/{source.name}.mlx", archive).code == 0


def twice(archive: tarfile.TarFile) -> None:
    for data in (b"abc", b"abd"):
        member("m.gguf", data=data)(archive)


def member(name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"abc", link: str = "") -> Callable[[Any], None]:
    def add(archive: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.size, info.linkname = kind, len(data) if kind == tarfile.REGTYPE else 0, link
        archive.addfile(info, io.BytesIO(data) if kind == tarfile.REGTYPE else None)

    return add


MEMBERS = {
    "a name above": (member("../m.gguf"), "holds '../m.gguf', which is outside of it"),
    "a name of the root": (member("/m.gguf"), "holds '/m.gguf', which is outside of it"),
    "a name through a directory": (member("a/../../m.gguf"), "which is outside of it"),
    "a name with a control character": (member("a\x1b.gguf"), "which is outside of it"),
    "a link": (member("m.gguf", tarfile.SYMTYPE, link="/etc/passwd"), "pack the files that links lead to"),
    "a hard link": (member("m.gguf", tarfile.LNKTYPE, link="m"), "which is a link or no regular file"),
    "a device": (member("m.gguf", tarfile.CHRTYPE), "which is a link or no regular file"),
    "a FIFO": (member("m.gguf", tarfile.FIFOTYPE), "which is a link or no regular file"),
    "a directory alone": (member("m", tarfile.DIRTYPE), "holds no file"),
    "no model": (member("a.txt"), "a.txt"),
    "one name for two files": (twice, "holds 'm.gguf' twice"),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_an_archive_that_is_no_model(tmp_path: Path, ckconv: Run, name: str) -> None:
    add, sentence = MEMBERS[name]
    with tarfile.open(tmp_path / "m.tar", "w") as archive:
        add(archive)
    done = ckconv("inspect", tmp_path / "m.tar")
    assert (done.code, sentence in done.err) == (3, True), done.err


@pytest.mark.parametrize("size", [b"\x80" + b"\xff" * 11, b"\x80\0\0\0\x7f" + b"\xff" * 7, b"77777777777\0"])
def test_a_size_that_no_file_has(tmp_path: Path, ckconv: Run, size: bytes) -> None:
    data = bytearray(tarred(tmp_path / "m.tar", HF).read_bytes())
    data[124:136], data[148:156] = size, b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    (tmp_path / "m.tar").write_bytes(data)
    done = ckconv("inspect", tmp_path / "m.tar")
    assert (done.code, "tar.members" in done.err) == (3, True), done.err


@pytest.mark.parametrize("length", [600, 1000, 40_000, 150_000])
def test_an_archive_that_ends_early(tmp_path: Path, ckconv: Run, length: int) -> None:
    archive = tarred(tmp_path / "m.tar", HF)
    archive.write_bytes(archive.read_bytes()[:length])
    done = ckconv("convert", archive, tmp_path / "m.gguf")
    assert done.code in (3, 4), done.err
    assert not (tmp_path / "m.gguf").exists()


def piped(data: bytes | None, *arguments: object, **how: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "ckconv", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(FIXTURES.parent)}
    return subprocess.run(command, input=data, capture_output=True, check=False, env=environment, **how)


def test_a_model_through_a_pipe(tmp_path: Path, ckconv: Run) -> None:
    for number, data in enumerate((GGUF.read_bytes(), tarred(tmp_path / "m.tar", HF).read_bytes())):
        out = tmp_path / f"{number}.gguf"
        done = piped(data, "convert", "-", out)
        assert (done.returncode, f"read from a pipe: {len(data):,} bytes" in done.stdout.decode()) == (0, True), done
        assert ckconv("verify", out, (GGUF, HF)[number]).code == 0
    done = piped((tmp_path / "m.tar").read_bytes(), "inspect", "-")
    assert (done.returncode, b"hint: ckconv convert - DST reads it" in done.stderr) == (3, True)
    done = piped(b"", "convert", "-", tmp_path / "no.gguf")
    assert (done.returncode, b"nothing came through the pipe" in done.stderr) == (3, True)
    done = piped(b"hello, world", "convert", "-", tmp_path / "no.gguf", "--from", "gguf")
    assert (done.returncode, b"stdin" in done.stderr) == (3, True)


@pytest.mark.parametrize("name", ["m.gguf", "link.gguf"])
def test_the_file_that_standard_input_reads_is_never_written_to(tmp_path: Path, name: str) -> None:
    (tmp_path / "m.gguf").write_bytes(GGUF.read_bytes())
    (tmp_path / "link.gguf").hardlink_to(tmp_path / "m.gguf")
    with open(tmp_path / "m.gguf", "rb") as file:
        done = piped(None, "convert", "-", tmp_path / name, "--force", stdin=file)
    assert (done.returncode, b"is the file that standard input reads" in done.stderr) == (6, True), done.stderr
    assert (tmp_path / name).read_bytes() == GGUF.read_bytes()


def llamafile(path: Path, **members: bytes) -> Path:
    """A program, and a zip behind it whose places count from the beginning of the file."""
    with open(path, "wb") as file:
        file.write(b"MZqFpD='\n\0" + bytes(5000))
        with zipfile.ZipFile(file, "a") as archive:
            for name, data in members.items():
                archive.writestr(name.replace("_", "."), data)
    return path


def test_a_llamafile_that_ends_early_says_so(tmp_path: Path, ckconv: Run) -> None:
    (tmp_path / "m.llamafile").write_bytes(b"MZqFpD='\n" + bytes(4000))
    assert "is a llamafile that ends early" in ckconv("inspect", tmp_path / "m.llamafile").err


def test_the_model_of_a_llamafile(tmp_path: Path, ckconv: Run) -> None:
    path = llamafile(tmp_path / "m.llamafile", m_gguf=GGUF.read_bytes(), _args=b"-m\nm.gguf")
    assert ckconv("convert", path, tmp_path / "m.gguf").code == 0
    assert (tmp_path / "m.gguf").read_bytes() == GGUF.read_bytes()
    for members, sentence in (
        ({"a_txt": b""}, "llamafile runs it with -m MODEL.gguf"),
        ({"a_gguf": b"", "b_gguf": b""}, "unzip FILE NAME takes one out"),
    ):
        done = ckconv("inspect", llamafile(tmp_path / "no.llamafile", **members))
        assert (done.code, sentence in done.err) == (4, True), done.err


FAULTY: dict[str, tuple[bytes, int, str]] = {
    "an empty model": (b"", 3, "m.gguf"),
    "a web page": (b"<!DOCTYPE html>", 3, "m.gguf"),
    "another format": (b"PK\3\4" + bytes(60), 3, "m.gguf"),
    "a header that is cut": (GGUF.read_bytes()[:200], 3, "m.gguf"),
    "data that is cut": (GGUF.read_bytes()[:-100], 3, "m.gguf"),
    "a version of the future": (b"GGUF" + (99).to_bytes(4, "little") + bytes(40), 3, "GGUF version 99"),
    "more tensors than bytes": (b"GGUF" + (3).to_bytes(4, "little") + b"\xff" * 7 + bytes(9), 3, "declares"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_model_in_a_llamafile_that_is_malformed(tmp_path: Path, ckconv: Run, name: str) -> None:
    data, code, sentence = FAULTY[name]
    done = ckconv("convert", llamafile(tmp_path / "m.llamafile", m_gguf=data), tmp_path / "out.gguf")
    assert (done.code, sentence in done.err, "Traceback" in done.err) == (code, True, False), done.err
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize("cut", [23, 60, 5020])
def test_a_llamafile_whose_archive_is_cut(tmp_path: Path, ckconv: Run, cut: int) -> None:
    path = llamafile(tmp_path / "m.llamafile", m_gguf=GGUF.read_bytes())
    path.write_bytes(path.read_bytes()[:-cut] if cut < 5000 else path.read_bytes()[:cut])
    done = ckconv("convert", path, tmp_path / "out.gguf")
    assert (done.code in (3, 4), "Traceback" in done.err) == (True, False), done.err
    assert not (tmp_path / "out.gguf").exists()


def test_arrays_of_numpy(tmp_path: Path, ckconv: Run) -> None:
    """As mlx-lm stored models before safetensors, and any others."""
    wanted = {"model.a.weight": values(3, 4), "b": np.arange(6, dtype=np.int32), "c": values(5).astype(np.float16)}
    np.savez(tmp_path / "m.npz", **wanted)
    assert ckconv("convert", tmp_path / "m.npz", tmp_path / "m.safetensors").code == 0
    found = load_file(tmp_path / "m.safetensors")
    assert {name: (a.dtype, a.tolist()) for name, a in found.items()} == {
        name: (a.dtype, a.tolist()) for name, a in wanted.items()
    }
    (tmp_path / "mlx").mkdir()
    arrays = {name: np.frombuffer(raw.data, np.uint16).reshape(raw.shape) for name, raw in arrays_of(HF).items()}
    np.savez(
        tmp_path / "mlx" / "weights.npz",
        **{name: (a.astype(np.uint32) << 16).view(np.float32) for name, a in arrays.items()},
    )
    (tmp_path / "mlx" / "config.json").write_bytes((HF / "config.json").read_bytes())
    assert ckconv("diff", "--weights", tmp_path / "mlx", HF).code == 0


def test_an_array_of_one_axis_lies_row_by_row_whatever_mlx_says(tmp_path: Path, ckconv: Run) -> None:
    """``mx.savez`` calls what lies in both orders "fortran_order", so every norm of an older MLX model."""
    head = b"\x93NUMPY\1\0\x46\0" + b"{'descr': '<f4', 'fortran_order': True, 'shape': (1, 5), }".ljust(69) + b"\n"
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive:
        archive.writestr("norm.weight.npy", head + values(5).tobytes())
    assert ckconv("convert", tmp_path / "m.npz", tmp_path / "m.safetensors").code == 0
    assert load_file(tmp_path / "m.safetensors")["norm.weight"].tolist() == [values(5).tolist()]


ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "objects": ({"a": np.array([{}])}, "no plain one of numbers"),
    "by columns": ({"a": np.asfortranarray(values(3, 4))}, "no plain one of numbers"),
    "big-endian": ({"a": np.arange(3, dtype=">f4")}, "no plain one of numbers"),
    "texts": ({"a": np.array(["x"])}, "no plain one of numbers"),
    "records": ({"a": np.zeros(2, "f4,i4")}, "no plain one of numbers"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_numpy_that_are_no_tensors(tmp_path: Path, ckconv: Run, name: str) -> None:
    arrays, sentence = ARRAYS[name]
    np.savez(tmp_path / "m.npz", **arrays)
    done = ckconv("inspect", tmp_path / "m.npz")
    assert (done.code, sentence in done.err) == (3, True), done.err


HEADERS = {
    "no header": b"",
    "another magic": b"\x93NUMPX\1\0" + bytes(20),
    "a header beyond the file": b"\x93NUMPY\1\0\xff\xff{}",
    "an expression": b"\x93NUMPY\1\0\x20\0" + b"__import__('os').system('true') ",
    "a negative length": b"\x93NUMPY\1\0\x40\0" + b"{'descr':'<f4','fortran_order':False,'shape':(-1,)}".ljust(64),
    "a huge length": b"\x93NUMPY\1\0\x40\0" + b"{'descr':'<f4','fortran_order':False,'shape':(9**9,)}".ljust(64),
    "too few values": b"\x93NUMPY\1\0\x40\0" + b"{'descr':'<f4','fortran_order':False,'shape':(9,)}".ljust(64),
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_of_numpy_that_are_malformed(tmp_path: Path, ckconv: Run, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive:
        archive.writestr("a.npy", HEADERS[name])
    done = ckconv("inspect", tmp_path / "m.npz")
    assert (done.code, "npz.array" in done.err) == (3, True), done.err


def test_compressed_arrays_are_refused_with_a_way_out(tmp_path: Path, ckconv: Run) -> None:
    np.savez_compressed(tmp_path / "m.npz", a=values(3, 4))
    done = ckconv("inspect", tmp_path / "m.npz")
    assert (done.code, "has compressed or encrypted members" in done.err) == (3, True), done.err


def test_members_of_a_zip_that_lie_beyond_it_or_over_each_other(tmp_path: Path, ckconv: Run) -> None:
    np.savez(tmp_path / "sound.npz", a=values(3, 4), b=values(3, 4))
    sound = (tmp_path / "sound.npz").read_bytes()
    first = sound.index(b"PK\1\2")
    second = sound.index(b"PK\1\2", first + 1)
    for place, sentence in (
        (b"\xff\xff\xff\x7f", "members lie over each other"),
        (sound[first + 42 : first + 46], "members lie over each other"),
        (first.to_bytes(4, "little"), "members lie over each other"),
        ((first - 8).to_bytes(4, "little"), "is not what its directory says"),
    ):
        (tmp_path / "m.npz").write_bytes(sound[: second + 42] + place + sound[second + 46 :])
        done = ckconv("inspect", tmp_path / "m.npz")
        assert (done.code, sentence in done.err) == (3, True), done.err
