"""What a release is made of: packages, the manual page, files that services read, the action for other repositories."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from ckconv.core import __version__

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
VERSIONS = ["3.11", "3.12", "3.13", "3.14"]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Directories of two builds, of two copies of the tree at different times."""
    built = []
    for date in (1_000_000_000, 1_700_000_000):
        tree = tmp_path_factory.mktemp("tree") / "ckconv"
        ignored = shutil.ignore_patterns(
            "fixtures", "tests", ".git", ".mypy_cache", "__pycache__", ".venv", "out", "dist"
        )
        shutil.copytree(ROOT, tree, ignore=ignored)
        for path in tree.rglob("*"):
            os.utime(path, (date, date))
        command = [sys.executable, "-m", "hatchling", "build", "-d", "made"]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": "1600000000"}
        subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True)
        built.append(tree / "made")
    return built


def test_packages_are_the_same_whenever_they_are_built(packages: list[Path]) -> None:
    one, other = ({path.name: digest(path) for path in place.iterdir()} for place in packages)
    assert one == other
    assert {*one} == {f"ckconv-{__version__}-py3-none-any.whl", f"ckconv-{__version__}.tar.gz"}


def test_packages_are_smaller_than_3_mb(packages: list[Path]) -> None:
    assert max(path.stat().st_size for path in packages[0].iterdir()) < 3_000_000


