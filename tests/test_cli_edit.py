"""``ckconv edit``: other metadata, the same tensors, and no byte of the old file touched."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import reduce
from pathlib import Path

import family_cases
import gguf
import pytest
import tower_cases
from conftest import FIXTURES
from gguf_copies import bytes_of
from safetensors import safe_open

from ckconv.families.towers import tower_of_document
from ckconv.formats.detect import open_index

LLAMA = FIXTURES / "gguf" / "llama-tied-bf16.auto.gguf"
QWEN2 = FIXTURES / "hf" / "qwen2-tied-bf16"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copy(LLAMA, tmp_path / "model.gguf"))


def value(path: Path, key: str) -> object:
    field = gguf.GGUFReader(path).fields.get(key)
    return field and field.contents()


def test_a_new_file_has_the_other_header(model: Path, ckconv) -> None:
    before = model.read_bytes()
    found = ckconv(
        "edit", model, model.with_name("new.gguf"), "--set-meta", "general.license=mit", "--drop-meta", "general.name"
    )

    assert found.code == 0, found.err
    new = model.with_name("new.gguf")
    assert (value(new, "general.license"), value(new, "general.name")) == ("mit", None)
    assert bytes_of(new) == bytes_of(model)
    assert model.read_bytes() == before


@pytest.mark.parametrize(
    ("source", "pairs", "changed"),
    [
        (LLAMA, ["general.architecture=llama"], []),
        (LLAMA, ["general.architecture=llama", "general.license=mit"], ["general.license"]),
        (QWEN2, ["use_cache=true"], []),
        (QWEN2, ["use_cache=true", "attention_dropout=0.1"], ["config.json: attention_dropout"]),
    ],
)
def test_a_value_that_is_there_already_is_no_change(
    source: Path, pairs: list[str], changed: list[str], tmp_path: Path, ckconv
) -> None:
    target = f"{tmp_path}/new/" if source == QWEN2 else tmp_path / "new.gguf"
    found = ckconv("edit", source, target, "--json", *(word for pair in pairs for word in ("--set-meta", pair)))

    assert found.code == 0, found.err
    assert [one["key"] for one in json.loads(found.out)["changes"]] == changed


@pytest.mark.parametrize(("key", "noted"), [("lzama.block_count=77", True), ("general.name=77", False)])
def test_keys_of_what_nobody_knows_are_noted(key: str, noted: bool, model: Path, tmp_path: Path, ckconv) -> None:
    model.write_bytes(
        model.read_bytes().replace(b"\5\0\0\0\0\0\0\0llama", b"\5\0\0\0\0\0\0\0lzama").replace(b"llama.", b"lzama.")
    )

    found = ckconv("edit", model, tmp_path / "new.gguf", "--set-meta", key)

    assert (found.code, "lzama.block_count to say was not checked" in found.out + found.err) == (0, noted)


def test_in_place_a_new_file_takes_the_name(model: Path, ckconv) -> None:
    held, old = bytes_of(model), model.stat().st_ino
    before = model.read_bytes()
    with model.open("rb") as reader:
        assert ckconv("edit", model, "--in-place", "--set-meta", "general.license=mit").code == 0
        assert reader.read() == before, "whoever reads the old file goes on reading it"

    assert model.stat().st_ino != old
    assert value(model, "general.license") == "mit"
    assert bytes_of(model) == held
    assert [path.name for path in model.parent.iterdir()] == [model.name]


def test_in_place_a_name_that_says_another_format_stays(model: Path, ckconv) -> None:
    misnamed = model.rename(model.with_name("model.bump"))
    assert ckconv("edit", misnamed, "--in-place", "--set-meta", "general.license=mit").code == 0
    assert value(misnamed, "general.license") == "mit"


def test_the_digest_beside_it_is_written_anew(model: Path, ckconv) -> None:
    listed = model.with_name("model.gguf.sha256")
    subprocess.run(f"sha256sum {model.name} > {listed.name}", shell=True, check=True, cwd=model.parent)
    before = listed.read_text()

    assert ckconv("edit", model, "--in-place", "--set-meta", "general.license=mit").code == 0

    assert listed.read_text() != before
    assert subprocess.run(["sha256sum", "-c", listed.name], cwd=model.parent, check=False).returncode == 0


@pytest.mark.parametrize("name", ["SHA256SUMS", "ckconv.json", "model.gguf.ckconv.json"])
def test_what_speaks_of_its_bytes_is_not_made_a_lie(name: str, model: Path, ckconv) -> None:
    model.with_name(name).write_text(f"{'0' * 64}  {model.name}\n")
    before = model.read_bytes()

    found = ckconv("edit", model, "--in-place", "--set-meta", "general.license=mit")

    assert (found.code, found.out) == (2, "")
    may = "may describe" if name == "ckconv.json" else "describes"  # it is malformed
    assert f"error[usage.in-place]: {model}: {name} beside it {may} its present bytes" in found.err
    assert model.read_bytes() == before


def test_the_value_may_be_a_file(model: Path, ckconv) -> None:
    template = model.with_name("t.jinja")
    template.write_text("{% for m in messages %}\n{{ m }}\n{% endfor %}")
    assert ckconv("edit", model, "--in-place", "--set-meta", f"tokenizer.chat_template=@{template}").code == 0
    assert value(model, "tokenizer.chat_template") == template.read_text()

    template.write_bytes(b"\xff")
    found = ckconv("edit", model, "--in-place", "--set-meta", f"tokenizer.chat_template=@{template}")
    assert found.code == 3
    assert "error[input.text]" in found.err
    missing = ckconv("edit", model, "--in-place", "--set-meta", "a=@/no/such/file")
    assert (missing.code, "error[input.missing]" in missing.err) == (3, True)


def test_a_checkpoint_keeps_what_lies_beside_it(tmp_path: Path, ckconv) -> None:
    source = shutil.copytree(QWEN2, tmp_path / "source")
    (source / "NOTICE.txt").write_text("of whom it is")
    assert ckconv("edit", source, f"{tmp_path}/new/", "--set-meta", "__metadata__.note=hi").code == 0

    with safe_open(tmp_path / "new" / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt", "note": "hi"}
    assert (tmp_path / "new" / "NOTICE.txt").read_text() == "of whom it is"
    assert (tmp_path / "new" / "config.json").read_bytes() == (QWEN2 / "config.json").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["--in-place"], 2, "nothing would change"),
        (["--set-meta", "a=b"], 2, "give either DST or --in-place"),
        (["new.gguf", "--in-place", "--set-meta", "a=b"], 2, "give either DST or --in-place"),
        (["--in-place", "--set-meta", "general.alignment=64"], 2, "the tensors decide it"),
        (["--in-place", "--drop-meta", "nope*"], 2, "matches no key"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], code: int, error: str, model: Path, ckconv) -> None:
    before = model.read_bytes()
    found = ckconv("edit", model, *arguments)
    assert (found.code, error in found.err) == (code, True)
    assert model.read_bytes() == before


def test_a_list_that_names_others_of_the_directory_is_in_nobodys_way(model: Path, ckconv) -> None:
    zeros, edit = "0" * 64, ("edit", model, "--in-place", "--set-meta", "general.license=mit")
    sums = model.with_name("SHA256SUMS")
    sums.write_text(f"{zeros}  b{model.name}\n{zeros}  sub/{model.name}\n")
    assert ckconv(*edit).code == 0
    for line in (f"{zeros}  ./{model.name}", f"{zeros} *{model.name}", f"SHA256 ({model.name}) = {zeros}"):
        sums.write_text(f"{zeros}  other\n{line}\n")
        found = ckconv(*edit)
        assert (found.code, "SHA256SUMS beside it describes its present bytes" in found.err) == (2, True)
    with sums.open("wb") as file:
        file.truncate(1 << 40)
    assert "may describe its present bytes: has 1,099,511,627,776 bytes" in ckconv(*edit).err


def test_only_one_file_is_edited_in_place(model: Path, ckconv) -> None:
    link = model.with_name("link.gguf")
    link.symlink_to(model)
    for path in (QWEN2, FIXTURES / "gguf-split" / "llama-untied-f32-00001-of-00003.gguf", link):
        found = ckconv("edit", path, "--in-place", "--set-meta", "a=b")
        assert (found.code, "error[usage.in-place]" in found.err) == (2, True)


def test_the_file_on_standard_input_is_not_the_one_to_edit_in_place(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    shutil.copyfile(model, other)
    command = [sys.executable, "-m", "ckconv", "edit", str(model), str(other), "--set-meta", "general.name=x"]
    with other.open("rb") as stdin:
        done = subprocess.run(command, stdin=stdin, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (6, "hint: name another place")


# Documents of a checkpoint


def edited(tmp_path: Path, ckconv, *flags: str, source: Path = QWEN2) -> tuple[dict[str, dict], str]:
    """Every JSON document of a copy in which something was changed, and what was said."""
    out = tmp_path / "out"
    found = ckconv("edit", source, f"{out}/", *flags)
    assert found.code == 0, found.err
    names = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
    return {name: json.loads((out / name).read_text()) for name in names if (out / name).exists()}, found.out


@pytest.mark.parametrize(
    ("flag", "file", "key", "value", "line"),
    [
        ("rms_norm_eps=1e-5", "config.json", "rms_norm_eps", 1e-5, "config.json: rms_norm_eps: 1e-06 -> 1e-05"),
        ("rope_theta=500000", "config.json", "rope_theta", 5e5, "config.json: rope_theta: 10000.0 -> 500000.0"),
        ("use_cache=false", "config.json", "use_cache", False, "config.json: use_cache: true -> false"),
        ("eos_token_id=[1,2]", "generation_config.json", "eos_token_id", [1, 2],
         "generation_config.json: eos_token_id: 2 -> [1, 2]"),
        ("temperature=1", "generation_config.json", "temperature", 1.0,
         "generation_config.json: temperature: (none) -> 1.0"),
        ("do_sample=true", "generation_config.json", "do_sample", True, "do_sample: (none) -> true"),
        ("add_bos_token=true", "tokenizer_config.json", "add_bos_token", True,
         "tokenizer_config.json: add_bos_token: "),
        ("generation_config.json:pad_token_id=null", "generation_config.json", "pad_token_id", None,
         "generation_config.json: pad_token_id: 0 -> (none)"),
        ("chat_template=17", "tokenizer_config.json", "chat_template", "17", 'chat_template: (none) -> "17"'),
    ],
)  # fmt: skip
def test_a_key_of_a_document_gets_a_value_of_its_type(
    flag: str, file: str, key: str, value: object, line: str, tmp_path: Path, ckconv
) -> None:
    documents, said = edited(tmp_path, ckconv, "--set-meta", flag)
    found = documents[file][key]
    assert (found, type(found)) == (value, type(value))
    assert line in said
    meant = json.loads((QWEN2 / "config.json").read_text()).keys()
    assert documents["config.json"].keys() == meant, "nothing else is another"


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("tokenizer_config.json:eos_token=<|nope|>", "no token is '<|nope|>'"),
        ("../x:y=1", "'../x' is no document with keys"),
    ],
)
def test_a_document_takes_no_token_that_is_none_and_no_other_file(pair: str, said: str, tmp_path: Path, ckconv) -> None:
    done = ckconv("edit", QWEN2, tmp_path / "out", "--set-meta", pair)
    assert (done.code, said in done.err) == (2, True), done.err


def test_a_token_is_set_by_its_text_wherever_it_stands(tmp_path: Path, ckconv) -> None:
    documents, said = edited(tmp_path, ckconv, "--set-meta", "eos_token=<s>")
    assert documents["config.json"]["eos_token_id"] == documents["generation_config.json"]["eos_token_id"] == 1
    named = [documents[name]["eos_token"] for name in ("tokenizer_config.json", "special_tokens_map.json")]
    assert [token["content"] if isinstance(token, dict) else token for token in named] == ["<s>", "<s>"]
    assert said.count(" -> ") == 4
    again = ckconv("verify", tmp_path / "out", QWEN2, "--set-meta", "eos_token=<s>")
    assert (again.code, ckconv("verify", tmp_path / "out", QWEN2).code) == (0, 5)


def test_a_template_of_its_own_file_is_changed_there(tmp_path: Path, ckconv) -> None:
    source = shutil.copytree(QWEN2, tmp_path / "source")
    (source / "chat_template.jinja").write_text("{{ messages }}")
    new = tmp_path / "new.jinja"
    new.write_text("{{ bos_token }}")
    documents, said = edited(tmp_path, ckconv, "--set-meta", f"chat_template=@{new}", source=source)
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "{{ bos_token }}"
    assert "chat_template" not in documents["tokenizer_config.json"]
    assert 'chat_template.jinja: "{{ messages }}" -> "{{ bos_token }}"' in said


def test_keys_are_dropped_wherever_they_stand(tmp_path: Path, ckconv) -> None:
    documents, said = edited(tmp_path, ckconv, "--drop-meta", "pad_token*", "--drop-meta", "rope_theta")
    assert not any(key in document for document in documents.values() for key in ("pad_token_id", "pad_token"))
    assert "rope_theta" not in documents["config.json"]
    assert "config.json: rope_theta: 10000.0 -> (none)" in said


@pytest.mark.product("values")
@pytest.mark.parametrize("to", ["gguf", "safetensors", "mlx"])
@pytest.mark.parametrize(
    "flags",
    [("--set-meta", "pad_token=a"), ("--set-meta", "unk_token=a"), ("--set-meta", "eos_token=a")],
    ids=" ".join,
)
def test_a_role_that_is_asked_for_is_no_fault_of_another_format(
    flags: tuple[str, str], to: str, tmp_path: Path, ckconv
) -> None:
    source, out = (QWEN2, tmp_path / "m.gguf") if to == "gguf" else (LLAMA, tmp_path / "out")
    assert ckconv("convert", source, out, "--to", to, *flags).code == 0
    assert ckconv("verify", out, source, *flags).code == 0
    assert ckconv("verify", out, source).code == 5


def test_a_glob_without_a_file_is_of_keys_alone(tmp_path: Path, ckconv) -> None:
    documents, _ = edited(tmp_path, ckconv, "--drop-meta", "*token*")
    assert "eos_token" not in documents["tokenizer_config.json"]
    assert "model_max_length" in documents["tokenizer_config.json"]


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--set-meta", "rms_norm_eps=abc"], 2, "config.json: rms_norm_eps: 'abc' is not of its type"),
        (["--set-meta", "rms_norm_eps=-1"], 2, "config.json would say something malformed"),
        (["--set-meta", "num_attention_heads=7"], 2, "cannot set num_attention_heads: the tensors decide it"),
        (["--set-meta", "quantization_config={}"], 2, "the tensors decide it"),
        (["--set-meta", "eos_token=<nope>"], 2, "no token is '<nope>'"),
        (["--set-meta", "eos_token_id=384"], 4, "eos_token_id=384: there are 384 tokens"),
        (["--drop-meta", "nope*"], 2, "--drop-meta nope* matches no key"),
        (["--drop-meta", "hidden*"], 2, "without which nothing loads the model"),
        (["--set-meta", "rms_norm_ep=1"], 0, "reads rms_norm_ep of config.json; did you mean rms_norm_eps?"),
        (["--set-meta", "hidden_act=gelu"], 0, "hidden_act = 'gelu' changes what is computed"),
    ],
)
def test_what_no_reader_of_a_checkpoint_would_take(
    flags: list[str], code: int, said: str, tmp_path: Path, ckconv
) -> None:
    found = ckconv("edit", QWEN2, f"{tmp_path}/out/", *flags)
    assert (found.code, said in found.out + found.err) == (code, True), found.err
    assert (tmp_path / "out").exists() == (code == 0)


PLACES = "says which layers have which tensors, and a copy has the source's"
HEADS = "says which head there is, and a copy has the source's"


@pytest.mark.parametrize(
    ("family", "case", "to", "pair", "said"),
    [
        ("llama", "biases", "hf", "attention_bias=false", PLACES),  # transformers and mlx-lm compute without them
        ("llama", "untied", "hf", "mlp_bias=true", PLACES),
        ("llama", "untied", "mlx", "attention_bias=true", PLACES),  # mlx-lm does not load it
        ("falcon_h1", "", "hf", "mamba_conv_bias=false", PLACES),
        ("gemma2", "", "hf", "tie_word_embeddings=false", HEADS),  # transformers makes one up
        ("qwen2", "", "mlx", "tie_word_embeddings=true", HEADS),  # mlx-lm computes with the embedding
        ("qwen2", "", "hf", "tie_word_embeddings=true", ""),  # transformers keeps the head that the files have
        ("llama", "untied", "hf", "attention_bias=false", ""),
        ("deepseek_v3", "groups", "hf", "n_group=3", "of 3 groups of 8 experts 2 would be chosen"),
        ("deepseek_v3", "groups", "hf", "topk_group=4", ""),
        ("deepseek_v3", "plain", "hf", "topk_group=5", "of 1 groups of 8 experts 5 would be chosen"),
        ("deepseek_v3", "groups", "hf", "n_group=0", "n_group = 0: whole numbers from 1"),
        ("deepseek_v3", "groups", "hf", "topk_group=null", "topk_group would be null"),
        ("deepseek_v3", "groups", "mlx", "topk_group=5", "of 4 groups of 8 experts 5 would be chosen"),
        ("deepseek_v3", "plain", "mlx", "topk_group=5", ""),  # of one group mlx-lm does not look at it
    ],
)
def test_switches_of_biases_and_of_the_head_say_what_the_copy_has(
    family: str, case: str, to: str, pair: str, said: str, tmp_path: Path, ckconv
) -> None:
    found = next(one for one in family_cases.cases(family) if case in ("", one.name))
    source = family_cases.checkpoint(found.recorded, tmp_path / "hf", found.tokenizer)
    if to == "mlx":
        assert ckconv("convert", source, f"{tmp_path}/mlx/", "--to", "mlx").code == 0
    edited = ckconv("edit", tmp_path / to, f"{tmp_path}/out/", "--set-meta", pair)
    assert (edited.code, said in edited.err) == (2 if said else 0, True), edited.err


def test_an_edit_that_says_what_the_tensors_are_is_right(tmp_path: Path, ckconv) -> None:
    found = next(one for one in family_cases.cases("llama") if one.name == "biases")
    source = family_cases.checkpoint(found.recorded, tmp_path / "hf", found.tokenizer)
    document = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**document, "attention_bias": False}))
    edited = ckconv("edit", source, f"{tmp_path}/out/", "--set-meta", "attention_bias=true")
    assert edited.code == 0, edited.err


NEITHER = "says what neither other keys nor the tensors say: ckconv converts no such"


def checkpoint_of_case(case: str, place: Path) -> Path:
    found = next(one for one in family_cases.cases(case.rpartition("-")[0]) if str(one) == case)
    return family_cases.checkpoint(found.recorded, place, found.tokenizer)


def gguf_of_case(case: str, place: Path, ckconv) -> str:
    """Make ``m.gguf`` of a family's case, and return its architecture."""
    source = checkpoint_of_case(case, place / "hf")
    assert ckconv("convert", source, place / "m.gguf").code == 0
    return value(place / "m.gguf", "general.architecture")


