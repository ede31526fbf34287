"""The library: what a program sees that imports ckconv."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from conftest import FIXTURES
from models import Model

import ckconv


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Model().write(tmp_path / "m.gguf")


def test_every_name_is_there_and_documented() -> None:
    for name in ckconv.__all__:
        assert getattr(ckconv, name) is not None
        assert name == "__version__" or getattr(ckconv, name).__doc__
    assert dir(ckconv) == sorted(ckconv.__all__)
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


def test_quantised_values_are_those_of_the_blocks() -> None:
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
    assert [heard[0], next(x for x in reversed(heard) if isinstance(x, str))] == ["writing", "verifying"]
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
