import io

import datasets
import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor, Wav2Vec2FeatureExtractor

from headwise.analysis.corpus import Corpus, Text, batches, read_source
from headwise.analysis.corpus.media import media_of
from headwise.analysis.corpus.portions import Portions
from headwise.analysis.errors import BadInput


def pixels(seed, size=(12, 10)):
    return np.random.default_rng(seed).integers(0, 255, (*size, 3), dtype=np.uint8)


def png(seed, size=(12, 10)):
    held = io.BytesIO()
    Image.fromarray(pixels(seed, size)).save(held, "PNG")
    return held.getvalue()


def wave(seed, samples=800):
    return (np.random.default_rng(seed).normal(size=samples) * 0.1).astype(np.float32)


def wav(seed, samples=800, rate=8000):
    held = io.BytesIO()
    soundfile.write(held, wave(seed, samples), rate, format="WAV", subtype="FLOAT")
    return held.getvalue()


@pytest.fixture
def images(tmp_path):
    """Two classes of three images, one of them broken."""
    for name, seeds in (("cat", (0, 1, 2)), ("dog", (3, 4))):
        (tmp_path / "images" / name).mkdir(parents=True)
        for seed in seeds:
            (tmp_path / "images" / name / f"{seed}.png").write_bytes(png(seed))
    (tmp_path / "images" / "dog" / "broken.png").write_bytes(b"no image")
    return tmp_path / "images"


def vit(**options):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return ViTForImageClassification(ViTConfig(**sizes, image_size=16, patch_size=8, **options)).eval()


def processor():
    return ViTImageProcessor(size={"height": 16, "width": 16})


def test_a_sub_folder_is_a_class_and_what_cannot_be_read_is_counted(images):
    corpus = read_source(str(images))
    assert [(t.text, t.label) for t in corpus.texts] == [
        ("cat/0.png", "cat"), ("cat/1.png", "cat"), ("cat/2.png", "cat"), ("dog/3.png", "dog"), ("dog/4.png", "dog"),
    ]  # fmt: skip
    assert corpus.skipped == {"unreadable image": 1}
    np.testing.assert_array_equal(np.asarray(corpus.texts[3].media.image()), pixels(3))


def test_a_table_beside_the_files_says_more_of_them(tmp_path):
    for seed in (0, 1):
        (tmp_path / f"{seed}.wav").write_bytes(wav(seed))
    (tmp_path / "metadata.csv").write_text("file_name,said\n0.wav,go on\n1.wav,stop\n")
    corpus = read_source(str(tmp_path), pair="said")
    assert [(t.text, t.pair, t.label) for t in corpus.texts] == [("0.wav", "go on", None), ("1.wav", "stop", None)]
    assert corpus.texts[0].media.seconds == pytest.approx(0.1)
    (tmp_path / "metadata.csv").write_text("file_name,said\n2.wav,go on\n")
    with pytest.raises(BadInput, match=r"names '2.wav', which is not there"):
        read_source(str(tmp_path), pair="said")
    (tmp_path / "metadata.csv").write_text("file_name,said\n../2.wav,go on\n")
    with pytest.raises(BadInput, match="outside the folder"):
        read_source(str(tmp_path), pair="said")


def test_splits_are_sub_folders_and_kinds_do_not_mix(tmp_path, images):
    for split in ("train", "validation"):
        (tmp_path / "set" / split / "a").mkdir(parents=True)
        (tmp_path / "set" / split / "a" / "0.png").write_bytes(png(len(split)))
    assert [t.label for t in read_source(str(tmp_path / "set"), split="validation").texts] == ["a"]
    with pytest.raises(BadInput, match="no split 'test'"):
        read_source(str(images), split="test")
    (images / "cat" / "0.wav").write_bytes(wav(0))
    with pytest.raises(BadInput, match="images and clips in one folder"):
        read_source(str(images))