@pytest.mark.parametrize(
    ("case", "pair", "code", "said"),
    [
        ("afmoe-untied", "expert_feed_forward_length=21", 2, "has shape [24, 20], the configuration makes it [24, 21]"),
        ("afmoe-untied", "leading_dense_block_count=2", 2, "leading_dense_block_count says which layers have which"),
        (
            "afmoe-untied",
            "attention.value_length=9",
            0,
            "value_length = 9: ckconv converts no such afmoe, and llama.cpp",
        ),
        ("afmoe-untied", "rope.dimension_count=9", 0, "ckconv reads no afmoe out of the copy: afmoe.rope.dimension_c"),
        ("afmoe-untied", "rope.freq_base=5000", 0, "afmoe.rope.freq_base: 10000.0 -> 5000.0\n  verified"),
        # llama.cpp stops at these, or does not load them
        ("dots1-groups", "expert_group_count=4", 4, "llama.cpp stops at 4 groups of "),
        ("bailing_hybrid-released", "expert_group_used_count=4", 4, "llama.cpp stops at 4 groups of 8 experts"),
        ("bailing_hybrid-released", "attention.head_count_kv=[0,2,0,2]", 0, f"head_count_kv {NEITHER} bailing_hybrid"),
        ("hy_v3-untied", "expert_shared_feed_forward_length=21", 0, f"expert_shared_feed_forward_length {NEITHER}"),
        ("qwen3_next-tied", "ssm.inner_size=33", 0, f"qwen3next.ssm.inner_size {NEITHER} qwen3_next"),
        ("t5-relu", "block_count=3", 2, "t5.block_count says which layers have which tensors"),
        ("glm_moe_dsa-drafts", "nextn_predict_layers=0", 4, "a glm_moe_dsa does not follow from its configuration"),
        ("grovemoe-untied", "expert_used_count=4", 0, "llama.cpp stops at 4 experts of 6, of whose adjugate experts"),
        ("modernbert-plain", "attention.sliding_window_pattern=1", 0, "llama.cpp stops at a modern-bert of which no"),
        ("minimax_m3-plain", "attention.indexer.block_size=0", 0, "llama.cpp stops at 8 blocks of 0 positions"),
        ("glm_moe_dsa-drafts", "attention.indexer.top_k=0", 0, "ckconv reads no glm_moe_dsa out of the copy: glm-dsa."),
        ("granite-untied", "logit_scale=0", 0, "granite.logit_scale = 0.0: no logit_scale follows from it"),
        ("gemma2-base_and_kinds", "attention.sliding_window_pattern=[false,false,false]", 0, f"{NEITHER} gemma2"),
        ("phi3-plain", "rope.dimension_count=0", 0, "ckconv reads no phi3 out of the copy: phi3.rope."),
        ("granite-untied", "embedding_scale=0", 0, "granite.embedding_scale: 12.0 -> 0.0\n  verified"),  # for none
    ],
)
def test_keys_of_a_gguf_say_what_its_tensors_are(
    case: str, pair: str, code: int, said: str, tmp_path: Path, ckconv
) -> None:
    architecture = gguf_of_case(case, tmp_path, ckconv)
    edit = "edit", tmp_path / "m.gguf", tmp_path / "out.gguf", "--set-meta", f"{architecture}.{pair}"
    dry, edited = ckconv(*edit, "--dry-run"), ckconv(*edit)
    assert (edited.code, said in edited.out + edited.err) == (code, True), edited.out + edited.err
    assert (tmp_path / "out.gguf").exists() == (code == 0)
    assert (dry.code, dry.err) == (code, edited.err)


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("key_multiplier=2.0", "--set-meta of key_multiplier says what matrices are multiplied by"),
        ("ssm_out_multiplier=-1", "--set-meta of ssm_out_multiplier says what matrices are multiplied by"),
        ("mamba_d_head=8", "mamba_d_head"),
    ],
)
def test_what_a_checkpoint_multiplies_matrices_by_is_not_edited(pair: str, said: str, tmp_path: Path, ckconv) -> None:
    """Values are those with the factors, so that the copy's are others."""
    case = next(family_cases.cases("falcon_h1"))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    found = ckconv("edit", source, f"{tmp_path}/out", "--set-meta", pair)
    assert (found.code, said in found.err) == (2, True), found.err


