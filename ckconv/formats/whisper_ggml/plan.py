"""Planning a file of whisper.cpp."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from ckconv.core.layouts import BF16, DTYPES, F16, F32, F64, WIDENS_TO_F32, DType, Kind, plain
from ckconv.core.lazy import cached_property
from ckconv.core.metadata import document_of
from ckconv.core.tensors import HEAD, Extent, Tensor, matrix_of, parse
from ckconv.families.towers import speech, speech_tensors
from ckconv.formats.whisper_ggml.read import (
    BINS,
    FILE_TYPES,
    MAGIC,
    MODEL_NAME,
    NAME,
    filters,
    header_of,
    inside,
    keys_of,
    words,
)
from ckconv.io.files import open_source
from ckconv.plan.planner import Planner, unknown_architecture
from ckconv.plan.steps import DECODE, Container, Frame, OutputFile, Plan, Step, missing_tensors
from ckconv.quant.convert import between, decodable, writable
from ckconv.tokenizer.checkpoint import byte_letters, vocabulary_beside

#: ``ggml_compute_forward_im2col_f16`` of ggml-cpu, whisper.cpp 1.8: the matrices of a file are of one type.
_FP32 = "whisper.cpp ends in an assertion (GGML_ASSERT) on kernels of convolutions that are FP32, on a processor"
_NARROW = "--dtype f16, with --allow-lossy where that rounds; --dtype f32 writes FP32 all the same"
_TIED = "whisper.cpp takes the embedding for the output head"


class WhisperPlanner(Planner):
    """Plans it."""

    format = NAME
    leaves_parts = False

    def plan(self, *, only_reasons: bool = False) -> Plan:
        """Plan of the file, or reasons to refuse without files.

        Raises:
            InputError: ``tokenizer.json``, a file beside the source is malformed.
        """
        config = self.index.config
        if config is None or config.family != speech().family:
            if config is None:
                self.reasons.append(unknown_architecture(self.index, self.options))
            else:
                self.refuse(f"whisper.cpp computes no {config.family}")
            return self.refused()
        for modifier in config.modifiers:
            self.refuse(f"{modifier} changes the computation, and whisper.cpp has no place for it")
        numbers = self._numbers
        placed = self._placed(numbers)
        matrices = self._types([tensor for _, _, tensor in placed])
        spoken = () if only_reasons or self.reasons else self._words(numbers["vocab_size"])
        if self.reasons or only_reasons:
            return self.refused()
        file_type = self._header[1] if any(map(self._keeps, self.index.tensors.values())) else FILE_TYPES[matrices.name]
        parts = inside(filters(numbers["num_mel_bins"]), spoken)
        prologue = _prologue(numbers, file_type, parts, len(spoken))
        steps, at = [], len(prologue)
        for name, called, tensor in placed:
            dtype = tensor.dtype if self._keeps(tensor) else matrices if _is_matrix(tensor) else F32
            for step in _steps(name, called, tensor, dtype, at):
                steps.append(step)
                at += step.nbytes
        container = Container(
            (Frame(prologue),),
            keys=keys_of(numbers, file_type),
            inside=parts,
        )
        return self.made([OutputFile(self.options.file_name or MODEL_NAME, at, tuple(steps))], lambda: container)

    @cached_property
    def _header(self) -> tuple[tuple[bytes, ...], int]:
        """Words and type of a source that is such a file."""
        with open_source(self.index.path) as source:
            header = header_of(source)
        return header.words, header.file_type

    def _keeps(self, tensor: Tensor) -> bool:
        """Say whether blocks of whisper.cpp's quantize stay as they are."""
        return self.index.format == NAME and tensor.dtype.kind is Kind.BLOCK and not self.decoded(tensor)

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        """The header, by key of ``config.json``."""
        assert self.index.config is not None
        table, scope = speech(), self.index.config.scope
        document = document_of(self.index.metadata)
        found = {
            "vocab_size": scope["vocabulary"],
            "max_source_positions": scope["encoder_context"],
            "d_model": scope["hidden"],
            "encoder_attention_heads": document.get("encoder_attention_heads", table.heads),
            "encoder_layers": scope["encoder_layers"] or 0,
            "max_target_positions": scope["context"],
            "decoder_attention_heads": scope["heads"],
            "decoder_layers": scope["layers"],
            "num_mel_bins": scope["mels"],
        }
        heads, state = found["encoder_attention_heads"], found["d_model"]
        if not isinstance(heads, int) or isinstance(heads, bool) or heads < 1 or state % heads:
            self.refuse(f"encoder_attention_heads is {heads!r}, which does not divide d_model, {state:,}")
        for key, width in zip(table.widths, (scope["encoder_ffn"], scope["ffn"]), strict=True):
            if width != table.width * state:
                self.refuse(f"{key} is {width:,}, and whisper.cpp makes it {table.width} times d_model, {state:,}")
        if found["num_mel_bins"] not in table.mels:
            few = " or ".join(map(str, table.mels))
            self.refuse(f"num_mel_bins is {found['num_mel_bins']:,}, and openai-whisper has filters for {few}")
        if found["vocab_size"] not in table.ends:
            known = ", ".join(f"{rows:,}" for rows in table.ends)
            text = f"vocab_size is {found['vocab_size']:,}, by which whisper.cpp finds its special tokens"
            self.refuse(f"{text}: it knows {known}")
        return found

    def _placed(self, numbers: Mapping[str, int]) -> list[tuple[str, str, Tensor]]:
        """Canonical name, file name and source by tensor; refuses surplus ones."""
        tensors = dict(self.index.tensors)
        head = tensors.pop(HEAD, None)
        if head is not None and self.source.head_is_embedding:
            self.leave_out(HEAD, f"byte for byte the embedding: {_TIED}", head.nbytes)
        elif head is not None and any(self.remaining([head])):
            self.refuse(f"{head.source} is not byte for byte the embedding, and {_TIED}")
        self.leave_out_by_rules()
        names = list(speech_tensors(numbers["decoder_layers"], numbers["encoder_layers"]))
        surplus = [*self.unruled(), *(tensors.keys() - {name for name, _ in names})]
        for pattern in dict.fromkeys(parse(name).pattern for name in surplus):
            self.refuse(f"whisper.cpp has no tensor {pattern}")
        missing = Counter(parse(name).pattern for name, _ in names if name not in tensors)
        self.reasons += missing_tensors(missing)
        return [(name, called, tensors[name]) for name, called in names if name in tensors]

    def _types(self, tensors: list[Tensor]) -> DType:
        """Type of matrices: F16 if all are or a flag says so; FP32 by flag."""
        wanted, sources = self.dtype, dict[DType, str]()
        for tensor in tensors:
            sources.setdefault(tensor.dtype, tensor.source)
        stays = [t for t in tensors if self._keeps(t)]
        matrices = {t.dtype for t in tensors if _is_matrix(t)} - {t.dtype for t in stays}
        found = {"f32": F32, "f16": F16}.get(wanted, F16 if matrices == {F16} else F32)
        if stays and (found is F32 or any(t.dtype.kind is Kind.BLOCK and t not in stays for t in tensors)):
            self.refuse(
                "whisper.cpp loads matrices of one type, and kernels of convolutions beside blocks as F16", DECODE
            )
        elif wanted == "engine" and found is F32 and all(d in WIDENS_TO_F32 or d.kind is Kind.BLOCK for d in matrices):
            self.refuse(f"matrices are {' and '.join(sorted(map(str, matrices)))}, and {_FP32}", _NARROW)
        elif found is F32 and wanted in ("f32", "keep"):
            self.notes.append(_FP32)
        if wanted == BF16.name.lower():
            self.refuse("whisper.cpp's files hold F32 or F16 of floats, and no BF16", "--dtype f32 holds every value")
        for dtype, name in sources.items():
            if dtype.kind is Kind.BLOCK:
                sound = all(t in stays or (self.decoded(t) and decodable(dtype)) for t in tensors if t.dtype is dtype)
                if not sound:
                    self.refuse(f"ckconv writes no {dtype} for whisper.cpp: {name}", DECODE)
            elif not writable(dtype, found) or (dtype is F64 and wanted in ("engine", "keep")):
                self.refuse(f"whisper.cpp loads no {dtype}: {name}")
        if wanted == "keep":
            for tensor in tensors:
                if tensor not in stays and tensor.dtype is not (found if _is_matrix(tensor) else F32):
                    self.refuse(f"whisper.cpp loads no {tensor.dtype} as {tensor.source}", "--dtype engine widens it")
                    break
        return found

    def _words(self, rows: int) -> tuple[bytes, ...]:
        """The words below the special tokens, by id."""
        end = speech().ends[rows]
        if self.index.format == NAME:
            return self._header[0]
        vocabulary = vocabulary_beside(self.index)
        if not vocabulary:
            self.refuse("there is no vocabulary beside it, neither in vocab.json nor in tokenizer.json")
            return ()
        by_id = {number: word for word, number in vocabulary.items() if isinstance(number, int) and number < end}
        absent = next((number for number in range(end) if number not in by_id), None)
        if absent is not None:
            self.refuse(f"the vocabulary has no word {absent:,}, and whisper.cpp numbers the {end:,} by their order")
            return ()
        bytes_of = {letter: byte for byte, letter in byte_letters().items()}
        strange = next((word for word in by_id.values() if not bytes_of.keys() >= set(word)), None)
        if strange is not None:
            self.refuse(f"word {strange!r} is not spelled in the letters of byte-level BPE")
            return ()
        return tuple(bytes(map(bytes_of.__getitem__, by_id[number])) for number in range(end))


