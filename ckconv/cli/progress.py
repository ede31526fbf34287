"""Progress of long work on stderr.

One rewritten line on a terminal, a plain line every ten seconds elsewhere.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from ckconv.cli.render import printable, say, size
from ckconv.cli.settings import Settings
from ckconv.errors import shown

#: Seconds before a terminal sees a line: short work needs none, nor the import of what draws it.
_PATIENCE = 0.5
#: Columns from which on the name of the tensor stands behind the bar.
_WIDE = 100
_PLAIN_INTERVAL = 10.0


class ProgressLine:
    """Progress display: called with bytes done and their tensor.

    ``begin`` names a phase and its total bytes.
    """

    def __init__(self, settings: Settings, file: str = "") -> None:
        """Nothing is shown yet; ``file`` is what a plain line says the work is on."""
        self._file = f" {printable(shown(file))}" if file else ""
        mode = "none" if settings.quiet else settings.progress
        if mode == "auto":
            mode = "line" if sys.stderr.isatty() else "plain"
        self._mode = mode
        self._bar: Any = None
        self._phase, self._total, self._done = "", 0, 0
        self._start = self._last = time.monotonic()

    def begin(self, phase: str, total: int) -> None:
        """Start a phase of ``total`` bytes."""
        self._close()
        self._phase, self._total, self._done = phase, total, 0
        self._start = self._last = time.monotonic()

    def __call__(self, nbytes: int, name: str) -> None:
        """``nbytes`` more are done, of the tensor ``name``."""
        self._done += nbytes
        if self._mode == "none":
            return
        now = time.monotonic()
        if self._mode == "plain":
            if now - self._last >= _PLAIN_INTERVAL:
                self._last = now
                share = 100 * self._done // self._total if self._total else 100
                rate = self._done / (now - self._start)
                left = f"{(self._total - self._done) / rate:,.0f} s left  " if 0 < self._done < self._total else ""
                say(
                    f"ckconv: {self._phase}{self._file} {share}%  {size(self._done)} of {size(self._total)}  "
                    f"{size(int(rate))}/s  {left}{printable(name)}\n"
                )
            return
        if self._bar is None and now - self._start >= _PATIENCE:
            self._bar = self._new_bar()
        if self._bar is not None:
            if self._bar.ncols is None or self._bar.ncols >= _WIDE:
                self._bar.set_postfix_str(printable(name)[:40], refresh=False)
            self._bar.update(self._done - self._bar.n)

    def _new_bar(self) -> Any:
        from tqdm import tqdm

        return tqdm(
            total=self._total,
            desc=self._phase,
            unit="B",
            unit_scale=True,
            leave=False,
            dynamic_ncols=True,
            file=sys.stderr,
            mininterval=0.1,
        )

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
