"""How embeddings are pooled: sentence-transformers' files beside a checkpoint, and the key that llama.cpp reads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import save_file
from consumers import LIBRARY
from embedding_cases import by_llama_cpp, with_modules
from family_cases import cases, checkpoint, values
from safetensors.numpy import load_file

import ckconv
from ckconv.errors import InputError, UnsupportedError, VerifyError
from ckconv.formats.safetensors import checkpoint as checkpoint_plans, write

CASE = next(cases("bert"))


def source(root: Path, pooling: dict[str, Any] | None, *more: str) -> Path:
    """A BERT with the files of sentence-transformers."""
    return with_modules(checkpoint(CASE.recorded, root, CASE.tokenizer), pooling, *more)


def pooled(path: Path) -> int | None:
    found = gguf.GGUFReader(path).fields.get("bert.pooling_type")
    return found.contents() if found else None


@pytest.mark.parametrize(
    ("said", "number"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, gguf.PoolingType.MEAN),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, gguf.PoolingType.CLS),
        ({"pooling_mode_lasttoken": True}, gguf.PoolingType.LAST),
        ({"pooling_mode": "cls"}, gguf.PoolingType.CLS),
    ],
)
def test_the_pooling_of_sentence_transformers_is_llama_cpps_key(said: Any, number: int, tmp_path: Path) -> None:
    ckconv.convert(source(tmp_path / "hf", said, "Normalize"), tmp_path / "m.gguf")

    assert pooled(tmp_path / "m.gguf") == number


@pytest.mark.parametrize("family", ["bert_classifier", "qwen3_classifier"])
def test_a_classifier_ranks_whatever_pools_beside_it(family: str, tmp_path: Path) -> None:
    case = next(cases(family))
    root = with_modules(checkpoint(case.recorded, tmp_path / "hf", case.tokenizer), {"pooling_mode": "cls"})
    ckconv.convert(root, tmp_path / "m.gguf")

    fields = gguf.GGUFReader(tmp_path / "m.gguf").fields
    assert [fields[key].contents() for key in fields if key.endswith(".pooling_type")] == [gguf.PoolingType.RANK]


def test_a_pooling_that_llama_cpp_does_not_have_is_no_key_and_said(tmp_path: Path) -> None:
    report = ckconv.convert(source(tmp_path / "hf", {"pooling_mode_max_tokens": True}), tmp_path / "m.gguf")

    assert pooled(tmp_path / "m.gguf") is None
    assert any("1_Pooling/config.json pools as llama.cpp does not" in note for note in report.plan.notes)


def test_a_checkpoint_by_itself_says_nothing_of_pooling(tmp_path: Path) -> None:
    ckconv.convert(checkpoint(CASE.recorded, tmp_path / "hf", CASE.tokenizer), tmp_path / "m.gguf")

    assert pooled(tmp_path / "m.gguf") is None


def test_a_modules_json_that_is_no_list_is_refused_or_says_nothing(tmp_path: Path) -> None:
    root = source(tmp_path / "hf", None)
    (root / "modules.json").write_text("{")

    with pytest.raises(ckconv.CkconvError, match=r"modules\.json"):
        ckconv.convert(root, tmp_path / "m.gguf")


def test_a_pooler_is_zeros_where_a_gguf_has_none(tmp_path: Path) -> None:
    ckconv.convert(checkpoint(CASE.recorded, tmp_path / "hf", CASE.tokenizer), tmp_path / "m.gguf")
    ckconv.convert(tmp_path / "m.gguf", tmp_path / "back", to="safetensors")

    from safetensors.numpy import load_file

    found = load_file(tmp_path / "back" / "model.safetensors")
    assert found["pooler.dense.weight"].shape == (24, 24)
    assert not found["pooler.dense.weight"].any()
    assert not found["pooler.dense.bias"].any()


def test_modules_with_weights_are_refused_for_a_gguf_and_copied_for_a_checkpoint(tmp_path: Path) -> None:
    root = source(tmp_path / "hf", {"pooling_mode": "mean"}, "Dense", "Normalize")
    files = {"config.json": b"{}", "model.safetensors": b"weights", "pytorch_model.bin": b"pickle"}
    (root / "2_Dense").mkdir()
    for name, content in files.items():
        (root / "2_Dense" / name).write_bytes(content)

    with pytest.raises(UnsupportedError, match="names a Dense after pooling") as refused:
        ckconv.convert(root, tmp_path / "m.gguf")
    report = ckconv.convert(root, f"{tmp_path / 'copy'}/", to="safetensors", checksums=True, record=True)

    assert refused.value.hint == "take it out of modules.json for the embeddings before it"
    assert {path.name: path.read_bytes() for path in (tmp_path / "copy" / "2_Dense").iterdir()} == files
    same = ("modules.json", "1_Pooling/config.json")
    assert all((root / name).read_bytes() == (tmp_path / "copy" / name).read_bytes() for name in same)
    sums = dict(line.split("  ")[::-1] for line in (tmp_path / "copy" / "SHA256SUMS").read_text().splitlines())
    assert sums["2_Dense/model.safetensors"] == hashlib.sha256(b"weights").hexdigest()
    assert not [note for note in report.plan.notes if "not copied" in note]
    assert ckconv.verify(tmp_path / "copy", root)


def test_a_copy_whose_modules_changed_does_not_verify(tmp_path: Path) -> None:
    root = source(tmp_path / "hf", {"pooling_mode": "mean"})
    ckconv.convert(root, f"{tmp_path / 'copy'}/", to="safetensors")
    (tmp_path / "copy" / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')

    with pytest.raises(VerifyError, match=r"1_Pooling/config\.json"):
        ckconv.verify(tmp_path / "copy", root)


def test_a_module_behind_a_link_out_of_the_directory_is_refused(tmp_path: Path) -> None:
    root = source(tmp_path / "hf", {"pooling_mode": "mean"})
    (root / "1_Pooling").rename(tmp_path / "elsewhere")
    (root / "1_Pooling").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(InputError, match="outside the model directory"):
        ckconv.convert(root, f"{tmp_path / 'copy'}/", to="safetensors")


@pytest.mark.parametrize("how", ["file", "directory", "path", "up"])
def test_documents_outside_of_the_directory_are_not_read(how: str, tmp_path: Path) -> None:
    """``modules.json`` names another module, or leads out itself."""
    root = source(tmp_path / "hf", {"pooling_mode_mean_tokens": True})
    outside = tmp_path / "outside"
    outside.mkdir()
    for place in (outside, tmp_path):
        (place / "config.json").write_text('{"SECRET": 1, "pooling_mode_cls_token": true}')
    (root / "1_Pooling").rename(root / "2_Pooling")
    if how == "file":
        (root / "1_Pooling").mkdir()
        (root / "1_Pooling" / "config.json").symlink_to(outside / "config.json")
    elif how == "directory":
        (root / "1_Pooling").symlink_to(outside)
    place = {"path": "../outside", "up": ".."}.get(how, "2_Pooling")
    modules = (root / "modules.json").read_text()
    (root / "modules.json").write_text(modules.replace("1_Pooling", place))
    ckconv.convert(root, tmp_path / "m.gguf")
    assert b"SECRET" not in (tmp_path / "m.gguf").read_bytes()
    assert pooled(tmp_path / "m.gguf") == (None if how in ("path", "up") else gguf.PoolingType.MEAN)


def test_a_hidden_template_behind_a_link_out_of_the_directory_is_refused(tmp_path: Path) -> None:
    root = checkpoint(CASE.recorded, tmp_path / "hf", CASE.tokenizer)
    (root / "additional_chat_templates").mkdir()
    (tmp_path / "secret").write_text("SECRET")
    (root / "additional_chat_templates" / ".x.jinja").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match="outside the model directory"):
        ckconv.convert(root, tmp_path / "m.gguf")


@pytest.mark.parametrize("path", ["../1_Pooling", "/etc", "a/b", "..", "."])
def test_a_module_is_a_directory_of_the_model(path: str, tmp_path: Path) -> None:
    root = source(tmp_path / "hf", None)
    (root / "modules.json").write_text(json.dumps([{"path": path, "type": "sentence_transformers.models.Pooling"}]))

    ckconv.convert(root, f"{tmp_path / 'copy'}/", to="safetensors")

    assert not [entry for entry in (tmp_path / "copy").iterdir() if entry.is_dir()]


#: What ckconv keeps in a GGUF besides what llama.cpp reads.
KEPT = "sentence_transformers.*"
PROMPTS = '{"prompts": {"query": "search_query: ", "document": "Sök:\\n"}, "default_prompt_name": null}\n'


@pytest.mark.parametrize("pooling", [{"pooling_mode": "mean"}, {"pooling_mode_max_tokens": True}])
def test_normalizing_and_prompts_come_back_word_for_word(pooling: dict[str, Any], tmp_path: Path) -> None:
    """A pooling that llama.cpp does not have, too."""
    root = source(tmp_path / "hf", pooling, "Normalize")
    (root / "config_sentence_transformers.json").write_text(PROMPTS)
    (root / "sentence_bert_config.json").write_text('{"max_seq_length": 40}')
    ckconv.convert(root, tmp_path / "m.gguf")
    assert ckconv.verify(tmp_path / "m.gguf", root)

    for to in ("safetensors", "mlx"):
        report = ckconv.convert(tmp_path / "m.gguf", f"{tmp_path / to}/", to=to)

        names = ("modules.json", "1_Pooling/config.json", "config_sentence_transformers.json")
        for name in (*names, "sentence_bert_config.json"):
            assert (tmp_path / to / name).read_bytes() == (root / name).read_bytes()
        assert not [note for note in report.plan.notes if "pooled" in note or "sentence_transformers" in note]
        assert ckconv.verify(tmp_path / to, tmp_path / "m.gguf")
    ckconv.convert(tmp_path / "safetensors", tmp_path / "again.gguf")
    again, first = (gguf.GGUFReader(tmp_path / name).fields for name in ("again.gguf", "m.gguf"))
    kept = [key for key in first if fnmatchcase(key, KEPT) or key.endswith("pooling_type")]
    assert [again[key].contents() for key in kept] == [first[key].contents() for key in kept]


@pytest.mark.parametrize(
    "edit",
    [
        ("sentence_transformers.pooling", '{"pooling_mode": "cls"}'),
        ("sentence_transformers.modules", "[]"),
        ("sentence_transformers.modules", '[{"type": "sentence_transformers.models.Dense", "path": "../2_Dense"}]'),
        ("sentence_transformers.modules", '[{"type": "sentence_transformers.models.Pooling", "path": "elsewhere"}]'),
        ("sentence_transformers.transformer", "{"),
    ],
)
def test_documents_that_say_otherwise_than_the_file_are_made_anew(edit: tuple[str, str], tmp_path: Path) -> None:
    root = source(tmp_path / "hf", {"pooling_mode": "mean"}, "Normalize")
    ckconv.convert(root, tmp_path / "m.gguf", options=ckconv.Options(set_meta=(edit,)))

    report = ckconv.convert(tmp_path / "m.gguf", f"{tmp_path / 'back'}/", to="safetensors")

    assert json.loads((tmp_path / "back" / "1_Pooling" / "config.json").read_text())["pooling_mode_mean_tokens"] is True
    assert any("whether they are normalized" in note for note in report.plan.notes)


@pytest.mark.skipif(not LIBRARY, reason="LLAMA_CPP_LIBRARY names no folder of llama.cpp's libraries")
def test_llama_cpp_takes_no_notice_of_them(tmp_path: Path) -> None:
    root = source(tmp_path / "hf", {"pooling_mode": "mean"}, "Normalize")
    (root / "config_sentence_transformers.json").write_text(PROMPTS)
    ckconv.convert(root, tmp_path / "m.gguf")
    ckconv.convert(root, tmp_path / "plain.gguf", options=ckconv.Options(drop_meta=(KEPT,)))

    rows = [by_llama_cpp(tmp_path / name, ["a text", "Sök"], 1)[1] for name in ("m.gguf", "plain.gguf")]

    assert (rows[0] == rows[1]).all()


@pytest.mark.parametrize("word", ["mean", "cls", "lasttoken"])
def test_the_files_of_sentence_transformers_come_back_from_a_gguf(word: str, tmp_path: Path) -> None:
    """Of one that llama.cpp's converter wrote, which has nothing but how embeddings are pooled."""
    options = ckconv.Options(drop_meta=(KEPT,))
    ckconv.convert(source(tmp_path / "hf", {"pooling_mode": word}), tmp_path / "m.gguf", options=options)

    report = ckconv.convert(tmp_path / "m.gguf", f"{tmp_path / 'back'}/", to="safetensors")
    ckconv.convert(tmp_path / "back", tmp_path / "again.gguf")

    said = json.loads((tmp_path / "back" / "1_Pooling" / "config.json").read_text())
    key = {"mean": "mean_tokens", "cls": "cls_token"}.get(word, word)
    assert [name for name, value in said.items() if value is True] == [f"pooling_mode_{key}", "include_prompt"]
    assert said["word_embedding_dimension"] == 24
    modules = json.loads((tmp_path / "back" / "modules.json").read_text())
    assert [(one["path"], one["type"].rpartition(".")[2]) for one in modules] == [
        ("", "Transformer"),
        ("1_Pooling", "Pooling"),
    ]
    assert json.loads((tmp_path / "back" / "sentence_bert_config.json").read_text())["max_seq_length"] == 48
    assert pooled(tmp_path / "again.gguf") == pooled(tmp_path / "m.gguf")
    assert any("a GGUF does not say whether they are normalized afterwards" in note for note in report.plan.notes)


