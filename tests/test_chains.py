"""Any chain of exact conversions ends in the same model: random shapes, heads, types, ties and biases."""

from __future__ import annotations

from pathlib import Path

from gguf import GGMLQuantizationType as Q
from hypothesis import HealthCheck, given, settings, strategies as st
from models import Model

import ckconv

#: Name -> what is written, and with which options.
HOPS: dict[str, tuple[str, str, ckconv.Options]] = {
    "gguf": ("m.gguf", "gguf", ckconv.Options()),
    "shards": ("s.gguf", "gguf", ckconv.Options(max_shard_bytes=20_000)),
    "huggingface": ("hf/", "safetensors", ckconv.Options()),
    "sharded huggingface": ("hfs/", "safetensors", ckconv.Options(max_shard_bytes=20_000)),
    "fused huggingface": ("hff/", "safetensors", ckconv.Options(fuse=("qkv", "gate-up"))),
    "canonical names": ("hfc/", "safetensors", ckconv.Options(names="canonical")),
    "mlx": ("mlx/", "mlx", ckconv.Options()),
    "bump 3": ("b3/", "bump", ckconv.Options(bump_version=3)),
    "bump 4": ("b4/", "bump", ckconv.Options(bump_version=4)),
    "bump 5": ("b5/", "bump", ckconv.Options(bump_version=5)),
    "bump 5, no record": ("b5n/", "bump", ckconv.Options(bump_version=5, source_record=False)),
    "bump 3, kept types": ("b3k/", "bump", ckconv.Options(bump_version=3, dtype="keep")),
}

#: Types that every reader widens exactly, and blocks of 32.
MATRICES = [Q.F32, Q.F16, Q.BF16, Q.Q4_0, Q.Q4_1, Q.Q8_0]


@st.composite
def models(draw: st.DrawFn) -> Model:
    arch = draw(st.sampled_from(["llama", "llama", "qwen2", "qwen3", "gemma3"]))
    kv = draw(st.sampled_from([1, 2, 4]))
    matrix = draw(st.sampled_from(MATRICES))
    head_dims = [0, 0, 32] if matrix in (Q.Q4_0, Q.Q4_1, Q.Q8_0) else [0, 0, 8, 32]  # rows are whole blocks
    head_dim = draw(st.sampled_from(head_dims)) if arch in ("qwen3", "gemma3") else 0
    return Model(
        arch=arch,
        layers=draw(st.integers(1, 3)),
        hidden=draw(st.sampled_from([32, 64, 96])),
        ffn=draw(st.sampled_from([32, 64, 160])),
        heads=kv * draw(st.sampled_from([1, 2])) if draw(st.booleans()) else 4,
        kv_heads=kv,
        vocab=draw(st.sampled_from([16, 33, 100])),
        context=draw(st.sampled_from([8, 40])),
        matrix=matrix,
        qkv_bias=arch == "qwen2",
        all_bias=arch == "llama" and draw(st.booleans()),
        head=draw(st.sampled_from(["tied", "copy", "own"])),
        head_dim=head_dim,
        qk_norm=arch in ("qwen3", "gemma3"),
        post_norms=arch == "gemma3",
        seed=draw(st.integers(0, 99)),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(model=models(), hops=st.lists(st.sampled_from(sorted(HOPS)), min_size=2, max_size=4))
def test_chain(model: Model, hops: list[str], tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("chain")
    first = here = model.write(folder / "source.gguf")
    for number, hop in enumerate(hops):
        name, format, options = HOPS[hop]
        place = folder / str(number)
        place.mkdir()
        try:
            report = ckconv.convert(here, f"{place}/{name}", to=format, options=options)
        except ckconv.CkconvError as error:
            if error.exit_code != 4:
                raise
            assert list(place.iterdir()) == []
            continue
        assert not report.changed
        here = (
            report.files[0].path if name.endswith((".gguf", "/")) and format in ("gguf", "bump") else Path(place / name)
        )
        assert ckconv.diff(first, here, weights=True).same, (hops[: number + 1], here)
