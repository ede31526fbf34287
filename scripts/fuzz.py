"""Mutated headers of every format: nothing but a clean error may come out, quickly and in little memory.

Each input is a sound file of the builders in ``tests/``, changed at random or where its numbers are. It is opened the
way ``ckconv inspect`` opens it and described. An input is known by the seed and its number, so that every failure can
be repeated: ``scripts/fuzz.py --seed 7 --only 1234``.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import importlib
import io
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

#: Seconds that one input may take, and bytes that the process may grow by after it has warmed up.
SLOWEST = 5.0
GROWTH = 96 << 20
WARM_UP = 500


class Hang(BaseException):
    """An input took too long. Not an Exception, so that no code under test can catch it."""


Files = dict[str, bytes]
Mutate = Callable[[random.Random], Files]


@dataclass
class Outcome:
    """What came out of a run: inputs by error code, and what must not have happened."""

    codes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    inputs: int = 0
    seconds: float = 0.0
    growth: int = 0
    slowest: float = 0.0


def main() -> int:
    """Run from the command line; 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=None, help="default: from the clock, and printed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--only", type=int, help="run one input again")
    parser.add_argument("--keep", type=Path, default=Path("out/fuzz"), help="where failing inputs are written")
    asked = parser.parse_args()
    seed = asked.seed if asked.seed is not None else time.time_ns() % 1_000_000
    print(f"seed {seed}", flush=True)
    numbers = range(asked.mutations) if asked.only is None else range(asked.only, asked.only + 1)
    found = run(seed, numbers, seconds=asked.seconds, keep=asked.keep)
    for code, count in found.codes.most_common():
        print(f"{count:>9,}  {code}")
    rate = found.inputs / found.seconds if found.seconds else 0.0
    print(
        f"{found.inputs:,} inputs in {found.seconds:.1f} s, {rate:,.0f}/s, slowest {found.slowest * 1000:.0f} ms, "
        f"memory grew by {found.growth >> 20} MB, {len(found.failures)} failures"
    )
    return 1 if found.failures else 0


def run(seed: int, numbers: range, *, seconds: float = float("inf"), keep: Path | None = None) -> Outcome:
    """Open the inputs ``numbers`` of ``seed``; failures are reported on stderr and their files kept in ``keep``."""
    kinds = list(seeds().items())
    found = Outcome()
    started = time.monotonic()
    before = 0
    old = signal.signal(signal.SIGALRM, _hang)
    try:
        with tempfile.TemporaryDirectory(dir=_memory()) as name:
            for number in numbers:
                if time.monotonic() - started > seconds:
                    break
                rng = random.Random(f"{seed}:{number}")
                kind, mutate = kinds[number % len(kinds)]
                folder = Path(name)
                files = mutate(rng)
                for file, data in files.items():
                    (folder / file).write_bytes(data)
                at = time.monotonic()
                code, fault = attempt(folder, files)
                found.slowest = max(found.slowest, time.monotonic() - at)
                found.codes[code] += 1
                found.inputs += 1
                if fault:
                    _keep(found, f"seed {seed}, input {number} ({kind}): {fault}", files, keep, f"{seed}-{number}")
                for file in files:
                    (folder / file).unlink()
                if found.inputs == WARM_UP:
                    before = _peak()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    found.seconds = time.monotonic() - started
    found.growth = _peak() - before if before else 0
    if found.growth > GROWTH:
        found.failures.append(f"memory grew by {found.growth:,} bytes")
        print(found.failures[-1], file=sys.stderr)
    return found


def attempt(folder: Path, files: Files) -> tuple[str, str]:
    """(error code or "sound", fault or "") of opening and describing what is in ``folder``."""
    from ckconv.errors import CkconvError

    signal.setitimer(signal.ITIMER_REAL, SLOWEST)
    try:
        _describe(folder, files)
    except CkconvError as error:
        texts = [error.message, *error.details, error.tensor or ""]
        if not all(text.isprintable() for text in texts[:-1]):
            return error.code, f"control characters in {texts!r}"
        if error.exit_code not in (3, 4):
            return error.code, f"exit status {error.exit_code}"
        return error.code, "" if error.path else "no path"
    except Hang:
        return "hang", f"took more than {SLOWEST} s"
    except BaseException as error:
        return type(error).__name__, traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "sound", ""


