"""Names that the pickle of a state dict may hold, and torch's types.

Source: ``torch/serialization.py``, ``torch/_utils.py`` and ``torch/storage.py`` of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Container

from ckconv.core.dtypes import DTYPES, DType

#: Class of a storage of one type -> that type.
STORAGES: dict[str, DType] = {
    f"{name}Storage": DTYPES[dtype]
    for name, dtype in {
        "Float": "F32", "Double": "F64", "Half": "F16", "BFloat16": "BF16", "Long": "I64", "Int": "I32",
        "Short": "I16", "Char": "I8", "Byte": "U8", "Bool": "BOOL", "ComplexFloat": "C64",
    }.items()
}  # fmt: skip
#: Of a storage of bytes, whose tensors say their type.
UNTYPED = "UntypedStorage"

#: Name in ``torch`` -> type.
TYPES: dict[str, DType] = {
    name: DTYPES[dtype]
    for name, dtype in {
        "float32": "F32", "float64": "F64", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
        "int16": "I16", "int8": "I8", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL",
        "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
        "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
    }.items()
}  # fmt: skip

#: Functions that make a tensor of a storage: (module, name) -> where in their arguments the type is, if not in that.
VIEWS: dict[tuple[str, str], int | None] = {
    ("torch._utils", "_rebuild_tensor"): None,
    ("torch._utils", "_rebuild_tensor_v2"): None,
    ("torch._utils", "_rebuild_tensor_v3"): 6,
}
#: Functions whose first argument is the tensor that they return.
WRAPPERS = frozenset({("torch._utils", "_rebuild_parameter"), ("torch._utils", "_rebuild_parameter_with_state")})
#: Of a tensor with attributes: the function, the class, the arguments and the attributes.
TYPED = ("torch._tensor", "_rebuild_from_type_v2")
CLASSES = frozenset({("torch", "Tensor"), ("torch.nn.parameter", "Parameter")})
ORDERED_DICT = ("collections", "OrderedDict")
SIZE = ("torch", "Size")

#: Everything that may be named, whatever is done with it.
NAMED = frozenset(
    {
        *VIEWS,
        *WRAPPERS,
        *CLASSES,
        TYPED,
        ORDERED_DICT,
        SIZE,
        *(("torch", name) for name in (*STORAGES, *TYPES)),
        ("torch.storage", UNTYPED),
    }
)

#: What the pickle of a distributed checkpoint names besides.
DCP_NAMES = frozenset(
    {
        *(
            ("torch.distributed.checkpoint.metadata", name)
            for name in (
                *("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "StorageMeta"),
                *("TensorProperties", "MetadataIndex", "_MEM_FORMAT_ENCODING"),
            )
        ),
        *(("torch.distributed.checkpoint.filesystem", name) for name in ("_StorageInfo", "StorageInfo")),
        ("torch.serialization", "_get_layout"),
        *(("pathlib", name) for name in ("PosixPath", "WindowsPath", "PurePosixPath", "Path")),
        *(("pathlib._local", name) for name in ("PosixPath", "WindowsPath")),
    }
)

#: Packages whose objects the state of a training run holds beside tensors: they are known by their names.
_PACKAGES = frozenset({"accelerate", "argparse", "collections", "deepspeed", "numpy", "torch", "transformers"})
_BUILT_IN = frozenset({("builtins", "set"), ("__builtin__", "set"), ("_codecs", "encode")})


class _Training(Container[tuple[str, str]]):
    """Names of those packages, and of a few built-in classes."""

    def __contains__(self, name: object) -> bool:
        return name in _BUILT_IN or (isinstance(name, tuple) and str(name[0]).partition(".")[0] in _PACKAGES)


TRAINING = _Training()

#: What the state dict of a model is called within what was saved.
CONTAINERS = ("model", "models", "module", "state_dict", "model_state_dict")

#: Bytes of a pickle. Of 100,000 tensors one has about 20 MB.
MAX_PICKLE = 64 << 20
#: Of a pickle's containers, and of the values that it memorizes: so many, and one more for so many bytes (torch writes
#: one for 15 and one for 10 bytes); and of its instructions (one for 2.7 bytes). An empty list of 1 byte takes 64.
MAX_CONTAINERS, BYTES_PER_CONTAINER, BYTES_PER_INSTRUCTION = 100_000, 8, 2
MAX_TENSORS = 1_000_000
#: Bytes of an archive's directory.
MAX_DIRECTORY = 256 << 20

#: The first pickle of a file of torch before 1.6: a number (``MAGIC_NUMBER``), then the protocol's.
LEGACY_MAGIC, LEGACY_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
