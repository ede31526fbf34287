"""Shared by all tests: a runner of the command line, in this process, and where the fixtures are."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ckconv.__main__ import run
from ckconv.signals import ENDING

FIXTURES = Path(__file__).parent.parent / "fixtures"


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def ckconv(capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """``ckconv("convert", a, b)`` -> exit status, stdout, stderr."""

    def call(*arguments: object) -> Result:
        capfd.readouterr()
        handlers = {number: signal.getsignal(number) for number in ENDING}
        try:
            code = run([str(argument) for argument in arguments])
        finally:  # a command ends its process, and leaves them as the end needs them
            for number, handler in handlers.items():
                signal.signal(number, handler)
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return Result(code, out, err)

    return call


@pytest.fixture(scope="session")
def fixtures() -> Path:
    return FIXTURES
