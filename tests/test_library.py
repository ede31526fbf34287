"""The library: what a program sees that imports ckconv."""

from __future__ import annotations

import contextvars
import errno
import inspect
import io
import json
import os
import pickle
import pydoc
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from conftest import FIXTURES
from models import Model
from safetensors_builder import tensors_of

import ckconv
from ckconv.api import in_python, pythonic
from ckconv.errors import InputError, OutputError, UsageError
from ckconv.families.catalog import own_files


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Model().write(tmp_path / "m.gguf")


def test_every_name_is_there_and_documented() -> None:
    for name in dir(ckconv):
        assert getattr(ckconv, name) is not None
        assert name == "__version__" or getattr(ckconv, name).__doc__
    assert ckconv.__doc__
    assert [name for name in dir(ckconv) if name not in ckconv.__doc__] == ["__version__"]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ckconv.nothing  # noqa: B018


def test_importing_it_imports_nothing_heavy() -> None:
    code = "import sys, ckconv; print([m for m in ('numpy', 'gguf', 'click', 'rich', 'tqdm') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_open_model(source: Path) -> None:
    model = ckconv.open_model(source)
    assert (model.format, model.version, model.architecture) == ("gguf", 3, "llama")
    assert model.config is not None
    assert model.config.num_layers == 2
    assert repr(model) == f"<gguf llama of {len(model.tensors)} tensors: {source}>"
    norm = model.tensors["output_norm.weight"]
    assert (norm.source, norm.dtype, norm.shape) == ("output_norm.weight", "F32", (model.config.hidden_size,))


