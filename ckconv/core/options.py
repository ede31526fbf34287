"""Options of a conversion, and the one table of their flags.

Read from that table: the flags of the command line, what a program may give, which outputs an option has a say in (with
:mod:`ckconv.formats`), and what the records of a conversion keep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

from ckconv.core.lazy import NamedTuple, dataclass


class NamedTensor(Protocol):
    """A tensor, by both of its names."""

    @property
    def name(self) -> str:
        """The canonical name."""

    @property
    def source(self) -> str:
        """The name in its file."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a conversion.

    The defaults are what the target's engine loads and computes correctly.

    Attributes:
        dtype: ``engine``, ``keep``, ``f32``, ``f16``, ``bf16`` or ``source``.
        rope_layout: ``engine``, ``source``, ``split`` or ``interleaved``.
        dequantize: decode quantized matrices.
        quantize: what floats are quantized to: a type or a recipe, then GLOB=TYPE for tensors that get another.
        imatrix: a file of llama-imatrix: how much the error of each column counts where floats are quantized.
        decode: globs over canonical and source names of quantized matrices to decode.
        allow_lossy: steps may change values.
        context: context length in the output, 0 for the source's.
        drop: globs over canonical and source names of tensors to leave out.
        bump_version: 0 for the best that holds the model.
        template: the engine's template, or a directory of them, to be embedded in a bump 5 file.
        created: seconds since 1970 that a bump 5 file is dated with; ``None`` leaves it undated.
        trainable: ``headerless`` or ``wrapped``: a bump file that the engine trains, or the same for inference; empty
            for one that it only computes.
        engine: the release of C-Kernel-Engine that a bump file is for: ``january``, ``april`` or ``july``; empty for
            April's rules and no release in particular.
        dtype_codes: numbering of the bump 3 dtype table, ``v3`` or ``v4``; empty for that of the engine, or ``v3``.
        file_name: what the user calls the output file; empty where the output is a directory or standard output,
            and files have the names that the format's readers look for.
        max_shard_bytes: no output file holds more bytes of tensors than this, unless one tensor does; 0 for one file.
        set_meta: (key, value) of metadata that the output has besides, or instead; GGUF values may name a type.
        drop_meta: globs over keys of metadata that the output does not have.
        fuse: which tensors are stored as one where the target may: ``qkv``, ``gate-up``.
        names: naming scheme of a safetensors or MLX output: ``hf``, ``canonical``, ``gguf`` or ``max``.
        pack: whose layout quantized matrices of a safetensors output have: ``compressed-tensors`` or ``modelopt``.
        tie: ``untie`` stores a tied head as its own tensor, ``tie`` leaves out a head that is the embedding,
            empty leaves it as it is.
        source_record: write the record that makes the source of a bump file again, ``"always"`` also a large one and
            that of a GGUF, and use the one that lies beside SRC.
        base: the model that an adapter was made for, or that a drafter drafts for.
        task: write the adapter of this task, of a model that has one for each; empty for the model itself.
        families: files of the user's own families, which count for this conversion.
        follow_links: files of a directory of safetensors files that are links to places outside of it are read.
        strict: a model that carries code or hidden characters is refused: :mod:`ckconv.formats.hazards`.
    """

    dtype: str = "engine"
    rope_layout: str = "engine"
    dequantize: bool = False
    decode: tuple[str, ...] = ()
    quantize: str = ""
    imatrix: Path | None = None
    allow_lossy: bool = False
    context: int = 0
    drop: tuple[str, ...] = ()
    bump_version: int = 0
    trainable: str = ""
    engine: str = ""
    dtype_codes: str = ""
    template: Path | None = None
    created: int | None = None
    file_name: str = ""
    max_shard_bytes: int = 0
    set_meta: tuple[tuple[str, str], ...] = ()
    drop_meta: tuple[str, ...] = ()
    tensor_scales: bool = False
    fuse: tuple[str, ...] = ()
    names: str = "hf"
    pack: str = ""
    tie: str = ""
    source_record: bool | str = True
    base: Path | None = None
    task: str = ""
    follow_links: bool = False
    strict: bool = False
    families: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        """Take lists for tuples, and texts for paths."""
        for item in fields(self):
            value = getattr(self, item.name)
            made: object = tuple(value) if isinstance(value, list) else value
            if item.type == "tuple[Path, ...]" and isinstance(made, tuple):
                made = tuple(Path(path) if isinstance(path, str) else path for path in made)
            elif item.type == "Path | None" and isinstance(made, str):
                made = Path(made)
            if made is not value:
                object.__setattr__(self, item.name, made)

    def decodes(self, tensor: NamedTensor) -> bool:
        """Whether a flag asks for this tensor's blocks to be decoded."""
        return self.dequantize or any(
            fnmatchcase(name, glob) for name in (tensor.name, tensor.source) for glob in self.decode
        )


