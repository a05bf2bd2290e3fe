import numpy as np
import pytest
import torch
from scipy.linalg import eigh, sqrtm

from headwise.analysis.corpus.batching import Batch, Tokens
from headwise.analysis.corpus.texts import Text
from headwise.analysis.gates import contexts, gated
from headwise.analysis.sites import find_sites
from headwise.analysis.sites.projections import output_bias, output_weight
from headwise.prune.compensation.correction import correct, ridge_by_left_out
from headwise.prune.compensation.reconstruction import Reconstruct
from headwise.prune.importance import Calibration
from headwise.prune.importance.outputs import Outputs
from headwise.prune.importance.repair_cost import ridged
from headwise.prune.selection.blocks import blocks_of
from headwise.prune.surgery import cut
from tests.prune import importance_scene

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}


def classifier(labels=2):
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(vocab_size=50, initializer_range=0.4, num_labels=labels, **SIZES)
    return BertForSequenceClassification(config).double().eval()


def llama():
    from transformers import LlamaConfig, LlamaForSequenceClassification

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, num_key_value_heads=2, head_dim=4, initializer_range=0.4, num_labels=3, pad_token_id=0, **SIZES
    )
    return LlamaForSequenceClassification(config).double().eval()


def batched(count=80, size=16):
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count // size):
        lengths = rng.integers(3, 9, size)
        ids = torch.tensor(rng.integers(1, 50, (size, 9)))
        valid = torch.arange(9) < torch.tensor(lengths)[:, None]
        ids[~valid] = 0
        empty = torch.full_like(ids, -1)
        tokens = Tokens(ids, valid, torch.zeros_like(valid), empty, torch.stack([empty, empty], -1))
        texts = [Text(" ".join(map(str, row[:n].tolist()))) for row, n in zip(ids, lengths, strict=True)]
        found.append(Batch({"input_ids": ids, "attention_mask": valid.long()}, texts, {"": tokens}))
    return found


def picked(batches, rows):
    """Tokens of some texts of batches that are put together."""
    parts = [[getattr(batch.tokens[""], name) for batch in batches] for name in list(Tokens.__dataclass_fields__)[:5]]
    return Tokens(*(torch.cat(part)[rows] for part in parts))


def calibration(model, batches=None):
    return Calibration(model, find_sites(model), batched() if batches is None else batches, None)


def explained(model, remove, ridge):
    """By brute force: each text's gradient by weight and bias, whitened, as one row of a matrix."""
    sites, rows = find_sites(model), []
    for batch in batched():
        with torch.no_grad(), contexts(model) as seen:
            model(**batch.inputs)
        for name in remove:
            rows.append((name, seen[name][0][batch.tokens[""].valid].numpy()))
    with gated(model, remove):
        parts = [by_text(model, sites[name], name, heads, rows, ridge) for name, heads in remove.items()]
    return np.concatenate(parts, 1)