def test_a_single_file_of_tensors_has_no_place_for_them(tmp_path: Path) -> None:
    ckconv.convert(source(tmp_path / "hf", {"pooling_mode": "mean"}), tmp_path / "m.gguf")

    report = ckconv.convert(tmp_path / "m.gguf", tmp_path / "back.safetensors")

    assert any("embeddings are pooled by their mean (pooling_type)" in note for note in report.plan.notes)


def test_a_decoder_that_attends_in_both_ways_gives_embeddings(tmp_path: Path) -> None:
    """gte-Qwen2 as it is published: code beside it, no prefix, the last token."""
    case = next(case for case in cases("qwen2") if case.recorded.get("converter"))
    recorded = json.loads(json.dumps(case.recorded))
    recorded["config"] |= {"is_causal": False, "auto_map": {"AutoModel": "modeling_qwen.Qwen2Model"}}
    tensors = {key: kind for key, kind in recorded["tensors"].items() if not key.startswith("lm_head")}
    recorded["tensors"] = {key.removeprefix("model."): kind for key, kind in tensors.items()}
    root = with_modules(checkpoint(recorded, tmp_path / "hf"), {"pooling_mode_lasttoken": True}, "Normalize")

    ckconv.convert(root, tmp_path / "m.gguf")
    ckconv.convert(tmp_path / "m.gguf", f"{tmp_path / 'back'}/", to="safetensors")

    fields = gguf.GGUFReader(tmp_path / "m.gguf").fields
    assert fields["qwen2.attention.causal"].contents() is False
    assert fields["qwen2.pooling_type"].contents() == gguf.PoolingType.LAST
    assert json.loads((tmp_path / "back" / "config.json").read_text())["is_causal"] is False
    assert (tmp_path / "back" / "1_Pooling" / "config.json").is_file()


