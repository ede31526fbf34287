"""Links in a directory that was cloned, unpacked or is everybody's: no output is written through one.

Only what a user has typed as DST may be a link, with ``--force``, and then the report names the real place.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import FIXTURES, Result
from outputs import contents
from tower_cases import checkpoint, recordings

import ckconv
from ckconv.errors import OutputError

pytestmark = [pytest.mark.attack, pytest.mark.needs("posix")]

Ckconv = Callable[..., Result]

LLAMA = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"
QWEN2 = FIXTURES / "hf" / "qwen2-tied-bf16"
LORA = FIXTURES / "lora" / "llama-r4-attn-mlp"

BUMP5 = ["convert", LLAMA, "m.bump", "--bump-version", "5"]

#: Writer -> its command without ``--force``; OUT is the directory with the links. No file in it is typed as DST.
WRITERS: dict[str, list[object]] = {
    "checkpoint": ["convert", LLAMA, "OUT/", "--to", "hf", "--record", "--checksums"],
    "shards": ["convert", LLAMA, "OUT/", "--to", "hf", "--max-shard-size", "80kB"],
    "mlx": ["convert", LLAMA, "OUT/", "--to", "mlx"],
    "side files alone": ["convert", LLAMA, "OUT/", "--to", "hf", "--side-files-only"],
    "bump 3": ["convert", LLAMA, "OUT/", "--to", "bump", "--bump-version", "3", "--record"],
    "bump 5": ["convert", LLAMA, "OUT/", "--to", "bump", "--bump-version", "5", "--map", "--checksums"],
    "restored": ["convert", "BUMP", "OUT/"],
    "adapter": ["convert", LORA, "OUT/", "--to", "peft"],
    "split gguf": ["convert", LLAMA, "OUT/m.gguf", "--max-shard-size", "80kB", "--checksums", "--record"],
    "attestation": ["convert", LLAMA, "m.gguf", "--attest", "OUT/a.json"],
    "configuration": [*BUMP5, "--config-out", "OUT/c.json", "--manifest", "OUT/m.json"],
    "batch": ["batch", LLAMA, "--to", "hf", "--into", "OUT"],
    "batch of files": ["batch", QWEN2, LLAMA, "--to", "gguf", "--into", "OUT"],
    "page": ["inspect", LLAMA, "--html", "OUT/page.html"],
    "page of a conversion": ["convert", LLAMA, "m.gguf", "--html", "OUT/page.html"],
    "page of a comparison": ["diff", LLAMA, LLAMA, "--html", "OUT/page.html"],
    "workers": ["convert", QWEN2, "OUT/", "--to", "hf", "--max-shard-size", "80kB", "--resume"],
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture(scope="module")
def bump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What restores a checkpoint."""
    place = tmp_path_factory.mktemp("bump") / "m.bump"
    ckconv.convert(QWEN2, place)
    return place


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that sees."""
    return checkpoint(next(iter(recordings().values())), tmp_path_factory.mktemp("tower") / "source")


def files(place: Path) -> list[str]:
    return sorted(path.relative_to(place).as_posix() for path in place.rglob("*") if not path.is_dir())


@pytest.mark.product("pairs")
@pytest.mark.parametrize("dangling", [False, True], ids=["there", "dangling"])
@pytest.mark.parametrize("force", [False, True], ids=["", "force"])
@pytest.mark.parametrize("writer", WRITERS)
def test_no_writer_follows_a_link_that_lies_where_it_writes(
    writer: str, force: bool, dangling: bool, here: Path, home: Path, bump: Path, tmp_path: Path, ckconv: Ckconv
) -> None:
    def command(out: Path) -> list[str]:
        words = [str(word).replace("OUT", str(out)).replace("BUMP", str(bump)) for word in WRITERS[writer]]
        return [*words, "--force"] if force and words[0] != "inspect" and words[0] != "diff" else words

    free, out = tmp_path / "free" / "out", tmp_path / "out"
    for place in (free, out):
        place.mkdir(parents=True)
    assert ckconv(*command(free)).code == 0
    for path in here.iterdir():
        path.unlink()
    names = files(free)
    assert names
    for name in names:
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).symlink_to(home / name.replace("/", "-"))
        if not dangling:
            (home / name.replace("/", "-")).write_bytes(b"mine")
    before = contents(home)

    done = ckconv(*command(out))

    assert contents(home) == before
    assert done.code in (0, 6), done.err
    if done.code == 0:
        assert [name for name in names if (out / name).is_symlink()] == []
        assert contents(out).keys() == contents(free).keys()
    else:
        assert any(f"{out}/{name}: " in done.err or str(out) in done.err for name in names)
        assert all((out / name).is_symlink() for name in names)
    if not force:
        assert done.code == 6


def test_a_directory_of_a_batch_that_is_a_link_is_refused(here: Path, home: Path, ckconv: Ckconv) -> None:
    (here / "out").mkdir()
    (here / "out" / QWEN2.name).symlink_to(home)
    for flags in ((), ("--force",)):
        done = ckconv("batch", QWEN2, "--to", "gguf", "--into", here / "out", *flags)
        assert (done.code, files(home)) == (6, [])
        (line,) = done.out.splitlines()
        assert f"is a link to {home}" in json.loads(line)["error"]["message"]


@pytest.mark.parametrize("name", ["additional_chat_templates", "1_Pooling"])
def test_a_directory_inside_an_output_that_is_a_link_is_not_entered(
    name: str, here: Path, home: Path, ckconv: Ckconv
) -> None:
    (home / "tools.jinja").write_text("mine")
    (home / "config.json").write_text("mine")
    (here / name).symlink_to(home)
    ckconv("convert", QWEN2, f"{here}/", "--to", "hf", "--force")
    assert contents(home) == {"tools.jinja": b"mine", "config.json": b"mine"}


@pytest.mark.parametrize("verb", ["convert", "edit"])
def test_dst_itself_may_be_a_link_with_force_and_the_report_names_the_real_place(
    verb: str, here: Path, home: Path, ckconv: Ckconv
) -> None:
    (here / "m.gguf").symlink_to(home / "real.gguf")
    command = [verb, LLAMA, here / "m.gguf", *(["--set-meta", "general.name=x"] if verb == "edit" else [])]
    refused = ckconv(*command)
    assert (refused.code, files(home)) == (6, [])
    assert f"m.gguf: is a link to {home}/real.gguf, which is not there" in refused.err
    done = ckconv(*command, "--force")
    assert (done.code, files(home), (here / "m.gguf").is_symlink()) == (0, ["real.gguf"], True)
    assert f"{here}/m.gguf is a link: the output is {home}/real.gguf" in done.out


@pytest.mark.parametrize("there", [True, False], ids=["empty directory", "dangling"])
@pytest.mark.parametrize(
    "command",
    [
        ["convert", LLAMA, "DST/", "--to", "hf"],
        ["convert", LLAMA, "DST/", "--to", "mlx"],
        ["convert", LLAMA, "DST/", "--to", "gguf"],
        ["convert", LLAMA, "DST/", "--to", "bump"],
        ["convert", LLAMA, "DST/", "--to", "hf", "--side-files-only"],
        ["convert", LLAMA, "DST/", "--to", "hf", "--max-shard-size", "80kB", "--resume"],
        ["convert", LORA, "DST/", "--to", "peft"],
        ["convert", "BUMP", "DST/"],
    ],
    ids=lambda command: " ".join(map(str, command[2:])),
)
def test_a_link_to_a_directory_as_dst_is_followed_with_force_alone(
    command: list[object], there: bool, here: Path, home: Path, bump: Path, ckconv: Ckconv
) -> None:
    real = home / "real"
    if there:
        real.mkdir()
    (here / "out").symlink_to(real)
    words = [str(word).replace("DST", str(here / "out")).replace("BUMP", str(bump)) for word in command]
    refused = ckconv(*words)
    assert (refused.code, files(home)) == (6, [])
    assert f"{here}/out: is a link to {real}" in refused.err
    assert f"hint: --force writes there; or name {real}, or remove the link" in refused.err
    done = ckconv(*words, "--force")
    assert (done.code, (here / "out").is_symlink(), bool(files(real))) == (0, True, True), done.err
    assert f"{here}/out is a link: the output is {real}" in done.out


def test_a_tower_is_not_written_through_a_link(here: Path, home: Path, ckconv: Ckconv, tower: Path) -> None:
    (here / "mmproj.gguf").symlink_to(home / "x")
    for flags in ((), ("--force",)):
        done = ckconv("convert", tower, here / "m.gguf", "--mmproj", here / "mmproj.gguf", *flags)
        assert (done.code, files(home), "mmproj.gguf: is a link" in done.err) == (6, [], True)
        assert "hint: remove the link, or name another place" in done.err


def test_an_address_of_this_machine_is_a_path(here: Path, home: Path, ckconv: Ckconv) -> None:
    (here / "m.gguf").symlink_to(home / "x")
    for scheme in ("file", "local"):
        done = ckconv("convert", LLAMA, f"{scheme}://{here}/m.gguf")
        assert (done.code, files(home)) == (2, [])
        assert f"hint: name it as one: {here}/m.gguf" in done.err


# --- another user


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory of all users, as /tmp is one."""
    with tempfile.TemporaryDirectory(prefix="ckconv-test-") as name:
        Path(name).chmod(0o755)
        place = Path(name) / "shared"
        place.mkdir()
        place.chmod(0o1777)
        yield place


