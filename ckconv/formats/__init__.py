"""Table of formats: how each is recognized, read and planned.

A new format is a folder beside this file and a row in :data:`FORMATS`. Everything else asks the table: detection, the
command line, the choice of a planner, which options have a say, and what loaders of an output begin with.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ckconv.core.lazy import NamedTuple, pattern
from ckconv.core.tensors import Tensor
from ckconv.formats.safetensors.container import ADAPTER_CONFIG, MLX_NAME, PEFT_NAME, PEFT_PICKLE, PICKLE_SUFFIXES

if TYPE_CHECKING:
    from ckconv.core.options import Options

#: Module and name in it: imported when there is something for it to do.
Place = tuple[str, str]

#: Options that every model has a use for, and those of files that are loaded by names and metadata of their own.
_ROWS = frozenset({"context", "rope_layout"})
_QUANTIZED = frozenset({"quantize", "imatrix"})
_FILES = _ROWS | {"max_shard_bytes", "set_meta", "drop_meta", "tie"}
_CHECKPOINTS = _FILES | {"fuse", "names"}
_BUMP = _ROWS | _QUANTIZED | {"bump_version", "engine", "template", "source_record"}


class Reader(NamedTuple):
    """Reader of a format: opens a path, headers only.

    Attributes:
        takes: what it gets besides the path: ``source`` (the bytes of a pipe), ``config_path``, ``base`` and
            ``opener`` (of an adapter's base model), ``follow_links``, ``drop``.
    """

    place: Place
    takes: frozenset[str]


class Output(NamedTuple):
    """Kind of output of a format: models, a version of them, or adapters.

    Attributes:
        name: ``bump 3``, ``gguf adapter``.
        planner: a :class:`ckconv.plan.planner.Planner`.
        version: 0 where the format has none.
        adapter: it holds adapters, and no models.
        options: those that have a say in it, of the ones that are ``limited`` in :mod:`ckconv.core.options`.
        blocks: names of the block types that it holds without decoding one.
        needs_config: it holds no model whose hyper-parameters are not known.
        judged: `inspect` says of every model whether it can become this.
        general: it says so on a terminal, and where more detail is asked for.
        planner_for: of an index, the planner of what is no text model, or not that alone; ``None`` for one that is.
    """

    name: str
    planner: Place
    version: int = 0
    adapter: bool = False
    options: frozenset[str] = frozenset()
    blocks: Place | None = None
    needs_config: bool = False
    judged: bool = False
    general: bool = False
    planner_for: Place | None = None


class Format(NamedTuple):
    """A format: one row of the table.

    Attributes:
        name: as ``--from`` and ``--to`` have it.
        outputs: what can be written.
        read: opens a model; ``None`` for a format of adapters.
        read_adapter: opens an adapter, where :attr:`read` does not.
        head: what the first 16 bytes of a file look like.
        suffix: of the name of a file; empty for a format that is a directory.
        further: other endings by which a file is known.
        adapter_files: names of files that only its adapters have.
        detect_beside: of a path whose name has the suffix: what lies beside it says that it is of this format, whatever
            its bytes look like.
        single: a model is one file, or several of which each opens the set. Of another format, loaders open a
            directory or an index.
        file: what its file is called in a directory, where no ending is its own.
        version: of the files that are written, where no output has a version of its own; 0 for a format without.
        blocks: names of the block types of its models that other formats may hold, too.
        choose: chooses among the versions where none is asked for.
        keeps_source: beside an output lies the record that makes its source again.
        of_headers: of a path, what is stored of the files that hold the tensors, and of ``config.json``: the index of a
            source whose record is beside an output; ``None`` where no record holds such a source.
        content: of an open model and the paths of its side files: a :class:`ckconv.core.metadata.Content`.
        documents: of an open model and the paths of its side files: holds what loaders read beside it against it.
        shown: of a source and an open output: the options that show in the output.
        stores_alike: of a plan and an open output: it stores the same, where names, types and shapes do not say so.
        takes_along: of a plan and its directory: names of files there that loaders would read besides, a
            :class:`ckconv.plan.steps.Globs`.
        configured: of a directory: names of weights there that are read with its ``config.json``.
        place_beside: of an output file and the name of a side file: where that goes, if not beside it.
        described_beside: the files beside its weights are of use without them: programs read them beside weights of
            another format.
        holds_towers: one model of it may be a text model and a tower, which other formats hold in two files.
        towers_of: the engine whose row a tower's family has where the format holds it; any tower where it is empty.
        class_defaults: a class of transformers reads its ``config.json``: a key may be missing where that class has a
            default for it.
        quantizes: of the value of ``--quantize``: refuses types that it does not have.
        widens: values of ``dtype`` with which matrices are stored as float32.
        widens_vectors: the same for tensors of one dimension.
    """

    name: str
    outputs: tuple[Output, ...]
    read: Reader | None = None
    read_adapter: Reader | None = None
    head: re.Pattern[bytes] | None = None
    suffix: str = ""
    further: tuple[str, ...] = ()
    adapter_files: tuple[str, ...] = ()
    detect_beside: Place | None = None
    single: bool = False
    file: str = ""
    version: int = 0
    blocks: Place | None = None
    choose: Place | None = None
    keeps_source: bool = False
    of_headers: Place | None = None
    content: Place = ("ckconv.formats.safetensors.files", "content")
    documents: Place | None = None
    shown: Place | None = None
    stores_alike: Place | None = None
    takes_along: Place | None = None
    configured: Place | None = None
    place_beside: Place | None = None
    described_beside: bool = False
    holds_towers: bool = False
    towers_of: str = ""
    class_defaults: bool = False
    quantizes: Place | None = None
    widens: frozenset[str] = frozenset({"f32"})
    widens_vectors: frozenset[str] = frozenset({"f32"})

    @property
    def endings(self) -> tuple[str, ...]:
        """Endings of file names; none for a format that is a directory."""
        return (self.suffix, *self.further) if self.suffix else ()

    def retypes(self, options: Options, tensor: Tensor) -> bool:
        """Whether a tensor of floats gets another type than its own.

        What is computed of it is rounded to that type alone.
        """
        if options.dtype in ("f16", "bf16"):
            return tensor.dtype.name.lower() != options.dtype
        return options.dtype in (self.widens_vectors if len(tensor.shape) == 1 else self.widens)


#: In the order of the command line.
FORMATS: tuple[Format, ...] = (
    Format(
        "gguf",
        (
            Output(
                "gguf",
                ("ckconv.formats.gguf.plan", "GgufPlanner"),
                options=_FILES | _QUANTIZED | {"tensor_scales", "source_record"},
                blocks=("ckconv.core.layouts", "GGML_BLOCKS"),
                general=True,
                planner_for=("ckconv.formats.gguf.plan", "planner_of"),
            ),
            Output(
                "gguf adapter",
                ("ckconv.formats.gguf.adapter", "GgufAdapterPlanner"),
                adapter=True,
                options=frozenset({"set_meta", "drop_meta"}),
            ),
        ),
        read=Reader(("ckconv.formats.gguf.index", "open_gguf"), frozenset({"source", "base", "opener", "drop"})),
        head=pattern(rb"GGUF"),
        suffix=".gguf",
        single=True,
        version=3,
        blocks=("ckconv.core.layouts", "GGML_BLOCKS"),
        shown=("ckconv.formats.gguf.keys", "shown"),
        of_headers=("ckconv.formats.gguf.index", "index_of_headers"),
        content=("ckconv.formats.gguf.keys", "content"),
        quantizes=("ckconv.plan.quantizing", "ggml_request"),
        widens_vectors=frozenset({"engine", "f32", "f16", "bf16", "source"}),
    ),
    Format(
        "safetensors",
        (
            Output(
                "safetensors",
                ("ckconv.formats.huggingface.plan", "HuggingFacePlanner"),
                options=_CHECKPOINTS | {"pack"},
                general=True,
                planner_for=("ckconv.formats.huggingface.plan", "planner_of"),
            ),
        ),
        read=Reader(
            ("ckconv.formats.checkpoints", "open_checkpoint"), frozenset({"source", "base", "follow_links", "drop"})
        ),
        head=pattern(rb".{8}\{", re.DOTALL),
        suffix=".safetensors",
        further=(".index.json", *PICKLE_SUFFIXES),
        of_headers=("ckconv.formats.checkpoints", "index_of_headers"),
        holds_towers=True,
        class_defaults=True,
        shown=("ckconv.formats.safetensors.files", "options_shown"),
        takes_along=("ckconv.formats.safetensors.files", "takes_along"),
        configured=("ckconv.formats.safetensors.files", "configured"),
        described_beside=True,
    ),
    Format(
        "mlx",
        (
            Output(
                "mlx",
                ("ckconv.formats.mlx.plan", "MlxPlanner"),
                options=_CHECKPOINTS | {"quantize"},
                blocks=("ckconv.formats.mlx.plan", "EXACT_BLOCKS"),
                general=True,
                planner_for=("ckconv.formats.mlx.plan", "planner_of"),
            ),
            Output("mlx adapter", ("ckconv.formats.mlx.adapter", "MlxAdapterPlanner"), adapter=True),
        ),
        read=Reader(("ckconv.formats.checkpoints", "open_mlx"), frozenset({"source", "follow_links", "drop"})),
        read_adapter=Reader(
            ("ckconv.formats.mlx.adapter", "open_mlx_adapter"), frozenset({"base", "opener", "follow_links"})
        ),
        adapter_files=(MLX_NAME,),
        blocks=("ckconv.formats.mlx.plan", "BLOCKS"),
        holds_towers=True,
        towers_of="mlx_vlm",
        quantizes=("ckconv.formats.mlx.plan", "type_request"),
        of_headers=("ckconv.formats.checkpoints", "index_of_headers"),
        shown=("ckconv.formats.safetensors.files", "options_shown"),
        takes_along=("ckconv.formats.safetensors.files", "takes_along"),
    ),
    Format(
        "bump",
        (
            Output(
                "bump 3",
                ("ckconv.formats.bump.planners", "Bump3Planner"),
                version=3,
                options=_BUMP | {"dtype_codes"},
                blocks=("ckconv.formats.bump.releases", "LOADED_BY_V3"),
                needs_config=True,
                judged=True,
            ),
            Output(
                "bump 4",
                ("ckconv.formats.bump.planners", "Bump4Planner"),
                version=4,
                options=_BUMP,
                blocks=("ckconv.formats.bump.releases", "COMPUTED"),
                needs_config=True,
            ),
            Output(
                "bump 5",
                ("ckconv.formats.bump.planners", "Bump5Planner"),
                version=5,
                options=_BUMP,
                blocks=("ckconv.formats.bump.releases", "COMPUTED"),
                needs_config=True,
                judged=True,
            ),
            Output(
                "bump train",
                ("ckconv.formats.bump.trained", "TrainedPlanner"),
                options=frozenset({"context", "trainable"}),
                needs_config=True,
            ),
        ),
        read=Reader(("ckconv.formats.bump.read", "open_bump"), frozenset({"source", "config_path"})),
        head=pattern(rb"BUMPWGT[2345]"),
        suffix=".bump",
        detect_beside=("ckconv.formats.bump.trained", "is_trained"),
        single=True,
        blocks=("ckconv.formats.bump.slots", "BLOCKS"),
        choose=("ckconv.formats.bump.planners", "choose"),
        keeps_source=True,
        content=("ckconv.formats.bump.read", "content"),
        quantizes=("ckconv.plan.quantizing", "ggml_request"),
        documents=("ckconv.formats.bump.documents", "check_documents"),
        shown=("ckconv.formats.bump.read", "shown_settings"),
        stores_alike=("ckconv.formats.bump.read", "stores_alike"),
        takes_along=("ckconv.formats.bump.read", "takes_along"),
        configured=("ckconv.formats.bump.read", "configured"),
        place_beside=("ckconv.formats.bump.sidefiles", "place_beside"),
        widens=frozenset({"engine", "f32", "source"}),
        widens_vectors=frozenset({"engine", "keep", "f32", "f16", "bf16", "source"}),
    ),
    Format(
        "whisper-ggml",
        (
            Output(
                "whisper-ggml",
                ("ckconv.formats.whisper_ggml.plan", "WhisperPlanner"),
                needs_config=True,
            ),
        ),
        read=Reader(("ckconv.formats.whisper_ggml.read", "open_whisper_ggml"), frozenset({"source"})),
        head=pattern(rb"lmgg"),
        single=True,
        file="ggml-model.bin",
        content=("ckconv.formats.whisper_ggml.read", "content"),
        widens_vectors=frozenset({"engine", "f32", "f16", "source"}),
    ),
    Format(
        "peft",
        (Output("peft", ("ckconv.formats.peft.plan", "PeftPlanner"), adapter=True),),
        read_adapter=Reader(
            ("ckconv.formats.checkpoints", "open_peft_adapter"), frozenset({"base", "opener", "follow_links"})
        ),
        adapter_files=(PEFT_NAME, PEFT_PICKLE, ADAPTER_CONFIG),
    ),
)


#: What people call a format besides its name.
ALIASES = {"hf": "safetensors", "huggingface": "safetensors"}


def named(name: str) -> str:
    """The name of a format that may have been called by another one."""
    return ALIASES.get(name, name)


def names() -> list[str]:
    """Names of all formats."""
    return [format.name for format in FORMATS]


def recorded() -> list[str]:
    """Names of the formats whose models a source record may hold."""
    return [format.name for format in FORMATS if format.of_headers]


def format_of(name: str) -> Format:
    """The row of a format, or of one of its outputs (``gguf adapter``)."""
    return next(format for format in FORMATS if name in (format.name, *(output.name for output in format.outputs)))


def model_outputs() -> list[Output]:
    """Kinds of outputs that models are converted to."""
    return [output for format in FORMATS for output in format.outputs if not output.adapter]


def adapter_outputs() -> dict[str, Output]:
    """Format -> its output of adapters; formats of adapters alone first."""
    found = sorted(FORMATS, key=lambda format: format.read is not None)
    return {format.name: output for format in found for output in format.outputs if output.adapter}


def tower_format() -> str:
    """The format in which a tower is a file of its own."""
    return next(format.name for format in FORMATS for output in format.outputs if output.planner_for)


def whole_format() -> str:
    """The format in which a text model and its tower are one model."""
    return next(format.name for format in FORMATS if format.holds_towers)


def load(place: Place) -> Any:
    """Import the object at a place."""
    module, name = place
    return getattr(import_module(module), name)