DENSE = {"2_Dense": (52, 36), "3_Dense": (36, 52)}


def embedding_gemma(root: Path, activation: str = "Identity", bias: bool = False) -> Path:
    """An EmbeddingGemma with two linear layers behind the pooling."""
    case = next(cases("gemma_embedding"))
    with_modules(
        checkpoint(case.recorded, root, case.tokenizer), {"pooling_mode": "mean"}, "Dense", "Dense", "Normalize"
    )
    for folder, (rows, columns) in DENSE.items():
        said = {"in_features": columns, "out_features": rows, "bias": bias}
        said["activation_function"] = f"torch.nn.modules.{activation}"
        (root / folder).mkdir()
        (root / folder / "config.json").write_text(json.dumps(said))
        tensors = {"linear.weight": values(folder, (rows, columns))}
        tensors |= {"linear.bias": values(f"{folder}.bias", (rows,))} if bias else {}
        save_file(root / folder / "model.safetensors", tensors, {"format": "pt"})
    return root


def test_linear_layers_behind_the_pooling_are_in_the_gguf(tmp_path: Path) -> None:
    root = embedding_gemma(tmp_path / "hf")
    ckconv.convert(root, tmp_path / "m.gguf")

    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    found = {tensor.name: tensor.data for tensor in reader.tensors if tensor.name.startswith("dense_")}
    assert found.keys() == {"dense_2.weight", "dense_3.weight"}
    assert all((found[f"dense_{folder[0]}.weight"] == values(folder, shape)).all() for folder, shape in DENSE.items())
    said = [reader.fields[f"gemma-embedding.dense_{n}_feat_{side}"].contents() for n in "23" for side in ("in", "out")]
    assert said == [36, 52, 52, 36]
    assert ckconv.verify(tmp_path / "m.gguf", root)
    options = ckconv.Options(drop=("dense_*",))
    assert ckconv.convert(tmp_path / "m.gguf", f"{tmp_path}/back/", to="safetensors", options=options).verified == 93


