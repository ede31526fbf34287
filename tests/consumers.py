"""The programs that a model is made for, each in a process of its own, asked for the logits of all positions.

One line of JSON asks, one answers; the rows stand in a file, exactly as they were computed. A process that ends (an
assertion of llama.cpp does that) is an answer too, and is started again.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent

#: Where the prebuilt libraries of llama.cpp are, empty where there are none.
LIBRARY = os.environ.get("LLAMA_CPP_LIBRARY", "")

_QUIET = {
    "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "GGML_NO_BACKTRACE": "1", "PYTHONWARNINGS": "ignore",
    "TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1",
}  # fmt: skip

# mlx would run a C++ compiler, for a second, on every expression that a class has it fuse; what is fused is the same.
os.environ.setdefault("MLX_DISABLE_COMPILE", "1")


#: Bytes that a program may take for its data, whatever a configuration says.
MOST_MEMORY = 4 << 30


class DoesNotRun(Exception):
    """The program does not load the model, or does not compute it."""


@dataclass(frozen=True)
class Request:
    """What is asked: ``rows`` names the file for the answer, ``adapter`` one that is used beside the model.

    ``states`` names the file of what a drafter reads of its model.
    ``strict``: that the class has no weight that is not stored, and none is stored that the class does not have.
    """

    model: str
    prompt: tuple[int, ...]
    rows: str
    adapter: str = ""
    strict: bool = False
    states: str = ""


def serve(answer: Callable[[Request], np.ndarray]) -> None:
    """Answer requests for logits."""

    def save(asked: dict[str, Any]) -> None:
        request = Request(**{**asked, "prompt": tuple(asked["prompt"])})
        np.save(request.rows, answer(request))

    obey(save)


def obey(act: Callable[[dict[str, Any]], None]) -> None:
    """Do what the lines of standard input ask; whatever a library prints goes to standard error."""
    import resource  # of POSIX, as the programs are

    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        for line in sys.stdin:
            try:
                act(json.loads(line))
                said = ""
            except Exception as error:
                said = f"{type(error).__name__}: {error}"[:600]
            print(json.dumps(said), file=out, flush=True)


class Consumer:
    """One of the programs."""

    def __init__(self, script: str, *arguments: str) -> None:
        self.script = script
        self._command = [sys.executable, str(HERE / script), *arguments]
        self._process: subprocess.Popen[str] | None = None

    def logits(
        self, model: Path, prompt: tuple[int, ...], *, adapter: Path | None = None, strict: bool = False,
        states: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        """``[positions, vocabulary]`` in float32.

        Raises:
            DoesNotRun: with the library's own words.
        """
        with tempfile.TemporaryDirectory() as folder:
            rows = str(Path(folder) / "rows.npy")
            read = "" if states is None else str(Path(folder) / "states.npy")
            if states is not None:
                np.save(read, states.astype(np.float32))
            said = self.ask(asdict(Request(str(model), prompt, rows, str(adapter or ""), strict, read)))
            if said:
                raise DoesNotRun(said)
            return np.asarray(np.load(rows), np.float32)

    def ask(self, request: dict[str, Any]) -> str:
        """One question: empty, or why there is no answer."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                env={**os.environ, **_QUIET},
            )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            print(json.dumps(request), file=process.stdin, flush=True)
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return str(json.loads(line))
        self.close()
        return f"the process ended with status {process.returncode}"

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue
        process.wait(timeout=60)


def ending_here(consumer: Consumer) -> Consumer:
    """A program that runs until this process ends: starting it takes longer than an answer."""
    atexit.register(consumer.close)
    return consumer


def llama_cpp() -> Consumer:
    return Consumer("llama_cpp_logits.py", LIBRARY)


def llama_quantize() -> Consumer:
    return Consumer("llama_cpp_quantize.py", LIBRARY)


def transformers() -> Consumer:
    return Consumer("transformers_logits.py")


def mlx_lm() -> Consumer:
    return Consumer("mlx_lm_logits.py")
