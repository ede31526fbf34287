"""A source that says its own checksum is held against it before anything made of it gets its name."""

from __future__ import annotations

from types import TracebackType

from ckconv.core.tensors import TensorIndex
from ckconv.engine.reread import ChecksumThread
from ckconv.errors import UnsupportedError, VerifyError


class Soundness:
    """Whether a source that says its own checksum has it.

    A source that is damaged is said to be so, whatever else is found to be wrong because of it.
    """

    def __init__(self, index: TensorIndex) -> None:
        self._index = index
        self._hashing: ChecksumThread | None = None

    def begin(self) -> None:
        """Hash it beside what is done from now on."""
        if self._hashing is None:
            self._hashing = ChecksumThread(self._index.checksums, {})

    def check(self) -> None:
        """Wait for the result.

        Raises:
            VerifyError: ``bump.checksum``.
            InputError: ``input.unreadable``.
        """
        self.begin()
        assert self._hashing is not None
        self._hashing.check(self._index.path)

    def __enter__(self) -> Soundness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, (UnsupportedError, VerifyError)) and error.code != "bump.checksum":
                self.check()
        finally:
            if self._hashing is not None:
                self._hashing.stop()