def of_layers(root: Path) -> dict[str, np.ndarray]:
    """The matrices in the directories of linear layers."""
    return {path.parent.name: load_file(path)["linear.weight"] for path in root.glob("*/model.safetensors")}


def said_of_layers(root: Path) -> list[tuple[str, str]]:
    """Class and directory of each module."""
    return [(one["type"], one["path"]) for one in json.loads((root / "modules.json").read_text())]


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("of", ["pooled", "tokens"])
def test_linear_layers_come_back_out_of_a_gguf(of: str, told: bool, tmp_path: Path) -> None:
    """In directories, as the classes of sentence-transformers and PyLate read them: what nothing tells is made up."""
    root = embedding_gemma(tmp_path / "hf") if of == "pooled" else colbert(tmp_path / "hf", "lfm2")
    options = ckconv.Options() if told else ckconv.Options(drop_meta=("sentence_transformers.*",))
    ckconv.convert(root, tmp_path / "first.gguf")
    ckconv.convert(tmp_path / "first.gguf", tmp_path / "m.gguf", options=options)
    done = ckconv.convert(tmp_path / "m.gguf", f"{tmp_path}/back/", to="safetensors")

    back, before = of_layers(tmp_path / "back"), of_layers(root)
    assert back.keys() == before.keys() == ({"2_Dense", "3_Dense"} if of == "pooled" else {"1_Dense"})
    assert all((back[folder] == before[folder]).all() for folder in back)
    for folder, matrix in back.items():
        said = json.loads((tmp_path / "back" / folder / "config.json").read_text())
        function = "torch.nn.modules.linear.Identity"
        sizes = {"in_features": matrix.shape[1], "out_features": matrix.shape[0]}
        assert said == {**sizes, "bias": False, "activation_function": function}
    if told:
        assert (tmp_path / "back" / "modules.json").read_bytes() == (root / "modules.json").read_bytes()
        assert not any("a GGUF does not say whether" in note for note in done.plan.notes)
    else:
        kind = "sentence_transformers.models." if of == "pooled" else "pylate.models.Dense."
        assert [one for one in said_of_layers(tmp_path / "back") if one[1] in back] == [
            (f"{kind}Dense", f) for f in back
        ]
        assert any("a GGUF does not say whether" in note for note in done.plan.notes)
    assert done.verified == len(done.plan.index.tensors)
    assert ckconv.verify(tmp_path / "back", tmp_path / "m.gguf").tensors == done.verified
    assert ckconv.diff(tmp_path / "back", tmp_path / "m.gguf").same
    ckconv.convert(tmp_path / "back", tmp_path / "again.gguf")
    assert ckconv.verify(tmp_path / "again.gguf", tmp_path / "m.gguf", weights=True)


