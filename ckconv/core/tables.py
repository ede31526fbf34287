"""Shipped tables, parsed once and cached beside Python's bytecode.

Most commands ask for seven of them, and to parse those takes as long as to plan a small conversion.
"""

from __future__ import annotations

import marshal
import tomllib
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any
from zlib import crc32

from ckconv.core import __version__


class _Loader(SourceFileLoader):
    def path_stats(self, path: Any) -> Any:
        """State when the file was changed, and in which release.

        Some installers give the files of every release one time, and none takes away what was kept of a table.
        """
        stats = dict(super().path_stats(path))
        return stats | {"mtime": int(stats["mtime"]) + crc32(__version__.encode())}

    def source_to_code(self, data: Any, path: Any, **_: Any) -> Any:  # type: ignore[override]
        """Make code that has the table, and does nothing."""
        table = tomllib.loads(data.decode())
        return self.source_to_code.__code__.replace(co_consts=(marshal.dumps(table),))


def table_of(path: Path) -> dict[str, Any]:
    """Read a TOML file that no user changes.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no TOML.
    """
    code = _Loader(path.name, str(path)).get_code(path.name)
    assert code is not None
    table: dict[str, Any] = marshal.loads(code.co_consts[0])
    return table