def test_the_wheel_has_the_data_of_the_package_and_its_manual_page(packages: list[Path]) -> None:
    with zipfile.ZipFile(next(packages[0].glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    there = {str(path.relative_to(ROOT)) for path in (ROOT / "ckconv").rglob("*") if path.is_file()}
    assert {name for name in there if "__pycache__" not in name} <= names
    assert f"ckconv-{__version__}.data/data/share/man/man1/ckconv.1" in names


@pytest.mark.needs("groff")
def test_troff_has_nothing_to_say_of_the_manual_page() -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", ROOT / "docs/ckconv.1"], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert "EXIT STATUS" in re.sub(".\b", "", done.stdout)


def test_versions_of_python_are_the_same_everywhere() -> None:
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    assert named == VERSIONS
    assert jobs["tests"]["strategy"]["matrix"]["python"] == VERSIONS
    assert PROJECT["requires-python"] == f">={VERSIONS[0]}"


def test_the_citation_has_the_version_and_license_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (__version__, PROJECT["license"])
    assert citation["repository-code"] == PROJECT["urls"]["Homepage"]


def test_the_changelog_has_the_version_and_its_date() -> None:
    headings = re.findall(r"^## \[(.+)\](?: - (.+))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = yaml.safe_load((ROOT / "CITATION.cff").read_text())["date-released"]
    assert headings[:2] == [("Unreleased", ""), (__version__, released)]


def steps(document: Any) -> list[dict[str, Any]]:
    return [step for job in document["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_read_and_each_step_does_one_thing(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    assert document["permissions"] == {"contents": "read"}
    assert all(("uses" in step) != ("run" in step) for step in steps(document))
    assert not [step for step in steps(document) if "secrets." in str(step)]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_a_workflow_makes_is_a_target(path: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    runs = [step["run"].split() for step in steps(yaml.safe_load(path.read_text())) if "run" in step]
    made = {word for run in runs if run[0] == "make" for word in run[1:] if "=" not in word}
    assert made <= targets


def test_every_promise_has_a_test() -> None:
    table = re.findall(r"^\| (.+) \| (`.+`) \|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    assert len(table) > 10
    for promise, tests in table:
        for file, name in re.findall(r"`(\w+\.py)::(\w+)`", tests):
            assert f"def {name}(" in (ROOT / "tests" / file).read_text(), promise


ACTION = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]


def test_actions_of_others_are_named_by_their_commits() -> None:
    used = [step["uses"] for path in WORKFLOWS for step in steps(yaml.safe_load(path.read_text())) if "uses" in step]
    used += [step["uses"] for step in ACTION if "uses" in step]
    assert len(used) > 10
    assert [name for name in used if name != "./" and not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", name)] == []


def test_a_checkout_leaves_no_token_behind() -> None:
    found = [step for path in WORKFLOWS for step in steps(yaml.safe_load(path.read_text())) if "checkout@" in str(step)]
    assert [step.get("with") for step in found] == [{"persist-credentials": False}] * len(found)


def step_of_action(step: dict[str, Any], place: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run a step of the action as the service does: bash, and inputs as variables."""
    assert set(step["env"]) <= set(inputs)
    environment = {**os.environ, **inputs, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)


def verify(models: str, source: str = "", options: str = "", place: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return step_of_action(ACTION[-1], place, MODELS=models, SOURCE=source, OPTIONS=options)


@pytest.mark.attack
@pytest.mark.parametrize("path", ["", "."], ids=["", "PYTHONPATH"])
def test_the_action_runs_nothing_of_the_repository(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(ROOT / "fixtures/gguf/llama-tied-bf16.auto.gguf", tmp_path / "m.gguf")
    mark = tmp_path / "ran"
    for name in ("pip", "ckconv", "click", "numpy", "json", "sitecustomize", "usercustomize"):
        for file in (tmp_path / f"{name}.py", tmp_path / name / "__init__.py", tmp_path / name / "__main__.py"):
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"open({str(mark)!r}, 'w').close()\n")
    if path:
        monkeypatch.setenv("PYTHONPATH", path)
    assert verify("m.gguf", place=tmp_path).returncode == 0
    installed = step_of_action(ACTION[1], tmp_path, ACTION="/no/such/action")  # pip itself says so
    assert (installed.returncode, "/no/such/action" in installed.stderr) == (1, True)
    assert not mark.exists()


def test_the_action_takes_inputs_with_blanks(tmp_path: Path) -> None:
    model, page = tmp_path / "my model.gguf", tmp_path / "a page.html"
    shutil.copy(ROOT / "fixtures/gguf/llama-tied-bf16.auto.gguf", model)
    for options in ("--weights -v", "--weights -v\n", f"--weights\n-v\n--html\n{page}\n"):
        done = verify(f"{model}\n", str(model), options)
        assert (done.returncode, "verified 20/20 tensors" in done.stdout) == (0, True), options
    assert verify("\n").returncode == 2


def test_the_action_verifies_every_model_that_it_is_given() -> None:
    done = verify("fixtures/gguf/llama-tied-bf16.auto.gguf\nfixtures/hf/qwen2-tied-bf16\n")
    assert (done.returncode, done.stdout.count("structure and padding are valid")) == (0, 2)


def test_the_action_fails_if_one_model_fails_and_verifies_the_rest(tmp_path: Path) -> None:
    bad = tmp_path / "with space; echo.gguf"
    bad.write_bytes((ROOT / "fixtures/gguf/llama-tied-bf16.auto.gguf").read_bytes()[:5000])
    done = verify(f"{bad}\nfixtures/hf/qwen2-tied-bf16")
    assert (done.returncode, done.stdout.count("structure and padding are valid")) == (3, 1)


def test_the_action_compares_with_a_source() -> None:
    model = "fixtures/gguf/llama-tied-bf16.auto.gguf"
    done = verify(model, model, "--weights -v")
    assert (done.returncode, "verified 20/20 tensors" in done.stdout) == (0, True)


def test_the_address_stands_where_the_page_of_publishing_says() -> None:
    """``make address`` changes these files, and there is no other."""
    page, project = (ROOT / "docs/publishing.md").read_text(), tomllib.loads((ROOT / "pyproject.toml").read_text())
    address = project["project"]["urls"]["Homepage"].removeprefix("https://")
    listed = set(re.findall(r"`([\w./]+\.(?:md|cff|toml|py))`", page.partition("## Each release")[0]))
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not tracked:
        pytest.skip("not a checkout")
    texts = (ROOT / name for name in tracked if not name.startswith(("fixtures/", "docs/screenshots/")))
    found = {path.relative_to(ROOT).as_posix() for path in texts if address in path.read_text("utf-8", "replace")}
    assert found == listed


def test_actions_are_used_at_commits() -> None:
    """A tag may move."""
    files = [*(ROOT / ".github/workflows").glob("*.yml"), ROOT / "action.yml", ROOT / "docs/publishing.md"]
    used = [use for path in files for use in re.findall(r"uses: (\S+)", path.read_text()) if use != "./"]
    assert len(used) > 15
    assert [use for use in used if not re.fullmatch(r"[\w/-]+@([0-9a-f]{40}|COMMIT)", use)] == []
