"""What stands beside the weights of a cut checkpoint: all that the dense folder had for the model, and nothing else."""

import json
import logging

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from headwise.analysis.errors import BadInput
from headwise.prune import cut, load, save
from headwise.prune.cli import main
from tests.prune.test_hub import hub  # noqa: F401
from tests.prune.tiny_run import checkpoint, settings, table


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def embedder(folder):
    """A checkpoint of sentence-transformers with a dense layer over the pooling."""
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    from sentence_transformers import SentenceTransformer

    checkpoint(folder / "bert", head=False)
    parts = [modules.Transformer(str(folder / "bert")), modules.Pooling(32), modules.Dense(32, 16)]
    SentenceTransformer(modules=parts, device="cpu").save(str(folder / "dense"))
    return folder / "dense"


def test_modules_around_a_model_come_whole(tmp_path):
    from sentence_transformers import SentenceTransformer

    folder = save(cut(load(embedder(tmp_path)), {"0": [1]}), tmp_path / "cut")
    found = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    assert found.encode(["w1 w2"]).shape == (1, 16)


def test_modules_of_a_repository_come_whole(hub, tmp_path):  # noqa: F811
    hub.put("org/embedder", embedder(tmp_path))
    folder = save(load("org/embedder"), tmp_path / "cut")
    assert {"modules.json", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"} <= files(
        folder
    )


def test_a_list_of_modules_does_not_lead_out_of_its_folder(tmp_path, caplog):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key.json").write_text("{}")
    dense = checkpoint(tmp_path / "dense")
    paths = ["", "../secret", str(tmp_path / "secret")]
    (dense / "modules.json").write_text(json.dumps([{"path": path} for path in paths]))
    assert not [name for name in files(save(load(dense), tmp_path / "out")) if "key" in name]
    (dense / "modules.json").write_text("[1]")
    with caplog.at_level(logging.WARNING):
        save(load(dense), tmp_path / "again")
    assert "modules.json lists no modules" in caplog.text


def test_an_uncut_model_among_the_modules_is_not_taken_for_the_cut_one(tmp_path, caplog):
    dense = checkpoint(tmp_path / "dense")
    checkpoint(dense / "0_BERT")
    (dense / "1_Pooling").mkdir()
    (dense / "1_Pooling/config.json").write_text("damaged")
    (dense / "modules.json").write_text(json.dumps([{"path": "0_BERT"}, {"path": "1_Pooling"}]))
    with caplog.at_level(logging.WARNING):
        found = files(save(cut(load(dense), {"0": [1]}), tmp_path / "out"))
    assert {name for name in found if "/" in name} == {"1_Pooling/config.json"}
    assert "0_BERT is a model of its own and is not copied" in caplog.text


def test_what_else_lies_in_a_folder_stays_there_and_terms_come_along(tmp_path):
    dense = checkpoint(tmp_path / "dense")
    strange = ["runs/a/plan.json", "checkpoint-5/config.json", "checkpoint-5/trainer_state.json", "data/train.json"]
    own = ["LICENSE", "USE_POLICY.md", "Notice.txt", "bpe.codes", "additional_chat_templates/tools.jinja"]
    for name in (*strange, *own):
        (dense / name).parent.mkdir(exist_ok=True, parents=True)
        (dense / name).write_text("{}")
    found = files(save(load(dense), tmp_path / "out"))
    assert set(own) <= found
    assert not found & set(strange)


def test_a_run_in_the_folder_of_its_model_is_named_after_it_and_holds_no_other(tmp_path, monkeypatch, capsys):
    dense, texts = checkpoint(tmp_path / "tiny"), table(tmp_path / "texts.jsonl")
    monkeypatch.chdir(dense)
    changes = [word for change in settings(None, texts, "remove.fraction=0.3") for word in ("--set", change)]
    assert main(["prune", ".", "--recipe", "random-baseline", *changes, "--quiet"]) == 0
    (run,) = (dense / "runs").iterdir()
    assert run.name.startswith("tiny-random-baseline-")
    assert not [name for name in files(run / "checkpoint") if "/" in name]
    assert "# tiny, " in (run / "checkpoint/README.md").read_text()
    assert lengths(run / "checkpoint") == lengths(dense)


@pytest.mark.parametrize("where", ["folder", "hub"])
def test_a_model_in_a_sub_folder_takes_what_stands_beside_it_there(where, hub, tmp_path):  # noqa: F811
    checkpoint(tmp_path / "all/text")
    (tmp_path / "all/model_index.json").write_text("{}")
    hub.put("org/all", tmp_path / "all")
    name = str(tmp_path / "all") if where == "folder" else "org/all"
    for sub, told in (
        ("none", r"all/none': no such folder|all holds no none/config.json"),
        ("", "all holds no config.json"),
    ):
        with pytest.raises(BadInput, match=told):
            load(name, subfolder=sub)
    found = files(save(cut(load(name, subfolder="text"), {"0": [1]}), tmp_path / "out"))
    assert {"tokenizer.json", "tokenizer_config.json"} <= found
    assert "model_index.json" not in found


# ------------------------------------------------------------------------------------------------ lengths of texts
def lengths(folder):
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return raw.truncation, raw.padding


@pytest.mark.parametrize("stated", [True, False])
def test_a_tokenizer_is_saved_without_what_calls_left_in_it(stated, tmp_path):
    dense = checkpoint(tmp_path / "dense")
    if stated:
        raw = Tokenizer.from_file(str(dense / "tokenizer.json"))
        raw.enable_truncation(20)
        raw.enable_padding(length=20)
        raw.save(str(dense / "tokenizer.json"))
    tokenizer, model = AutoTokenizer.from_pretrained(dense), load(dense)
    tokenizer(["w1 w2 w3 w4 w5"], truncation=True, max_length=3, padding=True)
    assert lengths(save(model, tmp_path / "out", processor=tokenizer)) == lengths(dense)
    assert (lengths(dense) == (None, None)) is not stated


def test_a_tokenizer_in_a_sub_folder_takes_no_lengths_from_above(tmp_path):
    above, inside = checkpoint(tmp_path / "all"), checkpoint(tmp_path / "all/text")
    raw = Tokenizer.from_file(str(above / "tokenizer.json"))
    raw.enable_truncation(20)
    raw.save(str(above / "tokenizer.json"))
    read = AutoTokenizer.from_pretrained(above, subfolder="text")
    out = save(load(above, subfolder="text"), tmp_path / "out", processor=read)
    assert lengths(out) == lengths(inside) == (None, None)


def test_a_tokenizer_of_nowhere_is_saved_without_lengths(tmp_path):
    from tests.prune.tiny_run import tokenizer

    made, model = tokenizer(), load(checkpoint(tmp_path / "dense"))
    model.config._name_or_path = ""
    made(["w1 w2 w3 w4 w5"], truncation=True, max_length=3)
    assert lengths(save(model, tmp_path / "out", processor=made)) == (None, None)
