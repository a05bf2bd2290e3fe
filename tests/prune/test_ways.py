"""Models that attend in another way once an input is short: headwise leaves them in their own, and cuts them in both."""

import copy

import pytest
import torch
import transformers

from headwise.analysis import find_sites, gated
from headwise.analysis.capture import capture
from headwise.analysis.corpus.batching import Batch, Tokens
from headwise.analysis.corpus.texts import Text
from headwise.analysis.errors import BadInput
from headwise.analysis.gates.still import still
from headwise.analysis.gates.synthetic import synthetic_inputs
from headwise.analysis.similarity import Cosine, Pearson
from headwise.prune import cut, load, save

SMALL = {"vocab_size": 120, "attention_type": "block_sparse", "block_size": 8, "num_random_blocks": 2,
         "max_position_embeddings": 512}  # fmt: skip
SIZES = {
    "BigBird": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 48},
    "BigBirdPegasus": {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 8,
                       "decoder_attention_heads": 8, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32},
}  # fmt: skip


def made(family):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SMALL, **SIZES[family])
    model = getattr(transformers, f"{family}Model")(config).eval().double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def output(model, tokens):
    ids = torch.arange(2 * tokens).view(2, tokens) * 7 % 100 + 5
    more = {"decoder_input_ids": ids[:, :4]} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        return model(input_ids=ids, **more)[0]


def ways(model):
    return [(module.attention_type, [type(child) for child in module.children()]) for module in model.modules()
            if hasattr(module, "set_attention_type")]  # fmt: skip


@pytest.mark.parametrize("family", SIZES)
def test_a_cut_model_attends_as_it_did_and_equals_the_gated_and_the_reloaded_one(family, tmp_path):
    model = made(family)
    first, second = list(find_sites(model))[:2]
    before, plan = ways(model), {first: [0, 3], second: list(range(8))}
    smaller = cut(cut(copy.deepcopy(model), {first: [0]}), plan)
    assert before[0][0] == "block_sparse"
    assert ways(smaller) == before
    with gated(model, plan):
        want = output(model, 128)
    torch.testing.assert_close(output(smaller, 128), want, rtol=1e-9, atol=1e-9)
    save(smaller, tmp_path / "cut")
    reloaded = load(tmp_path / "cut", dtype=torch.float64)
    assert ways(reloaded) == before
    assert torch.equal(output(reloaded, 128), output(smaller, 128))


@pytest.mark.parametrize("family", SIZES)
def test_a_short_text_switches_a_cut_model_and_a_longer_one_follows(family):
    model = made(family)
    plan = {next(iter(find_sites(model))): [0, 5]}
    smaller = cut(copy.deepcopy(model), plan)
    for tokens in (16, 128):
        with gated(model, plan):
            want = output(model, tokens)
        torch.testing.assert_close(output(smaller, tokens), want, rtol=1e-9, atol=1e-9)
    # Cut once more in the way that it has now, and turned back to the one it came with.
    plan = {next(iter(find_sites(model))): [0, 1, 5]}
    cut(smaller, plan)
    for one in (model, smaller):
        (one if family == "BigBird" else one.encoder).set_attention_type("block_sparse")
    with gated(model, plan):
        want = output(model, 128)
    torch.testing.assert_close(output(smaller, 128), want, rtol=1e-9, atol=1e-9)


def test_a_model_held_still_gets_its_own_modules_back():
    model = made("BigBird")
    parts, want = list(model.modules()), output(model, 128)
    with still(model):
        output(model, 16)
        assert model.attention_type == "original_full"
    synthetic_inputs(model)
    assert all(a is b for a, b in zip(parts, model.modules(), strict=True))
    assert torch.equal(output(model, 128), want)


@pytest.mark.parametrize("family", SIZES)
def test_maps_of_sparse_blocks_are_refused_and_the_way_out_is_one(family):
    model = made(family).float()
    for tokens in (16, 128):
        with pytest.raises(BadInput, match=r'BlockSparse\w+ attends in sparse blocks.*attention_type="original_full"'):
            look(model, tokens)
    # Contexts are what they are in any way of attending.
    assert look(model, 128, Cosine).rows == 256
    whole = type(model)(type(model.config).from_dict(model.config.to_dict() | {"attention_type": "original_full"}))
    whole.load_state_dict(model.state_dict())
    assert look(whole, 128).rows == 256


def look(model, tokens, measure=Pearson):
    ids = torch.arange(2 * tokens).view(2, tokens) * 7 % 100 + 5
    every = torch.ones_like(ids, dtype=torch.bool)
    stream = Tokens(ids, every, ~every, ids, torch.zeros(2, tokens, 2, dtype=torch.long))
    inputs = {"input_ids": ids, "attention_mask": every.long()}
    streams = {"": stream}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"], streams["decoder"] = ids, stream
    sites = find_sites(model)
    return capture(model, [Batch(inputs, [Text("one"), Text("two")], streams)], [measure(sites)], sites=sites)


def test_a_table_of_as_many_distances_as_heads_stays_whole():
    config = transformers.SamVisionConfig(
        num_hidden_layers=2, hidden_size=64, num_attention_heads=8, image_size=64, patch_size=8, window_size=4,
        global_attn_indexes=[1], mlp_dim=32, output_channels=16,
    )  # fmt: skip
    model = transformers.AutoModel.from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    pixels = torch.randn(1, 3, 64, 64)
    smaller = cut(cut(copy.deepcopy(model), {"0": [0]}), {"0": [1]})
    with torch.no_grad(), gated(model, {"0": [0, 1]}):
        want = model(pixels)[0]
    with torch.no_grad():
        torch.testing.assert_close(smaller(pixels)[0], want, rtol=1e-4, atol=1e-4)