def _is_matrix(tensor: Tensor) -> bool:
    """Say whether a tensor has the type in the file's name."""
    return len(tensor.shape) > 1 and tensor.name not in speech().full


def _prologue(numbers: Mapping[str, int], file_type: int, parts: Mapping[str, bytes], spoken: int) -> bytes:
    """Everything before the first tensor."""
    header = MAGIC + words(*(numbers[key] for _, key in speech().header), file_type)
    mels = words(numbers["num_mel_bins"], BINS) + parts["filters"]
    return header + mels + words(spoken) + parts["words"]


def _steps(name: str, called: str, tensor: Tensor, dtype: DType, at: int) -> Iterator[Step]:
    """Steps of a tensor: its record, and its values."""
    shape = (*tensor.shape, 1) if parse(name).pattern in speech().columns else tensor.shape
    record = words(len(shape), len(called), dtype.ggml or 0, *reversed(shape)) + called.encode()
    head = Tensor(name, called, DTYPES["U8"], (len(record),), (Extent(Path(), at, len(record)),), plain(len(record), 1))
    yield Step(f"the header of {called}", head, None, None, record)
    rows, cols = matrix_of(tensor.shape, dtype)
    extent = Extent(Path(), at + len(record), dtype.nbytes(cols) * rows)
    target = Tensor(name, called, dtype, shape, (extent,), plain(rows, cols))
    yield Step(called, target, tensor, between(tensor, target))