def test_data_sets_hold_images_and_clips(tmp_path):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    cells = [{"bytes": png(seed), "path": None} for seed in (0, 1)] + [{"bytes": b"nothing", "path": None}]
    datasets.Dataset.from_dict({"image": cells, "label": [1, 0, 1]}, features=features).save_to_disk(tmp_path / "set")
    corpus = read_source(str(tmp_path / "set"))
    assert [t.label for t in corpus.texts] == ["dog", "cat"]
    assert corpus.label_names == ("cat", "dog")
    assert corpus.skipped == {"unreadable image": 1}
    np.testing.assert_array_equal(np.asarray(corpus.texts[1].media.image()), pixels(1))
    assert read_source(str(tmp_path / "set"), text="image").hash == corpus.hash


def test_an_image_is_its_content_not_its_name(images):
    corpus = read_source(str(images))
    same = Text("other name", label="cat", media=media_of("image", images / "cat" / "0.png"))
    assert same.id == corpus.texts[0].id
    assert len({t.id for t in corpus.texts}) == 5
    (images / "cat" / "0.png").write_bytes(png(9))
    with pytest.raises(BadInput, match=r"0.png: changed since it was first read"):
        corpus.texts[0].media.image()


def test_clips_are_mixed_down_and_resampled():
    both = np.stack([wave(0), wave(1)], axis=1)
    held = io.BytesIO()
    soundfile.write(held, both, 8000, format="WAV", subtype="FLOAT")
    clip = media_of("audio", held.getvalue())
    np.testing.assert_allclose(clip.wave(8000), both.mean(axis=1), atol=1e-6)
    from scipy.signal import resample_poly

    np.testing.assert_allclose(clip.wave(16000), resample_poly(both.mean(axis=1), 2, 1), atol=1e-6)
    with pytest.raises(BadInput, match="not a clip"):
        media_of("audio", b"RIFF nothing")


def test_the_processor_makes_the_inputs_of_images(images):
    corpus, model = read_source(str(images)), vit()
    found = batches(corpus, processor(), model=model, batch_size=3)
    made = list(found)
    assert [batch.index for batch in made] == [(0, 1, 2), (3, 4)]
    assert [batch.texts for batch in made] == [list(corpus.texts[:3]), list(corpus.texts[3:])]
    alone = processor()(images=Image.fromarray(pixels(4)), return_tensors="pt")["pixel_values"]
    assert torch.equal(made[1].inputs["pixel_values"][1:], alone)
    assert made[0].tokens == {}
    # Four patches and the class token, which is what a budget of memory counts with.
    assert {batch.width for batch in made} == {5}
    assert [len(part.texts) for part in Portions(found, heads=2, memory=2 * 2 * 25 * 8)] == [2, 1, 2]
    half = next(iter(batches(corpus, processor(), model=vit().bfloat16())))
    assert half.inputs["pixel_values"].dtype == torch.bfloat16


def test_clips_of_one_length_share_a_batch():
    clips = [media_of("audio", wav(seed, samples)) for seed, samples in enumerate((400, 800, 400, 800, 800))]
    corpus = Corpus([Text(str(i), media=clip) for i, clip in enumerate(clips)])
    hears = Wav2Vec2FeatureExtractor(sampling_rate=8000)
    made = list(batches(corpus, hears, batch_size=2))
    assert [batch.index for batch in made] == [(1, 3), (4,), (0, 2)]
    assert [tuple(batch.inputs["input_values"].shape) for batch in made] == [(2, 800), (1, 800), (2, 400)]
    alone = hears(wave(2, 400), sampling_rate=8000, return_tensors="pt")["input_values"]
    torch.testing.assert_close(made[2].inputs["input_values"][1:], alone)


def test_what_does_not_fit_is_said(images):
    corpus = read_source(str(images))
    with pytest.raises(BadInput, match="need a checkpoint with a processor of images"):
        batches(corpus, Wav2Vec2FeatureExtractor())
    mixed = Corpus([*corpus.texts, Text("a text")])
    with pytest.raises(BadInput, match="image and text in one corpus"):
        batches(mixed, processor())
