"""numpy, imported when something of it is first asked for, and its arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

__all__ = ["Blocks", "Bytes", "Cells", "Doubles", "Flags", "Floats", "Index", "NDArray", "Rows", "Zeros", "np"]

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:

    class _Numpy:
        def __getattr__(self, name: str) -> Any:
            import numpy

            found = self.__dict__[name] = getattr(numpy, name)  # which is there the next time
            return found

    np, NDArray = _Numpy(), Any

#: Stored rows ``[n, bytes]``; bytes of any shape; blocks, and elements, as structures.
Rows: TypeAlias = "NDArray[np.uint8]"
Bytes: TypeAlias = "NDArray[np.uint8]"
Blocks: TypeAlias = "NDArray[Any]"
Cells: TypeAlias = "NDArray[Any]"

#: Values, zero points, numbers of rows, and what holds of each.
Floats: TypeAlias = "NDArray[np.float32]"
Doubles: TypeAlias = "NDArray[np.float64]"
Zeros: TypeAlias = "NDArray[np.int16]"
Index: TypeAlias = "NDArray[np.int64]"
Flags: TypeAlias = "NDArray[np.bool_]"
