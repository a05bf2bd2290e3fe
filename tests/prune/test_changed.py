"""A checkpoint that is replaced, in part or whole, between start and resume: noticed, whatever its shapes."""

import json
import shutil

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Wav2Vec2Config,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
    Wav2Vec2Processor,
)

from headwise.analysis.corpus import Corpus, Text, read_source
from headwise.analysis.errors import BadInput
from headwise.analysis.identity import settings_hash
from headwise.prune import inspection, pipeline
from headwise.prune.environment import unchanged
from headwise.prune.material import tokens_of
from headwise.prune.recipe import Recipe
from tests.prune import tiny_run
from tests.prune.test_hearing_tasks import WAV


def other_weights(model):
    file = model / "model.safetensors"
    tensors = load_file(file)
    name = min(tensors)
    tensors[name].view(-1)[0] = torch.nextafter(tensors[name].view(-1)[0], torch.tensor(10.0))
    save_file(tensors, file, metadata={"format": "pt"})


def other_words(model):
    file = model / "tokenizer.json"
    read = json.loads(file.read_text())
    known = read["model"]["vocab"]
    known["w0"], known["w1"] = known["w1"], known["w0"]
    file.write_text(json.dumps(read))


def other_settings(model):
    file = model / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"layer_norm_eps": 1e-3}))


def other_pooling(model):
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')


def test_a_checkpoint_replaced_before_resuming_is_noticed(tmp_path, monkeypatch):
    model = tiny_run.checkpoint(tmp_path / "model")
    texts = tiny_run.table(tmp_path / "texts.jsonl")
    recipe, speed = Recipe.load("gradient", tiny_run.settings(model, texts)), pipeline._speed

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "_speed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(recipe, output_dir=tmp_path / "run")
    monkeypatch.setattr(pipeline, "_speed", speed)
    for change, told in (
        (other_weights, f"the model {model} changed since the run began"),
        (other_words, "^the tokenizer changed since the run began"),
        (other_settings, f"^the configuration of {model} changed since the run began"),
        (other_pooling, f"^the configuration of {model} changed since the run began"),
    ):
        kept = {path: path.read_bytes() for path in model.iterdir() if path.is_file()}
        change(model)
        with pytest.raises(BadInput, match=told):
            pipeline.run(recipe, output_dir=tmp_path / "run", resume=True)
        for path, content in kept.items():
            path.write_bytes(content)
        shutil.rmtree(model / "1_Pooling", ignore_errors=True)
    assert pipeline.run(recipe, output_dir=tmp_path / "run", resume=True).folder.is_dir()


def test_how_a_model_writes_is_part_of_its_settings():
    model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=9))
    before = settings_hash(model)
    model.config._name_or_path, model.generation_config.transformers_version = "elsewhere", "0"
    assert settings_hash(model) == before
    model.generation_config.num_beams = 4
    assert settings_hash(model) != before


def test_the_words_that_a_processor_writes_with_are_in_its_mark(tmp_path):
    (tmp_path / "clips").mkdir()
    for i in range(2):
        soundfile.write(tmp_path / "clips" / f"{i}.wav", np.full(800, 0.1 * i, dtype=np.float32), 16000)
    clips, model = read_source(str(tmp_path / "clips")), Wav2Vec2ForCTC(Wav2Vec2Config(**WAV))

    def mark(letters, normalise=True):
        (tmp_path / "vocab.json").write_text(json.dumps({letter: i for i, letter in enumerate(letters)}))
        writer = Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json"))
        hears = Wav2Vec2FeatureExtractor(do_normalize=normalise)
        return tokens_of(clips, model, Wav2Vec2Processor(feature_extractor=hears, tokenizer=writer), None)

    letters = ["<pad>", "<s>", "</s>", "<unk>", "|", "A", "B"]
    assert len({mark(letters), mark([*letters[:5], "B", "A"]), mark(letters, normalise=False)}) == 3
    assert mark(letters) == mark(letters)


def test_words_that_no_text_has_and_where_texts_are_cut_off_are_in_a_mark():
    texts, model = Corpus([Text("w1 w2")]), BertModel(BertConfig(**tiny_run.SIZES))
    usual, shorter = tiny_run.tokenizer(), tiny_run.tokenizer()
    shorter.model_max_length = 10
    other = json.loads(usual.backend_tokenizer.to_str())
    known = other["model"]["vocab"]
    known["w38"], known["w39"] = known["w39"], known["w38"]
    swapped = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(other)), pad_token="[PAD]")
    marks = [tokens_of(texts, model, reader, None) for reader in (usual, tiny_run.tokenizer(), shorter, swapped)]
    assert marks[0] == marks[1]
    assert len({*marks}) == 3


def made(**changes):
    """An environment, as far as it counts; `changes` of what it says."""
    said = {"hash": "1", "config": "2", "calibration": "3", "tokens": "4", "evaluation": "5"} | changes
    texts = {"calibration": {"hash": said["calibration"], "tokens": said["tokens"]}}
    texts["evaluation"] = {"hash": said["evaluation"]}
    return {"model": {"id": "m", "hash": said["hash"], "config": said["config"]}, "texts": texts}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hash": "x"}, "the model m changed"),
        ({"config": "x"}, "the configuration of m changed"),
        ({"tokens": "x"}, "the tokenizer changed"),
        ({"calibration": "x", "tokens": "x"}, r"the texts of data\.calibration changed"),
        ({"hash": "x", "evaluation": "x"}, r"the model m and the texts of data\.evaluation changed"),
    ],
)
def test_all_that_changed_is_told(changes, told):
    unchanged(made(), made())
    with pytest.raises(BadInput, match=f"^{told} since the run began"):
        unchanged(made(), made(**changes))
    with pytest.raises(BadInput, match="changed since the analysis began"):
        inspection._same(made(), made(**changes | {"calibration": "x"}))


def test_a_run_that_began_before_this_was_told_is_resumed():
    old = made()
    del old["model"]["config"], old["texts"]["calibration"]["tokens"]
    unchanged(old, made())