class Takes(Enum):
    """Kind of value behind a flag."""

    NOTHING = "nothing: the flag alone gives its value"
    WORD = "one of a few words"
    WORDS = "one of a few words; repeatable"
    GLOB = "a glob; repeatable"
    PAIR = "KEY=VALUE; repeatable"
    TYPES = "types, of all tensors and of those that globs name"
    NUMBER = "a whole number"
    SIZE = "a number of bytes"
    TEXT = "a text"
    PATH = "a path"
    EXISTING = "a path that is there"
    FILES = "a path; repeatable"
    NO_FLAG = "there is no flag: what the output is called, or the environment, gives the value"


class Records(Enum):
    """Records that keep an option: how an output was made, not where it lay."""

    BOTH = "the conversion record, and a source record: it changes values, or leaves tensors out"
    CONVERSION = "the conversion record"
    NEITHER = "neither"


class Option(NamedTuple):
    """Row of the table: a field of :class:`Options` and its flag.

    Attributes:
        name: the field. A field with two rows is two flags that exclude each other.
        flag: as the command line has it.
        help: what ``--help`` says.
        aliases: what other tools call a word -> the word.
        words: each word that may follow the flag -> the value that it gives; the default may be none of these.
        gives: the value that the flag alone gives.
        most: of a number: the largest; the least is 0, which is the default and asks for nothing.
        limited: it has a say only in outputs that list it (:mod:`ckconv.formats`).
        neutral: it asks for no other content than the source of a bump file had.
    """

    name: str
    flag: str
    takes: Takes
    help: str = ""
    words: Mapping[str, Any] = {}
    aliases: Mapping[str, str] = {}
    gives: Any = None
    most: int = 0
    limited: bool = False
    records: Records = Records.CONVERSION
    neutral: bool = False

    @property
    def default(self) -> Any:
        """The field's."""
        return getattr(_DEFAULTS, self.name)


def _words(*words: str) -> dict[str, str]:
    return {word: word for word in words}


_DEFAULTS, PACKED = Options(), _words("compressed-tensors", "modelopt")
_HEAD: dict[str, Any] = {"limited": True, "records": Records.BOTH}
_ASIDE: dict[str, Any] = {"records": Records.NEITHER, "neutral": True}