OTHER = 65534


@pytest.mark.needs("root")
def test_a_link_of_another_user_where_everybody_writes_is_not_followed_even_with_force(
    shared: Path, home: Path
) -> None:
    link = shared / "m.gguf"
    link.symlink_to(home / "x")
    os.lchown(link, OTHER, OTHER)
    for force in (False, True):
        with pytest.raises(OutputError, match="is a link of another user"):
            ckconv.convert(LLAMA, link, force=force)
    assert files(home) == []


@pytest.mark.needs("root")
@pytest.mark.parametrize("sticky", [True, False], ids=["everybody's directory", "his directory"])
@pytest.mark.parametrize("target", ["m.gguf", "out/"])
def test_a_user_who_swaps_names_while_another_writes_reaches_nothing_of_his(
    sticky: bool, target: str, shared: Path, home: Path
) -> None:
    """The staging directory, and what is named, become links to the home of who writes as soon as they are seen."""
    for name in ("config.json", "m-00001-of-00003.gguf", "journal.json", ".replaced"):
        (home / name).write_text("mine")
    if not sticky:
        shared.chmod(0o755)
        os.chown(shared, OTHER, OTHER)
    attacker = os.fork()
    if not attacker:
        os.setgid(OTHER)
        os.setuid(OTHER)
        number = 0
        while True:
            with suppress(OSError):
                for entry in shared.iterdir():
                    number += 1
                    if not entry.is_symlink():
                        entry.rename(shared / f"away{number}")
                        entry.symlink_to(home)
    before, ended = contents(home), set()
    try:
        until = time.monotonic() + 3
        while time.monotonic() < until:
            for force in (False, True):
                try:
                    flags = {"to": "hf"} if target == "out/" else {}
                    options = ckconv.Options(max_shard_bytes=80_000)
                    ckconv.convert(LLAMA, f"{shared}/{target}", options=options, force=force, **flags)
                    ended.add("done")
                except ckconv.CkconvError as error:
                    ended.add(error.code)
    finally:
        os.kill(attacker, signal.SIGKILL)
        os.waitpid(attacker, 0)
    assert contents(home) == before
    assert stat.S_IMODE(home.stat().st_mode) == 0o755