def _describe(folder: Path, files: Files) -> None:
    from ckconv.cli.describe import describe
    from ckconv.conversion.planning import make_plan
    from ckconv.core.options import Options
    from ckconv.formats.detect import open_index
    from ckconv.formats.safetensors.files import read_checkpoint_files

    main_file = next(iter(files))
    weights = [name for name in files if name.endswith((".gguf", ".bump", ".safetensors"))]
    if "adapter_config.json" in files:
        index = open_index(folder)
    elif any(name.endswith(".safetensors") for name in weights) and len(files) > 1:
        read_checkpoint_files(folder)
        index = open_index(folder)
    else:
        index = open_index(folder / main_file)
    found = describe(index, tensors=None, hashes=None, piped=False)
    json.dumps(found.document(), default=str, allow_nan=False)
    found.lines(only_metadata=False, only_tensors=False)
    if any(name.endswith(".zip") for name in files) or "generation_config.json" in files:
        plan = make_plan(index, "gguf", Options())
        plan.check()
        plan.contents()


def seeds() -> dict[str, Mutate]:
    """What makes mutated inputs, by name; an input is file name -> content, the one to open first."""
    sys.path.insert(0, str(ROOT / "tests"))
    try:
        gguf, bump, st = (
            importlib.import_module(f"{name}") for name in ("gguf_builder", "bump_broken", "safetensors_builder")
        )
    finally:
        sys.path.pop(0)
    made = (_ggufs(gguf), _bumps(bump, gguf, st), _bump5(gguf, st), _checkpoints(st), _adapters(st), _record(gguf, st))
    return {name: mutate for kind in (*made, _documents()) for name, mutate in kind}


