"""Whether a source is what it says of itself."""

from __future__ import annotations

from types import TracebackType

from ckconv.core.tensors import TensorIndex
from ckconv.errors import UnsupportedError, VerifyError
from ckconv.io.digests import Digests
from ckconv.verification.tensors import check_checksums


class Soundness(Digests):
    """Whether a source that says its own checksum has it.

    A source that is damaged is said to be so, whatever else is found to be wrong because of it.
    """

    def __init__(self, index: TensorIndex) -> None:
        super().__init__(checksum.extent for checksum in index.checksums)
        self._index = index

    def check(self) -> None:
        """Wait for the result.

        Raises:
            VerifyError: ``bump.checksum``.
            InputError: ``input.unreadable``.
        """
        check_checksums(self._index.checksums, self.all().__getitem__, self._index.path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, (UnsupportedError, VerifyError)) and error.code != "bump.checksum":
                self.check()
        finally:
            super().__exit__(kind, error, trace)
