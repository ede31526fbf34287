"""A format of tests only: a folder, and the one row that plugs it in.

``MOCKFILE``, the length of a header as u64, the header as JSON (hyper-parameters; for each tensor its canonical name,
type, shape and offset), then the tensors one after the other, rows in canonical order.
"""

from __future__ import annotations

import re

from ckconv import formats
from ckconv.formats import Format, Output, Reader

ROW = Format(
    "mock",
    (Output("mock", ("mock_format.plan", "MockPlanner"), options=frozenset({"set_meta"}), needs_config=True),),
    read=Reader(("mock_format.read", "open_mock"), frozenset({"source"})),
    head=re.compile(rb"MOCKFILE"),
    suffix=".mock",
    single=True,
    content=("mock_format.read", "content"),
)


def plug_in() -> None:
    formats.FORMATS = (*formats.FORMATS, ROW)
