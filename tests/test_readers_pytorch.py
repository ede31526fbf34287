"""Files of torch.save: what torch wrote, and pickles that do something else."""

from __future__ import annotations

import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import safetensors
from conftest import FIXTURES, Result

import ckconv as package
from ckconv.errors import CkconvError, InputError, UnsupportedError
from ckconv.formats.pytorch.read import read_pytorch

FOLDER = FIXTURES / "pytorch"


class Does:
    """Pickled as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def archive(path: Path, pickled: bytes, storages: dict[str, bytes] | None = None, **changes: Any) -> Path:
    """A zip as torch writes it, by Python's own module."""
    members = {"m/data.pkl": pickled, "m/byteorder": changes.get("byteorder", b"little")}
    members |= {f"m/data/{key}": data for key, data in (storages or {}).items()}
    with zipfile.ZipFile(path, "w", changes.get("compression", zipfile.ZIP_STORED)) as opened:
        for name, data in members.items():
            opened.writestr(name, data)
    return path


def tensor(offset: int = 0, shape: tuple[int, ...] = (2,), strides: tuple[int, ...] = (1,), numel: int = 4) -> bytes:
    """The pickle of ``{"a": tensor}`` of a storage ``0`` of floats, instruction by instruction."""

    def text(value: str) -> bytes:
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    def numbers(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(b"J" + struct.pack("<i", value) for value in values) + b"t"

    storage = (
        b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + b"K" + bytes([numel]) + b"tQ"
    )
    view = (
        storage
        + b"J"
        + struct.pack("<i", offset)
        + numbers(shape)
        + numbers(strides)
        + b"\x89ccollections\nOrderedDict\n)R"
    )
    return b"\x80\x02}" + text("a") + b"ctorch._utils\n_rebuild_tensor_v2\n(" + view + b"tRs."


def fault(path: Path) -> CkconvError:
    with pytest.raises(CkconvError) as caught:
        read_pytorch(path)
    assert caught.value.message.isprintable()
    return caught.value


# ---- what torch wrote


@pytest.mark.parametrize("name", ["archive.bin", "legacy.bin"])
def test_every_tensor_is_where_torch_put_it(name: str) -> None:
    data = (FOLDER / name).read_bytes()
    wanted = views_of(FOLDER / "tensors.safetensors")
    found = read_pytorch(FOLDER / name).tensors

    assert len(found) == (18 if name == "archive.bin" else 16)
    for stored in found:
        at = stored.extent.offset
        held = data[at : at + stored.extent.nbytes]
        assert (stored.dtype.safetensors, list(stored.shape), held) == wanted[stored.name], stored.name


def views_of(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Type, shape and bytes of every tensor, by the reference parser, in the order of the file."""
    data = path.read_bytes()
    views = [(name, view, bytes(view["data"])) for name, view in safetensors.deserialize(data)]
    return {
        name: (view["dtype"], view["shape"], held) for name, view, held in sorted(views, key=lambda v: data.find(v[2]))
    }


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["archive.bin", "legacy.bin"])
def test_a_tensor_of_no_values_is_narrowed_as_the_others(
    name: str, dtype: str, tmp_path: Path, ckconv: Callable[..., Result]
) -> None:
    """A row that it has not was computed, and was another one."""
    source, out = FIXTURES / "pytorch" / name, tmp_path / "m.safetensors"

    assert ckconv("convert", source, out, "--dtype", dtype).code == 0
    assert ckconv("verify", out, source).code == 0


@pytest.mark.parametrize("name", ["archive.bin", "legacy.bin"])
def test_it_becomes_safetensors_that_the_reference_parser_reads_to_the_same(name: str, tmp_path: Path) -> None:
    package.convert(FOLDER / name, tmp_path / "model.safetensors")

    made, wanted = views_of(tmp_path / "model.safetensors"), views_of(FOLDER / "tensors.safetensors")
    assert made == {key: wanted[key] for key in made}
    assert len(made) == (18 if name == "archive.bin" else 16)


def checkpoint(folder: Path) -> Path:
    """A Llama as a checkpoint of torch.save; the fixture's tensors, put into an archive by Python's zipfile."""
    source = FIXTURES / "hf" / "llama-tied-bf16"
    folder.mkdir()
    for path in source.iterdir():
        if path.suffix in (".json", ".model"):
            shutil.copy(path, folder)
    torch_pickle(folder / "pytorch_model.bin", views_of(source / "model.safetensors"))
    return folder


def torch_pickle(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    """BF16 or F32 tensors, each with a storage of its own."""

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    def text(value: str) -> bytes:
        return b"X" + struct.pack("<I", len(value.encode())) + value.encode()

    body = b""
    for key, (name, (dtype, shape, data)) in enumerate(tensors.items()):
        kind, size = {"BF16": (b"BFloat16", 2), "F32": (b"Float", 4)}[dtype]
        strides, elements = [], 1
        for length in reversed(shape):
            strides.insert(0, elements)
            elements *= length
        storage = (
            b"("
            + text("storage")
            + b"ctorch\n"
            + kind
            + b"Storage\n"
            + text(str(key))
            + text("cpu")
            + number(len(data) // size)
        )
        body += text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"tQ" + number(0)
        body += b"(" + b"".join(map(number, shape)) + b"t(" + b"".join(map(number, strides)) + b"t\x89NtR"
    storages = {str(key): data for key, (_, _, data) in enumerate(tensors.values())}
    archive(path, b"\x80\x02}(" + body + b"u.", storages)


def test_a_checkpoint_of_it_goes_where_one_of_safetensors_goes_and_comes_back_from_bump(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "llama-tied-bf16")
    for folder, model in (("a", source), ("b", FIXTURES / "hf" / "llama-tied-bf16")):
        (tmp_path / folder).mkdir()
        package.convert(model, tmp_path / folder / "m.gguf")
        package.convert(model, tmp_path / folder / "mlx", to="mlx")
    package.convert(source, tmp_path / "m.bump")
    package.convert(tmp_path / "m.bump", tmp_path / "back", to="safetensors")

    assert (tmp_path / "a/m.gguf").read_bytes() == (tmp_path / "b/m.gguf").read_bytes()
    assert (tmp_path / "a/mlx/model.safetensors").read_bytes() == (tmp_path / "b/mlx/model.safetensors").read_bytes()
    assert (tmp_path / "back/pytorch_model.bin").read_bytes() == (source / "pytorch_model.bin").read_bytes()


def test_shards_of_it_are_held_against_their_index(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "llama")
    (source / "pytorch_model.bin").rename(source / "pytorch_model-00001-of-00001.bin")
    names = [stored.name for stored in read_pytorch(source / "pytorch_model-00001-of-00001.bin").tensors]
    entries = ", ".join(f'"{name}": "pytorch_model-00001-of-00001.bin"' for name in names)
    (source / "pytorch_model.bin.index.json").write_text(
        f'{{"metadata": {{"total_size": 197248}}, "weight_map": {{{entries}}}}}'
    )

    assert len(package.open_model(source).index.stored) == 20
    (source / "pytorch_model-00001-of-00001.bin").unlink()
    with pytest.raises(CkconvError, match="is missing"):
        package.open_model(source)


def test_a_state_of_training_beside_it_is_no_model(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "llama")
    for name in ("optimizer.pt", "training_args.bin", "rng_state.pth"):
        (source / name).write_bytes(b"x")

    assert len(package.open_model(source).index.stored) == 20


@pytest.mark.parametrize("name", ["llama-rslora", "llama-saved", "gpt2-dora"])
def test_an_adapter_of_it_is_the_one_of_safetensors(ckconv: Callable[..., Result], tmp_path: Path, name: str) -> None:
    source, made = FIXTURES / "lora" / name, tmp_path / "adapter"
    made.mkdir()
    shutil.copy(source / "adapter_config.json", made)
    torch_pickle(made / "adapter_model.bin", views_of(source / "adapter_model.safetensors"))
    done = ckconv("diff", made, source)
    assert (done.code, "the same model" in done.out) == (0, True), done.err
    done = ckconv("convert", made, f"{tmp_path}/out/", "--to", "peft")
    assert done.code == 0, done.err
    assert views_of(tmp_path / "out" / "adapter_model.safetensors") == views_of(source / "adapter_model.safetensors")
    assert ckconv("verify", tmp_path / "out", made).code == 0


# ---- what it must not do


def test_nothing_of_a_pickle_is_executed(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    path = archive(tmp_path / "m.bin", pickle.dumps({"a": Does(os.mkdir, str(ran))}, 2))
    run = ckconv("inspect", path)

    assert (run.code, "error[pt.pickle]" in run.err) == (3, True)
    assert "names posix.mkdir; only tensors are read, nothing is executed" in run.err
    assert not ran.exists()

    (tmp_path / "adapter").mkdir()
    shutil.copy(FIXTURES / "lora" / "llama-rslora" / "adapter_config.json", tmp_path / "adapter")
    shutil.copy(path, tmp_path / "adapter" / "adapter_model.bin")
    run = ckconv("inspect", tmp_path / "adapter")
    assert (run.code, "names posix.mkdir" in run.err, ran.exists()) == (3, True, False)


@pytest.mark.parametrize(
    ("pickled", "message"),
    [
        (pickle.dumps({"a": Does(eval, "1")}, 2), "names __builtin__.eval"),
        (pickle.dumps({"a": Does(eval, "1")}, 4), "names builtins.eval"),
        (pickle.dumps(Path("x"), 4), "names pathlib"),
        (b"\x80\x02}q\0", "ends early"),
        (b"\x80\x02", "ends early"),
        (b"", "ends early"),
        (b"\x80\x02}.\xff", "no tensors"),
        (b"\x80\x02)b.", "makes no sense"),
        (b"\x80\x02K\1K\2.", "makes no sense"),
        (b"\x80\x02ctorch\nFloatStorage\n)R.", "makes no sense"),
        (b"\x80\x02ctorch\nload\n.", "names torch.load"),
        (b"\x80\x02}" + b")" + b"\x85" * 100_000 + b"Ns.", "makes no sense"),
        (b"\x80\x04N)\x93.", "makes no sense"),
        (b"\x80\x02(i__main__\nX\n.", "INST, which describes no tensor"),
        (b"\x80\x02\x8e" + b"\xff" * 8, "ends early"),
        (b"\x80\x02(" + b"]" * 200_000 + b"l.", "more lists, dicts and tuples than"),
        (b"\x80\x02(" + b"(" * 100_000 + b"t" * 100_000 + b"t.", "more lists, dicts and tuples than"),
        (b"\x80\x04(" + b"\x94" * 200_000 + b"l.", "more lists, dicts and tuples than"),
        (b"\x80\x02(" + b"N" * 300_000 + b"l.", "more lists, dicts and tuples than"),
        (pickle.dumps([1, 2], 2), "a list, not a dict of tensors"),
        (pickle.dumps({"a": 1}, 2), "a int under 'a'"),
        (pickle.dumps({"a": {"b": 1}}, 2), "a dict under 'a'"),
    ],
)
def test_a_pickle_of_anything_else_is_one_sentence(pickled: bytes, message: str, tmp_path: Path) -> None:
    error = fault(archive(tmp_path / "m.bin", pickled))
    assert message in error.message
    assert (error.code == "pt.content") == ("torch.save(model.state_dict(), FILE)" in (error.hint or ""))


@pytest.mark.parametrize(
    ("pickled", "code", "message"),
    [
        (tensor(shape=(5,)), "pt.tensor", "needs bytes 0 to 20 of a storage that has 16 bytes"),
        (tensor(offset=3), "pt.tensor", "needs bytes 12 to 20"),
        (tensor(numel=5), "pt.tensor", "of a storage that has 16 bytes"),
        (tensor(offset=-1), "pt.pickle", "makes no sense"),
        (tensor(shape=(2, 2), strides=(1, 2)), "pt.content", "do not lie one after the other"),
        (tensor(shape=(2, 2)), "pt.pickle", "makes no sense"),
    ],
)
def test_a_tensor_that_is_not_in_its_storage_is_named(pickled: bytes, code: str, message: str, tmp_path: Path) -> None:
    error = fault(archive(tmp_path / "m.bin", pickled, {"0": bytes(16)}))
    assert (error.code, message in error.message) == (code, True), error.message


def test_a_tensor_without_its_storage_is_named(tmp_path: Path) -> None:
    assert "of a storage that is missing" in fault(archive(tmp_path / "m.bin", tensor())).message


@pytest.mark.parametrize("key", [[], {}, (), None, 1])
def test_an_old_files_keys_are_texts(key: object, tmp_path: Path) -> None:
    parts = (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, {}, [key])
    (tmp_path / "m.pth").write_bytes(b"".join(pickle.dumps(part, 2) for part in parts) + bytes(16))

    assert "that its pickle does not describe" in fault(tmp_path / "m.pth").message


@pytest.mark.parametrize("place", [b"J\0\0\0\0", b"J\2\0\0\0", b"J\1\0\0\0"], ids=["offset", "shape", "strides"])
def test_a_number_of_thousands_of_digits_is_none(place: bytes, tmp_path: Path) -> None:
    number = pickle.encode_long(10**5000)
    pickled = tensor(offset=0, shape=(2,), strides=(1,))
    assert pickled.count(place) == 1
    long = pickled.replace(place, b"\x8b" + struct.pack("<i", len(number)) + number)

    assert "makes no sense" in fault(archive(tmp_path / "m.bin", long, {"0": bytes(16)})).message


def test_a_transposed_view_is_refused_with_the_way_out() -> None:
    error = fault(FOLDER / "turned.bin")
    assert (error.code, error.exit_code, error.tensor) == ("pt.content", 4, "turned")
    assert "contiguous" in str(error.hint)


def test_archives_that_torch_does_not_write(tmp_path: Path) -> None:
    packed = archive(tmp_path / "packed.bin", tensor(), {"0": bytes(16)}, compression=zipfile.ZIP_DEFLATED)
    other = archive(tmp_path / "other.bin", tensor(), {"0": bytes(16)}, byteorder=b"big")
    with zipfile.ZipFile(tmp_path / "none.bin", "w") as opened:
        opened.writestr("notes.txt", "x")

    assert "compressed or encrypted" in fault(packed).message
    assert "the other order of bytes" in fault(other).message
    assert "no data.pkl" in fault(tmp_path / "none.bin").message


@pytest.mark.parametrize("name", ["archive.bin", "legacy.bin"])
def test_a_file_cut_anywhere_is_refused(name: str, tmp_path: Path) -> None:
    data = (FOLDER / name).read_bytes()
    for end in range(0, len(data) - 1, 97):
        path = tmp_path / "m.bin"
        path.write_bytes(data[:end])
        assert fault(path).exit_code == 3


@pytest.mark.parametrize("name", ["archive.bin", "legacy.bin"])
def test_a_changed_byte_is_refused_or_another_model(name: str, tmp_path: Path) -> None:
    data = (FOLDER / name).read_bytes()
    path = tmp_path / "m.bin"
    for at in range(0, len(data), 13):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        with suppress(InputError, UnsupportedError):
            for stored in read_pytorch(path).tensors:
                assert 0 <= stored.extent.offset <= stored.extent.offset + stored.extent.nbytes <= len(data)