def _llama(builder: Any, types: dict[str, int]) -> tuple[list[Any], list[Any]]:
    """Metadata and tensors of a GGUF with one layer."""
    keys = [
        ("general.architecture", "str", "llama"),
        ("llama.block_count", "u32", 1),
        ("llama.context_length", "u32", 8),
        ("llama.embedding_length", "u32", 32),
        ("llama.feed_forward_length", "u32", 32),
        ("llama.attention.head_count", "u32", 4),
        ("llama.attention.head_count_kv", "arr[u32]", [2]),
        ("llama.attention.layer_norm_rms_epsilon", "f32", 1e-5),
        ("tokenizer.ggml.tokens", "arr[str]", ["a", "b", "\u00e9\u00e8", ""]),
        ("tokenizer.ggml.scores", "arr[f32]", [0.0, 1.0, -1.0, 0.5]),
        ("general.name", "str", "fuzz"),
        ("some.flag", "bool", True),
    ]
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (32, 4), "output_norm": (32,), "output": (32, 4)}
    for name, dims in (("attn_norm", (32,)), ("attn_q", (32, 32)), ("attn_k", (32, 16)), ("attn_v", (32, 16))):
        shapes[f"blk.0.{name}"] = dims
    for name in ("attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        shapes[f"blk.0.{name}"] = (32, 32)
    shapes["blk.0.ffn_norm"] = (32,)
    tensors = [
        builder.Tensor(f"{name}.weight", dims, types.get(name.rpartition(".")[2], builder.F32))
        for name, dims in shapes.items()
    ]
    return keys, tensors


def _ggufs(builder: Any) -> Iterator[tuple[str, Mutate]]:
    keys, tensors = _llama(builder, {"attn_q": builder.Q8_0, "ffn_up": builder.Q4_0, "attn_v": builder.F16})
    for version in (1, 2, 3):
        file = builder.gguf(keys, tensors, version=version)
        fields = builder.number_fields(file)
        yield f"gguf {version}", lambda rng, f=file, n=fields: {"m.gguf": builder.mutated(f, rng, n)}  # type: ignore[misc]
    split = [("split.no", "u16", 0), ("split.count", "u16", 2), ("split.tensors.count", "i32", 2)]
    first = builder.gguf([keys[0], *split], tensors[:1])
    second = builder.gguf([("split.no", "u16", 1), *split[1:]], tensors[1:2])
    names = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")

    def mutate(rng: random.Random) -> Files:
        shards = [first, second]
        at = rng.randrange(2)
        shards[at] = builder.mutated(shards[at], rng, builder.number_fields(shards[at]))
        return dict(zip(names, shards, strict=True))

    yield "gguf split", mutate


def _bumps(builder: Any, numbers: Any, jsons: Any) -> Iterator[tuple[str, Mutate]]:
    for name, model in (("bump 3", builder.SOUND), ("bump 3 blocks", builder.K)):
        file, config = model.file(), json.dumps(model.config()).encode()
        header = 0x84 + 14 * model.layers + 4
        fields = [*builder.FIELDS.values(), (0x80, 4), *((0x84 + n, 1) for n in range(14 * model.layers + 4))]

        def mutate(
            rng: random.Random, file: bytes = file, config: bytes = config, header: int = header, fields: Any = fields
        ) -> Files:
            way = rng.randrange(4)
            made, beside = file, config
            if way != 0:
                head = numbers.mutated(file[:header], rng, [f for f in fields if f[1] <= 8])
                made = head + file[header:] if rng.randrange(4) else head
            if way in (0, 1):
                beside = jsons.mutated(config, rng)
            if rng.randrange(6) == 0:
                made = rng.choice((b"BUMPWGT4", b"BUMPWGT5")) + bytes([rng.choice((3, 4, 5))]) + made[9:]
            return {"m.bump": made, "config.json": beside} if rng.randrange(20) else {"m.bump": made}

        yield name, mutate


def _bump5(numbers: Any, jsons: Any) -> Iterator[tuple[str, Mutate]]:
    """A file of ckconv's own making with its manifest and configuration, each of which can be what changes."""
    from ckconv.cli import run as ckconv

    with tempfile.TemporaryDirectory() as name:
        source, out = Path(name) / "m.gguf", Path(name) / "out"
        source.write_bytes(numbers.gguf(*_llama(numbers, {})))
        status = ckconv(["-q", "convert", str(source), f"{out}/", "--to", "bump", "--bump-version", "5"])
        if status:
            raise RuntimeError(f"the seed of bump 5 could not be made: exit {status}")
        files = {path.name: path.read_bytes() for path in sorted(out.iterdir()) if path.suffix != ".zip"}
    file = files.pop("weights.bump")
    # What a file ends with: JSON, then BUMPV5MD, its length as u64 and its SHA-256.
    length = int.from_bytes(file[-40:-32], "little")
    start, head = len(file) - 48 - length, 0x9C + int.from_bytes(file[0x98:0x9C], "little")
    fields = [
        *((at, 4) for at in range(8, 0x28, 4)),
        *((at, 8) for at in range(0x28, 0x40, 8)),
        (0x50, 4),
        (0x54, 4),
        (0x98, 4),
    ]
    fields += [(at, 1) for at in range(0x9C, head)]

    def mutate(rng: random.Random) -> Files:
        made, beside = file, dict(files)
        way = rng.randrange(5)
        if way == 0:
            document = rng.choice((jsons.mutated, retyped))(file[start:-48], rng)
            footer = b"BUMPV5MD" + len(document).to_bytes(8, "little") + hashlib.sha256(document).digest()
            made = file[:start] + document + footer
        elif way == 1:
            at = rng.randrange(len(file) - 48, len(file))
            made = file[:at] + rng.randbytes(rng.choice((0, 1, 8)))
            made += file[len(made) :] if rng.randrange(2) else b""
        elif way == 2:
            made = numbers.mutated(file[:head], rng, fields) + file[head:]
        else:
            changed = rng.choice(list(beside))
            beside[changed] = rng.choice((jsons.mutated, retyped))(beside[changed], rng)
        if rng.randrange(10) == 0:
            beside.pop(rng.choice(list(beside)))
        return {"m.bump": made, **beside}

    yield "bump 5", mutate


def _checkpoints(builder: Any) -> Iterator[tuple[str, Mutate]]:
    dense = {
        f"model.layers.0.{name}.weight": ("F32", shape)
        for name, shape in (
            ("input_layernorm", [16]), ("post_attention_layernorm", [16]), ("self_attn.q_proj", [16, 16]),
            ("self_attn.k_proj", [8, 16]), ("self_attn.v_proj", [8, 16]), ("self_attn.o_proj", [16, 16]),
            ("mlp.gate_proj", [24, 16]), ("mlp.up_proj", [24, 16]), ("mlp.down_proj", [16, 24]),
        )
    }  # fmt: skip
    dense |= {"model.embed_tokens.weight": ("F32", [5, 16]), "model.norm.weight": ("F32", [16])}
    config = {
        "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 24,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 5, "max_position_embeddings": 8,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0}, "quantization_config": None,
    }  # fmt: skip
    triple = {
        "model.layers.0.self_attn.q_proj.weight": ("U32", [64, 8]),
        "model.layers.0.self_attn.q_proj.scales": ("BF16", [64, 1]),
        "model.layers.0.self_attn.q_proj.biases": ("BF16", [64, 1]),
    }
    quantized = {
        **config, "hidden_size": 64, "quantization": {"group_size": 64, "bits": 4, "mode": "affine", "lm_head": False},
    }  # fmt: skip
    metadata = {"__metadata__": {"format": "pt"}}

    def single(tensors: Any, document: dict[str, Any]) -> Mutate:
        header, size = builder.header_of(tensors)
        text = json.dumps({**metadata, **header}).encode()

        def mutate(rng: random.Random) -> Files:
            head, beside = text, json.dumps(document).encode()
            way = rng.randrange(3)
            head = builder.mutated(head, rng) if way != 0 else head
            beside = builder.mutated(beside, rng) if way != 1 else beside
            file = builder.container(head, bytes(size))
            if rng.randrange(8) == 0:
                file = _scratched(file, rng)
            return (
                {"model.safetensors": file, "config.json": beside} if rng.randrange(4) else {"model.safetensors": file}
            )

        return mutate

    def sharded(rng: random.Random) -> Files:
        names = list(dense)
        parts = {"model-00001-of-00002.safetensors": names[:5], "model-00002-of-00002.safetensors": names[5:]}
        files = {file: builder.sound({name: dense[name] for name in held}) for file, held in parts.items()}
        index = {
            "metadata": {"total_size": builder.header_of(dense)[1]},
            "weight_map": {name: file for file, held in parts.items() for name in held},
        }
        text = builder.mutated(json.dumps(index).encode(), rng)
        return {"model.safetensors.index.json": text, **files, "config.json": json.dumps(config).encode()}

    yield "safetensors", single(dense, config)
    yield "mlx", single(triple, quantized)
    yield "shards", sharded


def _adapters(builder: Any) -> Iterator[tuple[str, Mutate]]:
    """Adapters of peft and MLX: configuration, or header, or both changed."""
    for name, weights in (
        ("llama-patterns", "adapter_model"),
        ("llama-ia3", "adapter_model"),
        ("mlx-lora", "adapters"),
    ):
        folder = ROOT / "fixtures" / "lora" / name
        config = (folder / "adapter_config.json").read_bytes()
        file = (folder / f"{weights}.safetensors").read_bytes()
        length = int.from_bytes(file[:8], "little")

        def mutate(
            rng: random.Random, file: bytes = file, config: bytes = config, length: int = length, weights: str = weights
        ) -> Files:
            way = rng.randrange(3)
            head = builder.mutated(file[8 : 8 + length], rng) if way != 0 else file[8 : 8 + length]
            beside = rng.choice((builder.mutated, retyped))(config, rng) if way != 1 else config
            made = builder.container(head, file[8 + length :])
            return {"adapter_config.json": beside, f"{weights}.safetensors": made}

        yield f"adapter {name}", mutate


#: Values that a document may have where one of another type belongs, and keys that nobody writes.
_ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 10**30, "", "x", "\0", "9" * 5000, [], [1], ["a"], [[]], [None], [{}], {}, {"a": 1},
    {"content": [1]},
)  # fmt: skip
_ODD_KEYS = ("9" * 5000, "", str(10**12), "-1", "\u0661")