LAYERS, FACTORS = "says which layers have which tensors", "says what matrices are multiplied by"


@pytest.mark.parametrize(
    ("pairs", "code", "said"),
    [
        (("hrm.l_cycles=2",), 2, "hint: --set-meta hrm_text.block_count=12, too, sets it"),
        (("hrm.h_cycles=1",), 2, "hint: --set-meta hrm_text.block_count=8, too, sets it"),
        (("hrm.l_cycles=2", "block_count=12"), 0, ""),
    ],
)
def test_a_key_from_which_another_follows_is_set_with_it(
    pairs: tuple[str, ...], code: int, said: str, tmp_path: Path, ckconv
) -> None:
    """llama.cpp stops at any other (``load_arch_hparams`` of hrm-text.cpp)."""
    case = next(family_cases.cases("hrm_text"))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    assert ckconv("convert", source, tmp_path / "m.gguf").code == 0
    edit = ("edit", tmp_path / "m.gguf", tmp_path / "out.gguf")
    found = ckconv(*edit, *(word for pair in pairs for word in ("--set-meta", f"hrm_text.{pair}")))
    assert (found.code, said in found.err, (tmp_path / "out.gguf").exists()) == (code, True, not code), found.err


@pytest.mark.parametrize(
    ("pair", "code"),
    [
        ("clip.vision.image_size=56", 0),
        ("clip.vision.attention.layer_norm_epsilon=1e-4", 0),
        ("clip.vision.block_count=1", 2),
        ("clip.vision.patch_size=7", 2),
    ],
)
def test_a_number_of_an_mmproj_is_set(pair: str, code: int, tmp_path: Path, ckconv) -> None:
    source = tower_cases.checkpoint(tower_cases.recorded_tower("qwen2_vl-f16"), tmp_path / "hf")
    assert ckconv("convert", source, tmp_path / "m.gguf", "--mmproj", tmp_path / "tower.gguf").code == 0
    edit = ("edit", tmp_path / "tower.gguf", tmp_path / "out.gguf")
    found = ckconv(*edit, "--set-meta", pair)
    assert (found.code, (tmp_path / "out.gguf").exists()) == (code, not code), found.err
    dropped = ckconv(*edit, "-f", "--drop-meta", pair.partition("=")[0])
    assert (dropped.code, "by which the model is computed" in dropped.err) == (2, True), dropped.err


