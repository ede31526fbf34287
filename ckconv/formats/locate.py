"""Locations of models that no path names: caches, other machines.

What is there as it stands is a path, whatever it looks like.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ckconv.core.lazy import replace
from ckconv.errors import InputError, missing_package, quoted, shown
from ckconv.formats.gguf.values import parse_shard_name
from ckconv.formats.safetensors.container import INDEX_SUFFIX, MAX_JSON, parse_shard_name as parse_part_name, shard_name
from ckconv.io import address_of
from ckconv.io.json import Document, parse_object, read_document

if TYPE_CHECKING:
    from ckconv.io.standins import Origin

#: OWNER/NAME, and perhaps a revision.
_REPOSITORY = re.compile(r"([\w.-]+)/([\w.-]+)(?:@([\w./-]+))?")

_MANIFEST = Document("the manifest", "ollama.manifest", "ollama.manifest", 1 << 20)
_MODEL, _ADAPTER = (f"application/vnd.ollama.image.{kind}" for kind in ("model", "adapter"))

_INDEX = Document("the index", "index.json", "index.json", MAX_JSON)

#: What may lie beside the weights of a checkpoint, where nobody lists that.
_BESIDE = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "spiece.model"),
    *("chat_template.jinja", "chat_template.json", "preprocessor_config.json", "processor_config.json"),
    *("hf_quant_config.json", "quantize_config.json", "quant_config.json", "quanto_qmap.json", "normalizer.json"),
    *("tekken.json", "params.json", "modules.json", "sentence_bert_config.json", "README.md"),
)

#: Files of a model elsewhere: one has hundreds at most, and each is asked for.
_MOST = 10_000

#: Files of a repository that no reader of a model opens, and that do not go along with one.
_NOT_READ = (".gitattributes", ".png", ".jpg", ".msgpack", ".h5", ".onnx", ".ot", ".tflite")


def located(path: Path) -> Path:
    """Path of what is named: in a cache, a stand-in, or the path itself.

    Raises:
        InputError: there is no such model.
        UnsupportedError: ``system.package``, what reads that address is not installed.
        OutputError: ``remote.read``.
    """
    text = os.fspath(path).replace(os.sep, "/")
    address = address_of(text)
    if address is not None:
        scheme, slashes, rest = address[1].lower(), address[2], address[3]
        if scheme in _SCHEMES:
            return _SCHEMES[scheme](scheme, rest)
        if len(slashes) == 1:  # Path has made one of several; a file of this machine is named from its root
            slashes = "///" if scheme in _HERE else "//"
        return _elsewhere(f"{scheme}:{slashes}{rest}") if slashes else path
    repository = _REPOSITORY.fullmatch(text)
    return (_cached(*repository.groups()) or path) if repository else path


# Caches


def _ollama(_: str, name: str) -> Path:
    """File of an Ollama model: ``manifests/HOST/OWNER/NAME/TAG`` lists blobs."""
    home = Path(os.environ.get("OLLAMA_MODELS") or Path.home() / ".ollama" / "models")
    short, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", "latest")
    parts = short.split("/")
    owner = parts if len(parts) > 1 else ["library", *parts]
    folders = (
        [home / "manifests" / Path(*owner)] if len(owner) > 2 else (home / "manifests").glob(f"*/{'/'.join(owner)}")
    )
    found = [place / tag for place in folders if (place / tag).is_file()]
    if len(found) != 1 or ".." in parts:
        what = "several registries" if found else f"not in {home}"
        raise InputError("input.missing", f"the model is {what}", path=f"ollama:{name}", hint="ollama pull fetches it")
    layers = parse_object(read_document(found[0], _MANIFEST), _MANIFEST, found[0]).get("layers")
    digests = {kind: [*_digests(layers, kind, found[0])] for kind in (_MODEL, _ADAPTER)}
    if digests[_ADAPTER]:
        blobs = ", ".join(str(home / "blobs" / digest) for digest in digests[_ADAPTER])
        hint = f"convert {home / 'blobs' / digests[_MODEL][0]} with --adapter, or without" if digests[_MODEL] else None
        raise InputError("ollama.manifest", f"the model has an adapter: {blobs}", path=found[0], hint=hint)
    if len(digests[_MODEL]) != 1:
        message = f"lists {len(digests[_MODEL])} files of weights, one expected"
        raise InputError("ollama.manifest", message, path=found[0])
    return home / "blobs" / digests[_MODEL][0]


def _digests(layers: object, kind: str, path: Path) -> Iterator[str]:
    for layer in layers if isinstance(layers, list) else ():
        if isinstance(layer, dict) and layer.get("mediaType") == kind:
            digest = str(layer.get("digest"))
            if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
                raise InputError("ollama.manifest", f"a digest is {quoted(digest)}", path=path)
            yield digest.replace(":", "-")


def _cached(owner: str, name: str, revision: str | None) -> Path | None:
    """Snapshot of a repository in the download cache, by ``refs/REVISION``."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    hub = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or Path(home, "huggingface"), "hub")
    repository = Path(hub, f"models--{owner}--{name}")
    revision = revision or "main"
    try:
        commit = (repository / "refs" / revision).read_text().strip()
    except (OSError, ValueError):
        commit = revision
    snapshot = repository / "snapshots" / commit
    return snapshot if "/" not in commit and ".." not in commit and snapshot.is_dir() else None


# Other machines