def test_values_are_canonical(source: Path) -> None:
    """Rows of heads as Hugging Face has them, whatever order the file keeps them in."""
    model = ckconv.open_model(source)
    stored = {t.name: t.data for t in gguf.GGUFReader(source).tensors}
    assert model.config is not None
    heads, size = model.config.num_heads, model.config.head_dim
    q = model.tensors["layers.0.attention.q.weight"]
    pairs = stored["blk.0.attn_q.weight"].reshape(heads, size // 2, 2, -1)
    assert np.array_equal(q.values(), pairs.swapaxes(1, 2).reshape(q.shape))
    assert np.array_equal(q.rows().view("<f4"), q.values())


def test_metadata_is_typed_and_arrays_are_lists() -> None:
    path = next(iter(sorted(FIXTURES.rglob("*.gguf"))))
    model = ckconv.open_model(path)
    reader = gguf.GGUFReader(path)
    for key, value in model.metadata.items():
        want = reader.fields[key].contents()
        if isinstance(want, list):
            assert len(value) == len(want)
        elif isinstance(want, float):
            assert value == pytest.approx(want)
        else:
            assert value == want
    assert len(model.metadata) > 5
    assert model.metadata.type("general.architecture") == "str"
    assert model.metadata.type("general.file_type") == "u32"


def test_quantized_values_are_those_of_the_blocks() -> None:
    path = next(p for p in sorted(FIXTURES.rglob("*.gguf")) if "Q4_K" in p.name)
    model = ckconv.open_model(path)
    stored = {t.name: t for t in gguf.GGUFReader(path).tensors}
    tensor = model.tensors["layers.0.ffn.down.weight"]
    theirs = stored[tensor.source]
    assert np.array_equal(tensor.rows(), theirs.data)
    assert np.array_equal(tensor.values(), gguf.quants.dequantize(theirs.data, theirs.tensor_type))


def test_convert_verify_diff(source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    heard: list[object] = []

    class Ear:
        def begin(self, phase: str, total: int) -> None:
            heard.append(phase)

        def __call__(self, nbytes: int, name: str) -> None:
            heard.append(nbytes)

    out = tmp_path / "out.bump"
    report = ckconv.convert(source, out, progress=Ear(), checksums=True)
    assert report.verified == len(ckconv.open_model(source).tensors)
    assert report.files[0].path == out
    phases = [n for n, word in enumerate(heard) if isinstance(word, str)]
    assert [heard[n] for n in phases] == ["writing"]
    assert sum(n for n in heard[1:] if isinstance(n, int)) == out.stat().st_size
    assert ckconv.verify(out, source).compared
    assert ckconv.diff(source, out).same
    assert (tmp_path / "out.bump.sha256").exists()
    assert capfd.readouterr() == ("", "")


def test_options_and_errors(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ckconv.CkconvError) as caught:
        ckconv.convert(source, tmp_path / "out.bump", options=ckconv.Options(dtype="f16"))
    assert caught.value.code == "plan.lossy"
    report = ckconv.convert(source, tmp_path / "out.bump", options=ckconv.Options(dtype="f16", allow_lossy=True))
    assert report.changed
    with pytest.raises(ckconv.CkconvError) as caught:
        ckconv.convert(source, tmp_path / "out.bump")
    assert (caught.value.code, caught.value.exit_code) == ("output.exists", 6)
    with pytest.raises(ckconv.CkconvError) as caught:
        ckconv.open_model(tmp_path / "nothing.gguf")
    assert (caught.value.code, caught.value.path) == ("input.missing", str(tmp_path / "nothing.gguf"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bump_version": 7}, "bump_version is 7, one of 0, 3, 4, 5 expected"),
        ({"dtype": "int3"}, "dtype is 'int3', one of 'engine', 'keep', 'f32', 'f16', 'bf16', 'source' expected"),
        ({"rope_layout": "x"}, "rope_layout is 'x', one of .* expected"),
        ({"dtype_codes": "v5"}, "dtype_codes is 'v5', one of 'v3', 'v4' expected"),
        ({"names": "x"}, "names is 'x', one of .* expected"),
        ({"tie": "x"}, "tie is 'x', one of '', 'tie', 'untie' expected"),
        ({"fuse": ("x",)}, "fuse is 'x', 'qkv' or 'gate-up' expected"),
        ({"drop": "output.*"}, r"drop is 'output\.\*', a tuple of words expected"),
        ({"context": -3}, "context is -3, a whole number from 0 to .* expected"),
        ({"max_shard_bytes": -5}, "max_shard_bytes is -5, a whole number from 0 to .* expected"),
        ({"set_meta": (("key",),)}, "set_meta is .* pairs of a key and a value"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_options_that_cannot_be(source: Path, tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ckconv.convert(source, tmp_path / "out.gguf", options=ckconv.Options(**options))
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize(
    ("target", "arguments", "message"),
    [
        ("out.gguf", {"to": "foo"}, "to is 'foo', one of gguf, .* expected"),
        ("out.gguf", {"source_format": "foo"}, "no format is called 'foo'; one of gguf, .* expected"),
        ("out.gguf", {"adapters": [("a", float("nan"))]}, "the weight of a is nan, which is not a finite number"),
        ("-", {"to": "bump"}, "only the command line writes to standard output"),
        ("a\0b.gguf", {}, "a file name cannot hold a NUL character"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_arguments_that_cannot_be(source: Path, target: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ckconv.convert(source, target if target == "-" else f"{source.parent}/{target}", **arguments)


@pytest.mark.parametrize(
    "name",
    ["open_model", "convert", "dry_run", "iter_tensors", "targets", "verify", "diff", "edit", "hash", "batch",
     "convert_tower"],
)  # fmt: skip
def test_an_argument_of_another_type_is_a_usage_error(source: Path, name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    function = getattr(ckconv, name)
    good = {"source": source, "path": source, "a": source, "b": source, "target": "x.gguf", "into": "o", "to": "gguf",
            "sources": [source]}  # fmt: skip
    parameters = {p.name: p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD}
    needed = {key: good[key] for key, one in parameters.items() if one.default is one.empty}
    for key in parameters:
        for wrong in (object(), 1.5, b"x", "", ("x", 1)):
            if (key, wrong) == ("tolerance", 1.5):
                continue
            with pytest.raises(UsageError) as refused:
                for _ in function(**{**needed, key: wrong}) or ():
                    pass  # of generators
            assert refused.value.code in ("usage", "usage.target")
    assert [*tmp_path.iterdir()] == [source]
    with pytest.raises(TypeError, match="expected"):
        function(**{**needed, next(iter(needed)): object()})


def test_numpys_whole_numbers_and_truths_are_pythons(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "out.gguf"
    target.parent.mkdir()
    for jobs, yes in ((1, True), (np.int64(2), np.True_), (np.uint8(1), np.bool_(1))):
        ckconv.convert(source, target, force=yes, verify=yes, record=yes, jobs=jobs)  # type: ignore[arg-type]
    with pytest.raises(OutputError):
        ckconv.convert(source, target, force=np.False_)  # type: ignore[arg-type]
    ckconv.verify(target, source, jobs=np.int32(1), weights=np.False_)  # type: ignore[arg-type]


def test_what_a_function_is_given_of_numpys_is_pythons() -> None:
    given: list[object] = []

    @pythonic
    def function(jobs: int | None = None, force: bool = False) -> None:
        given.extend((jobs, force))

    function(np.int64(3), force=np.True_)  # type: ignore[arg-type]
    assert [(type(value), value) for value in given] == [(int, 3), (bool, True)]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"jobs": value} for value in (True, np.True_, 0, np.int64(0), np.int64(-1), 1.0, np.float64(1), np.ones(1))),
        *({"force": value} for value in (0, 1, np.int64(1), np.ones(1, bool), "yes")),
    ],
    ids=repr,
)
def test_truths_are_no_numbers_and_numbers_no_truths(source: Path, tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="expected"):
        ckconv.convert(source, tmp_path / "out.gguf", **wrong)


def test_lists_are_tuples_and_texts_are_paths_in_options() -> None:
    options = ckconv.Options(drop=["a"], families=["f.toml"], imatrix="i.dat")  # type: ignore[arg-type]
    assert (options.drop, options.families, options.imatrix) == (("a",), (Path("f.toml"),), Path("i.dat"))
    assert hash(options)


def test_everything_can_be_imported_by_a_star() -> None:
    found: dict[str, object] = {}
    exec("from ckconv import *", found)
    assert found.keys() - {"__builtins__"} == {*dir(ckconv)} - {"__version__", "hash"}


def refuse(monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> None:
    """From now on the system says this to a system call."""

    def refusing(*arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, refusing)


@pytest.mark.needs("posix")
def test_a_file_that_the_system_does_not_read(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, "preadv", errno.EIO)
    with pytest.raises(OutputError, match=r"cannot be read at byte .*: Input/output error") as info:
        ckconv.convert(source, tmp_path / "out.bump")
    assert (info.value.code, info.value.exit_code, info.value.path) == ("system", 6, str(source))
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, "output.space"), (errno.EIO, "output.write")])
@pytest.mark.parametrize("call", ["pwrite", "ftruncate"])
@pytest.mark.needs("posix")
def test_a_file_that_the_system_does_not_write(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, code: str
) -> None:
    (tmp_path / "o").mkdir()
    write, calls = os.pwrite, []

    def refusing(fd: int, data: bytes, at: int) -> int:  # the header comes last, and after all else was written
        calls.append(at)
        if at == 0:
            raise OSError(number, os.strerror(number))
        return write(fd, data, at)

    if call == "pwrite":
        monkeypatch.setattr(os, "pwrite", refusing)
    else:
        monkeypatch.setattr(os, "posix_fallocate", lambda *arguments: None)
        refuse(monkeypatch, call, number)
    with pytest.raises(OutputError) as info:
        ckconv.convert(source, tmp_path / "o" / "out.bump", options=ckconv.Options(bump_version=5))
    assert info.value.code == code
    assert list((tmp_path / "o").iterdir()) == []


def test_a_directory_that_may_not_be_searched(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = os.stat

    def refusing(path: object, *arguments: object, **more: object) -> os.stat_result:
        if str(path).startswith(str(tmp_path / "locked")):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, *arguments, **more)

    monkeypatch.setattr(os, "stat", refusing)
    monkeypatch.setattr(Path, "stat", refusing)  # up to Python 3.10 it does not look for os.stat again
    with pytest.raises(InputError, match="cannot be read: Permission denied") as info:
        ckconv.open_model(tmp_path / "locked" / "m.gguf")
    assert info.value.code == "input.unreadable"


# What programs print, slice and hand on


def test_what_is_returned_prints_as_one_line_and_is_plain_data(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    report = ckconv.convert(source, out)
    count = len(ckconv.open_model(source).tensors)
    assert repr(report) == f"<Report {out}: gguf, {out.stat().st_size:,} bytes, {count} tensors verified>"
    assert json.loads(json.dumps(report.to_dict()))["files"][0]["sha256"] == report.sha256
    assert repr(ckconv.dry_run(source, tmp_path / "x.gguf")) == f"<Plan of gguf: {out.stat().st_size:,} bytes>"
    assert ckconv.verify(out, source).to_dict()["tensors"] == count
    found = ckconv.diff(out, source)
    assert repr(found) == f"<Comparison: the same, {count} equal, 0 near, 0 different>"
    assert json.loads(json.dumps(found.to_dict()))["same"] is True


def test_progress_is_a_function_everywhere(source: Path, tmp_path: Path) -> None:
    def run(name: str, call: Callable[[Callable[[int, str], None]], object]) -> None:
        heard = list[int]()
        call(lambda nbytes, tensor: heard.append(nbytes))
        assert sum(heard) > 0, name

    out, key = tmp_path / "o.gguf", [("general.license", "mit")]
    run("convert", lambda tell: ckconv.convert(source, out, progress=tell))
    run("verify", lambda tell: ckconv.verify(out, source, progress=tell))
    run("diff", lambda tell: ckconv.diff(out, source, progress=tell))
    run("edit", lambda tell: ckconv.edit(out, tmp_path / "e.gguf", set_meta=key, progress=tell))
    run("hash", lambda tell: ckconv.hash(out, progress=tell))


def test_tensors_by_source_name_and_rows_by_slices() -> None:
    path = FIXTURES / "kquants" / "llama64.Q4_K_M.gguf"
    with ckconv.open_model(path) as model:
        for name in ("blk.0.ffn_down.weight", "blk.1.attn_q.weight", "token_embd.weight", "output_norm.weight"):
            tensor = model.tensors[name]
            whole = tensor.values()
            assert model.tensors[tensor.name] == tensor
            for at in (slice(3, 7), slice(None, None, 5), slice(-2, None), slice(7, 2, -2), slice(5, 5), 0, -1):
                assert np.array_equal(tensor[at], whole[at]), (name, at)
            assert np.array_equal(np.asarray(tensor), whole)
            assert (len(tensor), np.asarray(tensor, dtype="f8").dtype.name) == (len(whole), "float64")
        with pytest.raises(IndexError):
            model.tensors["token_embd.weight"][10**6]
        assert "no.such" not in model.tensors
        assert model.tensors["blk.0.ffn_down.weight"].nbytes == sum(
            t.n_bytes for t in gguf.GGUFReader(path).tensors if t.name == "blk.0.ffn_down.weight"
        )


def test_a_slice_reads_its_own_rows_alone(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ckconv.io.rows import RowReader

    read, rows = list[tuple[int, int]](), RowReader.rows
    monkeypatch.setattr(RowReader, "rows", lambda self, a, b: read.append((a, b)) or rows(self, a, b))
    assert ckconv.open_model(source).tensors["token_embd.weight"][2:5].shape[0] == 3
    assert read == [(2, 5)]


def test_plan_targets_and_hash(source: Path, tmp_path: Path) -> None:
    assert not ckconv.dry_run(source, tmp_path / "x.gguf").refusals
    refused = ckconv.dry_run(FIXTURES / "hf" / "gpt2-hub-f32", tmp_path / "x.bump")
    assert (len(refused.refusals), list(tmp_path.glob("x.*"))) == (2, [])
    found = ckconv.targets(FIXTURES / "hf" / "gpt2-hub-f32")
    assert (found["gguf"], len(found["bump 3"])) == ((), 1)
    ckconv.convert(source, tmp_path / "hf", to="hf")
    assert ckconv.hash(tmp_path / "hf") == ckconv.hash(source)


def test_a_missing_file_is_also_the_error_of_python(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        ckconv.open_model(tmp_path / "nowhere.gguf")
    assert isinstance(missing.value, InputError)
    assert (missing.value.code, missing.value.filename) == ("input.missing", str(tmp_path / "nowhere.gguf"))
    with pytest.raises(FileNotFoundError):
        [*ckconv.iter_tensors(tmp_path / "nowhere.gguf", to="mlx")]
    with pytest.raises(FileNotFoundError) as tower:
        ckconv.convert_tower(tmp_path / "nowhere.gguf", tmp_path / "t.gguf")
    assert (missing.value.errno, tower.value.errno) == (errno.ENOENT, errno.ENOENT)


def test_an_output_that_is_there_is_also_the_error_of_python(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out.bump").touch()
    with pytest.raises(FileExistsError) as there:
        ckconv.convert(source, tmp_path / "out.bump")
    assert isinstance(there.value, OutputError)
    assert (there.value.hint, there.value.python_hint) == ("--force replaces it", "force=True replaces it")
    assert str(pickle.loads(pickle.dumps(there.value))) == str(there.value)


def test_hints_name_arguments() -> None:
    with pytest.raises(ckconv.CkconvError) as refused:
        ckconv.convert(FIXTURES / "kquants/llama64.Q4_K_M.gguf", "never/", to="hf")
    assert str(refused.value.hint).startswith("--dequantize decodes")
    assert str(refused.value.python_hint).startswith("Options(dequantize=True) decodes")
    assert "--" not in str(refused.value.python_hint)


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        ("--engine july computes it", "Options(engine='july') computes it"),
        ("--context 32 makes them the same", "Options(context=32) makes them the same"),
        ("--drop 'L.*.bias' leaves out", "Options(drop=('L.*.bias',)) leaves out"),
        ("--untie writes the head", "Options(tie='untie') writes the head"),
        ("--to peft DST/", "to='peft' DST/"),
        ("--decode GLOB only those", "Options(decode=('GLOB',)) only those"),
    ],
)
def test_flags_are_arguments_in_python(hint: str, said: str) -> None:
    assert in_python(hint) == said


@pytest.mark.parametrize(
    ("model", "to", "name", "options"),
    [
        ("hf/llama-bias-f32", "mlx", "model.safetensors", ckconv.Options(quantize="affine:4:32")),
        ("hf/qwen3-tied-bf16", "hf", "model.safetensors", ckconv.Options()),
        ("kquants/llama64.Q4_K_M.gguf", "hf", "model.safetensors", ckconv.Options(dequantize=True)),
        ("gguf/llama-bias-f32.f32.gguf", "hf", "model.safetensors", ckconv.Options(fuse=("qkv",))),
    ],
)
def test_tensors_of_a_target_without_its_files(
    model: str, to: str, name: str, options: ckconv.Options, tmp_path: Path
) -> None:
    made = dict(ckconv.iter_tensors(FIXTURES / model, to=to, options=options))
    ckconv.convert(FIXTURES / model, f"{tmp_path}/m/", to=to, options=options)
    stored = tensors_of(tmp_path / "m" / name)
    assert [*made] == [*stored]
    for key, (_, shape, data) in stored.items():
        assert (made[key].tobytes(), made[key].shape) == (data, shape)


def test_tensors_of_a_gguf_are_rows_of_blocks(tmp_path: Path) -> None:
    options = ckconv.Options(quantize="q8_0")
    made = dict(ckconv.iter_tensors(FIXTURES / "hf/llama-bias-f32", to="gguf", options=options))
    ckconv.convert(FIXTURES / "hf/llama-bias-f32", tmp_path / "m.gguf", options=options)
    stored = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    assert made.keys() == stored.keys()
    assert all(np.array_equal(made[key].reshape(-1), data.reshape(-1)) for key, data in stored.items())


def test_matrices_that_share_an_entry_of_a_bump_file_are_one_array(tmp_path: Path) -> None:
    """Gate and up are one after the other in ``w1``."""
    made = [*ckconv.iter_tensors(FIXTURES / "hf/llama-tied-bf16", to="bump")]
    config = json.loads((FIXTURES / "hf/llama-tied-bf16/config.json").read_text())
    arrays = dict(made)
    assert len(arrays) == len(made)
    assert arrays["layer.0.w1"].size == 2 * config["intermediate_size"] * config["hidden_size"]


def test_families_of_one_call_are_not_those_of_the_next(tmp_path: Path) -> None:
    """A generator stands still between two tensors, and may be closed by another thread."""
    source = FIXTURES / "hf/qwen2-tied-bf16"
    tensors = ckconv.iter_tensors(source, to="gguf", options=ckconv.Options(families=(Path("qwen2"),)))
    next(tensors)
    assert own_files().named == ()
    contextvars.copy_context().run(tensors.close)
    assert own_files().named == ()


def test_an_output_goes_into_a_file_object(tmp_path: Path) -> None:
    source = FIXTURES / "hf/llama-bias-f32"
    held = io.BytesIO()
    ckconv.convert(source, held, to="gguf")
    ckconv.convert(source, tmp_path / "m.gguf")
    assert held.getvalue() == (tmp_path / "m.gguf").read_bytes()
    held = io.BytesIO()
    ckconv.convert(source, held, to="mlx")
    with tarfile.open(fileobj=io.BytesIO(held.getvalue())) as archive:
        names = archive.getnames()
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {*names}
    with pytest.raises(UsageError):
        ckconv.convert(source, io.BytesIO(), to="gguf", record=True)


def test_a_batch_goes_on_behind_an_error(source: Path, tmp_path: Path) -> None:
    models = [source, FIXTURES / "hf/gpt2-hub-f32", FIXTURES / "hf/llama-tied-bf16"]
    found = [*ckconv.batch(models, tmp_path / "out", to="bump")]
    assert [path for path, _ in found] == models
    assert [isinstance(result, ckconv.Report) for _, result in found] == [True, False, True]
    assert (tmp_path / "out" / source.stem / "weights.bump").is_file()


def test_two_models_of_a_batch_have_two_places(source: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.gguf").write_bytes(source.read_bytes())
    models = [tmp_path / "a/m.gguf", tmp_path / "b/m.gguf"]
    with pytest.raises(UsageError, match="would be used by several models"):
        [*ckconv.batch(models, tmp_path / "out", to="bump", force=True)]
    assert not (tmp_path / "out").exists()


def test_help_fits_two_screens() -> None:
    text = pydoc.plain(pydoc.render_doc(ckconv))
    assert len(text.splitlines()) <= 100
