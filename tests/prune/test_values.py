import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy.linalg import sqrtm

from headwise.analysis.corpus.batching import Batch, Tokens
from headwise.analysis.corpus.texts import Text
from headwise.analysis.gates import gated
from headwise.analysis.sites import find_sites
from headwise.analysis.sites.projections import output_bias, output_weight
from headwise.prune.compensation import values
from headwise.prune.compensation.reconstruction import Reconstruct
from headwise.prune.compensation.undo import given_back
from headwise.prune.importance import Calibration
from headwise.prune.surgery import cut

SIZES = {"hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 24, "vocab_size": 50}


def classifier(layers=1):
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(initializer_range=0.4, num_hidden_layers=layers, num_labels=2, **SIZES)
    return BertForSequenceClassification(config).eval()


def calibration(model, count=96, size=16):
    rng, found = np.random.default_rng(0), []
    for _ in range(count // size):
        ids = torch.tensor(rng.integers(1, 50, (size, 9)))
        valid = torch.arange(9) < torch.tensor(rng.integers(3, 10, size))[:, None]
        ids[~valid] = 0
        empty = torch.full_like(ids, -1)
        tokens = Tokens(ids, valid, torch.zeros_like(valid), empty, torch.stack([empty, empty], -1))
        texts = [Text(" ".join(map(str, row.tolist()))) for row in ids]
        found.append(Batch({"input_ids": ids, "attention_mask": valid.long()}, texts, {"": tokens}))
    return Calibration(model, find_sites(model), found, None)


def attention(model, layer=0):
    return model.bert.encoder.layer[layer].attention


def outputs(model, found, remove):
    """Of the first block, [token, feature]."""
    seen = []
    handle = attention(model).output.dense.register_forward_hook(lambda _m, _a, output: seen.append(output))
    with torch.no_grad(), gated(model, remove):
        for batch in found.batches:
            model(**batch.inputs)
    handle.remove()
    return torch.cat([rows[batch.tokens[""].valid] for rows, batch in zip(seen, found.batches, strict=True)])


def test_a_head_with_the_same_map_and_room_takes_all_over():
    model = classifier()
    block = attention(model).self
    with torch.no_grad():
        for part in (block.query, block.key):
            part.weight[4:8], part.bias[4:8] = part.weight[:4], part.bias[:4]
        # Both heads say only two features, of their own; a head has room for four.
        for head in (0, 1):
            block.value.weight[4 * head + 2 : 4 * head + 4] = 0
    found, remove = calibration(model), {"0": [1]}
    wanted = outputs(model, found, {})
    left = {}
    for how in ("keep", "refit"):
        with given_back(model, found.sites):
            report = Reconstruct(values=how, correct="none", ridge=1e-6).repair(found, remove)
            left[how] = float((outputs(model, found, remove) - wanted).norm() / wanted.std(0).norm())
    assert left["refit"] < 0.01 * left["keep"]
    errors = report["values"]["0"]
    assert errors["error_after"] < 0.02 < errors["error_before"]


def test_one_head_that_stays_gets_the_best_matrix_of_its_rank():
    model = classifier()
    found, remove = calibration(model), {"0": [0, 1, 3]}
    entered, maps = [], []
    model.set_attn_implementation("eager")
    handle = attention(model).self.value.register_forward_pre_hook(lambda _m, args: entered.append(args[0]))
    with torch.no_grad():
        for batch in found.batches:
            maps.append(model(**batch.inputs, output_attentions=True).attentions[0][:, 2])
    handle.remove()
    fits = [np.array([int(text.id[:8], 16) % 8 != 0 for text in batch.texts]) for batch in found.batches]
    rows = [batch.tokens[""].valid.numpy() & fit[:, None] for batch, fit in zip(found.batches, fits, strict=True)]
    read = np.concatenate([(m @ x).numpy()[row] for m, x, row in zip(maps, entered, rows, strict=True)]).astype(float)
    [one] = values.read_values(found, {values_block(found): remove["0"]})
    weight, bias = output_weight(model, found.sites["0"]), output_bias(model, found.sites["0"])
    before = (weight[:, 8:12] @ attention(model).self.value.weight[8:12]).detach().double().numpy()
    with torch.no_grad():
        contexts = torch.cat(
            [x @ attention(model).self.value.weight.T + attention(model).self.value.bias for x in entered]
        )
    assert contexts.shape[-1] == 16
    target = np.concatenate(
        [
            part.numpy()
            for part in torch.split(outputs(model, found, {}), [int(b.tokens[""].valid.sum()) for b in found.batches])
        ]
    ).astype(float)
    keep = np.concatenate(
        [np.repeat(fit, b.tokens[""].valid.sum(1).numpy()) for fit, b in zip(fits, found.batches, strict=True)]
    )
    target, read = target[keep] - target[keep].mean(0), read - read.mean(0)
    square = read.T @ read / len(read)
    ridge = 1e-2 * np.trace(square) / 16
    shape = square + ridge * np.eye(16)
    best = (target.T @ read / len(read) + ridge * before) @ np.linalg.inv(shape)
    felt, root = one.felt.numpy(), np.real(sqrtm(shape))
    left, sizes, right = np.linalg.svd(felt @ best @ root)
    expected = np.linalg.inv(felt) @ (left[:, :4] * sizes[:4]) @ right[:4] @ np.linalg.inv(root)
    assert "0" in values.refit_values(model, [one], 1e-2)
    got = (weight[:, 8:12] @ attention(model).self.value.weight[8:12]).detach().numpy()
    np.testing.assert_allclose(got, expected, atol=2e-3 * np.abs(expected).max())
    assert bias is not None


def values_block(found):
    from headwise.prune.selection.blocks import blocks_of

    return blocks_of(found.sites)["0"]


def test_the_cut_model_is_the_gated_one_and_all_comes_back():
    model = classifier(2)
    found, remove = calibration(model), {"0": [1, 2], "1": [0]}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    inputs = found.batches[0].inputs
    with given_back(model, found.sites):
        assert Reconstruct().repair(found, remove)["values"]
        changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
        with torch.no_grad(), gated(model, remove):
            expected = model(**inputs).logits
        smaller = cut(classifier_like(model), remove)
    assert changed == {
        f"bert.encoder.layer.{layer}.attention.{part}"
        for layer in (0, 1)
        for part in ("self.value.weight", "output.dense.weight", "output.dense.bias")
    }
    with torch.no_grad():
        torch.testing.assert_close(smaller(**inputs).logits, expected, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def classifier_like(model):
    import copy

    return copy.deepcopy(model)


def test_values_that_several_heads_share_and_blocks_that_lose_nothing_stay():
    from transformers import LlamaConfig, LlamaForSequenceClassification

    torch.manual_seed(0)
    config = LlamaConfig(num_hidden_layers=1, num_key_value_heads=2, head_dim=4, num_labels=2, pad_token_id=0, **SIZES)
    model = LlamaForSequenceClassification(config).eval()
    found = calibration(model)
    assert "values" not in Reconstruct(values="refit").repair(found, {"0": [2, 3]})
    assert values.value_linears(model, found.sites) == {}
    bert = classifier(2)
    kept = attention(bert, 1).self.value.weight.clone()
    assert list(Reconstruct().repair(calibration(bert), {"0": [1]})["values"]) == ["0"]
    assert torch.equal(attention(bert, 1).self.value.weight, kept)


@pytest.mark.parametrize("how", [{"values": "keep"}, {"bias": "never"}])
def test_values_stay_where_that_was_asked_for(how):
    model = classifier()
    before = attention(model).self.value.weight.clone()
    assert "values" not in Reconstruct(**how).repair(calibration(model), {"0": [1]})
    assert torch.equal(attention(model).self.value.weight, before)


def test_values_are_not_asked_for_where_no_bias_may_take_the_means():
    with pytest.raises(ValidationError, match="bias: never forbids"):
        Reconstruct(values="refit", bias="never")


def test_values_stay_where_contexts_are_not_maps_times_values_or_products_would_be_too_many(monkeypatch):
    model = classifier()
    found = calibration(model)
    monkeypatch.setattr(values, "EXPLAINED", -1.0)
    assert Reconstruct().repair(found, {"0": [1]})["values"] == {}
    monkeypatch.setattr(values, "WIDEST", 8)
    assert "values" not in Reconstruct().repair(found, {"0": [1]})