def retyped(document: bytes, rng: random.Random) -> bytes:
    """A JSON document of which one or two values are of any type, or their keys are gone or others."""
    made = json.loads(document)
    for _ in range(rng.randint(1, 2)):
        places = [(made, key) for key in (made if isinstance(made, dict) else ())]
        for held, key in places:  # grows while it is gone through
            inner = held[key]
            keys = list(inner) if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else ()
            places += [(inner, one) for one in keys[:40]]
        if not places:
            break
        held, key = rng.choice(places)
        way = rng.randrange(8)
        if way > 1 or isinstance(held, list):
            held[key] = copy.deepcopy(rng.choice(_ODD))
        elif way:
            held[rng.choice(_ODD_KEYS)] = held.pop(key)
        else:
            del held[key]
    return json.dumps(made).encode()


def _documents() -> Iterator[tuple[str, Mutate]]:
    """Checkpoints whose documents have values of other types. One kind of inputs: each takes ten times as long."""
    models: list[Files] = []
    for name in ("hf/qwen3-tied-bf16", "hf/gemma3-text-bf16", "zoo/granite"):
        files = {path.name: path.read_bytes() for path in sorted((ROOT / "fixtures" / name).iterdir())}
        models.append({"generation_config.json": b"{}", **files})

    def mutate(rng: random.Random) -> Files:
        files = rng.choice(models)
        changed = rng.choice([file for file in files if file.endswith(".json")])
        return {**files, changed: retyped(files[changed], rng)}

    yield "documents", mutate