@pytest.mark.parametrize("what", ["value", "activation", "bias", "sizes", "gone", "unnamed", "order"])
def test_other_layers_than_those_of_the_gguf_do_not_verify(what: str, tmp_path: Path) -> None:
    ckconv.convert(embedding_gemma(tmp_path / "hf"), tmp_path / "m.gguf")
    ckconv.convert(tmp_path / "m.gguf", f"{tmp_path}/back/", to="safetensors")
    folder, modules = tmp_path / "back" / "3_Dense", tmp_path / "back" / "modules.json"
    said, listed = json.loads((folder / "config.json").read_text()), json.loads(modules.read_text())
    if what == "value":
        save_file(
            folder / "model.safetensors", {"linear.weight": values("another", DENSE["3_Dense"])}, {"format": "pt"}
        )
    said |= {"activation": {"activation_function": "torch.nn.modules.activation.Tanh"}, "bias": {"bias": True}}.get(
        what, {"in_features": 53} if what == "sizes" else {}
    )
    (folder / "config.json").write_text(json.dumps(said))
    if what == "gone":
        (folder / "model.safetensors").unlink()
    listed = [one for one in listed if one["path"] != "3_Dense"] if what == "unnamed" else listed
    listed = [*listed[:2], listed[3], listed[2], *listed[4:]] if what == "order" else listed
    modules.write_text(json.dumps(listed))

    with pytest.raises(VerifyError if what != "sizes" else InputError, match=r"dense_3|3_Dense|in_features"):
        ckconv.verify(tmp_path / "back", tmp_path / "m.gguf")


def of_documents(change: Callable[[dict[str, Any]], object]) -> Callable[[Any], Any]:
    """A bug in what is written of each layer."""

    def wrong(made: dict[str, bytes]) -> dict[str, bytes]:
        said = {name: json.loads(data) for name, data in made.items()}
        for one in said.values():
            change(one)
        return {name: json.dumps(one).encode() for name, one in said.items()}

    return wrong


def of_modules(change: Callable[[list[Any]], object]) -> Callable[[Any], Any]:
    """A bug in the list of modules."""

    def wrong(made: dict[str, bytes]) -> dict[str, bytes]:
        listed = json.loads(made["modules.json"])
        change(listed)
        return {**made, "modules.json": json.dumps(listed).encode()}

    return wrong


@pytest.mark.parametrize(
    ("function", "bug"),
    [
        ("layer_files", of_documents(lambda said: said.update(activation_function="torch.nn.modules.activation.Tanh"))),
        ("layer_files", of_documents(lambda said: said.pop("activation_function"))),
        ("layer_files", of_documents(lambda said: said.update(bias=True))),
        ("layer_files", of_documents(lambda said: said.pop("bias"))),
        ("layer_files", of_documents(lambda said: said.update(in_features=said["in_features"] + 1))),
        ("layer_files", of_documents(lambda said: said.pop("out_features"))),
        ("layer_files", lambda made: {name: data for name, data in made.items() if not name.startswith("3_")}),
        ("documents_of", of_modules(lambda listed: listed.pop(2))),
        ("documents_of", of_modules(lambda listed: listed.insert(2, listed.pop(3)))),
        ("documents_of", of_modules(lambda listed: listed[2].update(type="sentence_transformers.models.LSTM"))),
        ("linear_layer", lambda made: tuple(piece._replace(name="linear.bias") for piece in made)),
        (
            "linear_layer",
            lambda made: tuple(one._replace(conversion=one.conversion._replace(factor=2)) for one in made),
        ),
        ("lay_out", lambda made: made._replace(files=made.files[:-1], headers=made.headers[:-1])),
    ],
)
def test_no_bug_of_what_writes_layers_is_published(
    function: str, bug: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ckconv.convert(embedding_gemma(tmp_path / "hf"), tmp_path / "m.gguf")
    for module in (write, checkpoint_plans):
        if hasattr(module, function):
            right = getattr(module, function)
            monkeypatch.setattr(module, function, lambda *given, right=right, **named: bug(right(*given, **named)))

    with pytest.raises(VerifyError):
        ckconv.convert(tmp_path / "m.gguf", f"{tmp_path}/back/", to="safetensors")
    assert not (tmp_path / "back").exists()


def test_a_layer_of_other_sizes_than_its_document_says_is_malformed(tmp_path: Path) -> None:
    root = embedding_gemma(tmp_path / "hf")
    path = root / "2_Dense" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "out_features": 53}))

    with pytest.raises(InputError, match=r"out_features and in_features are \(53, 36\).* is \(52, 36\)") as malformed:
        ckconv.convert(root, tmp_path / "m.gguf")
    assert malformed.value.exit_code == 3


