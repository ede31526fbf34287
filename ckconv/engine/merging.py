"""Models with adapters merged into them."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ckconv.core.tensors import TensorIndex
from ckconv.errors import InputError, UsageError, shown
from ckconv.formats import format_of
from ckconv.formats.detect import open_index
from ckconv.io.addresses import as_path
from ckconv.options import Options


def merged(
    index: TensorIndex, adapters: Sequence[tuple[str | os.PathLike[str], float]], options: Options, to: str
) -> TensorIndex:
    """A model with adapters merged into it, for an output of the format ``to``.

    Raises:
        UsageError: a weight is no finite number.
    """
    from ckconv.adapters.merged import Adapting, merge_adapters

    base = index.path if index.config is not None else None
    for path, weight in adapters:
        if not math.isfinite(weight):
            raise UsageError("usage", f"the weight of {shown(path)} is {weight}, which is not a finite number")
    links = options.follow_links
    opened = []
    for path, weight in adapters:
        try:
            opened.append(Adapting(open_index(as_path(path), base=base, follow_links=links), weight))
        except InputError as error:
            if error.code == "adapter.base":  # there is no other base to name
                error.hint = f"it was made for another model than {shown(index.path)}"
            raise
    unrounded = partial(format_of(to).stores_float32, options)
    made = merge_adapters(index, opened, decoded=options.decodes, unrounded=unrounded)
    return replace(made, adapters=tuple((adapter.index, adapter.weight) for adapter in opened))
