"""What planning has in common, whatever the target: what flags leave out or decode, and reasons that are gathered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from ckconv.core.dtypes import DTYPES, F32, DType
from ckconv.core.tensors import MetadataKind, StoredTensor, Tensor, TensorIndex, parse
from ckconv.errors import counted, quoted, shown
from ckconv.families.catalogue import FAMILIES, families_of_gguf
from ckconv.families.keys import CONSUMERS, TRANSFORMERS
from ckconv.families.loaders import OF_FORMAT, Loader
from ckconv.families.naming_schemes import BESIDE_TEXT, is_beside_text
from ckconv.options import Options
from ckconv.plan.probe import SourceFacts
from ckconv.plan.steps import Change, LeftOut, Plan, Reason, missing_tensors

ROPE_FREQUENCIES = "rope_frequencies"
HEAD = "output.weight"
EMBEDDING = "token_embedding.weight"

_OWN_HEAD = (
    "tie_word_embeddings is true, and another matrix than the embedding is stored as the head: it is the head, as for "
    "transformers 5; transformers 4 takes the embedding (--drop output.weight)"
)

#: Which of two values decoded matrices hold.
_EXACT = "decoded matrices hold codes times scales exactly; --dtype source rounds as the quantiser's library does"
_ROUNDED = "decoded matrices hold what the quantiser's library computes: products rounded to its type"

#: What names the architecture of a checkpoint.
_CONFIG = "config.json"

#: What holds a model without rules.
_COPIED = {
    MetadataKind.DOCUMENT: "--to safetensors copies it as it is, and ",
    MetadataKind.TYPED: "--to safetensors --names gguf writes its tensors as they are called there, and ",
}

#: What becomes of a tower.
_WITH_TEXT = "ckconv convert MODEL.gguf MMPROJ.gguf DST/ makes a checkpoint of it and its text model"

#: The key of ``config.json`` that names a class of diffusers.
_DIFFUSERS = "_class_name"

#: Keys that a note lists by name.
_SHOWN_KEYS = 8


#: Way out of what another tool quantised, and nobody reads, or reads alike.
ORIGINAL = "convert the original, unquantised checkpoint"


def unknown_architecture(index: TensorIndex) -> Reason:
    """Why a model without rules cannot be planned for.

    Raises:
        InputError, UnsupportedError: ``model.config``, there are rules, and it contradicts them.
    """
    from ckconv.families.diffusion import diffuses, has_names_of_diffusers, is_of_diffusion
    from ckconv.families.elsewhere import classes_of, known_by

    if index.misfit is not None:
        raise index.misfit
    if index.quantizer:
        return Reason(
            f"another tool quantised it, and ckconv cannot read that quantisation: {index.quantizer}",
            f"{ORIGINAL}; --to safetensors without --dequantize copies this one as it is",
        )
    if index.facts.get("kind", "model") != "model":
        hint = _WITH_TEXT if index.facts["kind"] == "mmproj" else ""
        return Reason(f"it is not a model but {quoted(str(index.facts['kind']))}, which ckconv does not convert", hint)
    names = {stored.name for stored in index.stored}
    configured = any(path.name == _CONFIG for path in index.side_files)
    if _DIFFUSERS in index.metadata or diffuses(index.architecture) or (not configured and is_of_diffusion(names)):
        why = "it is a diffusion model, not a language model"
        if has_names_of_diffusers(names):
            why += "; its tensors have the names of diffusers, and a GGUF has those of the original checkpoint"
        return Reason(why, "--to safetensors copies its values")
    what = (
        f"ckconv does not know the architecture {index.architecture!r}"
        if index.architecture
        else "no architecture is named"
    )
    if index.metadata_kind is MetadataKind.DOCUMENT:
        what += " (model_type)"
    if index.metadata_kind is MetadataKind.TYPED and families_of_gguf(index.architecture):
        what = f"no known {index.architecture} has that many experts ({index.architecture}.expert_count)"
    if index.metadata_kind is MetadataKind.DOCUMENT and not configured:
        missing = shown(index.files[0].parent / _CONFIG)
        return Reason(
            f"there is no {missing}, which names the architecture",
            "put it there; --to safetensors copies the tensors as they are",
        )
    if index.metadata_kind is MetadataKind.OWN and not index.architecture:
        what = "no config.json beside it names an architecture"
    elif index.architecture and "expert_count" not in what:
        what += f"; {known_by(index.architecture, classes_of(index.metadata))}"
    copied = _COPIED.get(index.metadata_kind, "")
    return Reason(
        what, f"{copied}--family FILE names a file that describes its family; ckconv formats lists those it knows"
    )


class Planner(ABC):
    """Collects every reason before it gives up, so that a user sees them all at once."""

    #: What the target is called in a plan; its version, 0 where it has none.
    format: str
    version: int = 0

    def __init__(self, index: TensorIndex, options: Options, source: SourceFacts) -> None:
        self.index, self.options, self.source = index, options, source
        self.notes: list[str] = list(index.notes)
        self.left_out: list[LeftOut] = []
        self.reasons: list[Reason] = []
        self.changes: tuple[Change, ...] = ()
        if options.dtype == "source" and not (options.dequantize or options.decode):
            self.refuse("--dtype source is the type of matrices that are decoded", "--dequantize decodes them all")

    @property
    def dtype(self) -> str:
        """The type that is asked for of what is not decoded."""
        return "engine" if self.options.dtype == "source" else self.options.dtype

    def decoded_as(self, tensor: Tensor) -> DType:
        """What blocks are decoded to: FP32, which holds the exact numbers, or what somebody asked for."""
        from ckconv.quant.reexpress import library_type, rounds

        asked, library = self.options.dtype, library_type(tensor.dtype)
        note = {"engine": _EXACT, "keep": _EXACT, "f32": _EXACT, "source": _ROUNDED}.get(asked)
        rounded = note is _EXACT and rounds(tensor.dtype)
        if note and library is not F32 and tensor.packed and not rounded and note not in self.notes:
            self.notes.append(note)
        if asked == "source":
            return library
        return F32 if asked in ("engine", "keep") else DTYPES[asked.upper()]

    @abstractmethod
    def plan(self, *, only_reasons: bool = False) -> Plan:
        """The plan; with reasons to refuse, or with ``only_reasons``, without files."""

    def refuse(self, text: str, hint: str = "") -> None:
        """Note a reason."""
        self.reasons.append(Reason(text, hint))

    def refused(self) -> Plan:
        """The plan of a model that cannot be held."""
        return Plan(
            self.index,
            self.format,
            self.version,
            self.options,
            refusals=tuple(self.reasons),
            notes=tuple(self.notes),
        )

    def dropped(self, *names: str) -> bool:
        """A flag leaves the tensor with these names out."""
        return any(fnmatchcase(name, glob) for name in names for glob in self.options.drop)

    def note_unread(self) -> None:
        """Name the source's keys that llama.cpp does not read, and that are nowhere in the output."""
        config = self.index.config
        if config is not None and config.unread and self.index.metadata_kind is MetadataKind.TYPED:
            shown = config.unread[:_SHOWN_KEYS]
            more = f" and {len(config.unread) - len(shown):,} more" if len(config.unread) > len(shown) else ""
            keys = ", ".join(key if key.isprintable() else quoted(key) for key in shown)
            self.notes.append(f"left out, as llama.cpp does not read them in a {self.index.architecture}: {keys}{more}")

    def dropped_patterns(self, tensors: Mapping[str, Tensor]) -> Counter[str]:
        """Pattern of a canonical name -> how many of these tensors a flag leaves out."""
        if not self.options.drop:
            return Counter()
        return Counter(parse(it.name).pattern for it in tensors.values() if self.dropped(it.name, it.source))

    def refuse_missing(self, counts: Mapping[str, int], keys: str = "") -> None:
        """Note tensors that the target needs and does not get, as :func:`ckconv.plan.steps.missing_tensors`."""
        self.reasons += missing_tensors(counts, keys, dropped=self.dropped_patterns(self.index.tensors))

    def refuse_bare(self, layers: int, bare: int, keys: str) -> None:
        """Note that ``bare`` of so many layers have no tensors, or none that a flag does not leave out.

        Args:
            keys: what says how many layers there are, in brackets.
        """
        empty = min(bare, max(0, layers - len({parse(name).layer for name in self.index.tensors} - {None})))
        if empty:
            self.refuse(f"{empty:,} of {layers:,} layers{keys} {'has' if empty == 1 else 'have'} no tensors")
        if bare > empty:
            self.refuse(f"--drop leaves out all tensors of {bare - empty:,} of {layers:,} layers")

    def keeps_head(self) -> bool:
        """A stored head is no embedding, and counts though the configuration ties it; a note says so.

        transformers 5 ties no two matrices that differ (``PreTrainedModel.tie_weights``), mlx-lm does.
        """
        index = self.index
        tied = index.config is not None and index.config.tied and HEAD in index.tensors and not index.merged
        kept = tied and CONSUMERS.get(index.format) == TRANSFORMERS and not self.source.head_is_embedding
        if kept and not self.dropped(HEAD, index.tensors[HEAD].source) and _OWN_HEAD not in self.notes:
            self.notes.append(_OWN_HEAD)
        return bool(kept)

    def head_is_loaders(self) -> bool:
        """The source holds the embedding twice only because its engine has no tied heads; a flag leaves it so."""
        loader = OF_FORMAT.get(self.index.format)
        twice = loader is not None and self.doubles_head(loader) and self.options.tie != "untie"
        return twice and HEAD in self.index.tensors and self.source.head_is_embedding

    def is_tied(self) -> bool:
        """The source's head is the embedding, or should be."""
        config = self.index.config
        return self.head_is_loaders() or (config is not None and bool(config.tied) and not self.keeps_head())

    def doubles_head(self, loader: Loader) -> bool:
        """The engine has no tied heads for the family: what it loads holds the embedding twice."""
        row = FAMILIES[self.index.config.family].engines.get(loader.row) if self.index.config else None
        return row is not None and row.head_must_be_written

    def note_growth(self, types: Iterable[tuple[DType, DType]]) -> None:
        """Name re-packings that take more bits a weight: exact, and larger than need be where another target is.

        Args:
            types: of every tensor, its type in the source and in the output.
        """
        pairs = Counter(pair for pair in types if pair[0].block > 1)
        if not pairs:
            return
        from ckconv.quant.reexpress import bits_a_weight, grown

        for (one, other), count in ((pair, n) for pair, n in pairs.items() if grown(*pair)):
            are = "is" if count == 1 else "are"
            self.notes.append(
                f"{counted(count, 'tensor')} of {one} ({bits_a_weight(one):.1f} bits a weight) {are} "
                f"{other} ({bits_a_weight(other):.1f}): no smaller type holds them exactly"
            )

    def unsound(self, tensor: Tensor) -> str:
        """Scales of the tensor are no numbers, and each library makes something else of them; empty where none is."""
        if tensor.packed:
            count = self.source.no_number.get(tensor.name, 0)
        else:
            count = self.source.unfit.get(tensor.name, {}).get(tensor.dtype, 0)
        return f"the scale of {counted(count, 'group')} is not a finite number" if count else ""

    def leave_out(self, name: str, reason: str, nbytes: int) -> None:
        """Note a source tensor that is not written."""
        self.left_out.append(LeftOut(name, reason, nbytes))

    def leave_out_part(self, stored: StoredTensor) -> bool:
        """Note a tensor of a part that text models do not have; not so of any other."""
        config = self.index.config
        found = config is not None and is_beside_text(config.raw, stored.name)
        if found:
            self.leave_out(stored.name, BESIDE_TEXT, stored.extent.nbytes)
        return found

    def decoded(self, tensor: Tensor) -> bool:
        """A flag asks for this tensor's blocks to be decoded."""
        return self.options.decodes(tensor)
