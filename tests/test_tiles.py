"""What is decoded or quantized to be written is not so again to be compared; what is on the disk is compared still."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import FIXTURES
from test_quantize import EXPERTS, WIDE, checkpoint, save_imatrix, sums_of

import ckconv
from ckconv.conversion import write
from ckconv.core.options import Options
from ckconv.errors import VerifyError
from ckconv.io import rows, stored, tiles
from ckconv.plan import quantizing
from ckconv.quant import convert, mlx
from ckconv.verification.tensors import QUANTIZED_TWICE

SOURCE = FIXTURES / "kquants/llama64.Q4_K_M.gguf"
DECODE = Options(dequantize=True)
#: Their rows are in several arrays.
PUT_TOGETHER = ("mlx/llama-untied-f32.q4g32", "quantised/awq-g32", "quantised/fp8-block")


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Rows that are decoded, by type; floats are as they are."""
    monkeypatch.setattr(tiles, "MOST", 1 << 30)  # all of these small tensors are written before the first is read back
    found: Counter[str] = Counter()
    decode = convert.decode

    def counting(stored: Any, dtype: Any) -> Any:
        if dtype.block > 1:
            found[dtype.name] += len(stored)
        return decode(stored, dtype)

    monkeypatch.setattr(convert, "decode", counting)
    return found


def times(decoded: Counter[str], work: Any) -> Counter[str]:
    decoded.clear()
    work()
    return Counter(decoded)


@pytest.mark.product("values")
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("source", [SOURCE, *(FIXTURES / name for name in PUT_TOGETHER)])
def test_every_row_is_decoded_once_whether_it_is_compared_or_not(
    source: Path, jobs: int, decoded: Counter[str], tmp_path: Path
) -> None:
    def convert_to(name: str, *, verify: bool) -> Any:
        return ckconv.convert(source, f"{tmp_path}/{name}/", to="hf", options=DECODE, verify=verify, jobs=jobs)

    once = times(decoded, lambda: convert_to("quick", verify=False))
    assert sum(once.values()) > 0
    assert times(decoded, lambda: convert_to("checked", verify=True)) == once
    again = times(decoded, lambda: ckconv.verify(tmp_path / "checked", source))
    assert again == once, "verify knows nothing of the conversion, and decodes anew"


