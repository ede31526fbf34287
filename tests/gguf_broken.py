"""Broken GGUF files, numbered as the cases of the reader's rules: (bytes, code, fragment of the message)."""

from __future__ import annotations

import struct

from gguf_builder import Q4_0, Q8_0, Tensor, gguf, raw_pair, string

ARCH = ("general.architecture", "str", "llama")
START = 24
HUGE = (1 << 63) - 1
TWO = [Tensor("a", (8, 16)), Tensor("b", (8,))]

BROKEN = {
    "1 empty": (b"", "gguf.empty", "the file is empty"),
    "2 web page": (b"<!DOCTYPE html>", "gguf.magic", "starts with `<!DO`, not `GGUF`"),
    "2 zip": (b"PK\3\4....", "gguf.magic", r"starts with `PK\x03\x04`, not `GGUF`"),
    "2 short": (b"GG", "gguf.magic", "starts with `GG`, not `GGUF`"),
    "3 git-lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4100000000\n",
        "gguf.lfs-pointer",
        "is a git-lfs pointer for a 4.1 GB object",
    ),
    "4 version 0": (gguf()[:4] + struct.pack("<I", 0), "gguf.version", "GGUF version 0; ckconv reads 1, 2 and 3"),
    "4 version 99": (gguf()[:4] + struct.pack("<I", 99), "gguf.version", "GGUF version 99; ckconv reads 1, 2 and 3"),
    "5 big-endian": (b"GGUF\0\0\0\3", "gguf.endian", "big-endian GGUF (version reads 50331648)"),
    "6 tensors": (
        gguf(tensor_count=HUGE),
        "gguf.count",
        "header declares 9223372036854775807 tensors but 8 bytes remain",
    ),
    "6 keys": (gguf(pair_count=9), "gguf.count", "header declares 9 metadata keys but 8 bytes remain"),
    "6 tensors of version 1": (
        gguf(tensor_count=9, version=1),
        "gguf.count",
        "header declares 9 tensors but 16 bytes remain",
    ),
    "6 keys past the cap": (
        gguf(pair_count=65_537) + bytes(13 * 65_537),
        "gguf.count",
        "header declares 65537 metadata keys; at most 65,536 are allowed",
    ),
    "7 key": (
        gguf([ARCH, ("x", "u8", 1), string("", length=1 << 50)]),
        "gguf.string",
        "metadata key #3 at byte 83 declares 1,125,899,906,842,624 bytes, 5 remain",
    ),
    "7 key past the cap": (
        gguf([("x" * 65_536, "u8", 1)]),
        "gguf.string",
        "metadata key #1 at byte 24 declares 65,536 bytes, at most 65,535 are allowed",
    ),
    "7 string": (
        gguf([raw_pair("k", 8, string("", length=(1 << 64) - 1))]),
        "gguf.string",
        "the value of key 'k' at byte 37 declares 18,446,744,073,709,551,615 bytes, 19 remain",
    ),
    "7 string in an array": (
        gguf([raw_pair("k", 9, struct.pack("<IQ", 8, 2) + string("ab") + string("", length=(1 << 64) - 8))]),
        "gguf.string",
        "string #2 of 'k' at byte 59 declares 18,446,744,073,709,551,608 bytes, 29 remain",
    ),
    "7 tensor name": (
        gguf([], [Tensor("x" * 1025)]),
        "gguf.string",
        "tensor name #1 at byte 24 declares 1,025 bytes, at most 1,024 are allowed",
    ),
    "8 strings": (
        gguf([raw_pair("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 1000))]),
        "gguf.array",
        "'tokenizer.ggml.tokens' declares 1,000 strings, at most 3 fit",
    ),
    "8 numbers": (
        gguf([raw_pair("k", 9, struct.pack("<IQ", 12, 1 << 61))]),
        "gguf.array",
        "'k' declares 2,305,843,009,213,693,952 f64 elements, at most 1 fit",
    ),
    "8 past the cap": (
        gguf([raw_pair("k", 9, struct.pack("<IQ", 0, (1 << 24) + 1))]) + bytes((1 << 24) + 99),
        "gguf.array",
        "'k' declares 16,777,217 u8 elements, at most 16,777,216 are allowed",
    ),
    "9 nested array": (
        gguf([raw_pair("a", 9, struct.pack("<IQ", 9, 1))]),
        "gguf.nested-array",
        "array of arrays at byte 37 is not supported",
    ),
    "10 value type": (
        gguf([raw_pair("x", 77, b"")]),
        "gguf.value-type",
        "key 'x' has value type 77 (0 to 12 exist)",
    ),
    "10 element type": (
        gguf([raw_pair("x", 9, struct.pack("<IQ", 13, 0))]),
        "gguf.value-type",
        "key 'x' is an array of value type 13 (0 to 12 exist)",
    ),
    "11 bool": (gguf([raw_pair("x", 7, b"\2")]), "gguf.bool", "key 'x' holds 2 where 0 or 1 is required"),
    "11 bool in an array": (
        gguf([raw_pair("x", 9, struct.pack("<IQ", 7, 3) + b"\0\1\xff")]),
        "gguf.bool",
        "key 'x' holds 255 where 0 or 1 is required",
    ),
    "12 key not UTF-8": (gguf([(b"\xff", "u8", 1)]), "gguf.name", r"key #1 is not UTF-8: '\udcff'"),
    "12 empty key": (gguf([("", "u8", 1)]), "gguf.name", "key #1 is empty"),
    "12 control character in a key": (
        gguf([("a\x1b[31m", "u8", 1)]),
        "gguf.name",
        r"key #1 holds control characters: 'a\x1b[31m'",
    ),
    "12 text direction in a name": (
        gguf([], [Tensor("a\u202eb")]),
        "gguf.name",
        r"tensor name #1 holds control characters: 'a\u202eb'",
    ),
    "12 empty tensor name": (gguf([], [Tensor("")]), "gguf.name", "tensor name #1 is empty"),
    "13 duplicate key": (
        gguf([ARCH, ("pad", "str", "x" * 9), ARCH]),
        "gguf.duplicate-key",
        "'general.architecture' appears twice, at 24 and 101",
    ),
    **{
        f"14 alignment {n}": (
            gguf([("general.alignment", "u32", n)]),
            "gguf.alignment",
            f"general.alignment is {n}; it must be a power of two, at most 16,777,216",
        )
        for n in (0, 3, 24, 1 << 25, 1 << 31)
    },
    "14 alignment of another type": (
        gguf([("general.alignment", "u64", 32)]),
        "gguf.alignment",
        "general.alignment has type u64; it must be u32",
    ),
    "14 alignment array": (
        gguf([("general.alignment", "arr[u32]", [32])]),
        "gguf.alignment",
        "general.alignment has type arr[u32]; it must be u32",
    ),
    "15 dimensions": (
        gguf([], [Tensor("a", n_dims=4294967295)]),
        "gguf.dims",
        "tensor 'a' has 4294967295 dimensions; GGUF allows 4",
    ),
    "15 five dimensions": (
        gguf([], [Tensor("a", (1,) * 5)]),
        "gguf.dims",
        "tensor 'a' has 5 dimensions; GGUF allows 4",
    ),
    "15 no dimensions": (
        gguf([], [Tensor("a", ())]),
        "gguf.dims",
        "tensor 'a' has 0 dimensions; GGUF needs at least 1",
    ),
    "17 product": (
        gguf([], [Tensor("a", (1 << 32, 1 << 32), data=b"")]),
        "gguf.size",
        "tensor 'a' [4294967296, 4294967296] is larger than any file",
    ),
    "17 bytes": (
        gguf([], [Tensor("a", (1 << 62,), data=b"")]),
        "gguf.size",
        "tensor 'a' [4611686018427387904] is larger than any file",
    ),
    "17 product, few bytes": (
        gguf([], [Tensor("a", (1 << 63,), Q4_0, data=b"")]),
        "gguf.size",
        "tensor 'a' [9223372036854775808] is larger than any file",
    ),
    "18 retired type": (
        gguf([], [Tensor("a", type=4)]),
        "gguf.type",
        "tensor 'a' has type 4 (Q4_2, removed in 2023)",
    ),
    "18 unknown type": (
        gguf([], [Tensor("a", type=999)]),
        "gguf.type",
        "tensor 'a' has type 999 (ckconv knows 0 to 42)",
    ),
    "19 block": (
        gguf([], [Tensor("a", (33, 32), Q8_0)]),
        "gguf.block",
        "tensor 'a' is Q8_0 with rows of 33; blocks hold 32",
    ),
    "20 duplicate tensor": (
        gguf([], [Tensor("blk.0.attn_q.weight"), Tensor("blk.0.attn_q.weight")]),
        "gguf.duplicate-tensor",
        "'blk.0.attn_q.weight' is listed twice",
    ),
    "21 overlap": (
        gguf([], [TWO[0], Tensor("b", (8,), offset=32)]),
        "gguf.offset",
        "tensor 'b' starts at 32, expected 512",
    ),
    "21 hole": (gguf([], [Tensor("a", offset=32)]), "gguf.offset", "tensor 'a' starts at 32, expected 0"),
    "21 unaligned": (
        gguf([], [TWO[0], Tensor("b", (8,), offset=513)]),
        "gguf.offset",
        "tensor 'b' starts at 513, expected 512",
    ),
    "21 wrapping": (
        gguf([], [TWO[0], Tensor("b", (8,), offset=(1 << 64) - 32)]),
        "gguf.offset",
        "tensor 'b' starts at 18,446,744,073,709,551,584, expected 512",
    ),
    "22 extent": (gguf([], TWO)[:-1], "gguf.extent", "tensor 'b' ends at 672; the file has 671"),
    "22 far beyond": (
        gguf([], [Tensor("a", (1 << 60,), data=b"")]),
        "gguf.extent",
        "tensor 'a' ends at 4,611,686,018,427,387,968; the file has 64",
    ),
    "23 trailing": (
        gguf([], TWO) + b"PK\3\4....",
        "gguf.trailing",
        r"8 bytes after the last tensor (start `PK\x03\x04`)",
    ),
    "23 trailing in the padding": (
        gguf([], [Tensor("a", (3,))], last_padding=False) + b"PK\3\4....",
        "gguf.trailing",
        r"8 bytes after the last tensor (start `PK\x03\x04`)",
    ),
    "23 trailing behind zeros": (
        gguf([ARCH]) + b"\0" * 4096 + b"\1",
        "gguf.trailing",
        r"1 byte after the last tensor (start `\x01`)",
    ),
    "24 split.count": (gguf([("split.count", "i32", -1)]), "gguf.split", "split.count is -1"),
    "24 type of split.count": (gguf([("split.count", "str", "3")]), "gguf.split", "split.count has type str"),
    "24 too many shards": (
        gguf([("split.count", "u64", 1 << 40)]),
        "gguf.split",
        "split.count is 1099511627776; at most 65,535 shards are possible",
    ),
    "24 split.no absent": (gguf([("split.count", "u16", 2)]), "gguf.split", "split.no is absent"),
    "24 name of no shard": (
        gguf([("split.count", "u16", 3), ("split.no", "u16", 1)]),
        "gguf.split",
        "is shard 2 of 3, its name does not say so: expected NAME-00002-of-00003.gguf",
    ),
    "header of 10 bytes": (
        gguf()[:10],
        "gguf.truncated",
        "the file ends at byte 10, inside the tensor and metadata counts",
    ),
}