TWICE, FREQUENCIES = "would say two things, of which one is not read", "says what follows from rope_freqs.weight"


@pytest.mark.parametrize(
    ("case", "to", "pair", "said"),
    [
        ("deepseek-as_released", "gguf", "deepseek.leading_dense_block_count=2", LAYERS),
        ("deepseek_v2-plain", "gguf", "deepseek2.leading_dense_block_count=2", LAYERS),
        ("deepseek_v3-plain", "gguf", "deepseek2.leading_dense_block_count=2", LAYERS),
        ("deepseek_v32-plain", "gguf", "deepseek32.leading_dense_block_count=2", LAYERS),
        ("glm4v_moe-untied", "gguf", "glm4moe.leading_dense_block_count=2", LAYERS),
        ("falcon_h1-plain", "hf", "ssm_in_multiplier=2.0", FACTORS),
        ("qwen-plain", "hf", "rotary_emb_base=5000", TWICE),
        ("qwen-plain", "hf", "rope_theta=5000", TWICE),
        ("minimax_m3-plain", "hf", "rotary_dim=4", TWICE),
        ("apertus-released", "hf", "original_max_position_embeddings=64", FREQUENCIES),
        ("llama-llama3", "mlx", "rope_scaling.factor=16.0", FREQUENCIES),
        ("deepseek_v32-groups", "gguf", "deepseek32.leading_dense_block_count=2", ""),  # which it is
        ("llama-llama3", "hf", "rope_scaling.factor=8.0", ""),
        ("distilbert-plain", "hf", "n_heads=2", "the tensors decide it"),  # a word of the family's own
    ],
)
def test_a_conversion_sets_no_key_by_which_its_tensors_were_written(
    case: str, to: str, pair: str, said: str, tmp_path: Path, ckconv
) -> None:
    """Its proof would refuse the output, after everything was written."""
    source = checkpoint_of_case(case, tmp_path / "source")
    if to != "gguf":
        assert ckconv("convert", source, tmp_path / "m.gguf").code == 0
        source = tmp_path / "m.gguf"
    done = ckconv("convert", source, f"{tmp_path}/out/", "--to", to, "--set-meta", pair)
    assert (done.code, said in done.err, (tmp_path / "out").exists()) == (2 if said else 0, True, not said), done.err
    if "hint: convert it first; edit" in done.err:
        assert ckconv("convert", source, f"{tmp_path}/first/", "--to", to).code == 0
        edited = ckconv("edit", tmp_path / "first", f"{tmp_path}/out/", "--set-meta", pair)
        assert edited.code == 0, edited.err