def by_text(model, site, name, heads, rows, ridge):
    projection = model.get_submodule(site.output)
    weight, bias = projection.weight, projection.bias
    kept = [i for i in range(weight.shape[1]) if i // site.head_dim not in heads]
    seen = np.concatenate([found for key, found in rows if key == name])[:, kept]
    mean = seen.mean(0) if bias is not None else np.zeros(len(kept))
    whiten = np.linalg.inv(sqrtm(ridged((seen - mean).T @ (seen - mean) / len(seen), ridge)).real)
    slopes, outer, at_output = [], 0, []
    handle = projection.register_forward_hook(lambda _m, _a, output: at_output.append(output))
    for batch in batched():
        for index, text in enumerate(batch.texts):
            inputs = {key: value[[index]] for key, value in batch.inputs.items()}
            tokens = picked([batch], slice(index, index + 1))
            value = Outputs().losses(model, Batch(inputs, [text], {"": tokens}))[0]
            wanted = [weight, at_output.pop(), *([] if bias is None else [bias])]
            by_weight, by_output, *by_bias = torch.autograd.grad(value, wanted)
            if len(slopes) < 64:
                real = by_output[0][tokens.valid[0]].numpy()
                outer = outer + real.T @ real
            moved = by_bias[0].numpy()[:, None] if by_bias else np.zeros((len(weight), 0))
            centred = by_weight.numpy()[:, kept] - (moved * mean if by_bias else 0)
            slopes.append(np.concatenate([centred @ whiten, moved], 1))
    handle.remove()
    values, vectors = eigh(ridged(outer / 64, 0.1))
    directions = (vectors / np.sqrt(values))[:, -16:]
    return np.stack([(directions.T @ slope).ravel() for slope in slopes])


@pytest.mark.parametrize(("made", "remove"), [(classifier, {"0": [1], "1": [0, 2]}), (llama, {"1": [2, 3]})])
def test_a_correction_moves_the_outputs_as_ridge_regression_on_explicit_gradients_says(made, remove):
    model = made()
    features = explained(model, remove, 1e-2)
    with gated(model, remove):
        now = calibration(model).outputs()
    names = [text.id for batch in batched() for text in batch.texts]
    rng = np.random.default_rng(1)
    lacks = 1e-4 * (features @ rng.normal(size=features.shape[1]) / np.linalg.norm(features, axis=1).mean())
    lacks += 1e-5 * rng.normal(size=len(lacks))
    wanted = {name: now[name] + lack for name, lack in zip(names, lacks, strict=True)}
    lost = {block: remove[name] for name, block in blocks_of(find_sites(model)).items() if name in remove}
    report = correct(calibration(model), lost, wanted, 1e-2)
    with gated(model, remove):
        then = calibration(model).outputs()
    weights, errors = ridge_by_left_out(features @ features.T, lacks)
    moved = np.array([then[name] - now[name] for name in names])
    np.testing.assert_allclose(moved, features @ (features.T @ weights), rtol=1e-2, atol=1e-2 * np.abs(moved).max())
    assert report == pytest.approx(errors, rel=1e-3)
    assert report["expected"] < 0.97 * report["before"]


def test_errors_on_texts_left_out_are_those_of_fits_without_them():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20, 5))
    lacks = rows @ rng.normal(size=5) + 0.3 * rng.normal(size=20)
    kernel = rows @ rows.T
    weights, errors = ridge_by_left_out(kernel, lacks)
    # The strength that was chosen, read off the solution.
    strength = float(np.linalg.norm(lacks - kernel @ weights) / np.linalg.norm(weights))
    left = []
    for out in range(20):
        rest = np.delete(np.arange(20), out)
        fit = np.linalg.solve(kernel[np.ix_(rest, rest)] + strength * np.eye(19), lacks[rest])
        left.append(lacks[out] - kernel[out, rest] @ fit)
    assert errors["expected"] == pytest.approx(np.sqrt(np.mean(np.square(left))), rel=1e-6)
    noise = rng.normal(size=20) * np.where(np.arange(20) % 2, 1, -1)
    assert (ridge_by_left_out(np.ones((20, 20)) * 1e-3, noise - noise.mean())[0] == 0).all()


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_only_blocks_that_lost_heads_change_and_the_cut_model_is_the_gated_one():
    model = classifier(3)
    before, remove = state(model), {"1": [0, 3]}
    report = Reconstruct().repair(calibration(model), remove)
    assert report["correction"]["expected"] <= report["correction"]["before"]
    own = {f"bert.encoder.layer.1.attention.{part}" for part in
           ("output.dense.weight", "output.dense.bias", "self.value.weight")}  # fmt: skip
    assert {name for name, value in state(model).items() if not torch.equal(value, before[name])} == own
    weight = "bert.encoder.layer.1.attention.output.dense.weight"
    columns = torch.tensor([i // 4 in remove["1"] for i in range(16)])
    assert torch.equal(state(model)[weight][:, columns], before[weight][:, columns])
    inputs = batched()[0].inputs
    with torch.no_grad(), gated(model, remove):
        expected = model(**inputs).logits
    with torch.no_grad():
        torch.testing.assert_close(cut(model, remove)(**inputs).logits, expected, rtol=1e-10, atol=1e-10)


def test_the_correction_brings_the_outputs_of_other_texts_closer():
    errors = {}
    for how in ("none", "outputs"):
        model, remove = classifier(), {"0": [0, 1, 2], "1": [1, 2]}
        batches = batched(480)
        dense = [model(**batch.inputs).logits.detach() for batch in batches[24:]]
        Reconstruct(correct=how).repair(calibration(model, batches[:24]), remove)
        with torch.no_grad(), gated(model, remove):
            gaps = [model(**b.inputs).logits - z for b, z in zip(batches[24:], dense, strict=True)]
        gaps = torch.cat(gaps)
        errors[how] = float((gaps[:, 1] - gaps[:, 0]).square().mean())
    assert errors["outputs"] < errors["none"]


def test_a_correction_does_not_depend_on_the_batches():
    found = []
    for size in (16, 6):
        model = classifier(3)
        rows = batched()
        texts = [text for batch in rows for text in batch.texts]
        ids = torch.cat([batch.inputs["input_ids"] for batch in rows])
        mask = torch.cat([batch.inputs["attention_mask"] for batch in rows])
        again = [
            Batch(
                {"input_ids": ids[at : at + size], "attention_mask": mask[at : at + size]},
                texts[at : at + size],
                {"": picked(rows, slice(at, at + size))},
            )
            for at in range(0, len(texts), size)
        ]
        Reconstruct().repair(calibration(model, again), {"0": [1], "1": [0]})
        found.append(output_weight(model, find_sites(model)["1"]).numpy())
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-7)


def test_automatic_correction_asks_for_scores_of_whole_texts():
    from transformers import BertConfig, BertModel

    assert calibration(classifier(), batched(16)).scores_texts()
    model = BertModel(BertConfig(vocab_size=50, initializer_range=0.4, **SIZES)).double().eval()
    found = calibration(model, batched(16))
    assert not found.scores_texts()
    assert "correction" not in Reconstruct().repair(found, {"1": [0]})
    assert not calibration(model, []).scores_texts()


def test_what_the_dense_model_says_is_known_where_its_outputs_were_differentiated(monkeypatch):
    model = classifier()
    read = calibration(model, batched(16)).outputs()
    found = calibration(model, batched(16))
    found.gradients(loss="outputs")
    monkeypatch.setattr("headwise.prune.importance.outputs.outputs_of", None)  # not another pass
    assert found.outputs() == pytest.approx(read, rel=1e-12)


@pytest.mark.parametrize("bias", ["auto", "never"])
def test_an_emptied_block_is_corrected_through_its_bias_if_it_may_be(bias):
    model = classifier()
    before = output_bias(model, find_sites(model)["1"]).clone()
    Reconstruct(bias=bias, correct="outputs").repair(calibration(model), {"1": [0, 1, 2, 3]})
    assert torch.equal(output_bias(model, find_sites(model)["1"]), before) is (bias == "never")


@pytest.mark.parametrize("labels", [1, 2, 5])
def test_directions_of_class_scores_average_to_all_of_them_and_none_is_idle(labels):
    model, batch = classifier(labels), batched(16)[0]
    logits = model(**batch.inputs).logits.detach()
    centred = logits - logits.mean(-1, keepdim=True) if labels > 1 else logits
    squares = torch.stack(
        [Outputs(seed).losses(model, batch).detach() for seed in range(150 if labels > 2 else 10)]
    ).square()
    assert (squares > 0).all()
    ratio = squares.mean(0) / centred.square().sum(-1)
    np.testing.assert_allclose(ratio, 1, atol=1e-9 if labels <= 2 else 0.5)


@pytest.mark.parametrize("rows", [[[3, 4, 5]], [[7]], [[3, 4], [3, 4]]], ids=["text", "token", "twice"])
def test_as_few_texts_as_there_can_be_are_corrected_by(rows):
    """Their gradients have one direction; to find the largest few alone of so many equal ones failed."""
    torch.manual_seed(0)
    model = importance_scene.bert().eval()
    context = importance_scene.calibration(model, importance_scene.batched(rows=rows))
    found = Reconstruct(correct="outputs").repair(context, {"0": [0, 1], "1": [0, 1, 2, 3]})
    assert found["correction"]["expected"] <= found["correction"]["before"]
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
