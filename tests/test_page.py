"""The page of ``inspect --html``: whole, well-formed, harmless, and drawn by a browser that asks nobody."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Result
from safetensors.numpy import load_file

from ckconv.cli import page
from ckconv.errors import OutputError

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "fixtures/kquants/llama64.Q4_K_M.gguf"
_VOID = {"meta", "br", "link", "img"}


class Page(HTMLParser):
    """Elements, texts by element; fails where an element is closed that is not the open one."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data.strip()))

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def made(ckconv: Callable[..., Result], tmp_path: Path) -> str:
    done = ckconv("inspect", MODEL, "--html", tmp_path / "page.html")
    assert (done.code, done.out, done.err) == (0, "", "")
    return (tmp_path / "page.html").read_text("utf-8")


def test_the_page_has_headline_targets_map_tensors_and_metadata(made: str) -> None:
    texts = Page(made).texts
    assert [text for tag, text in texts if tag == "h1"] == ["Llama Untied F32"]
    assert [text for tag, text in texts if tag == "h2"] == [
        "Where it can go", "Bytes", "Types by layer", "One layer of 2", "Types",
    ]  # fmt: skip
    assert [text for tag, text in texts if tag == "summary"] == ["21 tensors", "27 metadata keys"]
    said = [text for _, text in texts]
    assert {"Q4_K_M (mostly Q5_0)", "attention.q", "123.2 K", "blk.1.ffn_down.weight", "general.architecture"} <= set(
        said
    )
    cards = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", made))
    assert cards["file"] == "llama64.Q4_K_M.gguf"
    assert cards["layers"] == "2, hidden 64, 4 heads"
    assert cards["weights and cache, 256 tokens"] == "164 kB"  # 98.8 of weights, 65.5 of the cache
    assert "layers.0.attention.q" not in said
    assert "layer 0, ffn.up: Q5_0, 128 x 64, 5.6 kB" in said  # what a box of the picture says


def test_a_page_asks_nobody_and_runs_nothing(made: str) -> None:
    read = Page(made)
    assert not {"script", "link", "img", "iframe", "object", "form"} & {tag for tag, _ in read.elements}
    assert not [name for _, attributes in read.elements for name in attributes if name in ("src", "href", "style")]
    assert "default-src 'none'" in str(read.of("meta"))
    assert "url(" not in made
    assert "@import" not in made


def test_a_page_can_be_read_by_a_screen_reader_and_by_keyboard(made: str) -> None:
    read = Page(made)
    assert read.of("html") == [{"lang": "en"}]
    assert all(cell.get("scope") in ("row", "col") for cell in read.of("th"))
    wide = [element for element in read.of("div") if element.get("class") == "wide"]
    assert all(element["tabindex"] == "0" and element["aria-label"] for element in wide)
    pictures = [element for element in read.of("svg") if "aria-hidden" not in element]
    assert [element["role"] for element in pictures] == ["img", "img"]
    assert pictures[0]["aria-label"] == "Q5_0 60.5 kB, Q8_0 37.0 kB, F32 1.3 kB"
    assert "attention.v: Q5_0 in 0; Q8_0 in 1" in str(pictures[1]["aria-label"])