@pytest.mark.product("values")
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("of_gguf", [False, True])
def test_every_row_but_the_first_ones_of_a_tensor_is_quantized_once(
    of_gguf: bool, jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads too, whose rows stand in another order in one GGUF or both; ``verify`` quantizes everything anew."""
    monkeypatch.setattr(rows, "PIECE", 64 * 512)  # a piece is the rows of a head
    monkeypatch.setattr(stored, "PIECE", 64 * 512)
    source, counts = checkpoint(tmp_path / "floats", WIDE), Counter[str]()
    if of_gguf:
        ckconv.convert(source, source := tmp_path / "floats.gguf")
    quantize = convert.quantize

    def counting(floats: Any, dtype: Any, *more: Any) -> Any:
        counts[dtype.name] += len(floats)
        return quantize(floats, dtype, *more)

    monkeypatch.setattr(convert, "quantize", counting)
    blocks = Options(quantize="q8_0")
    ckconv.convert(source, tmp_path / "quick.gguf", options=blocks, verify=False, jobs=jobs)
    once = counts["Q8_0"]
    counts.clear()
    report = ckconv.convert(source, tmp_path / "checked.gguf", options=blocks, jobs=jobs)
    steps = [step for file in report.plan.files for step in file.steps if step.action is convert.Action.QUANTIZE]
    assert once == sum(step.target.layout.rows for step in steps)
    assert counts["Q8_0"] - once == QUANTIZED_TWICE * len(steps)
    counts.clear()
    ckconv.verify(tmp_path / "checked.gguf", source, weights=True, jobs=jobs)
    assert counts["Q8_0"] == once


@pytest.fixture
def weighed(tmp_path: Path) -> tuple[Path, Options]:
    """A model whose experts each have an importance of their own."""
    source = checkpoint(tmp_path / "floats", EXPERTS, "mixtral")
    ckconv.convert(source, tmp_path / "plain.gguf")
    return source, Options(quantize="q4_0", imatrix=save_imatrix(tmp_path / "i.gguf", sums_of(tmp_path / "plain.gguf")))


@pytest.mark.product("values")
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("piece", [64 * 512, 1 << 20])
def test_rows_of_experts_are_quantized_once_but_the_first_ones_of_each(
    piece: int, jobs: int, weighed: tuple[Path, Options], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a piece is of one expert or of several."""
    for module in (rows, stored):
        monkeypatch.setattr(module, "PIECE", piece)
    (source, asked), counts, quantize = weighed, Counter[str](), convert.quantize

    def counting(floats: Any, dtype: Any, *more: Any) -> Any:
        counts[dtype.name] += len(floats)
        return quantize(floats, dtype, *more)

    monkeypatch.setattr(convert, "quantize", counting)
    report = ckconv.convert(source, tmp_path / "out.gguf", options=asked, jobs=jobs)
    steps = [step for file in report.plan.files for step in file.steps if step.target.dtype.name == "Q4_0"]
    twice = sum(QUANTIZED_TWICE * max(1, len(step.runs)) for step in steps)
    assert {len(step.runs) for step in steps} == {0, EXPERTS.experts}
    assert counts["Q4_0"] == sum(step.target.layout.rows for step in steps) + twice


@pytest.mark.parametrize("fault", ["importance", "rows", "places"])
def test_experts_that_are_quantized_as_others_are_found(
    fault: str, weighed: tuple[Path, Options], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_expert, gather = quantizing._by_expert, stored.JoinedRows.gather

    def planned(*given: Any) -> Any:
        one, other, *more = by_expert(*given)
        if fault == "importance":
            return [one._replace(conversion=other.conversion), other._replace(conversion=one.conversion), *more]
        return [one._replace(start=other.start, stop=other.stop), other, *more]

    monkeypatch.setattr(
        *(
            (stored.JoinedRows, "gather", lambda self, canonical: gather(self, canonical[::-1]))
            if fault == "places"
            else (quantizing, "_by_expert", planned)
        )
    )
    with pytest.raises(VerifyError, match="not what the source holds"):
        ckconv.convert(weighed[0], tmp_path / "out.gguf", options=weighed[1])


@pytest.mark.parametrize("target", ["out/", "out.gguf"])
@pytest.mark.usefixtures("decoded")
def test_a_byte_that_changes_on_its_way_to_the_disk_is_found(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = write.write_some, []

    def flipping(fd: int, data: memoryview, at: int) -> int:
        seen.append(len(data))
        if len(seen) == 1:
            data = memoryview(bytes([*data[:-5], data[-5] ^ 1, *data[-4:]]))
        return real(fd, data, at)

    monkeypatch.setattr(write, "write_some", flipping)
    with pytest.raises(VerifyError, match="not what the source holds"):
        ckconv.convert(SOURCE, f"{tmp_path}/{target}", to="hf" if target == "out/" else "gguf", options=DECODE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("decoded")
def test_rows_that_are_written_elsewhere_than_they_belong_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are compared by where they are in the source, not by where the writer had them."""
    monkeypatch.setattr(rows, "PIECE", 4096)
    pieces = stored.stored_pieces

    def swapped(*arguments: Any) -> Any:
        first, second, *others = pieces(*arguments)
        return [first._replace(make=second.make), second._replace(make=first.make), *others]

    monkeypatch.setattr(stored, "stored_pieces", swapped)
    with pytest.raises(VerifyError, match="not what the source holds"):
        ckconv.convert(SOURCE, f"{tmp_path}/out/", to="hf", options=DECODE)


@pytest.mark.product("values")
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(("quantize", "numbers"), [("affine:4:32", 2), ("mxfp4", 1)])
def test_codes_and_scales_are_computed_once_each_but_those_of_the_first_rows(
    quantize: str, numbers: int, jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scales and biases are neighbors in the file, and made together; the words of all matrices lie before them."""
    monkeypatch.setattr(rows, "PIECE", 64 * 512)
    monkeypatch.setattr(stored, "PIECE", 64 * 512)
    counts, quantize_triple = Counter[bool](), mlx.quantize_triple

    def counting(floats: Any, *how: Any, codes: bool = True) -> Any:
        counts[codes] += len(floats)
        return quantize_triple(floats, *how, codes=codes)

    monkeypatch.setattr("ckconv.quant.convert.quantize_triple", counting)
    source = checkpoint(tmp_path / "floats", WIDE)
    report = ckconv.convert(source, tmp_path / "mlx", to="mlx", options=Options(quantize=quantize), jobs=jobs)
    steps = [step for file in report.plan.files for step in file.steps if step.action is convert.Action.QUANTIZE]
    codes = [step.target.layout.rows for step in steps if step.conversion is not None and not step.conversion.plane]
    first = QUANTIZED_TWICE * len(codes)
    assert counts == {True: sum(codes) + first, False: sum(codes) + numbers * first}