# --- who may read


@pytest.mark.parametrize(
    ("mode", "mask", "file", "replaced", "directory"),
    [
        (0o600, 0o022, 0o600, 0o600, 0o700),
        (0o640, 0o022, 0o640, 0o660, 0o750),
        (0o444, 0o002, 0o664, 0o666, 0o775),
    ],
)
def test_nobody_reads_an_output_who_may_not_read_its_source(
    mode: int, mask: int, file: int, replaced: int, directory: int, tmp_path: Path
) -> None:
    source = tmp_path / "s.gguf"
    source.write_bytes(LLAMA.read_bytes())
    source.chmod(mode)
    (tmp_path / "open.gguf").write_bytes(b"x")
    (tmp_path / "open.gguf").chmod(0o666)
    old = os.umask(mask)
    try:
        ckconv.convert(source, tmp_path / "m.gguf", checksums=True)
        ckconv.convert(source, f"{tmp_path}/out/", to="hf", record=True)
        ckconv.convert(source, f"{tmp_path}/b/", to="bump")
        ckconv.convert(source, tmp_path / "open.gguf", force=True)
        ckconv.edit(source, set_meta=[("general.name", "x")])
    finally:
        os.umask(old)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert (modes.pop("s.gguf"), modes.pop("open.gguf")) == (mode, replaced)
    assert (modes.pop("out"), modes.pop("b")) == (directory, directory)
    assert len(modes) > 8
    assert set(modes.values()) == {file}