def _record(numbers: Any, jsons: Any) -> Iterator[tuple[str, Mutate]]:
    """A bump file's source record: bytes of the archive, or its document, changed."""
    from ckconv.cli import run as ckconv

    with tempfile.TemporaryDirectory() as name:
        source, out = Path(name) / "m.gguf", Path(name) / "out"
        source.write_bytes(numbers.gguf(*_llama(numbers, {})))
        if ckconv(["-q", "convert", str(source), f"{out}/", "--to", "bump", "--bump-version", "5"]):
            raise RuntimeError("the seed of the record could not be made")
        files = {path.name: path.read_bytes() for path in sorted(out.iterdir())}
    record = files.pop("weights.bump.source.zip")
    bump = files.pop("weights.bump")
    with zipfile.ZipFile(io.BytesIO(record)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}

    def mutate(rng: random.Random) -> Files:
        made = bytearray(record)
        way = rng.randrange(4)
        if way == 0:
            made = bytearray(_archive({**members, "record.json": jsons.mutated(members["record.json"], rng)}))
        elif way == 1:
            del made[rng.randrange(len(made)) :]
        for _ in range(rng.randrange(1, 4) if way >= 2 else 0):
            made[rng.randrange(len(made))] = rng.randrange(256)
        return {"weights.bump": bump, **files, "weights.bump.source.zip": bytes(made)}

    yield "record", mutate


def _archive(members: Files) -> bytes:
    """An archive in the one form that ckconv reads."""
    from ckconv.record.read import Member, archive

    made = archive(Member(name, zlib.crc32(data), len(data)) for name, data in members.items())
    parts = (header + members[member.name] for header, member in zip(made.headers, made.members, strict=True))
    return b"".join(parts) + made.directory


def _scratched(file: bytes, rng: random.Random) -> bytes:
    """The length of the header, or the end of the file, changed."""
    if rng.randrange(2):
        return file[: rng.randrange(len(file))]
    return rng.choice((0, 1, 7, 1 << 27, 1 << 63, (1 << 64) - 1, rng.randrange(4096))).to_bytes(8, "little") + file[8:]


def _hang(number: int, frame: FrameType | None) -> None:
    raise Hang


def _keep(found: Outcome, text: str, files: Files, keep: Path | None, name: str) -> None:
    found.failures.append(text)
    print(text, file=sys.stderr)
    if keep is not None:
        folder = keep / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file, data in files.items():
            (folder / file).write_bytes(data)


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
