"""Classifiers and rerankers: what says how many outputs there are, and what is said where two sayings differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import gguf
import pytest
from adapter_builder import pair, peft
from checkpoints import Decoder, save, save_file
from family_cases import cases, checkpoint, tensors
from gguf_copies import gguf_copy

import ckconv
from ckconv.errors import InputError, UnsupportedError
from ckconv.formats.detect import open_index


def source(root: Path, name: str = "three_labels", family: str = "bert_classifier", **keys: Any) -> Path:
    """The checkpoint of a case, with other keys in its document; ``None`` takes one out."""
    case = next(case for case in cases(family) if case.name == name)
    made = checkpoint(case.recorded, root, case.tokenizer)
    said = {**config_of(made), **keys}
    (made / "config.json").write_text(json.dumps({key: value for key, value in said.items() if value is not None}))
    return made


def config_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def test_labels_go_to_a_gguf_and_come_back(tmp_path: Path) -> None:
    ckconv.convert(source(tmp_path / "hf"), tmp_path / "m.gguf", options=ckconv.Options(dtype="f32"))
    ckconv.convert(tmp_path / "m.gguf", f"{tmp_path / 'back'}/", to="safetensors")

    said = config_of(tmp_path / "back")
    assert said["architectures"] == ["BertForSequenceClassification"]
    assert said["id2label"] == {"0": "negative", "1": "neutral", "2": "positive"}
    assert said["label2id"] == {"negative": 0, "neutral": 1, "positive": 2}
    fields = gguf.GGUFReader(tmp_path / "m.gguf").fields
    assert fields["bert.pooling_type"].contents() == gguf.PoolingType.RANK
    assert ckconv.verify(tmp_path / "back", tmp_path / "m.gguf")


@pytest.mark.parametrize("name", ["one_label", "three_labels"])
def test_a_gguf_that_names_no_labels_has_as_many_as_outputs(name: str, tmp_path: Path) -> None:
    """Rerankers that were converted before llama.cpp's converter wrote them."""
    root = source(tmp_path / "hf", name, "xlm_roberta_classifier")
    ckconv.convert(root, tmp_path / "new.gguf", options=ckconv.Options(dtype="f32"))
    keys = ("bert.classifier.output_labels", "bert.pooling_type")
    ckconv.convert(
        gguf_copy(tmp_path / "new.gguf", tmp_path / "m.gguf", without=keys), f"{tmp_path / 'hf2'}/", to="safetensors"
    )

    count = {"one_label": 1, "three_labels": 3}[name]
    assert config_of(tmp_path / "hf2")["id2label"] == {str(n): f"LABEL_{n}" for n in range(count)}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"id2label": {"0": "a", "1": "b"}}, r"'classifier.bias' has shape \[3\], .* \[2\] .*id2label"),
        ({"id2label": None, "num_labels": 4}, r"'classifier.bias' has shape \[3\], .* \[4\] .*id2label, num_labels"),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label = .*a label for every number from 0 on is expected"),
        ({"id2label": ["a", "b", "c"]}, "id2label = .*a label for every number from 0 on is expected"),
        ({"id2label": {}}, "id2label = .*a label for every number from 0 on is expected"),
    ],
)
def test_other_labels_than_outputs_are_an_error_of_the_source(keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    root = source(tmp_path / "hf", **keys)

    with pytest.raises(InputError, match=said) as refused:
        ckconv.convert(root, tmp_path / "m.gguf")
    assert (refused.value.code, refused.value.exit_code) == ("model.config", 3)


SCORING = dict.fromkeys(("bert", "jina_bert", "roberta", "xlm_roberta", "qwen3"), "three_labels")
SCORING["modernbert"] = "of_the_mean"


@pytest.mark.parametrize("family", SCORING)
def test_a_classifier_without_labels_or_a_layer_is_refused(family: str, tmp_path: Path) -> None:
    root = source(tmp_path / "hf", SCORING[family], f"{family}_classifier", id2label=None)
    with pytest.raises(InputError, match=r"has shape \[3.*\], the configuration makes it \[2.*id2label") as caught:
        ckconv.convert(root, tmp_path / "m.gguf")
    assert caught.value.exit_code == 3
    case = next(case for case in cases(f"{family}_classifier") if case.name == SCORING[family])
    for name in (name for name in case.recorded["tensors"] if name.startswith(("classifier.", "head.", "score."))):
        less = {key: kind for key, kind in case.recorded["tensors"].items() if key != name}
        made = checkpoint({**case.recorded, "tensors": less}, tmp_path / name, case.tokenizer)
        with pytest.raises(UnsupportedError) as refused:
            ckconv.convert(made, tmp_path / "m.gguf")
        said = " ".join((refused.value.message, *refused.value.details))
        assert (refused.value.exit_code, "no tensor for classifier." in said) == (4, True), said


def test_a_classifier_without_its_layer_makes_no_checkpoint(tmp_path: Path) -> None:
    """llama.cpp's converter drops the pooler of BERT, and transformers would make one up."""
    ckconv.convert(source(tmp_path / "hf", "one_label"), tmp_path / "m.gguf")
    theirs = gguf_copy(tmp_path / "m.gguf", tmp_path / "theirs.gguf", without=("cls.weight", "cls.bias"))

    with pytest.raises(UnsupportedError) as refused:
        ckconv.convert(theirs, f"{tmp_path / 'back'}/", to="safetensors")
    assert any("classifier.dense.weight" in said for said in (refused.value.message, *refused.value.details))


def test_a_pair_of_texts_is_one_text_to_llama_cpp_and_a_note_says_so(tmp_path: Path) -> None:
    ways = {"one_label": False, "three_labels": True}
    for name, noted in ways.items():
        report = ckconv.convert(source(tmp_path / name, name), tmp_path / f"{name}.gguf")
        assert any("token_type_ids of 0" in note for note in report.plan.notes) is noted


def test_inspect_names_the_labels(tmp_path: Path, ckconv) -> None:
    found = ckconv("inspect", "--json", source(tmp_path / "hf")).json

    assert found["overview"]["heads"] == ["a classifier of 3 labels: negative, neutral, positive"]


def reranker(root: Path, case: str = "untied", card: str = "# Qwen3-Reranker-0.6B\n", **keys: Any) -> Path:
    """A plain Qwen 3 to its configuration."""
    made = source(root, case, "qwen3_reranker", _name_or_path=None, **keys)
    (made / "README.md").write_text(card)
    return made


@pytest.mark.parametrize("case", ["tied", "untied"])
def test_a_card_says_that_a_qwen3_is_a_reranker(case: str, tmp_path: Path) -> None:
    report = ckconv.convert(reranker(tmp_path / "hf", case), tmp_path / "m.gguf")
    ckconv.convert(reranker(tmp_path / "plain", case, "# Qwen3-0.6B\n"), tmp_path / "plain.gguf")

    found, plain = (gguf.GGUFReader(tmp_path / name) for name in ("m.gguf", "plain.gguf"))
    said = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in found.tensors}
    words = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in plain.tensors}
    head = words["token_embd.weight" if case == "tied" else "output.weight"]
    tokens = found.fields["tokenizer.ggml.tokens"].contents()
    assert (said["cls.output.weight"] == head[[tokens.index("yes"), tokens.index("no")]]).all()
    assert found.fields["qwen3.pooling_type"].contents() == gguf.PoolingType.RANK
    assert found.fields["qwen3.classifier.output_labels"].contents() == ["yes", "no"]
    assert "<Query>: {query}\n<Document>: {document}" in found.fields["tokenizer.chat_template.rerank"].contents()
    assert ([item.name for item in report.plan.left_out] == ["output.weight"]) == (case == "untied")
    assert "cls.output.weight" not in words
    assert "qwen3.pooling_type" not in plain.fields
    assert ckconv.verify(tmp_path / "m.gguf", tmp_path / "hf")


