"""The tensors of a checkpoint under the names that they have: copied, or packed matrices decoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ckconv.core.dtypes import DType, Kind
from ckconv.core.metadata import CONFIG_NAME, METADATA, beside
from ckconv.core.tensors import Dropped, StoredTensor, Tensor, made, parse, plain_tensor
from ckconv.families.gguf_metadata import own_document
from ckconv.families.huggingface_classes import expected_of, is_on, switches_of
from ckconv.families.keys import CONSUMERS
from ckconv.families.naming_schemes import NAMES_KEY
from ckconv.families.reference import PARAMS_NAME, REFERENCE
from ckconv.formats.safetensors.checkpoint_pieces import BLOCKS, copied_piece, decoded_piece
from ckconv.plan.pieces import Module, Piece
from ckconv.plan.planner import HEAD
from ckconv.plan.steps import missing_tensors

if TYPE_CHECKING:
    from ckconv.formats.safetensors.checkpoint import CheckpointPlanner


#: What another quantiser says about the types of a checkpoint, which are others in another.
_QUANTIZER_NAMES = {"hf_quant_config.json", "quantize_config.json", "quant_config.json", "quanto_qmap.json"}


def carried_files(planner: CheckpointPlanner, kept: bool) -> dict[str, Path]:
    """The files beside the source that are true of the output, too, by name."""
    left = {CONFIG_NAME} if kept and not planner.unpacked else {CONFIG_NAME, *_QUANTIZER_NAMES}
    found = beside(planner.index)
    if planner.index.metadata.get(f"{METADATA}.{NAMES_KEY}") == REFERENCE and PARAMS_NAME in found:
        left.add(PARAMS_NAME)  # by it readers know tensors of its names
        planner.notes.append(
            f"{PARAMS_NAME} is left out: it is of the names and rows of the source; config.json says the same"
        )
    return {name: path for name, path in found.items() if name not in left}


def unpacks(planner: CheckpointPlanner) -> bool:
    """Packed matrices are decoded: all of them, as the configuration says how all are stored."""
    index = planner.index
    found = {}
    for stored, tensor in index.packed.items():
        names = index.canonical_of.get(stored, ())
        if not any(planner.dropped(name) for name in (stored, tensor.name, *names)):
            decoded = any(planner.decoded(index.tensors[name]) for name in names)
            found[tensor.name] = decoded or planner.decoded(tensor)
    left = [name for name, decoded in found.items() if not decoded]
    if left and len(left) < len(found):
        planner.refuse(f"only some packed matrices would be decoded, and not {left[0]}", "--dequantize decodes all")
    return any(found.values())


def left_by_rules(planner: CheckpointPlanner, kept: bool) -> list[Dropped]:
    """What the source's rules leave out."""
    return [item for item in planner.index.dropped if not (item.copied and kept and not planner.unpacked)]


def kept_modules(planner: CheckpointPlanner) -> Sequence[Module]:
    """Every stored tensor by itself; a packed matrix that is decoded under the name that it has dense."""
    index = planner.index
    left = {item.stored.name for item in left_by_rules(planner, True)}
    modules: dict[str, list[Piece]] = {}
    arrays: dict[str, list[str]] = {}
    for array, matrix in index.packed.items():
        arrays.setdefault(matrix.name, []).append(array)
    scales = [s.name for s in index.stored if index.format == "mlx" and s.name.endswith(".scales")]
    quantised = {name.removesuffix(".scales") for name in scales}
    if not (index.canonical_of or left or arrays or quantised or planner.options.drop):
        types = [_kept_type(planner, stored) for stored in index.stored]
        planner.tied = HEAD not in index.tensors
        return made(len(types), lambda at: (copied_piece(index.stored[at].name, index.stored[at], types[at]),))
    gone: list[str] = []
    for stored in index.stored:
        canonical, packed = index.canonical_of.get(stored.name, ()), index.packed.get(stored.name)
        if stored.name in left:
            continue
        together = arrays[packed.name] if packed else [stored.name]
        if _dropped(planner, stored, packed, canonical, together):
            gone += [name for name in canonical if name in index.tensors]
            if packed is None:
                planner.leave_out(stored.name, "--drop", stored.extent.nbytes)
            elif stored.name == together[0]:
                planner.leave_out(packed.name, "--drop", packed.nbytes)
            continue
        module, _, kind = stored.name.rpartition(".")
        name = canonical[0] if len(canonical) == 1 else stored.name
        grouped = module in quantised and kind in ("weight", "scales", "biases")
        if packed is not None:
            grouped, module = True, packed.name
            if planner.unpacked:
                if packed.name.endswith(BLOCKS[0]):  # classes have it in another order
                    planner.refuse(f"no rule says how {packed.name} is stored once it is decoded")
                named = canonical[0] if len(canonical) == 1 else packed.name
                dtype = planner.decoded_type(index.tensors.get(named, packed))
                modules.setdefault(module, [decoded_piece(named, packed, dtype)])
                continue
        dtype = stored.dtype if grouped else _kept_type(planner, stored)
        modules.setdefault(module if grouped else stored.name, []).append(copied_piece(name, stored, dtype))
    planner.tied = HEAD not in index.tensors or HEAD in gone
    _check_needed(planner, frozenset(gone))
    return [*map(tuple, modules.values())]


def _kept_type(planner: CheckpointPlanner, stored: StoredTensor) -> DType:
    if stored.dtype.ggml is not None and stored.dtype.kind is Kind.BLOCK:  # of a GGUF that nobody has rules for
        return planner.type_of(plain_tensor(stored.name, stored))
    return planner.plain_type(stored.name, stored.dtype)


def _check_needed(planner: CheckpointPlanner, gone: Collection[str]) -> None:
    """What ``--drop`` leaves out is nothing that the class of a known family has: transformers makes it up."""
    config, tensors = planner.index.config, planner.index.tensors
    if config is None or not gone:
        return
    document, consumer = own_document(config), CONSUMERS[planner.format]
    on = {key: is_on(config, key, document, consumer) for key in switches_of(config, consumer)}
    counts = Counter(parse(name).pattern for name in gone)
    there = Counter(parse(name).pattern for name in tensors)
    wanted = expected_of(config, on, consumer)
    if HEAD in gone and planner.doubles_head(planner.loader):
        wanted[HEAD] = 1
    over = {name: counts[name] - max(0, there[name] - count) for name, count in wanted.items()}
    planner.reasons += missing_tensors(over, dropped=counts)


def _dropped(
    planner: CheckpointPlanner,
    stored: StoredTensor,
    packed: Tensor | None,
    canonical: tuple[str, ...],
    together: Sequence[str],
) -> bool:
    """``--drop`` names a tensor, by its own name or by all of its canonical ones; of a packed matrix all arrays."""
    own = planner.dropped(stored.name)
    if (packed and planner.dropped(packed.name)) or (own and all(planner.dropped(name) for name in together)):
        return True
    if own and packed:
        planner.refuse(f"--drop names {stored.name}, and not the other arrays of {packed.name}")
    if canonical and all(planner.dropped(name) for name in canonical):
        return True
    if any(planner.dropped(name) for name in canonical):
        planner.refuse(f"{stored.name} holds more than one tensor, and --drop names only some of them")
    return False
