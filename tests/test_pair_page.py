"""``--html`` of convert, diff and verify: both models, how far values are apart, and a browser that asks nobody."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Result
from safetensors_builder import numbers, tensors_of
from test_page import Page, requests

from ckconv.publish import files

Run = Callable[..., Result]
SOURCE = "hf/qwen2-tied-bf16"
FIRST = ["Sizes", "What changed", "Result"]


@pytest.fixture
def quantized(ckconv: Run, fixtures: Path, tmp_path: Path) -> Path:
    out = tmp_path / "out.gguf"
    done = ckconv("convert", fixtures / SOURCE, out, "--quantize", "q8_0", "--html", tmp_path / "page.html")
    assert (done.code, done.err) == (0, "")
    return out


def headings(place: Path) -> list[str]:
    return [text for tag, text in Page(place.read_text("utf-8")).texts if tag in ("h2", "summary")]


def rows(place: Path, heading: str) -> dict[str, list[str]]:
    """First cell -> the others, of the table that has this label."""
    table = rf'aria-label="{re.escape(heading)}">\n<table[^>]*><thead>.*?</thead>(.*?)</table>'
    found = re.search(table, place.read_text("utf-8"), re.DOTALL)
    assert found is not None
    lines = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', found[1], re.DOTALL)
    cells = {name: re.findall(r"<td.*?</td>", more, re.DOTALL) for name, more in lines}
    return {name: [re.sub(r"<.*?>", "", cell).strip() for cell in row] for name, row in cells.items()}


def test_a_conversion_shows_source_and_output_and_every_error(quantized: Path, tmp_path: Path) -> None:
    place = tmp_path / "page.html"
    seen = headings(place)
    assert seen[:3] == FIRST
    assert {"Size of differences", "Configuration"} <= set(seen)
    assert [name for name in seen if name.startswith("Types by layer")][1].endswith("out.gguf")
    assert '<p class="verdict ok">verified 26 tensors</p>' in place.read_text("utf-8")
    assert any(
        re.search(r"out.gguf: 107 kB, 8.64 bits per weight, 54.0 %$", text) for _, text in Page(place.read_text()).texts
    )


def test_one_color_is_one_type_on_a_whole_page(quantized: Path, tmp_path: Path) -> None:
    made = (tmp_path / "page.html").read_text("utf-8")
    found = re.findall(r'class="(t\d)"><title>[^<]*?\b(BF16|F32|Q8_0)\b', made)
    assert len({*found}) == len({name for _, name in found}) == 3


def test_the_map_marks_what_differs_and_what_does_not(quantized: Path, tmp_path: Path) -> None:
    texts = [text for _, text in Page((tmp_path / "page.html").read_text("utf-8")).texts]
    assert sum(text.endswith("the same values, BF16 to F32") for text in texts) == 11
    assert sum("relative error" in text and "max |d|" in text for text in texts) == 15


def test_the_line_below_the_map_is_the_mean_of_each_layer(quantized: Path, tmp_path: Path, ckconv: Run) -> None:
    made = (tmp_path / "page.html").read_text("utf-8")
    cells = re.findall(r"layers\.(\d+)\.[\w.]+: relative error ([\d.e-]+)", made)
    assert [layer for layer, _ in cells].count("0") == 7  # every matrix of a layer
    means = [np.mean([float(error) for layer, error in cells if layer == number]) for number in ("0", "1")]
    drawn = [float(text) for text in re.findall(r'rotate\(-90\)" text-anchor="end">([\d.e-]+)<', made)]
    assert drawn == pytest.approx(means, rel=2e-3)
    heights = [92 - float(y) for y in re.findall(r'<circle cx="\d+" cy="([\d.]+)"', made)]
    assert heights == pytest.approx([80 * mean / max(means) for mean in means], abs=0.2)
    assert f"error per layer: 0: {drawn[0]:.3g}, 1: {drawn[1]:.3g}" in made  # of a screen reader
    assert ckconv("diff", quantized, quantized, "--html", tmp_path / "same.html").code == 0
    assert "error per layer" not in (tmp_path / "same.html").read_text()


def test_the_errors_are_those_that_another_program_computes(quantized: Path, fixtures: Path, tmp_path: Path) -> None:
    """The gguf package decodes the blocks, the safetensors package reads the source."""
    gguf = pytest.importorskip("gguf")
    name = "model.layers.1.mlp.down_proj.weight"
    dtype, _, data = tensors_of(fixtures / SOURCE)[name]
    tensor = next(t for t in gguf.GGUFReader(quantized).tensors if t.name == "blk.1.ffn_down.weight")
    decoded = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(-1)
    error = np.abs(numbers(dtype, data).astype(np.float64) - decoded)
    cells = rows(tmp_path / "page.html", "15 tensors with other values")["layers.1.ffn.down.weight"]
    assert cells[2:5] == [f"{np.count_nonzero(error):,}", f"{error.size:,}", f"{error.max():.3g}"]


def test_the_histogram_counts_every_value_once(quantized: Path, tmp_path: Path) -> None:
    place = tmp_path / "page.html"
    apart = sum(int(cells[0].replace(",", "")) for cells in rows(place, "Size of differences").values())
    each = rows(place, "15 tensors with other values").values()
    assert apart == sum(int(cells[2].replace(",", "")) for cells in each)
    powers = [float(name) for name in rows(place, "Size of differences")]
    assert powers == sorted(powers)


def test_a_diff_has_its_verdict_and_its_exit_status(
    quantized: Path, fixtures: Path, tmp_path: Path, ckconv: Run
) -> None:
    done = ckconv("diff", fixtures / SOURCE, quantized, "--html", tmp_path / "diff.html")
    assert (done.code, "not the same model" in done.out) == (5, True)
    assert '<p class="verdict bad">not the same model</p>' in (tmp_path / "diff.html").read_text()
    assert ckconv("diff", quantized, quantized, "--html", tmp_path / "same.html").code == 0
    assert "Size of differences" not in headings(tmp_path / "same.html")
    assert ckconv("diff", fixtures / SOURCE, quantized).out == done.out


def test_a_verification_that_fails_names_every_fault(
    quantized: Path, fixtures: Path, tmp_path: Path, ckconv: Run
) -> None:
    good = ckconv("verify", quantized, fixtures / SOURCE, "--quantize", "q8_0", "--html", tmp_path / "good.html")
    assert "What is wrong" not in headings(tmp_path / "good.html"), good.err
    data = bytearray(quantized.read_bytes())
    data[-40] ^= 0x40
    quantized.write_bytes(data)
    done = ckconv("verify", quantized, fixtures / SOURCE, "--html", tmp_path / "bad.html")
    assert done.code == 5
    faults = rows(tmp_path / "bad.html", "What is wrong")
    assert faults["1"][0] in done.err.replace("&", "&amp;")
    assert ckconv("verify", quantized, "--html", tmp_path / "alone.html").code == 0
    assert "Metadata" in str(headings(tmp_path / "alone.html")) + str(Page((tmp_path / "alone.html").read_text()).texts)


@pytest.mark.parametrize(
    ("source", "out", "flags"),
    [
        ("hf/gpt2-hub-f32", "out.gguf", []),
        ("gguf/llama-tied-bf16.auto.gguf", "out/", ["--to", "hf", "--max-shard-size", "20KB"]),
        ("gguf/llama-tied-bf16.auto.gguf", "out.bump", ["--config-out", "CONFIG"]),
        ("kquants/llama64.Q4_K_M.gguf", "out.gguf", ["--set-meta", "general.name=<b>&"]),
        ("lora/gpt2-r4", "out/", ["--to", "mlx"]),
    ],
)
def test_every_conversion_has_a_page(
    fixtures: Path, tmp_path: Path, ckconv: Run, source: str, out: str, flags: list[str]
) -> None:
    flags = [flag.replace("CONFIG", str(tmp_path / "own.json")) for flag in flags]
    done = ckconv("convert", fixtures / source, f"{tmp_path}/{out}", *flags, "--html", tmp_path / "page.html")
    assert (done.code, done.err) == (0, "")
    assert headings(tmp_path / "page.html")[0] == "Sizes"


@pytest.mark.parametrize("flags", [["-"], ["out.gguf", "-n"], ["out/", "--to", "hf", "--side-files-only"]])
def test_a_page_of_no_output_is_refused(fixtures: Path, tmp_path: Path, ckconv: Run, flags: list[str]) -> None:
    target = flags[0] if flags[0] == "-" else f"{tmp_path}/{flags[0]}"
    arguments = [target, *flags[1:], *(["--to", "gguf"] if target == "-" else [])]
    assert ckconv("convert", fixtures / SOURCE, *arguments, "--html", tmp_path / "page.html").code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["convert", "diff", "verify"])
def test_a_page_that_is_there_stops_the_work_before_it_begins(
    fixtures: Path, tmp_path: Path, ckconv: Run, verb: str
) -> None:
    place = tmp_path / "page.html"
    place.write_text("mine")
    other = tmp_path / "out.gguf" if verb == "convert" else fixtures / SOURCE
    done = ckconv(verb, fixtures / SOURCE, other, "--html", place)
    assert (done.code, "error[output.exists]" in done.err) == (6, True)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_it_can_be_read_by_a_screen_reader_and_asks_nobody(quantized: Path, tmp_path: Path) -> None:
    read = Page((tmp_path / "page.html").read_text("utf-8"))
    assert all(cell.get("scope") in ("row", "col") for cell in read.of("th"))
    assert all(element["tabindex"] == "0" for element in read.of("div") if element.get("class") == "wide")
    assert all(e["role"] == "img" and e["aria-label"] for e in read.of("svg") if "aria-hidden" not in e)
    ids = [element["id"] for element in read.of("h2") if "id" in element]
    assert ids == ["sizes", "changes", "tree0", "map0", "tree1", "map1", "spread"]
    assert not {"script", "link", "img", "iframe", "object", "form"} & {tag for tag, _ in read.elements}
    assert not [name for _, attributes in read.elements for name in attributes if name in ("src", "href", "style")]


@pytest.mark.needs("chromium")
def test_a_browser_draws_it_and_opens_no_connection(quantized: Path, tmp_path: Path) -> None:
    drawn, asked = requests(tmp_path / "page.html", tmp_path)
    assert asked == []
    assert len(Page(drawn).of("rect")) == len(Page((tmp_path / "page.html").read_text("utf-8")).of("rect"))


@pytest.mark.parametrize(
    ("out", "place", "code", "message"),
    [
        ("m.gguf", "nodir/page.html", 6, "error[output.parent]"),
        ("m.gguf", "m.gguf", 2, "would be both the page and a file of the output"),
        ("m.gguf", "m.gguf.sha256", 2, "would be both the page and a file of the output"),
        ("m/", "m", 2, "would be both the page and a file of the output"),
        ("m/", "m/config.json", 2, "would be both the page and a file of the output"),
        ("m/", "m/deeper/page.html", 6, "error[output.parent]"),
    ],
)
def test_a_page_that_has_no_place_is_refused_before_anything_is_written(
    out: str, place: str, code: int, message: str, ckconv: Run, fixtures: Path, tmp_path: Path
) -> None:
    """The output was there, and nothing said so."""
    to = ("--to", "hf") if out.endswith("/") else ()

    refused = ckconv("convert", fixtures / SOURCE, f"{tmp_path}/{out}", *to, "--checksums", "--html", tmp_path / place)

    assert refused.code == code
    assert message in refused.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", ["verify", "diff"])
def test_a_page_without_a_directory_is_refused_first(verb: str, ckconv: Run, fixtures: Path, tmp_path: Path) -> None:
    refused = ckconv(verb, fixtures / SOURCE, fixtures / SOURCE, "--html", tmp_path / "nodir" / "page.html")

    assert (refused.code, refused.out) == (6, "")
    assert "error[output.parent]" in refused.err


def test_a_page_may_lie_in_the_directory_of_the_output(ckconv: Run, fixtures: Path, tmp_path: Path) -> None:
    done = ckconv("convert", fixtures / SOURCE, f"{tmp_path}/m/", "--to", "hf", "--html", tmp_path / "m" / "page.html")

    assert done.code == 0, done.err
    assert headings(tmp_path / "m" / "page.html")[:3] == FIRST


def test_of_a_page_that_fails_late_the_output_is_said_to_be_there(
    ckconv: Run, fixtures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "create", full)
    out = tmp_path / "m.gguf"

    failed = ckconv("convert", fixtures / SOURCE, out, "--html", tmp_path / "page.html")

    assert (failed.code, out.is_file()) == (6, True)
    assert f"the output is complete and there: {out}" in failed.err
