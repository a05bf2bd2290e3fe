"""Tasks on images and clips: values equal to the library's; whole runs are in `test_task_runs`."""

import json
from dataclasses import replace

import jiwer
import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from sklearn import metrics as sk
from transformers import (
    CLIPConfig,
    CLIPModel,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
    ViTModel,
    Wav2Vec2Config,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
    Wav2Vec2ForSequenceClassification,
    Wav2Vec2Processor,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from headwise.analysis.corpus import Corpus, Text, batches, read_source
from headwise.analysis.errors import BadInput
from headwise.prune.applying import apply_plan
from headwise.prune.plan import Plan
from headwise.prune.tasks import TASKS, choose_task, compare
from headwise.prune.tasks.transcription import FittedTranscription, Transcription, errors_of
from tests.prune.tiny_run import tokenizer as words

VIT = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16, "image_size": 16,
    "patch_size": 8, "initializer_range": 0.6,
}  # fmt: skip
WAV = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16,
    "conv_dim": (8, 8), "conv_stride": (10, 8), "conv_kernel": (10, 8), "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2, "initializer_range": 0.6,
    "classifier_proj_size": 8, "apply_spec_augment": False,
}  # fmt: skip
LETTERS = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ABCDEFGHIJ"]


def make(kind, config):
    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Images of two classes and clips of two words, in two parts, and a checkpoint for each task."""
    folder = tmp_path_factory.mktemp("shown")
    for part, count, seed in (("", 12, 0), ("-dev", 8, 1)):
        said = ["file_name,said,word"]
        for i in range(count):
            draw = np.random.default_rng((seed, i))
            word = ["cat", "dog"][i % 2]
            (folder / f"images{part}" / word).mkdir(parents=True, exist_ok=True)
            pixels = draw.integers(0, 255, (20, 18, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"images{part}" / word / f"{i}.png")
            (folder / f"clips{part}").mkdir(exist_ok=True)
            wave = draw.normal(size=1600 + 400 * (i % 3)).astype(np.float32) / 10
            soundfile.write(folder / f"clips{part}" / f"{i}.wav", wave, 8000, subtype="FLOAT")
            said.append(f"{i}.wav,{'abc de' if i % 2 else 'Fa, Gib!'},{word}")
        (folder / f"clips{part}" / "metadata.csv").write_text("\n".join(said[:1] + [quoted(row) for row in said[1:]]))
    names = {"id2label": {0: "dog", 1: "cat"}, "label2id": {"dog": 0, "cat": 1}}
    hears = Wav2Vec2FeatureExtractor(sampling_rate=8000)
    (folder / "vocab.json").write_text(json.dumps({letter: i for i, letter in enumerate(LETTERS)}))
    speaks = Wav2Vec2Processor(hears, Wav2Vec2CTCTokenizer(str(folder / "vocab.json")))
    saved = {
        "image-classification": (
            make(ViTForImageClassification, ViTConfig(**VIT, **names)),
            ViTImageProcessor(size={"height": 16, "width": 16}),
        ),
        "audio-classification": (make(Wav2Vec2ForSequenceClassification, Wav2Vec2Config(**WAV, **names)), hears),
        "transcription": (make(Wav2Vec2ForCTC, Wav2Vec2Config(**WAV, vocab_size=len(LETTERS), pad_token_id=0)), speaks),
    }  # fmt: skip
    for kind, (model, processor) in saved.items():
        model.save_pretrained(folder / kind)
        processor.save_pretrained(folder / kind)
    return folder, saved


def quoted(row):
    name, rest = row.split(",", 1)
    said, word = rest.rsplit(",", 1)
    return f'{name},"{said}",{word}'


COLUMNS = {
    "image-classification": {},
    "audio-classification": {"label": "word"},
    "transcription": {"pair": "said"},
}


def corpus(folder, kind, part=""):
    what = "images" if kind.startswith("image") else "clips"
    return read_source(str(folder / f"{what}{part}"), **COLUMNS[kind])


@pytest.mark.parametrize("kind", COLUMNS)
def test_losses_and_outcomes_are_the_examples_own(place, kind):
    saved = place[1]
    (model, processor), texts = saved[kind], corpus(place[0], kind)
    fitted = TASKS[kind]().fit(model, processor, texts, batch_size=4)
    losses = {}
    for size in (1, 3, 12):
        for batch in batches(texts, processor, model=model, batch_size=size):
            for i, loss in zip(batch.index, fitted.losses(model, batch), strict=True):
                losses.setdefault(i, []).append(loss.item())
    assert len(losses) == 12
    for values in losses.values():
        np.testing.assert_allclose(values, values[0], atol=2e-5)
    assert len({round(values[0], 4) for values in losses.values()}) > 4
    fitted.losses(model, next(iter(batches(texts, processor, model=model)))).sum().backward()
    assert any(p.grad is not None and p.grad.abs().max() > 0 for n, p in model.named_parameters() if "q" in n)
    model.zero_grad(set_to_none=True)
    model.train()
    config = model.config.to_dict()
    whole = fitted.judge(model, texts)
    assert model.training
    assert model.config.to_dict() == config
    model.eval()
    again = TASKS[kind]().fit(model, processor, texts, batch_size=1).judge(model, texts)
    np.testing.assert_allclose(whole.per_example, again.per_example, atol=1e-6)
    assert choose_task(model, processor, texts).kind == kind
    found = json.loads(json.dumps(compare(whole, whole, resamples=50), allow_nan=False))
    assert (found["drop"], found["flips"]) == (0, {"lost": 0, "gained": 0})


def test_classes_of_images_are_those_of_the_library(place):
    (model, processor), texts = place[1]["image-classification"], corpus(place[0], "image-classification")
    said = []
    for text in texts.texts:
        with torch.inference_mode():
            given = processor(images=Image.open(place[0] / "images" / text.text).convert("RGB"), return_tensors="pt")
            said.append(model.config.id2label[model(**given).logits.argmax().item()])
    outcome = TASKS["image-classification"]().fit(model, processor, texts).judge(model, texts)
    assert outcome.predictions == said
    right = [text.label for text in texts.texts]
    assert outcome.value == sk.accuracy_score(right, said)
    macro = TASKS["image-classification"](metric="macro-f1").fit(model, processor, texts).judge(model, texts)
    assert macro.value == pytest.approx(sk.f1_score(right, said, average="macro", zero_division=0))


def heard(place, kind):
    """Every clip by itself, as the library reads and decodes it."""
    model, processor = place[1][kind]
    for text in corpus(place[0], kind).texts:
        wave, rate = soundfile.read(place[0] / "clips" / text.text, dtype="float32")
        with torch.inference_mode():
            yield text, model(**processor(wave, sampling_rate=rate, return_tensors="pt")).logits[0]


def test_classes_of_clips_are_those_of_the_library(place):
    (model, processor), texts = place[1]["audio-classification"], corpus(place[0], "audio-classification")
    outcome = TASKS["audio-classification"]().fit(model, processor, texts).judge(model, texts)
    said = [model.config.id2label[logits.argmax().item()] for _, logits in heard(place, "audio-classification")]
    assert outcome.predictions == said


@pytest.mark.parametrize("metric", ["wer", "cer"])
def test_what_is_heard_is_scored_as_by_jiwer(place, metric):
    (model, processor), texts = place[1]["transcription"], corpus(place[0], "transcription")
    outcome = Transcription(metric=metric, plain=False).fit(model, processor, texts).judge(model, texts)
    said, right, losses = [], [], []
    for text, logits in heard(place, "transcription"):
        said.append(processor.tokenizer.decode(logits.argmax(-1)))
        right.append(text.pair)
        targets = torch.tensor([processor.tokenizer(text.pair.upper())["input_ids"]])
        chances = logits[:, None].log_softmax(-1)
        losses.append(torch.nn.functional.ctc_loss(
            chances, targets, [len(chances)], [targets.shape[1]], blank=0, reduction="none"
        ).item() / targets.shape[1])  # fmt: skip
    assert outcome.predictions == said
    assert outcome.value == pytest.approx(getattr(jiwer, metric)(right, said))
    assert compare(outcome, outcome, resamples=50)["dense"]["value"] == pytest.approx(outcome.value)
    fitted = Transcription().fit(model, processor, texts)
    for batch in batches(texts, processor, model=model):
        found = fitted.losses(model, batch).detach()
        np.testing.assert_allclose(found, [losses[i] for i in batch.index], rtol=1e-4)


def test_case_and_punctuation_count_only_if_asked():
    assert errors_of("fa gib", "Fa, Gib!", "wer", plain=True) == (0, 2)
    assert errors_of("fa gib", "Fa, Gib!", "wer", plain=False) == (2, 2)
    assert errors_of("fa", "!", "wer", plain=True) == (0, 0)


def test_encoder_decoders_write_what_they_hear(place, caplog):
    config = WhisperConfig(
        vocab_size=len(LETTERS), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, num_mel_bins=8, max_source_positions=50,
        max_target_positions=24, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = make(WhisperForConditionalGeneration, config)
    hears = WhisperFeatureExtractor(feature_size=8, sampling_rate=8000, chunk_length=1, hop_length=80)

    class Both:
        feature_extractor, tokenizer = hears, place[1]["transcription"][1].tokenizer

    texts = corpus(place[0], "transcription")
    fitted = Transcription(new_tokens=5).fit(model, Both(), texts, batch_size=3)
    assert isinstance(fitted, FittedTranscription)
    assert not fitted.ctc
    outcome = fitted.judge(model, texts)
    wave, _ = soundfile.read(place[0] / "clips" / texts.texts[0].text, dtype="float32")
    features = hears(wave, sampling_rate=8000, return_tensors="pt")["input_features"]
    written = model.generate(features, max_new_tokens=5, do_sample=False)
    assert outcome.predictions[0] == Both.tokenizer.batch_decode(written, skip_special_tokens=True)[0]
    # Its 24 positions hold fewer tokens than are written by default: that is said before anything is heard.
    more = Transcription().fit(model, Both(), texts, batch_size=3)
    assert "positions end after 20 written tokens; 200 were asked for" in caplog.text
    assert len(more.judge(model, texts).predictions) == len(outcome.predictions)
    batch = next(iter(batches(texts, Both(), model=model, batch_size=3)))
    # Every clip is brought to one second by the processor, so clips of all lengths share a batch.
    assert len(batch.texts) == 3
    labels = batch.targets[:1][batch.targets[:1] != -100][None]
    with torch.inference_mode():
        expected = model(**{n: v[:1] for n, v in batch.inputs.items() if "decoder" not in n}, labels=labels).loss
    assert fitted.losses(model, batch)[0].item() == pytest.approx(expected.item(), rel=1e-4)


def test_base_models_and_unlabelled_images_have_their_tasks(place):
    texts, processor = corpus(place[0], "image-classification"), place[1]["image-classification"][1]
    base = make(ViTModel, ViTConfig(**VIT))
    assert choose_task(base, processor, texts).kind == "embedding-probe"
    bare = Corpus([Text(text.text, media=text.media) for text in texts.texts])
    for model in (base, place[1]["image-classification"][0]):
        task = choose_task(model, processor, bare)
        assert task.kind == "agreement"
        fitted = task.fit(model, processor, bare)
        assert fitted.judge(model, bare).value == 1
        batch = next(iter(batches(bare, processor, model=model)))
        assert torch.isfinite(fitted.losses(model, batch)).all()


@pytest.mark.parametrize(
    ("kind", "other", "message"),
    [
        ("image-classification", "audio-classification", "has no head that tells images"),
        ("audio-classification", "image-classification", "has no head that tells clips"),
        ("transcription", "audio-classification", "writes nothing down"),
    ],
)
def test_models_that_do_not_fit_are_refused(place, kind, other, message):
    with pytest.raises(BadInput, match=message):
        TASKS[kind]().fit(*place[1][other], corpus(place[0], kind))


@pytest.mark.parametrize("kind", COLUMNS)
def test_texts_that_do_not_fit_are_refused(place, kind):
    model, processor = place[1][kind]
    with pytest.raises(BadInput, match=r"(images|clips); give a folder"):
        TASKS[kind]().fit(model, processor, Corpus([Text("w1", "w2", "cat")]))


def test_a_pair_of_towers_is_judged_by_both_its_embeddings(place):
    part = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = CLIPConfig(
        text_config={**part, "vocab_size": 44, "max_position_embeddings": 24, "eos_token_id": 3},
        vision_config={**part, "image_size": 16, "patch_size": 8}, projection_dim=8,
    )  # fmt: skip
    model = make(CLIPModel, config)

    class Both:
        image_processor, tokenizer = place[1]["image-classification"][1], words()

    texts = corpus(place[0], "image-classification")
    said = Corpus([replace(t, pair=f"w{i} w1", label=None) for i, t in enumerate(texts.texts)], "said")
    task = choose_task(model, Both(), said)
    fitted = task.fit(model, Both(), said, batch_size=5)
    outcome = fitted.judge(model, said)
    assert (task.kind, outcome.metric, len(outcome.texts)) == ("agreement", "cosine", 12)
    batch = next(iter(batches(said, Both(), model=model)))
    assert set(batch.inputs) == {"pixel_values", "input_ids", "attention_mask"}
    fitted.losses(model, batch).sum().backward()
    for tower in (model.text_model, model.vision_model):
        assert any(p.grad is not None and p.grad.abs().max() > 0 for p in tower.parameters())
    with pytest.raises(BadInput, match="wants a text for each image"):
        list(batches(texts, Both(), model=model))


@pytest.mark.parametrize("kind", ["image-classification", "transcription"])
def test_a_plan_alone_cuts_what_sees_or_hears_and_texts_alone_are_no_reading_for_it(place, kind, tmp_path):
    folder, saved = place
    removed = {"0": [1]}
    done = apply_plan(str(folder / kind), Plan(remove=removed), tmp_path / "cut")
    assert done["proof"]["passed"]
    assert done["heads_removed"] == 1
    model, processor = saved[kind]
    with pytest.raises(BadInput, match="reads images or clips"):
        batches(Corpus([Text("a b")]), processor, model=model)
