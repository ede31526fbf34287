"""What a key of a configuration does, whichever format has it."""

from __future__ import annotations

from enum import Enum


class Kind(Enum):
    """What a key does.

    PARAMETER: a hyper-parameter, or what a rule of its own looks at; carried.
    HARMLESS: nothing that is computed depends on it.
    MODIFIER: changes what is computed, unless it has a neutral value; refused where it cannot be carried.
    """

    PARAMETER = "parameter"
    HARMLESS = "harmless"
    MODIFIER = "modifier"
