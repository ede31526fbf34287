"""Engines with a row in family files, which load what is written."""

from __future__ import annotations

from ckconv.core.named import NamedTuple


class Loader(NamedTuple):
    """An engine.

    Attributes:
        name: what people call it.
        row: its row in a family file.
        column: the cells of a parameter that it reads.
        has: what it has of a family.
    """

    name: str
    row: str
    column: str
    has: str = "class"

    @property
    def of_metadata(self) -> bool:
        """Whether the engine reads typed metadata instead of a document."""
        return self.column == "gguf"


LLAMA_CPP = Loader("llama.cpp", "llama_cpp", "gguf", "architecture")
MLX_LM = Loader("mlx-lm", "mlx_lm", "hf")
TRANSFORMERS = Loader("transformers", "transformers", "hf")

#: Format -> the engine that such a file was written for.
OF_FORMAT = {"gguf": LLAMA_CPP, "mlx": MLX_LM}