def _hub(_: str, rest: str) -> Path:
    """Repository of the hub at one commit: ``hf://OWNER/NAME[@REVISION]``."""
    parts = rest.split("/", 2)
    found = _REPOSITORY.fullmatch("/".join(parts[:2]))
    url = f"hf://{rest}"
    if found is None:
        raise InputError("input.missing", "hf://OWNER/NAME[@REVISION][/FILE] expected", path=url)
    try:
        from ckconv.io.remote import offline, repository

        cache_alone = offline()
    except ImportError as error:
        raise missing_package("hf:", "huggingface_hub") from error
    owner, name, revision = found.groups()
    file = parts[2] if len(parts) > 2 else ""
    if cache_alone:
        snapshot = _cached(owner, name, revision)
        if snapshot is None:
            raise InputError("input.missing", "is not in the cache, and HF_HUB_OFFLINE is set", path=url)
        return snapshot / file
    files = repository(f"{owner}/{name}", revision)
    read = {path: origin for path, origin in files.items() if not path.endswith(_NOT_READ)}
    return standing(url.removesuffix(file).rstrip("/"), name, read) / file


def _web(scheme: str, rest: str) -> Path:
    """File behind HTTP, with the other shards of its set."""
    from ckconv.io.remote import HttpFile

    url = f"{scheme}://{rest}"
    place, _, last = url.partition("?")[0].rpartition("/")
    query = url[len(place) + 1 + len(last) :]
    public = shown(place)
    if not last or "/" not in rest:
        hint = "name a file; a repository of the hub is hf://OWNER/NAME"
        raise InputError("input.directory", "is a directory, which HTTP does not list", path=public, hint=hint)

    def file(name: str) -> Origin:
        return HttpFile(f"{place}/{name}{query}", shown=f"{public}/{name}")

    if _is_part(last):
        return standing(public, "model", _checkpoint(last, f"{public}/{last}", file)) / last
    shard = parse_shard_name(last)
    names = [last]
    if shard:
        _check_number(range(shard.count), f"{public}/{last}")
        names = [str(replace(shard, number=n)) for n in range(1, shard.count + 1)]
    return standing(public, "model", {name: file(name) for name in names}) / last


def _checkpoint(named: str, url: str, file: Callable[[str], Origin]) -> Mapping[str, Origin]:
    """Files of a checkpoint: its index, the shards, and side files."""
    part = parse_part_name(named)
    name = f"{part[0]}.safetensors{INDEX_SUFFIX}" if part else named
    index = _if_there(name, file) if part else file(name)
    names = _named_in(index, Path(name), url) if index else set()
    if part and named not in names:  # without an index, or beside one of another set
        index, names = None, {shard_name(part[0], number, part[2]) for number in range(1, part[2] + 1)}
    beside = {other: found for other in _BESIDE if (found := _if_there(other, file)) is not None}
    return {**({name: index} if index else {}), **{other: file(other) for other in sorted(names)}, **beside}


def _named_in(index: Origin, name: Path, url: str) -> set[str]:
    if index.size > MAX_JSON:
        raise InputError("index.json", f"the index has {index.size:,} bytes", path=url, allowed=MAX_JSON)
    document = parse_object(index.fetch(0, index.size), _INDEX, name)
    shards = document.get("weight_map")
    listed = shards.values() if isinstance(shards, dict) else ()
    names = {other if isinstance(other, str) else "" for other in listed}
    _check_number(names, url)
    for other in names:
        if not re.fullmatch(r"(?!\.+$)[\w.+-]+", other):
            raise InputError(
                "index.path", f"names {quoted(other)}, which is not the name of a file beside it", path=url
            )
    return names


def _if_there(name: str, file: Callable[[str], Origin]) -> Origin | None:
    try:
        return file(name)
    except InputError as error:
        if error.code != "input.missing":
            raise
        return None


def _is_part(name: str) -> bool:
    """Say whether a file is a shard or an index, and no model alone."""
    shard = parse_part_name(name)
    return name.endswith(INDEX_SUFFIX) or (shard is not None and shard[2] > 1)


#: What fsspec calls this machine.
_HERE = ("file", "local")

#: Scheme -> what finds a model there; every other one is fsspec's.
_SCHEMES: Mapping[str, Callable[[str, str], Path]] = {"ollama": _ollama, "hf": _hub, "http": _web, "https": _web}


def _elsewhere(url: str) -> Path:
    from ckconv.io.remote import files_at

    files, alone = files_at(url)
    place, _, last = shown(url).rstrip("/").rpartition("/")
    if not alone:
        return standing(url, last, files)
    last = next(iter(files))
    if _is_part(last) or parse_shard_name(last):
        files, _ = files_at(url.rpartition("/")[0])
    return standing(place, "model", files) / last


def standing(url: str, name: str, files: Mapping[str, Origin]) -> Path:
    """Stand-ins of what a server lists, which is to be trusted in nothing."""
    _check_number(files, url)
    for path in files:
        if Path(path).is_absolute() or ".." in Path(path).parts or "\0" in path:
            raise InputError("index.path", f"lists {quoted(path)}, which is outside of it", path=url)
        if any(str(folder) in files for folder in PurePosixPath(path).parents):
            message = f"lists {quoted(path)}, and a file of the name of its folder"
            raise InputError("index.path", message, path=url, hint="download what belongs to the model")
    from ckconv.io.standins import stand_in

    return stand_in(url, name, files)


def _check_number(files: Collection[object], url: str) -> None:
    if len(files) > _MOST:
        raise InputError("input.format", f"holds {len(files):,} files, which is not a model", path=url, allowed=_MOST)