@pytest.mark.product("values")
@pytest.mark.parametrize(
    "text", ["1e400", "-1e400", "NaN", "Infinity", '{"a": [1e400, 2]}', "1e3", "[]", "null", "007"]
)
@pytest.mark.parametrize("to", ["hf", "mlx"])
def test_every_number_that_is_set_passes_the_proof(text: str, to: str, tmp_path: Path, fixtures: Path, ckconv) -> None:
    """Python reads a number beyond every float as infinity, for which documents have an object."""
    asked = ("--set-meta", f"foo.bar={text}")
    done = ckconv("convert", fixtures / "hf" / "llama-tied-bf16", f"{tmp_path}/out/", "--to", to, *asked)
    assert done.code == 0, done.err
    assert ckconv("verify", tmp_path / "out", fixtures / "hf" / "llama-tied-bf16", *asked).code == 0


@pytest.mark.parametrize("to", ["hf", "mlx"])
@pytest.mark.parametrize("glob", ["foo", "fo*"])
def test_a_key_that_is_set_and_dropped_is_dropped(to: str, glob: str, tmp_path: Path, fixtures: Path, ckconv) -> None:
    """As in a GGUF; the proof missed it."""
    source, asked = fixtures / "hf" / "llama-tied-bf16", ("--set-meta", "foo=1", "--drop-meta", glob)
    done = ckconv("convert", source, f"{tmp_path}/out/", "--to", to, *asked)
    assert done.code == 0, done.err
    assert "foo" not in json.loads((tmp_path / "out" / "config.json").read_text())
    assert ckconv("verify", tmp_path / "out", source, *asked).code == 0