def test_layers_behind_a_model_are_no_single_file(tmp_path: Path) -> None:
    ckconv.convert(embedding_gemma(tmp_path / "hf"), tmp_path / "m.gguf")

    with pytest.raises(UnsupportedError, match="2_Dense, 3_Dense are directories beside the tensors") as refused:
        ckconv.convert(tmp_path / "m.gguf", tmp_path / "one.safetensors")
    assert refused.value.hint == "name a directory (DST/)"
    assert ckconv.convert(tmp_path / "m.gguf", f"{tmp_path}/one/", to="safetensors").verified == 95


@pytest.mark.parametrize("flags", [{}, {"dtype": "bf16", "allow_lossy": True}, {"names": "canonical"}])
@pytest.mark.parametrize("named", ["", "model.safetensors"])
def test_what_has_layers_behind_it_verifies_without_its_options(
    named: str, flags: dict[str, Any], tmp_path: Path
) -> None:
    """Types and names are read from the output, as those of every other one are, and a file has its place."""
    ckconv.convert(embedding_gemma(tmp_path / "hf"), tmp_path / "m.gguf")
    ckconv.convert(tmp_path / "m.gguf", f"{tmp_path}/back/", to="safetensors", options=ckconv.Options(**flags))
    assert ckconv.verify(tmp_path / "back" / named, tmp_path / "m.gguf").tensors == 95
    (tmp_path / "back" / "3_Dense" / "config.json").write_text('{"in_features": 52, "out_features": 36, "bias": true}')
    with pytest.raises(VerifyError):
        ckconv.verify(tmp_path / "back" / named, tmp_path / "m.gguf")


def test_quantized_layers_are_decoded(tmp_path: Path) -> None:
    """sentence-transformers has none that are quantized, and MLX's quantized triples are none that it could load."""
    root = embedding_gemma(tmp_path / "hf")
    matrix = values("wide", (36, 64))
    save_file(root / "3_Dense" / "model.safetensors", {"linear.weight": matrix}, {"format": "pt"})
    path = root / "3_Dense" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "in_features": 64}))
    ckconv.convert(root, tmp_path / "f32.gguf")
    ckconv.convert(tmp_path / "f32.gguf", tmp_path / "m.gguf", options=ckconv.Options(quantize="q8_0"))

    with pytest.raises(UnsupportedError, match="sentence-transformers has linear layers of floats"):
        ckconv.convert(
            tmp_path / "m.gguf", f"{tmp_path}/back/", to="safetensors", options=ckconv.Options(decode=("*blk*",))
        )
    options = ckconv.Options(dequantize=True)
    ckconv.convert(tmp_path / "m.gguf", f"{tmp_path}/back/", to="safetensors", options=options)
    assert ckconv.verify(tmp_path / "back", tmp_path / "m.gguf", options=options)
    made = of_layers(tmp_path / "back")["3_Dense"]
    assert 0 < np.abs(made - matrix).max() < 0.01