def test_a_flag_says_that_it_is_none(tmp_path: Path) -> None:
    options = ckconv.Options(families=(Path("qwen3"),))
    ckconv.convert(reranker(tmp_path / "hf"), tmp_path / "m.gguf", options=options)

    names = {tensor.name for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    assert ("output.weight" in names, "cls.output.weight" in names) == (True, False)


def test_a_rerankers_gguf_is_a_classifier_of_two_labels(tmp_path: Path) -> None:
    ckconv.convert(reranker(tmp_path / "hf"), tmp_path / "m.gguf")
    ckconv.convert(tmp_path / "m.gguf", f"{tmp_path / 'back'}/", to="safetensors")

    said = config_of(tmp_path / "back")
    assert (said["architectures"], said["id2label"]) == (
        ["Qwen3ForSequenceClassification"],
        {"0": "yes", "1": "no"},
    )


def test_a_vocabulary_without_yes_and_no_makes_no_reranker(tmp_path: Path) -> None:
    root = reranker(tmp_path / "hf")
    document = json.loads((root / "tokenizer.json").read_text())
    del document["model"]["vocab"]["no"]
    (root / "tokenizer.json").write_text(json.dumps(document))

    with pytest.raises(UnsupportedError, match=r"no tensor for classifier\.output\.weight"):
        ckconv.convert(root, tmp_path / "m.gguf")


def wide_reranker(root: Path) -> Path:
    """One whose head and embedding MLX can quantize: rows of 32."""
    made = reranker(root, hidden_size=32)
    case = next(case for case in cases("qwen3_reranker") if case.name == "untied")
    wide = {
        name: [kind[0], [32 if size == 24 else size for size in kind[1]], *kind[2:]]
        for name, kind in case.recorded["tensors"].items()
    }
    save_file(made / "model.safetensors", tensors({**case.recorded, "tensors": wide}), {"format": "pt"})
    return made


def test_a_rerankers_quantized_head_is_decoded_for_a_checkpoint_and_has_a_way_to_a_gguf(tmp_path: Path) -> None:
    root, mlx, back = wide_reranker(tmp_path / "hf"), tmp_path / "mlx", tmp_path / "back"
    ckconv.convert(root, f"{mlx}/", to="mlx", options=ckconv.Options(quantize="affine:8:32"))

    decoded = ckconv.Options(dequantize=True)
    with pytest.raises(UnsupportedError, match=r"yes and no") as refused:
        ckconv.convert(mlx, tmp_path / "m.gguf", options=decoded)
    ckconv.convert(mlx, f"{back}/", to="safetensors", options=decoded)
    ckconv.convert(back, tmp_path / "m.gguf")

    assert "safetensors" in (refused.value.hint or "")
    assert "cls.output.weight" in {tensor.name for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors}


@pytest.mark.parametrize("case", ["tied", "untied"])
def test_an_adapter_of_a_rerankers_head_is_merged_before_its_rows_are_taken(case: str, tmp_path: Path) -> None:
    root, lora = reranker(tmp_path / "hf", case), tmp_path / "lora"
    peft(lora, pair("lm_head", rows=384, cols=24, rank=2), r=2, target_modules=["lm_head"])

    with pytest.raises(UnsupportedError, match=r"yes and no") as refused:
        ckconv.convert(root, tmp_path / "m.gguf", adapters=[(lora, 1.0)])
    assert "safetensors" in (refused.value.hint or "")
    ckconv.convert(root, f"{tmp_path / 'merged'}/", to="safetensors", adapters=[(lora, 1.0)])
    ckconv.convert(tmp_path / "merged", tmp_path / "m.gguf")
    ckconv.convert(root, tmp_path / "base.gguf")

    found, base = (gguf.GGUFReader(tmp_path / name) for name in ("m.gguf", "base.gguf"))
    ranking, base_ranking = (
        next(tensor.data for tensor in file.tensors if tensor.name == "cls.output.weight") for file in (found, base)
    )
    assert (ranking != base_ranking).any()


def test_one_score_is_refused_of_which_llama_cpp_makes_1(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="softmax over the labels"):
        ckconv.convert(source(tmp_path / "hf", "one_label", "qwen3_classifier"), tmp_path / "m.gguf")


@pytest.mark.parametrize("model_class", ["LlamaForSequenceClassification", "LlamaForTokenClassification"])
def test_a_class_that_scores_without_its_scores_is_the_model_and_a_note_says_so(
    model_class: str, tmp_path: Path
) -> None:
    root = source(tmp_path / "hf", "untied", "llama", architectures=[model_class])

    report = ckconv.convert(root, tmp_path / "m.gguf")

    said = f"{model_class} scores, and no tensor of its scores is there: this is the model without them"
    assert said in report.plan.notes


@pytest.mark.parametrize("key", ["add_cross_attention", "is_decoder"])
def test_an_encoder_that_attends_to_another_model_or_one_way_is_refused_by_its_key(key: str, tmp_path: Path) -> None:
    root = source(tmp_path / "hf", "plain", "bert", **{key: True})

    with pytest.raises(UnsupportedError, match=key) as refused:
        ckconv.convert(root, tmp_path / "m.gguf")
    assert refused.value.exit_code == 4


@pytest.mark.parametrize("to", ["gguf", "mlx", "bump"])
def test_no_head_is_made_of_the_embedding_of_a_model_that_scores(
    to: Literal["gguf", "mlx", "bump"], tmp_path: Path
) -> None:
    """A reward model: with a tied head it would load, and say nothing."""
    said = {**Decoder().config(), "architectures": ["LlamaForSequenceClassification"]}
    stored = {name: array for name, array in Decoder().tensors().items() if name != "lm_head.weight"}

    with pytest.raises(
        UnsupportedError, match="there is no output head: LlamaForSequenceClassification scores"
    ) as info:
        ckconv.convert(save(tmp_path / "hf", said, stored), tmp_path / "out", to=to)
    assert "--to safetensors copies it as it is" in f"{info.value.hint}{info.value.details}"
    ckconv.convert(tmp_path / "hf", f"{tmp_path}/copy/", to="safetensors")
    assert {one.name for one in open_index(tmp_path / "copy").stored} == {*stored}


def test_a_matrix_without_the_output_behind_it_is_refused_by_names_that_a_file_has(tmp_path: Path) -> None:
    ckconv.convert(source(tmp_path / "hf", "three_labels"), tmp_path / "m.gguf", options=ckconv.Options(dtype="f32"))
    file = gguf_copy(tmp_path / "m.gguf", tmp_path / "other.gguf", without=("cls.output.weight", "cls.output.bias"))

    with pytest.raises(
        UnsupportedError, match=r"no rule for cls\.weight of a \w+ \((?!.*=)(?!.*/).*cls\.output\.weight"
    ):
        ckconv.convert(file, tmp_path / "back", to="safetensors")
