"""BUMPWGT3 files put together byte by byte, and broken ones, numbered as the cases of the reader's rules.

Nothing of the package under test is used here: a wrong constant there cannot hide behind itself.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

#: name -> (elements, bytes) of a block.
BLOCKS = {"F32": (1, 4), "BF16": (1, 2), "F16": (1, 2), "Q4_K": (256, 144), "Q6_K": (256, 210), "Q8_0": (32, 34)}
CODES = {
    "v3": {"F32": 0, "BF16": 1, "F16": 2, "Q4_K": 6, "Q6_K": 7, "Q8_0": 8},
    "v4": {"F32": 0, "BF16": 1, "F16": 2, "Q4_K": 7, "Q6_K": 8, "Q8_0": 9},
}
MATRICES = ("token_emb", "wq", "wk", "wv", "wo", "w1", "w2")
LAYER = ("ln1_gamma", "ln2_gamma", "wq", "bq", "wk", "bk", "wv", "bv", "wo", "bo", "w1", "b1", "w2", "b2")

#: Offsets of the header's fields: name -> (offset, bytes).
FIELDS = {
    "version": (0x08, 4),
    "model_type": (0x0C, 4),
    "num_layers": (0x10, 4),
    "vocab": (0x14, 4),
    "hidden": (0x18, 4),
    "context": (0x1C, 4),
    "heads": (0x20, 4),
    "head": (0x24, 4),
    "aligned_hidden": (0x28, 8),
    "aligned_head": (0x30, 8),
    "aligned_context": (0x38, 8),
    "sha": (0x40, 32),
    "reserved": (0x60, 32),
}
TABLE = 0x80


def up(n: int) -> int:
    return -(-n // 16) * 16


@dataclass(frozen=True)
class Bump:
    """A sound file of a model with these sizes; ``types`` maps a matrix (``wq``, ``layer.1.w2``) to its type."""

    layers: int = 2
    vocab: int = 24
    hidden: int = 40
    ffn: int = 24
    heads: int = 2
    kv_heads: int = 1
    context: int = 5
    matrix: str = "F32"
    types: Mapping[str, str] = field(default_factory=dict)
    codes: str = "v3"

    @property
    def head(self) -> int:
        return self.hidden // self.heads

    def slots(self) -> list[tuple[str, str, int]]:
        """(name, type, bytes) in file order."""
        e, d, f = up(self.hidden), up(self.head), up(self.ffn)
        q, k = self.heads * d, self.kv_heads * d
        sizes = {
            "ln1_gamma": e, "ln2_gamma": e, "wq": q * e, "bq": q, "wk": k * e, "bk": k, "wv": k * e, "bv": k,
            "wo": self.heads * e * d, "bo": e, "w1": 2 * f * e, "b1": 2 * f, "w2": e * f, "b2": e,
        }  # fmt: skip
        found = [("token_emb", self.vocab * e), ("pos_emb", self.context * e)]
        found += [(f"layer.{n}.{name}", sizes[name]) for n in range(self.layers) for name in LAYER]
        found += [("final_ln_weight", e), ("final_ln_bias", e)]
        return [(name, kind := self.type_of(name), self._bytes(kind, count)) for name, count in found]

    def type_of(self, name: str) -> str:
        short = name.rpartition(".")[2]
        return self.types.get(name, self.types.get(short, self.matrix)) if short in MATRICES else "F32"

    def _bytes(self, kind: str, elements: int) -> int:
        block, size = BLOCKS[kind]
        assert elements % block == 0
        return elements // block * size

    def table(self) -> bytes:
        return bytes(CODES[self.codes][kind] for _, kind, _ in self.slots())

    def payload(self) -> bytes:
        return bytes(sum(size for _, _, size in self.slots()))

    def header(self, sha: bytes = bytes(32), magic: bytes = b"BUMPWGT3", version: int = 3) -> bytes:
        aligned = (up(self.hidden), up(self.head), up(self.context))
        numbers = (self.layers, self.vocab, self.hidden, self.context, self.heads, self.head)
        return struct.pack("<8s8I3Q32s32s", magic, version, 1, *numbers, *aligned, sha, bytes(32))

    def file(self) -> bytes:
        table = self.table()
        body = struct.pack("<I", len(table)) + table + self.payload()
        return self.header(hashlib.sha256(body).digest()) + body

    def config(self) -> dict[str, Any]:
        return {
            "model_type": "llama",
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "intermediate_size": self.ffn,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.context,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
        }

    def write(self, folder: Path, name: str = "m.bump") -> Path:
        (folder / "config.json").write_text(json.dumps(self.config()))
        path = folder / name
        path.write_bytes(self.file())
        return path


def put(file: bytes, name: str, value: int | bytes) -> bytes:
    """``file`` with one header field set."""
    at, size = FIELDS[name]
    data = value if isinstance(value, bytes) else value.to_bytes(size, "little")
    return file[:at] + data + file[at + len(data) :]


def code(file: bytes, position: int, value: int) -> bytes:
    """``file`` with one code of the dtype table set."""
    at = TABLE + 4 + position
    return file[:at] + bytes([value]) + file[at + 1 :]


SOUND = Bump()
FILE = SOUND.file()
K = Bump(hidden=256, ffn=256, heads=4, kv_heads=2, vocab=3, matrix="Q4_K")
#: The bytes of a file whose header says 2 layers but whose table is as long as ``n`` layers make it.
ENTRIES = 14 * SOUND.layers + 4
W2_END = len(FILE) - sum(
    size for name, _, size in SOUND.slots() if name in ("layer.1.b2", "final_ln_weight", "final_ln_bias")
)

#: id -> (bytes, code, fragments of the message and its details)
BROKEN: dict[str, tuple[bytes, str, tuple[str, ...]]] = {
    "44 empty": (b"", "bump.magic", ("the file is empty",)),
    "44 other magic": (b"BUMPWGT6" + FILE[8:], "bump.magic", ("starts with b'BUMPWGT6', not one of BUMPWGT3",)),
    "44 magic cut off": (b"BUMPW", "bump.magic", ("starts with b'BUMPW'",)),
    "44 version 4 in a BUMPWGT3": (put(FILE, "version", 4), "bump.magic", ("magic BUMPWGT3 with version 4",)),
    "44 version 3 in a BUMPWGT5": (b"BUMPWGT5" + FILE[8:], "bump.magic", ("magic BUMPWGT5 with version 3",)),
    "44 byte-swapped version": (put(FILE, "version", 3 << 24), "bump.magic", ("magic BUMPWGT3 with version 50331648",)),
    "45 short": (FILE[:96], "bump.header", ("96 bytes, a bump header has 128",)),
    "45 only the magic": (FILE[:8], "bump.header", ("8 bytes, a bump header has 128",)),
    "45 reserved, first": (
        put(FILE, "reserved", b"\1"), "bump.header", ("reserved byte 0x60 is 0x01, not zero",),
    ),
    "45 reserved, last": (
        put(FILE, "reserved", bytes(31) + b"\x80"), "bump.header", ("reserved byte 0x7f is 0x80, not zero",),
    ),
    "46 model type": (put(FILE, "model_type", 2), "bump.header", ("model_type is 2, 1 expected",)),
    **{
        f"46 {name} 0": (put(FILE, name, 0), "bump.header", (f"{word} is 0",))
        for name, word in (
            ("num_layers", "num_layers"), ("vocab", "vocab_size"), ("hidden", "embed_dim"),
            ("context", "context_length"), ("heads", "num_heads"), ("head", "head_dim"),
        )
    },
    **{
        f"46 {name} 2^32 - 1": (put(FILE, name, (1 << 32) - 1), "bump.header", (f"{word} is 4294967295",))
        for name, word in (
            ("num_layers", "num_layers"), ("vocab", "vocab_size"), ("hidden", "embed_dim"),
            ("context", "context_length"), ("heads", "num_heads"), ("head", "head_dim"),
        )
    },
    "46 layers beyond all models": (
        put(FILE, "num_layers", 65_537), "bump.header", ("num_layers is 65,537, at most 65,536 are allowed",),
    ),
    "46 heads": (put(FILE, "heads", 3), "bump.header", ("num_heads 3 x head_dim 20 is not embed_dim 40",)),
    "46 aligned below": (
        put(FILE, "aligned_hidden", 32), "bump.header", ("aligned_embed 32 is below embed 40",),
    ),
    "46 aligned to something else": (
        put(FILE, "aligned_head", 64), "bump.header", ("aligned_head 64 is not head 20 rounded up to 16",),
    ),
    "46 aligned context 2^64 - 1": (
        put(FILE, "aligned_context", (1 << 64) - 1),
        "bump.header",
        ("aligned_context 18446744073709551615 is not context 5 rounded up to 16",),
    ),
    "46 several at once": (
        put(put(FILE, "model_type", 7), "aligned_head", 0),
        "bump.header",
        ("model_type is 7, 1 expected", "aligned_head 0 is below head 20"),
    ),
    "47 one entry more": (
        FILE[:TABLE] + struct.pack("<I", ENTRIES + 1) + FILE[TABLE + 4 :],
        "bump.dtype-table",
        ("the table has 33 entries, 32 expected for 2 layers",),
    ),
    "47 2^32 - 1 entries": (
        FILE[:TABLE] + b"\xff" * 4 + FILE[TABLE + 4 :],
        "bump.dtype-table",
        ("the table has 4,294,967,295 entries, 32 expected",),
    ),
    "47 layers the table does not have": (
        put(FILE, "num_layers", 65_536),
        "bump.dtype-table",
        ("the table has 32 entries, 917,508 expected for 65,536 layers",),
    ),
    "47 no table": (FILE[:TABLE], "bump.dtype-table", ("the file ends before the dtype table",)),
    "47 half a length": (FILE[: TABLE + 2], "bump.dtype-table", ("the file ends before the dtype table",)),
    "47 table past the end": (
        FILE[: TABLE + 9], "bump.dtype-table", ("the table of 32 bytes ends at 164, the file has 137",),
    ),
    "47 unknown code": (
        code(FILE, 4, 99), "bump.dtype-table", ("layer.0.wq has dtype code 99, which no weights have",),
    ),
    "47 two unknown codes": (
        code(code(FILE, 4, 99), 0, 255),
        "bump.dtype-table",
        ("token_emb has dtype code 255, which no weights have", "layer.0.wq has dtype code 99, which no weights have"),
    ),
    "47 a norm that is not FP32": (
        code(FILE, 2, 1), "bump.dtype-table", ("layer.0.ln1_gamma has dtype code 1, it is always FP32 (0)",),
    ),
    "47 a bias that is not FP32": (
        code(FILE, 31, 6), "bump.dtype-table", ("final_ln_bias has dtype code 6, it is always FP32 (0)",),
    ),
    "47 integers": (code(FILE, 4, 3), "bump.dtype-table", ("layer.0.wq has dtype code 3, which no weights have",)),
    "47 blocks that rows do not fill": (
        code(FILE, 4, 5), "bump.dtype-table", ("layer.0.wq is Q4_0 with rows of 40; blocks hold 32",),
    ),
    "48 one byte short": (
        FILE[:-1], "bump.extent", (f"final_ln_bias ends at byte {len(FILE):,}, the file has {len(FILE) - 1:,}",),
    ),
    "48 cut inside a tensor": (
        FILE[: W2_END - 4], "bump.extent", (f"layer.1.w2 ends at byte {W2_END:,}, the file has {W2_END - 4:,}",),
    ),
    "48 no payload": (
        FILE[: TABLE + 4 + ENTRIES], "bump.extent", ("the FP32 vectors of 2 layers alone are", "the file has 164"),
    ),
    "48 one byte more": (
        FILE + b"\0", "bump.extent", (f"1 byte after final_ln_bias, which ends at {len(FILE):,}",),
    ),
    "48 a code that makes it shorter": (code(FILE, 0, 1), "bump.extent", ("bytes after final_ln_bias",)),
    "48 Q6_K codes over Q4_K bytes": (
        code(K.file(), 4, 7), "bump.extent", ("layer.1.w2 ends at byte 480,340, the file has 466,516",),
    ),
}  # fmt: skip

Change = Callable[[dict[str, Any]], dict[str, Any]]

#: id -> (what config.json says, fragment): it contradicts the header, itself, or cannot be read.
BAD_CONFIGS: dict[str, tuple[Any, str]] = {
    "layers": ({"num_hidden_layers": 3}, "config.json: num_hidden_layers is 3, the file's header says 2"),
    "GPT-2's word for layers": ({"num_hidden_layers": None, "n_layer": 3}, "n_layer is 3, the file's header says 2"),
    "hidden": ({"hidden_size": 48}, "hidden_size is 48, the file's header says 40"),
    "heads": ({"num_attention_heads": 4}, "num_attention_heads is 4, the file's header says 2"),
    "vocabulary": ({"vocab_size": 32000}, "vocab_size is 32,000, the file's header says 24"),
    "context": ({"max_position_embeddings": 6}, "max_position_embeddings is 6, the file's header says 5"),
    "head size": ({"head_dim": 16}, "head_dim is 16, the file's header says 20"),
    "kv heads that do not divide": (
        {"num_key_value_heads": 3}, "num_attention_heads is 2, not a multiple of num_key_value_heads, 3",
    ),
    "no feed-forward size": ({"intermediate_size": None}, "intermediate_size is missing"),
    "layers as text": ({"num_hidden_layers": "2"}, "num_hidden_layers must be a whole number, got '2'"),
    "layers as truth": ({"num_hidden_layers": True}, "num_hidden_layers must be a whole number, got True"),
    "absurd layers": ({"num_hidden_layers": 10**12}, "num_hidden_layers is 1,000,000,000,000, outside 0 to 65,536"),
    "negative feed-forward": ({"intermediate_size": -1}, "intermediate_size is -1, outside 0 to 2,147,483,648"),
    "epsilon as text": ({"rms_norm_eps": "1e-5"}, "rms_norm_eps must be a finite number, got '1e-5'"),
    "rope_layout": ({"rope_layout": "\x1b[31m"}, r"rope_layout is '\x1b[31m', split or interleaved expected"),
    "rope_layout a list": ({"rope_layout": ["split"]}, "rope_layout is"),
}  # fmt: skip


def with_layers(layers: int) -> bytes:
    """A header and a whole dtype table of so many layers, but no payload."""
    model = replace(SOUND, layers=layers)
    count = 14 * layers + 4
    return model.header() + struct.pack("<I", count) + bytes(count)