@pytest.mark.parametrize("table", ["rope_scaling", "rope_parameters"])
def test_a_word_of_rope_is_dropped_from_both_tables(table: str, tmp_path: Path, ckconv) -> None:
    """As it is set in both: of one alone the other's readers take something else."""
    case = next(one for one in family_cases.cases("mistral4") if one.name == "groups")
    source = family_cases.checkpoint(case.recorded, tmp_path / "source", case.tokenizer)
    assert ckconv("convert", source, tmp_path / "m.gguf").code == 0
    asked = ("--to", "mlx", "--drop-meta", f"{table}.llama_4_scaling_beta")
    done = ckconv("convert", tmp_path / "m.gguf", f"{tmp_path}/out/", *asked)
    assert (done.code, "verified" in done.out) == (0, True), done.err
    assert "llama_4_scaling_beta" not in (tmp_path / "out" / "config.json").read_text()


@pytest.mark.parametrize("to", ["mlx", "gguf"])
def test_a_key_that_sizes_tensors_is_not_dropped(to: str, tmp_path: Path, ckconv) -> None:
    case = next(family_cases.cases("step3p5"))
    source = family_cases.checkpoint(case.recorded, tmp_path / "hf", case.tokenizer)
    if to == "gguf":
        assert ckconv("convert", source, tmp_path / "m.gguf").code == 0
        source, to = tmp_path / "m.gguf", "hf"
    found = ckconv("convert", source, f"{tmp_path}/out/", "--to", to, "--drop-meta", "attention_other_setting")
    said = "--drop-meta of attention_other_setting would make a model that is not read: tensor 'model.layers.1."
    assert (found.code, said in found.err) == (2, True), found.err


@pytest.mark.parametrize("to", ["hf", "mlx"])
def test_a_conversion_sets_keys_of_the_documents_too(to: str, tmp_path: Path, ckconv) -> None:
    flags = ("--set-meta", "rms_norm_eps=1e-4", "--set-meta", "eos_token=<s>", "--set-meta", "rope_theta=5000")
    assert ckconv("convert", LLAMA, f"{tmp_path}/out/", "--to", to, *flags).code == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    theta = [table["rope_theta"] for table in (config, config.get("rope_parameters", {})) if "rope_theta" in table]
    assert (config["rms_norm_eps"], config["eos_token_id"], {*theta}) == (1e-4, 1, {5000.0})


# Keys of a GGUF


