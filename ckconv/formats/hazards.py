"""Code that travels with a model, and hidden characters: reported only.

Whoever loads the model may run it: transformers what ``auto_map`` names (with ``trust_remote_code``), programs whose
Jinja is in no sandbox what a chat template reaches for, ``torch.load`` pickles. A sound template needs none of this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckconv.core.lazy import NamedTuple
from ckconv.core.metadata import CONFIG_NAME, SETTINGS, root_of
from ckconv.core.tensors import MetadataKind, TensorIndex
from ckconv.errors import CkconvError, UnsupportedError, listed
from ckconv.formats.safetensors.container import is_pickle
from ckconv.io.files import CARD_NAME, card_of
from ckconv.tokenizer.source import settings_of, templates_of

#: Characters of a chat template; published ones have 20,000 at most.
MOST = 100_000

#: What leads a template of Jinja to Python: names with two underscores, however they are spelled, the filter that takes
#: names out of texts, other templates, and what is called in the end.
_REACHES = (
    "(?i)"
    r"__\w*"
    r"|\\x5f|\\u005f|\\137|\\N\{LOW LINE\}"
    r"|\|\s*attr\b"
    r"|\{%[-+]?\s*(?:import|from|include|extends)\b"
    r"|\b(?:popen|subprocess|getattr|eval|exec)\b"
    r"|\.os\b|\[\s*['\"]os['\"]\s*\]"
)

#: What nobody sees: marks of direction, characters without width (but those that join letters), tags, selectors.
_HIDDEN = "[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\U000e0000-\U000e01ef]"


class Hazard(NamedTuple):
    """A hazard that travels with a model.

    Attributes:
        kind: ``template``, ``hidden``, ``code`` or ``pickle``.
        where: key, document or file.
        text: what it is.
    """

    kind: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where} {self.text}"


def hazards(index: TensorIndex) -> tuple[Hazard, ...]:
    """Hazards of a source, by kind."""
    return (*_of_templates(index), *_of_texts(index), *_of_files(index))


def noted(index: TensorIndex, *, strict: bool) -> tuple[str, ...]:
    """The note on them, none where there is nothing to say."""
    found = listed([*map(str, hazards(index))])
    if found and strict:
        message = "carries code, or characters that hide, which --strict refuses"
        hint = "look at what is named; without --strict it is a note"
        raise UnsupportedError("model.hazard", message, path=index.path, details=found, hint=hint)
    return (f"the source carries what others may run, or what hides: {'; '.join(found)}",) if found else ()


def reaches(template: str) -> list[str]:
    """Python names that a chat template reaches, each once."""
    return [*dict.fromkeys(" ".join(found.split()) for found in re.findall(_REACHES, template))]


def _of_templates(index: TensorIndex) -> Iterator[Hazard]:
    try:
        templates = [*templates_of(index)]
    except (CkconvError, OSError):  # who needs them says so
        templates = []
    for where, text in templates:
        if found := reaches(text):
            yield Hazard("template", where, f"reaches for {', '.join(listed(found))}")
        if len(text) > MOST:
            yield Hazard("template", where, f"has {len(text):,} characters")
        if hidden := _hidden(text):
            yield Hazard("hidden", where, hidden)


def _of_texts(index: TensorIndex) -> Iterator[Hazard]:
    """Names of tensors, and what the model says of itself."""
    texts = {tensor.name: tensor.name for tensor in index.stored if not tensor.name.isascii()}
    for key, item in index.metadata.items():
        value = getattr(item, "value", item)
        if isinstance(value, str) and key.startswith("general."):
            texts[key] = value
    if index.metadata_kind is MetadataKind.DOCUMENT:
        for field, value in card_of(index)._asdict().items():
            texts[f"{field} of {CARD_NAME}"] = value if isinstance(value, str) else " ".join(value)
    for where, text in texts.items():
        if hidden := _hidden(text):
            yield Hazard("hidden", where if where != text else "the name of a tensor", hidden)


def _of_files(index: TensorIndex) -> Iterator[Hazard]:
    """Python, and pickles, beside a checkpoint."""
    if index.metadata_kind is not MetadataKind.DOCUMENT:
        return
    from ckconv.formats.safetensors.files import names_in

    try:
        settings = settings_of(index)
        names = names_in(root_of(index))
    except (CkconvError, OSError):
        return
    documents = {CONFIG_NAME: index.metadata, SETTINGS: settings}
    for document, keys in documents.items():
        if modules := sorted({*_modules(keys.get("auto_map"))}):
            yield Hazard("code", document, f"has transformers run {', '.join(listed(modules))} (auto_map)")
    for name in sorted(path.name for path in index.side_files if path.suffix == ".py"):
        yield Hazard("code", name, "is code")
    if not any(is_pickle(path.name) for path in index.files):
        for name in filter(is_pickle, names):
            yield Hazard("pickle", name, "is a pickle, beside weights that are none")


def _modules(named: object) -> Iterator[str]:
    """Files that ``auto_map`` names: ``[REPOSITORY--]MODULE.CLASS``."""
    for item in named.values() if isinstance(named, dict) else ():
        for path in item if isinstance(item, list) else [item]:
            if isinstance(path, str) and "." in path.rpartition("--")[2]:
                yield f"{path.rpartition('.')[0]}.py"


def _hidden(text: str) -> str:
    found = [] if text.isascii() else sorted({*re.findall(_HIDDEN, text.removeprefix("\ufeff"))})
    return f"has hidden characters: {', '.join(f'U+{ord(one):04X}' for one in found[:10])}" if found else ""