def test_what_a_model_says_of_itself_is_text(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    name = "</title><script>alert(1)</script>&\"'"
    assert ckconv("edit", MODEL, tmp_path / "bad.gguf", "--set-meta", f"general.name={name}").code == 0
    assert ckconv("inspect", tmp_path / "bad.gguf", "--html", tmp_path / "page.html").code == 0
    read = Page((tmp_path / "page.html").read_text("utf-8"))
    assert read.of("script") == []
    assert ("h1", name) in read.texts


def test_a_page_shows_areas_in_proportion_to_bytes(made: str) -> None:
    boxes = re.findall(
        r'width="([\d.]+)" height="([\d.]+)" class="\w+"><title>(?:layer|emb|head|oth)[^<]*</title>', made
    )
    tree = boxes[: made[: made.index("Types by layer")].count("<rect")]
    assert sum(float(wide) * float(high) for wide, high in tree) == pytest.approx(1000 * 300, rel=1e-3)


def test_a_page_of_an_adapter_has_rank_scale_and_norm(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    adapter = ROOT / "fixtures/lora/llama-r4-attn-mlp"
    assert ckconv("inspect", adapter, "--html", tmp_path / "page.html").code == 0
    made = (tmp_path / "page.html").read_text("utf-8")
    assert "Size of the change by module" in made
    tensors = load_file(adapter / "adapter_model.safetensors")
    a, b = (
        tensors[f"base_model.model.model.layers.0.self_attn.q_proj.lora_{part}.weight"].astype("f8") for part in "AB"
    )
    config = json.loads((adapter / "adapter_config.json").read_text())
    norm = np.linalg.norm(config["lora_alpha"] / config["r"] * (b @ a))
    assert '<th scope="row">layers.0.attention.q</th>' in made
    assert f">{norm:.4g}</td>" in made
    cards = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", made))
    assert (cards["rank"], cards["alpha"], cards["scale"]) == ("4", "8", "2")


def test_force_replaces_a_page_and_nothing_else(ckconv: Callable[..., Result], made: str, tmp_path: Path) -> None:
    place = tmp_path / "page.html"
    place.write_text("<!DOCTYPE html> an older one")
    assert ckconv("inspect", MODEL, "--html", place, "--force").code == 0
    assert place.read_text("utf-8") == made
    place.write_text("mine")
    done = ckconv("inspect", MODEL, "--html", place, "--force")
    assert (done.code, "is no page" in done.err, place.read_text()) == (6, True, "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_of_what_is_no_page_a_few_bytes_are_read(tmp_path: Path) -> None:
    """More than any memory holds is behind them."""
    place = tmp_path / "model.gguf"
    place.write_bytes(b"GGUF")
    os.truncate(place, 1 << 42)
    with pytest.raises(OutputError, match="is no page"):
        page.check_new(place, force=True)


def test_a_page_replaces_nothing(ckconv: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("mine")
    done = ckconv("inspect", MODEL, "--html", tmp_path / "page.html")
    assert (done.code, "error[output.exists]" in done.err) == (6, True)
    assert "hint: name another FILE for --html" in done.err
    assert (tmp_path / "page.html").read_text() == "mine"


def test_a_page_is_no_stream(ckconv: Callable[..., Result]) -> None:
    result = ckconv("inspect", MODEL, "--html", "-")
    assert (result.code, result.err) == (2, "ckconv: error[usage.target]: a page goes to a file, not to stdout\n")


@pytest.mark.parametrize("flag", ["--hash", "--metadata"])
def test_flags_that_a_page_has_no_place_for_are_refused(
    ckconv: Callable[..., Result], tmp_path: Path, flag: str
) -> None:
    assert ckconv("inspect", MODEL, flag, "--html", tmp_path / "page.html").code == 2
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("model", ["hf/gpt2-hub-f32", "adapters/gpt2-rank-pattern", "gguf/llama-tied-bf16.auto.gguf"])
def test_every_kind_of_model_has_a_page(ckconv: Callable[..., Result], tmp_path: Path, model: str) -> None:
    assert ckconv("inspect", ROOT / "fixtures" / model, "--html", tmp_path / "page.html").code == 0
    assert Page((tmp_path / "page.html").read_text("utf-8")).of("h1")


def requests(page: Path, place: Path) -> tuple[str, list[str]]:
    """What a browser makes of a page, and the addresses that the page, not the browser itself, has it ask for."""
    log = place / "net.json"
    command = [shutil.which("chromium") or "", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={place}/profile", "--disable-background-networking", "--disable-component-update"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--log-net-log={log}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found = json.loads(log.read_text())
    begun = found["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    jobs = [event["params"] for event in found["events"] if event["type"] == begun and "params" in event]
    return done.stdout, [job["url"] for job in jobs if job.get("initiator", "not an origin") != "not an origin"]


@pytest.mark.needs("chromium")
def test_a_browser_draws_it_and_opens_no_connection(made: str, tmp_path: Path) -> None:
    (tmp_path / "other.html").write_text('<img src="http://pixel.invalid/x.png">')
    _, asked = requests(tmp_path / "other.html", tmp_path)
    assert asked == ["http://pixel.invalid/x.png"]
    drawn, asked = requests(tmp_path / "page.html", tmp_path)
    assert asked == []
    assert len(Page(drawn).of("rect")) == len(Page(made).of("rect")) > 30


def brightness(color: str) -> float:
    """Relative luminance (WCAG 2)."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("pair", [*page.COLORS, page.HOT])
def test_characters_stand_out_from_the_grounds_of_types(pair: tuple[str, str]) -> None:
    for ground, ink in zip(pair, ("#1a1a1a", "#f0f0f0"), strict=True):
        darker, lighter = sorted((brightness(ground), brightness(ink)))
        assert (lighter + 0.05) / (darker + 0.05) >= 7