@pytest.mark.parametrize(
    ("flag", "key", "kind", "found", "line"),
    [
        ("eos_token=<s>", "tokenizer.ggml.eos_token_id", "u32", 1, "tokenizer.ggml.eos_token_id: 2 -> 1"),
        ("tokenizer.ggml.eot_token_id=</s>", "tokenizer.ggml.eot_token_id", "u32", 2, "(none) -> 2"),
        ("pad_token_id=1", "tokenizer.ggml.padding_token_id", "u32", 1, "-> 1"),
        ("general.tags=a, b", "general.tags", "arr[str]", ["a", "b"], 'general.tags: (none) -> ["a", "b"]'),
        ('general.languages=["en"]', "general.languages", "arr[str]", ["en"], '(none) -> ["en"]'),
        ("general.version=2", "general.version", "str", "2", 'general.version: (none) -> "2"'),
        ("general.sampling.temp=1", "general.sampling.temp", "f32", 1.0, "general.sampling.temp: (none) -> 1.0"),
        ("chat_template={{ x }}", "tokenizer.chat_template", "str", "{{ x }}", '(none) -> "{{ x }}"'),
        ("llama.contxt_length=5", "llama.contxt_length", "u32", 5, "did you mean llama.context_length?"),
    ],
)
def test_a_key_of_a_gguf_gets_the_type_that_readers_want(
    flag: str, key: str, kind: str, found: object, line: str, model: Path, ckconv
) -> None:
    said = ckconv("edit", model, "--in-place", "--set-meta", flag)
    assert (said.code, line in said.out) == (0, True), said.out + said.err
    field = gguf.GGUFReader(model).fields[key]
    names = {"u32": "UINT32", "f32": "FLOAT32", "str": "STRING"}
    assert field.types[-1].name == names[kind.removeprefix("arr[").removesuffix("]")]
    assert (field.types[0].name == "ARRAY", field.contents()) == (kind.startswith("arr"), found)


def test_a_token_that_no_vocabulary_has_is_refused(model: Path, ckconv) -> None:
    found = ckconv("edit", model, "--in-place", "--set-meta", "eos_token=</ss>")
    assert (found.code, "no token is '</ss>'" in found.err, "there is '</s>'" in found.err) == (2, True, True)


@pytest.mark.parametrize("source", [LLAMA, QWEN2])
def test_a_dry_run_prints_what_would_change(source: Path, tmp_path: Path, ckconv) -> None:
    flags = ("--set-meta", "eos_token=<s>", "--dry-run")
    found = ckconv("edit", source, tmp_path / "out.gguf" if source is LLAMA else f"{tmp_path}/out/", *flags)
    assert (found.code, "eos_token_id: 2 -> 1" in found.out, "nothing written" in found.out) == (0, True, True)
    changes = json.loads(ckconv("edit", source, f"{tmp_path}/out/", *flags, "--json").out)["changes"]
    assert {"old": 2, "new": 1} in [{key: change[key] for key in ("old", "new")} for change in changes]
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ('tokenizer.ggml.tokens=["a","b"]', "tokenizer.ggml.tokens has 2 items, 384 tokens expected"),
        ("tokenizer.ggml.token_type=[1]", "tokenizer.ggml.token_type has 1 item, 384 tokens expected"),
        ("tokenizer.ggml.model=gpt-2", "llama.cpp knows no tokenizer 'gpt-2'"),
        ("llama.attention.layer_norm_rms_epsilon=-1", "layer_norm_rms_epsilon must be 0 or more, got -1.0"),
        ("rms_norm_eps=-1", "rms_norm_eps must be 0 or more, got -1.0"),
    ],
)
def test_a_value_that_no_reader_takes_is_refused(pair: str, said: str, ckconv, tmp_path: Path) -> None:
    source = "hf/llama-tied-bf16" if pair.startswith("rms") else "gguf/llama-tied-bf16.auto.gguf"
    found = ckconv("edit", FIXTURES / source, tmp_path / "out", "--set-meta", pair)
    assert (found.code, said in found.err) == (2, True), found.err


@pytest.mark.parametrize(
    ("source", "target", "pair", "said"),
    [
        ("phi3-bf16", "out.gguf", "tokenizer.ggml.model=gpt2", "cannot set tokenizer.ggml.model: the source's files"),
        ("llama-tied-bf16", "out.gguf", "tokenizer.ggml.model=llama", "the source's files make 'gpt2'"),
        ("gemma3-text-bf16", "out/", "model_type=llama", "a llama with a head of its own, and the tensors have none"),
    ],
)
def test_a_value_that_the_source_is_not_of_is_refused(
    source: str, target: str, pair: str, said: str, ckconv, tmp_path: Path
) -> None:
    to = "gguf" if target.endswith("gguf") else "hf"
    found = ckconv("convert", FIXTURES / "hf" / source, f"{tmp_path}/{target}", "--to", to, "--set-meta", pair)
    assert (found.code, said in found.err) == (2, True), found.err


def test_the_hint_of_a_head_that_the_tensors_lack_leads_on(ckconv, tmp_path: Path) -> None:
    command = "edit", FIXTURES / "hf/gemma3-text-bf16", f"{tmp_path}/out", "--set-meta", "model_type=llama"
    assert "tie_word_embeddings" in ckconv(*command).err
    assert ckconv(*command, "--set-meta", "tie_word_embeddings=true").code == 0


def test_a_directory_is_no_place_for_its_own_edit(ckconv, tmp_path: Path) -> None:
    source = tmp_path / "hf"
    shutil.copytree(FIXTURES / "hf/llama-tied-bf16", source)
    found = ckconv("edit", source, source, "-f", "--set-meta", "rms_norm_eps=1e-5")
    assert (found.code, "hint: name another place" in found.err) == (6, True), found.err