def test_an_output_that_runs_share_is_the_same_with_directories(tmp_path: Path) -> None:
    ckconv.convert(embedding_gemma(tmp_path / "hf"), tmp_path / "m.gguf")
    options = ckconv.Options(max_shard_bytes=100_000)
    for name, resume in (("plain", False), ("shared", True)):
        ckconv.convert(tmp_path / "m.gguf", f"{tmp_path}/{name}/", to="safetensors", options=options, resume=resume)

    found = [
        {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.*") if path.is_file()}
        for root in (tmp_path / "plain", tmp_path / "shared")
    ]
    assert found[0] == found[1]
    assert "2_Dense/model.safetensors" in found[0]
    weight_map = json.loads(found[0]["model.safetensors.index.json"])["weight_map"]
    assert not any("linear" in name or "/" in file for name, file in weight_map.items())  # which loaders read


@pytest.mark.parametrize("of", ["bert", "layers"])
def test_a_record_brings_directories_back(of: str, tmp_path: Path) -> None:
    root = (
        embedding_gemma(tmp_path / "hf")
        if of == "layers"
        else source(tmp_path / "hf", {"pooling_mode_cls_token": True})
    )
    ckconv.convert(root, tmp_path / "m.gguf", options=ckconv.Options(source_record="always"))
    done = ckconv.convert(tmp_path / "m.gguf", f"{tmp_path}/back/", to="safetensors")

    files = [
        {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*.*") if path.is_file()}
        for top in (root, tmp_path / "back")
    ]
    assert "1_Pooling/config.json" in files[0]
    assert files[0] == files[1]
    assert done.verified
    assert ckconv.verify(tmp_path / "back", tmp_path / "m.gguf")
    if of == "layers":
        save_file(
            tmp_path / "back" / "2_Dense" / "model.safetensors",
            {"linear.weight": values("another", DENSE["2_Dense"])},
            {"format": "pt"},
        )
        with pytest.raises(VerifyError, match="dense_2"):
            ckconv.verify(tmp_path / "back", tmp_path / "m.gguf")


@pytest.mark.parametrize(("activation", "bias"), [("Tanh", False), ("Identity", True)])
def test_a_layer_that_llama_cpp_does_not_compute_is_refused(activation: str, bias: bool, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"for . reasons") as refused:
        ckconv.convert(embedding_gemma(tmp_path / "hf", activation, bias), tmp_path / "m.gguf")
    assert ["names a Dense after pooling" in reason for reason in refused.value.details] == [True, True]


@pytest.mark.parametrize(
    ("order", "fits"),
    [
        ("Transformer Pooling 2_Dense 3_Dense Normalize", True),
        ("Transformer Pooling 2_Dense 3_Dense", True),
        ("Transformer Pooling 3_Dense Normalize", True),  # llama.cpp computes each without the other
        ("Transformer Pooling 3_Dense 2_Dense Normalize", False),
        ("Transformer Pooling Normalize 2_Dense 3_Dense", False),
        ("Transformer Pooling 2_Dense Normalize 3_Dense", False),
        ("Transformer Pooling 2_Dense 3_Dense 2_Dense Normalize", False),
        ("Transformer 2_Dense 3_Dense Pooling Normalize", False),
    ],
)
def test_linear_layers_are_computed_in_the_order_of_modules_json(order: str, fits: bool, tmp_path: Path) -> None:
    root = embedding_gemma(tmp_path / "hf")
    kinds = {"2_Dense": "Dense", "3_Dense": "Dense"}
    places = {"2_Dense": "2_Dense", "3_Dense": "3_Dense", "Pooling": "1_Pooling"}
    (root / "modules.json").write_text(
        json.dumps([{"type": f"x.{kinds.get(name, name)}", "path": places.get(name, "")} for name in order.split()])
    )

    if fits:
        ckconv.convert(root, tmp_path / "m.gguf")
        found = [tensor.name for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors if "dense_" in tensor.name]
        assert sorted(found) == [f"dense_{name[0]}.weight" for name in order.split() if name in kinds]
    else:
        with pytest.raises(UnsupportedError, match=r"for . reasons") as refused:
            ckconv.convert(root, tmp_path / "m.gguf")
        where = "the model" if order.endswith("Pooling Normalize") else "pooling"
        assert {f"names a Dense after {where}" in reason for reason in refused.value.details} == {True}


@pytest.mark.skipif(not LIBRARY, reason="LLAMA_CPP_LIBRARY names no folder of llama.cpp's libraries")
def test_llama_cpp_computes_them(tmp_path: Path) -> None:
    ckconv.convert(embedding_gemma(tmp_path / "hf"), tmp_path / "m.gguf")
    ckconv.convert(tmp_path / "m.gguf", tmp_path / "plain.gguf", options=ckconv.Options(drop=("dense_*",)))
    texts = ["hello file from again", "another one"]

    _, plain = by_llama_cpp(tmp_path / "plain.gguf", texts, 1)
    _, found = by_llama_cpp(tmp_path / "m.gguf", texts, 1)

    wanted = plain
    for folder, shape in DENSE.items():
        wanted = wanted @ values(folder, shape).T
    assert np.abs(found - wanted).max() < 1e-4


def colbert(root: Path, family: str, **said: Any) -> Path:
    """A model with a linear layer behind the embedding of each token, as PyLate writes it."""
    case = next(cases(family))
    with_modules(checkpoint(case.recorded, root, case.tokenizer), None, "Dense")
    width = json.loads((root / "config.json").read_text())["hidden_size"]
    (root / "1_Dense").mkdir()
    (root / "1_Dense" / "config.json").write_text(
        json.dumps(
            {"in_features": width, "out_features": 8, "bias": False, "activation_function": "torch.nn.Identity"} | said
        )
    )
    save_file(
        root / "1_Dense" / "model.safetensors", {"linear.weight": values("colbert", (8, width))}, {"format": "pt"}
    )
    return root


@pytest.mark.parametrize("family", ["lfm2", "lfm2_bidirectional"])
def test_the_linear_layer_of_a_colbert_is_in_the_gguf(family: str, tmp_path: Path) -> None:
    root, drop = colbert(tmp_path / "hf", family), ckconv.Options(drop=("dense_*",))
    ckconv.convert(root, tmp_path / "m.gguf")
    ckconv.convert(root, tmp_path / "plain.gguf", options=drop)
    ckconv.convert(tmp_path / "m.gguf", tmp_path / "less.gguf", options=drop)

    files = {name: gguf.GGUFReader(tmp_path / f"{name}.gguf") for name in ("m", "plain", "less")}
    found = {name: [it.data for it in file.tensors if it.name == "dense_2.weight"] for name, file in files.items()}
    widths = {name: file.fields.get("lfm2.embedding_length_out") for name, file in files.items()}
    assert [(each == values("colbert", (8, 24))).all() for each in found["m"]] == [True]
    assert widths["m"] is not None
    assert widths["m"].contents() == 8
    # llama.cpp would give rows of 8 numbers that nothing makes
    assert (found["plain"], found["less"], widths["plain"], widths["less"]) == ([], [], None, None)
    assert ckconv.verify(tmp_path / "less.gguf", tmp_path / "m.gguf", options=drop)


def test_mlx_lm_does_not_compute_the_layer_of_a_colbert(tmp_path: Path) -> None:
    done = ckconv.convert(colbert(tmp_path / "hf", "lfm2"), f"{tmp_path}/mlx/", to="mlx")

    assert "mlx-lm does not compute 1_Dense, which modules.json names" in done.plan.notes
    assert (tmp_path / "mlx" / "1_Dense" / "model.safetensors").is_file()


@pytest.mark.skipif(not LIBRARY, reason="LLAMA_CPP_LIBRARY names no folder of llama.cpp's libraries")
def test_llama_cpp_computes_the_layer_of_a_colbert(tmp_path: Path) -> None:
    """As it comes behind a pooling, where the width of what is there is asked for alone."""
    root = colbert(tmp_path / "hf", "lfm2")
    modules = json.loads((root / "modules.json").read_text())
    (root / "1_Pooling").mkdir()
    (root / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))
    modules.insert(1, {"type": "x.Pooling", "path": "1_Pooling"})
    (root / "modules.json").write_text(json.dumps(modules))
    ckconv.convert(root, tmp_path / "m.gguf")
    ckconv.convert(root, tmp_path / "plain.gguf", options=ckconv.Options(drop=("dense_*",)))

    (_, made), (_, plain) = (
        by_llama_cpp(tmp_path / name, ["hello file from again"], 1) for name in ("m.gguf", "plain.gguf")
    )

    assert np.abs(made - plain @ values("colbert", (8, 24)).T).max() < 1e-5


@pytest.mark.parametrize(("family", "said"), [("modernbert", {}), ("lfm2", {"use_residual": True})])
def test_a_colbert_that_llama_cpp_does_not_compute_is_refused(
    family: str, said: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match="names a Dense after the model") as refused:
        ckconv.convert(colbert(tmp_path / "hf", family, **said), tmp_path / "m.gguf")

    assert "does not compute" in str(refused.value)


def test_inspect_counts_the_layers_behind_a_model(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue("ckconv")
    root = embedding_gemma(tmp_path / "hf")
    ckconv.convert(root, tmp_path / "m.gguf")

    for source in (root, tmp_path / "m.gguf"):
        said = run("inspect", source, "--json").json["overview"]["heads"]
        assert said == ["2 linear layers behind the embedding: 36 to 52 to 36"]


@pytest.mark.parametrize("to", ["gguf", "safetensors"])
@pytest.mark.parametrize(("drop", "rest"), [("dense_2*", "dense_3.weight"), ("dense_3.weight", "dense_2.weight")])
def test_of_two_layers_behind_a_model_none_goes_alone(drop: str, rest: str, to: str, tmp_path: Path) -> None:
    root = embedding_gemma(tmp_path / "hf")
    ckconv.convert(root, tmp_path / "m.gguf")
    source = root if to == "gguf" else tmp_path / "m.gguf"
    with pytest.raises(UnsupportedError, match=f"of the layers behind the model, and not {rest}") as refused:
        ckconv.convert(source, tmp_path / "out", to=to, options=ckconv.Options(drop=(drop,)))

    assert refused.value.hint == f"--drop '{rest}' leaves out the rest"
    ckconv.convert(source, tmp_path / "out", to=to, options=ckconv.Options(drop=(drop, rest)))


def test_a_gguf_that_lost_its_linear_layers_does_not_verify(tmp_path: Path) -> None:
    root, options = embedding_gemma(tmp_path / "hf"), ckconv.Options(drop=("dense_*",))
    ckconv.convert(root, tmp_path / "m.gguf")
    ckconv.convert(root, tmp_path / "asked.gguf", options=options)
    ckconv.convert(tmp_path / "m.gguf", tmp_path / "plain.gguf", options=options)

    for made, of in (("asked.gguf", root), ("plain.gguf", root), ("plain.gguf", tmp_path / "m.gguf")):
        with pytest.raises(VerifyError) as failed:
            ckconv.verify(tmp_path / made, of, weights=True)
        assert failed.value.message.endswith("of the source is not in the output")
        assert "dense" in failed.value.message.lower()
    assert ckconv.verify(tmp_path / "asked.gguf", root, options=options).tensors == 93
    assert ckconv.verify(tmp_path / "plain.gguf", tmp_path / "m.gguf", options=options).tensors == 93
