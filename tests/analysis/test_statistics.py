import numpy as np
import pytest
import torch
from scipy.stats import entropy

from headwise.analysis.capture.seen import Seen
from headwise.analysis.corpus.batching import Batch, Tokens
from headwise.analysis.corpus.texts import Text
from headwise.analysis.roles.punctuation import is_punctuation
from headwise.analysis.roles.sinks import is_first, is_separator
from headwise.analysis.sites import Site
from headwise.analysis.statistics import STATISTICS, Statistics

VOCABULARY = ["[CLS]", "[SEP]", "[PAD]", "dog", "##,", "##ing", ",", "“", "...", "3.5", "#", "-"]
MARKS = {"##,", ",", "“", "...", "#", "-"}


class Tokenizer:
    def decode(self, ids):
        return " " + VOCABULARY[ids[0]]


def tokens_of(rows, tokenizer=None):
    width = max(map(len, rows))
    ids = torch.tensor([row + [2] * (width - len(row)) for row in rows])
    valid = torch.tensor([[i < len(row) for i in range(width)] for row in rows])
    special = valid & (ids < 2)
    return Tokens(ids, valid, special, ids, torch.zeros(*ids.shape, 2, dtype=torch.long), tokenizer=tokenizer)


ROWS = [[0, 3, 6, 4, 1], [0, 7, 1], [0, 3, 1, 8, 1]]


def seen_of(site, tokens, causal=False, seed=0, sink=0.0, head_dim=3):
    generator = torch.Generator().manual_seed(seed)
    batch, length = tokens.ids.shape
    heads = len(site.kept)
    allowed = tokens.valid[:, :, None] & tokens.valid[:, None]
    if causal:
        allowed &= torch.ones(length, length, dtype=torch.bool).tril()
    logits = 2 * torch.randn(batch, heads, length, length, generator=generator)
    maps = logits.masked_fill(~allowed[:, None], -torch.inf).softmax(-1) * (1 - sink)
    maps = torch.where(tokens.valid[:, None, :, None], maps, 1 / length)
    contexts = torch.randn(batch, length, heads, head_dim, generator=generator)
    return Seen(site, maps, contexts, tokens.valid, allowed)


def site_of(name="0", heads=3, kept=(0, 1, 2), **more):
    return Site(name, name, name, heads, heads, 3, kept=kept, **more)


def measured(site, seen, tokens, texts=None):
    statistics = Statistics({site.name: site})
    texts = texts or [Text(str(i)) for i in range(len(tokens.ids))]
    statistics.update(Batch({}, texts, {"": tokens}), {site.name: seen})
    return {name.removeprefix("statistics/"): array for name, array in statistics.result().items()}


def by_hand(seen, tokens):
    """Every statistic with plain loops over rows, in float64."""
    found = {name: [] for name in STATISTICS}
    marks = torch.tensor([[VOCABULARY[i] in MARKS for i in row] for row in tokens.ids.tolist()])
    for text, query in torch.nonzero(seen.queries).tolist():
        row = seen.maps[text, :, query].double().numpy()
        n = int(seen.allowed[text, query].sum())
        h = entropy(row, axis=1)
        found["entropy"].append(h)
        if n > 1:
            found["normalised_entropy"].append(h / np.log(n))
            found["below_uniform"].append(np.log(n) - h)
        found["distance"].append(row @ np.abs(np.arange(row.shape[1]) - query))
        special = tokens.special[text].numpy().copy()
        special[0] = False
        found["confidence"].append((row * ~special).max(1))
        found["first"].append(row[:, 0])
        found["special"].append(row[:, special].sum(1))
        found["punctuation"].append(row[:, marks[text].numpy() & tokens.valid[text].numpy()].sum(1))
        found["context_norm"].append(np.linalg.norm(seen.contexts[text, query].double().numpy(), axis=1))
        found["missing_mass"].append(1 - row.sum(1))
    return {name: np.mean(rows, axis=0) for name, rows in found.items()}


@pytest.mark.parametrize("sink", [0.0, 0.25])
@pytest.mark.parametrize("causal", [False, True])
def test_statistics_are_what_they_say(causal, sink):
    tokens = tokens_of(ROWS, Tokenizer())
    seen = seen_of(site_of(), tokens, causal, sink=sink)
    found = measured(site_of(), seen, tokens)
    for name, expected in by_hand(seen, tokens).items():
        np.testing.assert_allclose(found[name], expected, atol=2e-6, err_msg=name)
    assert (found["rows"] == sum(map(len, ROWS))).all()


def test_a_certain_and_an_indifferent_head():
    tokens = tokens_of([[3] * 8], Tokenizer())
    maps = torch.full((1, 3, 8, 8), 1 / 8)
    maps[:, 0] = torch.eye(8)
    every = torch.ones(1, 8, 8, dtype=torch.bool)
    contexts = torch.ones(1, 8, 3, 3)
    contexts[:, :, 2] = 0
    found = measured(site_of(), Seen(site_of(), maps, contexts, tokens.valid, every), tokens)
    np.testing.assert_allclose(found["entropy"], [0, np.log(8), np.log(8)], atol=1e-6)
    np.testing.assert_allclose(found["normalised_entropy"], [0, 1, 1], atol=1e-6)
    np.testing.assert_allclose(found["confidence"], [1, 1 / 8, 1 / 8])
    np.testing.assert_allclose(found["distance"][0], 0)
    assert found["dormant"].tolist() == [False, False, True]


def test_removed_heads_have_no_numbers_and_others_keep_their_index():
    whole, cut = site_of(), site_of(kept=(0, 2))
    tokens = tokens_of(ROWS, Tokenizer())
    seen = seen_of(whole, tokens)
    part = Seen(cut, seen.maps[:, [0, 2]], seen.contexts[:, :, [0, 2]], seen.queries, seen.allowed)
    before, after = measured(whole, seen, tokens), measured(cut, part, tokens)
    for name in STATISTICS:
        np.testing.assert_allclose(after[name][[0, 2]], before[name][[0, 2]], rtol=1e-6, atol=1e-7)
        assert np.isnan(after[name][1])


def test_what_does_not_apply_is_no_number():
    tokens = tokens_of(ROWS)
    found = measured(site_of(), seen_of(site_of(), tokens), tokens)
    assert np.isnan(found["punctuation"]).all()
    assert np.isfinite(found["special"]).all()
    cross = site_of(kind="cross")
    assert np.isnan(measured(cross, seen_of(cross, tokens), tokens)["distance"]).all()


def test_the_same_text_is_summed_into_the_same_cell():
    tokens = tokens_of(ROWS, Tokenizer())
    seen = seen_of(site_of(), tokens)
    statistics = Statistics({"0": site_of()})
    statistics.update(Batch({}, [Text("a"), Text("b"), Text("a")], {"": tokens}), {"0": seen})
    _, rows = statistics.by_cell("entropy")
    assert sorted(rows[:, 0][rows[:, 0] > 0].tolist()) == [3, 10]


def test_classes_of_tokens():
    tokens = tokens_of([list(range(12)), [0, 6, 1]], Tokenizer())
    marks = {VOCABULARY[i] for i, flag in enumerate(is_punctuation(tokens)[0].tolist()) if flag}
    assert marks == MARKS
    assert is_first(tokens).sum(1).tolist() == [1, 1]
    assert is_separator(tokens)[1].tolist()[:4] == [False, False, True, False]