#: Towers of which no key says how many layers there are.
_OF_ONE_LAYER = {"gemma3n-bf16", "gemma4_unified-bf16", "gemma4_unified-f16"}


@pytest.mark.product("values")
@pytest.mark.parametrize("by", [1, -1])
@pytest.mark.parametrize("name", sorted({*tower_cases.recordings()} - _OF_ONE_LAYER))
def test_how_many_layers_a_tower_has_is_not_edited(name: str, by: int, tmp_path: Path, ckconv) -> None:
    """Of a copy, which has the tensors of the source, and of the file that llama.cpp loads."""
    source = tower_cases.checkpoint(tower_cases.recorded_tower(name), tmp_path / "hf")
    document = json.loads((source / "config.json").read_text())
    family = tower_of_document(document)
    assert family is not None
    key = family.parameters["layers"].key_cells("hf")[0].key
    *_, word = key.split(".")
    count = reduce(lambda table, part: table[part], key.split("."), document) + by
    found = ckconv("edit", source, f"{tmp_path}/out/", "--set-meta", f"{key}={count}")
    assert (found.code, word in found.err) == (2, True), found.out + found.err

    assert not (tmp_path / "out").exists()

    ckconv("convert", source, tmp_path / "m.gguf", "--mmproj", tmp_path / "tower.gguf")
    if not (tmp_path / "tower.gguf").exists() or open_index(tmp_path / "tower.gguf").tower is None:
        return  # whose way back is not known
    edit = "edit", tmp_path / "tower.gguf", tmp_path / "out.gguf", "--set-meta"
    for cell in family.parameters["layers"].key_cells("gguf"):
        layers = value(tmp_path / "tower.gguf", f"clip.{cell.key}")
        found = ckconv(*edit, f"clip.{cell.key}={layers + by}")
        assert (found.code, f"--set-meta of clip.{cell.key}" in found.err) == (2, True), found.out + found.err
    assert ckconv(*edit, "general.name=other").code == 0


@pytest.mark.parametrize(
    ("source", "pairs", "said"),
    [
        (QWEN2, ("rope_theta=5", "rope_parameters.rope_theta=6"), "rope_theta say 5.0 and 6"),
        (QWEN2, ("rope_parameters.rope_theta=5", "config.json:rope_theta=6"), "rope_theta say 5.0 and 6"),
        (QWEN2, ("eos_token=<s>", "eos_token_id=7"), "eos_token_id say 1 and 7"),
        (LLAMA, ("eos_token=<s>", "tokenizer.ggml.eos_token_id=7"), "tokenizer.ggml.eos_token_id say '1' and '7'"),
        (QWEN2, ("rope_theta=5", "rope_theta=6"), ""),
        (QWEN2, ("rope_theta=5", "rope_parameters.rope_theta=5"), ""),
        (LLAMA, ("eos_token=<s>", "tokenizer.ggml.eos_token_id=1"), ""),
    ],
)
def test_two_flags_do_not_say_two_things_of_one_key(
    source: Path, pairs: tuple[str, ...], said: str, tmp_path: Path, ckconv
) -> None:
    target = tmp_path / "out.gguf" if source.is_file() else f"{tmp_path}/out.gguf/"
    found = ckconv("edit", source, target, *(word for pair in pairs for word in ("--set-meta", pair)))
    assert (found.code, said in found.err) == (2 if said else 0, True), found.err
    assert (tmp_path / "out.gguf").exists() == (not said)


@pytest.mark.parametrize(
    ("case", "key", "code", "said"),
    [
        ("deepseek_v2-lite_as_released", "rope.scaling.yarn_log_multiplier", 0, "yarn_log_multiplier: 0.0"),
        ("llama-untied", "rope.freq_base", 0, "llama.rope.freq_base: 10000.0 -> (none)"),
        ("llama-untied", "block_count", 2, "would drop llama.block_count, by which the model is computed"),
        ("llama-untied", "attention.layer_norm_rms_epsilon", 2, "by which the model is computed"),
    ],
)
def test_a_key_that_llama_cpp_does_without_is_dropped(
    case: str, key: str, code: int, said: str, tmp_path: Path, ckconv
) -> None:
    architecture = gguf_of_case(case, tmp_path, ckconv)
    flag = "--drop-meta", f"{architecture}.{key}"
    done = ckconv("edit", tmp_path / "m.gguf", tmp_path / "out.gguf", *flag)
    assert (done.code, said in done.out + done.err) == (code, True), done.out + done.err
    if not code:
        assert value(tmp_path / "out.gguf", f"{architecture}.{key}") is None
        assert ckconv("verify", tmp_path / "out.gguf", tmp_path / "m.gguf", *flag).code == 0


def test_a_count_of_experts_that_no_class_of_the_family_reads_is_dropped(tmp_path: Path, ckconv) -> None:
    """A hint led there, and it was taken for a size of the tensors."""
    source = family_cases.checkpoint(next(family_cases.cases("hunyuan_vl")).recorded, tmp_path / "hf")
    document = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**document, "num_experts": 2}))
    text = (tmp_path / "m.gguf", "--drop", "vit.*")
    refused = ckconv("convert", source, *text)
    assert (refused.code, "--drop-meta num_experts" in refused.err) == (4, True)
    assert ckconv("edit", source, f"{tmp_path}/out/", "--drop-meta", "num_experts").code == 0
    assert ckconv("convert", tmp_path / "out", *text).code == 0
    assert ckconv("edit", source, f"{tmp_path}/two/", "--drop-meta", "num_hidden_layers").code == 2