#: In the order of ``--help``.
OPTIONS: tuple[Option, ...] = (
    Option(
        "bump_version",
        "--bump-version",
        Takes.WORD,
        "auto: 3 if it holds the model without loss, else 5; the choice is printed.",
        words={"auto": 0, "3": 3, "4": 4, "5": 5},
        limited=True,
    ),
    Option(
        "trainable", "--trainable", Takes.NOTHING, "Write what training starts from.", gives="headerless", limited=True
    ),
    Option("trainable", "--wrapped", Takes.NOTHING, "Like --trainable, for inference.", gives="wrapped", limited=True),
    Option(
        "engine",
        "--engine",
        Takes.WORD,
        "Target release of C-Kernel-Engine: it sets version and type numbers. january: 2026-01, at 22ffde0 (bump 3);"
        " april: 2026-04, at 991d087 (v7, v8); july: 2026-07, at d901858 (v8). Default: April's rules.",
        words=_words("january", "april", "july"),
        aliases={
            "2026-01": "january",
            "2026-04": "april",
            "2026-07": "july",
            "22ffde0": "january",
            "991d087": "april",
            "d901858": "july",
        },
        limited=True,
    ),
    Option(
        "dtype",
        "--dtype",
        Takes.WORD,
        "engine: what the target's engine loads, widened exactly where it must be; keep: the same types or refuse; "
        "source: with --dequantize, values as the quantizer's library computes them.",
        words=_words("engine", "keep", "f32", "f16", "bf16", "source"),
        aliases={"fp32": "f32", "float32": "f32", "fp16": "f16", "float16": "f16", "half": "f16", "bfloat16": "bf16"},
        records=Records.BOTH,
    ),
    Option(
        "rope_layout",
        "--rope-layout",
        Takes.WORD,
        "Row order of Q and K in the output.",
        words=_words("engine", "source", "split", "interleaved"),
        limited=True,
        records=Records.BOTH,
    ),
    Option(
        "dtype_codes",
        "--dtype-codes",
        Takes.WORD,
        "Numbering of the bump 3 dtype table: v3 has Q4_K 6 and Q6_K 7, v4 has 7 and 8.",
        words=_words("v3", "v4"),
        limited=True,
    ),
    Option(
        "dequantize",
        "--dequantize",
        Takes.NOTHING,
        "Decode blocks to --dtype; --dequantize=GLOB only those of the matrices named.",
        gives=True,
        records=Records.BOTH,
    ),
    Option(
        "decode", "--decode", Takes.GLOB, "Decode only the quantized matrices named; repeatable.", records=Records.BOTH
    ),
    Option(
        "quantize",
        "--quantize",
        Takes.TYPES,
        "Quantize floats: a ggml type (q4_k: all matrices), a recipe (q4_k_m); MLX: affine:BITS:GROUP, mxfp4.",
        limited=True,
        records=Records.BOTH,
    ),
    Option("imatrix", "--imatrix", Takes.EXISTING, "Importance matrix to use.", limited=True, records=Records.NEITHER),
    Option("allow_lossy", "--allow-lossy", Takes.NOTHING, "Allow values to change.", gives=True, records=Records.BOTH),
    Option("context", "--context", Takes.NUMBER, "Context length.", most=1 << 30, limited=True, records=Records.BOTH),
    Option(
        "drop", "--drop", Takes.GLOB, "Leave out tensors by canonical or source name; repeatable.", records=Records.BOTH
    ),
    Option(
        "template",
        "--template",
        Takes.EXISTING,
        "The engine's template for the architecture, or the directory of templates, to embed (bump 5).",
        limited=True,
        records=Records.NEITHER,
    ),
    Option(
        "base",
        "--base",
        Takes.PATH,
        "The model that the adapter was made for, or its config.json; of a drafter, its model.",
        records=Records.NEITHER,
    ),
    Option(
        "task",
        "--task",
        Takes.TEXT,
        "Write the adapter of this task, of a model that has one for each.",
        records=Records.BOTH,
    ),
    Option(
        "follow_links",
        "--follow-links",
        Takes.NOTHING,
        "Read files of a model directory that are links to places outside of it.",
        gives=True,
        **_ASIDE,
    ),
    Option(
        "strict",
        "--strict",
        Takes.NOTHING,
        "Refuse a model that carries code: templates that reach for Python, *.py, auto_map, pickles; or hidden"
        " characters.",
        gives=True,
        **_ASIDE,
    ),
    Option(
        "families",
        "--family",
        Takes.FILES,
        "Read models as this shipped family, or use your own FILE.toml (docs/adding-a-family.md); repeatable.",
        **_ASIDE,
    ),
    Option(
        "max_shard_bytes",
        "--max-shard-size",
        Takes.SIZE,
        "Split the output into files with at most SIZE of tensors (5GB).",
        most=(1 << 63) - 1,
        limited=True,
    ),
    Option("set_meta", "--set-meta", Takes.PAIR, "Set metadata of the output; repeatable.", limited=True),
    Option("drop_meta", "--drop-meta", Takes.GLOB, "Leave out metadata keys; repeatable.", limited=True),
    Option(
        "tensor_scales", "--tensor-scales", Takes.NOTHING, "NVFP4 in GGUF: write NAME.scale.", gives=True, limited=True
    ),
    Option(
        "fuse",
        "--fuse",
        Takes.WORDS,
        "Store these matrices fused (safetensors, MLX); repeatable.",
        words=_words("qkv", "gate-up"),
        limited=True,
    ),
    Option(
        "names",
        "--names",
        Takes.WORD,
        "Naming scheme of the tensors (safetensors, MLX); max: as MAX names GPT-2.",
        words=_words("hf", "canonical", "gguf", "max"),
        limited=True,
    ),
    Option("pack", "--pack", Takes.WORD, "Keep blocks, in this layout (safetensors).", words=PACKED, limited=True),
    Option("tie", "--untie", Takes.NOTHING, "Store a tied output head as a tensor of its own.", gives="untie", **_HEAD),
    Option(
        "tie",
        "--tie",
        Takes.NOTHING,
        "Leave out an output head that is byte for byte the embedding.",
        gives="tie",
        **_HEAD,
    ),
    Option(
        "source_record",
        "--no-source-record",
        Takes.NOTHING,
        "Write no DST.source.zip, which restores SRC byte for byte, and ignore one beside SRC.",
        gives=False,
        **_ASIDE,
    ),
    Option(
        "source_record",
        "--source-record",
        Takes.NOTHING,
        "Write DST.source.zip, which restores SRC byte for byte, for a GGUF, too, and a bump file of any size.",
        gives="always",
        limited=True,
        **_ASIDE,
    ),
    Option("created", "SOURCE_DATE_EPOCH", Takes.NO_FLAG, neutral=True),
    Option("file_name", "DST", Takes.NO_FLAG, records=Records.NEITHER, neutral=True),
)


#: An option's value -> the options that it excludes. Two rows of one field exclude each other besides.
EXCLUDES = {("dtype", "keep"): ("dequantize", "decode", "quantize")}


class SetOption(NamedTuple):
    """An option that is not what it is by default."""

    option: Option
    value: Any

    @property
    def flag(self) -> str:
        """As the command line has it."""
        return self.option.flag

    @property
    def shown(self) -> str:
        """The flag, and the word behind it."""
        return f"{self.flag} {self.value}" if self.option.takes is Takes.WORD else self.flag

    def excludes(self, other: Option) -> bool:
        """Whether no command may have both."""
        rows = other.name == self.option.name and other.flag != self.flag
        return rows or other.name in EXCLUDES.get((self.option.name, self.value), ())


def given_options(options: Options) -> Iterator[SetOption]:
    """The options that somebody asked for, in the order of the fields."""
    for item in fields(options):
        value = getattr(options, item.name)
        rows = [row for row in OPTIONS if row.name == item.name]
        if value != rows[0].default:
            yield SetOption(next((row for row in rows if row.gives == value), rows[0]), value)
