import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from headwise.analysis.annotations import Annotated, Mention, choices, coreference_set
from headwise.analysis.annotations.templates import HELD_OUT
from headwise.analysis.capture.seen import Seen
from headwise.analysis.corpus.batching import Batch, Tokens
from headwise.analysis.corpus.encoding import word_spans
from headwise.analysis.corpus.texts import Text
from headwise.analysis.roles.coreference import BASELINES, Antecedents
from headwise.analysis.sites import Site

GOLD, NEAREST, FIRST, UNIFORM, SPECIAL, MIXED = range(6)
HEADS = 6


def pieces_of(text):
    """Tokens of at most four characters: long words come in pieces, as with any real tokenizer."""
    found = []
    for number, (start, end) in enumerate(word_spans(text)):
        found += [(number, at, min(at + 4, end)) for at in range(start, end, 4)]
    return found


def batch_of(annotated, side="right", limit=None, extra=0):
    rows = [[(-1, 0, 0), *pieces_of(one.text), (-1, 0, 0)] for one in annotated]
    rows = [row[:limit] for row in rows]
    width = max(map(len, rows)) + extra
    shape = (len(rows), width)
    words, valid = torch.full(shape, -1), torch.zeros(shape, dtype=torch.bool)
    offsets = torch.zeros(*shape, 2, dtype=torch.long)
    for i, row in enumerate(rows):
        start = width - len(row) if side == "left" else 0
        here = slice(start, start + len(row))
        valid[i, here] = True
        words[i, here] = torch.tensor([word for word, _, _ in row])
        offsets[i, here] = torch.tensor([span for _, *span in row])
    tokens = Tokens(valid.long(), valid, valid & (words < 0), words, offsets)
    return Batch({}, [Text(one.text, links=one) for one in annotated], {"": tokens})


def site_of(kept=tuple(range(HEADS)), **other):
    return Site("0", "a", "a.o", HEADS, HEADS, 4, kept=kept, **other)


def seen_of(batch, maps, causal=False, site=None, window=None):
    valid = batch.tokens[""].valid
    allowed = valid[:, :, None] & valid[:, None, :]
    n = valid.shape[1]
    if causal:
        allowed &= torch.ones(n, n, dtype=torch.bool).tril()
    if window is not None:
        allowed &= torch.ones(n, n, dtype=torch.bool).triu(1 - window)
    maps = torch.where(allowed[:, None], maps.exp(), 0)
    maps = maps / maps.sum(-1, keepdim=True).clamp(min=1e-9)
    # What padding rows hold must not matter.
    maps = torch.where(valid[:, None, :, None], maps, 0.123)
    return {"0": Seen(site or site_of(), maps, None, valid, allowed)}


def planted(batch):
    """Logits of heads that look at the antecedent, the nearest or first mention, everything, specials, or
    the antecedent in every other text."""
    tokens = batch.tokens[""]
    n = tokens.valid.shape[1]
    maps = torch.zeros(len(batch.texts), HEADS, n, n)
    for i, text in enumerate(batch.texts):
        for choice in choices(text.links)[0]:
            at = _tokens(tokens, i, choice.anaphor)
            right = [span for span, gold in zip(choice.candidates, choice.gold, strict=True) if gold]
            mixed = right[-1] if text.links.text.count("e") % 2 else choice.candidates[choice.gold[0] is True]
            for head, span in (
                (GOLD, right[-1]),
                (NEAREST, choice.candidates[-1]),
                (FIRST, choice.candidates[0]),
                (MIXED, mixed),
            ):
                maps[i, head, at[:, None], _tokens(tokens, i, span)[None]] += 6
            maps[i, SPECIAL, at] += 9 * tokens.special[i].float()
            maps[i, GOLD, at[:, None], at[None]] += 9
    return maps


def _tokens(tokens, i, span):
    start, end = tokens.offsets[i].T
    return torch.nonzero((start < span[1]) & (end > span[0]) & (end > start)).flatten()


def look(annotated, side="right", size=50, causal=False, order=1, held_out=(), **other):
    reducer = Antecedents({"0": other.get("site") or site_of()}, held_out=held_out)
    texts = annotated[::order]
    for at in range(0, len(texts), size):
        batch = batch_of(texts[at : at + size], side, extra=at % 3)
        reducer.update(batch, seen_of(batch, planted(batch), causal, **other))
    found = {name.removeprefix("roles/coreference/"): value for name, value in reducer.result().items()}
    return found, reducer


@pytest.fixture(scope="module")
def whole():
    return look(coreference_set(), size=100)


def test_planted_heads_get_their_scores(whole):
    texts = coreference_set()
    found, reducer = whole
    asked = [choices(text)[0][0] for text in texts]
    assert found["n"].tolist() == [len(texts)] * HEADS
    assert found["score"][GOLD] == 1
    assert found["score"][NEAREST] == pytest.approx(np.mean([one.gold[-1] for one in asked]))
    assert found["score"][FIRST] == pytest.approx(np.mean([one.gold[0] for one in asked]))
    assert found["nearest"][GOLD] == pytest.approx(found["score"][NEAREST])
    assert found["random"][GOLD] == pytest.approx(np.mean([np.mean(one.gold) for one in asked]))
    assert found["chance"][GOLD] == max(found[name][GOLD] for name in BASELINES)
    assert found["pronoun"][GOLD] == found["nominal"][GOLD] == 1
    assert np.isnan(found["proper"][GOLD])
    assert found["mass_lift"][GOLD] > 1.8
    assert reducer.skipped["first of its cluster"] == len(texts)
    assert 0.9 < reducer.reliability() <= 1


def test_only_a_head_that_beats_every_simple_rule_is_significant(whole):
    found, _ = whole
    assert found["p"][GOLD] < 1e-6
    assert found["low"][GOLD] > 0.3
    assert found["excess"][GOLD] == pytest.approx(found["score"][GOLD] - found["chance"][GOLD])
    for head in (NEAREST, FIRST, UNIFORM, SPECIAL):
        assert found["p"][head] > 0.4
        assert found["excess"][head] <= 1e-9
        assert found["low"][head] <= 0


def test_a_uniform_head_has_no_lift_and_scores_as_uniform(whole):
    found, _ = whole
    for head in (UNIFORM, SPECIAL):
        assert found["score"][head] == pytest.approx(found["uniform"][head])
        assert found["mass_lift"][head] == pytest.approx(1, abs=1e-4)


def test_padding_batches_and_order_change_nothing():
    texts = coreference_set("dev")[:90]
    expected, _ = look(texts)
    for other in ({"side": "left"}, {"size": 7}, {"order": -1}, {"side": "left", "size": 13, "order": -1}):
        found, _ = look(texts, **other)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-9, err_msg=f"{name} {other}")


def test_a_causal_site_finds_the_same_antecedents():
    found, _ = look(coreference_set("dev")[:90], causal=True)
    assert found["score"][GOLD] == 1
    assert found["score"][UNIFORM] == pytest.approx(found["uniform"][UNIFORM])


def in_tiles(seen, rows):
    """The same maps, a few rows at a time."""
    one = seen["0"]
    for start in range(0, one.queries.shape[1], rows):
        part = slice(start, start + rows)
        yield {"0": replace(one, maps=one.maps[:, :, part], queries=one.queries[:, part], allowed=one.allowed[:, part],
                            start=start)}  # fmt: skip


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("causal", [False, True])
def test_tiles_that_cut_through_words_change_nothing(rows, causal):
    texts = [*coreference_set()[::23], Annotated("Ann saw the old Alexandria before Alexandria saw Ann.",
             (((33, 43), (16, 26)), ((48, 51), (0, 3))))]  # fmt: skip
    batch = batch_of(texts, limit=16)
    maps = planted(batch)
    maps += torch.randn(maps.shape, generator=torch.Generator().manual_seed(0))
    seen = seen_of(batch, maps, causal)
    together, apart = Antecedents({"0": site_of()}), Antecedents({"0": site_of()})
    together.update(batch, seen)
    for tile in in_tiles(seen, rows):
        apart.update(batch, tile)
    assert together.skipped == apart.skipped
    assert together.skipped["mention cut by truncation"] > 0
    expected, found = together.result(), apart.result()
    assert expected["roles/coreference/n"][0] > 10
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, atol=1e-6, err_msg=name)


def test_held_out_templates_are_kept_apart():
    found, _ = look(coreference_set(), size=100, held_out=HELD_OUT)
    assert found["n"][0] == len(coreference_set("dev"))
    assert found["held_out_n"][0] == len(coreference_set("held-out"))
    assert found["held_out_score"][GOLD] == 1
    dev, _ = look(coreference_set("dev"), size=100)
    np.testing.assert_allclose(found["score"], dev["score"])


def test_templates_are_resampled_together(whole):
    one = [Annotated(t.text, t.links, mentions=t.mentions) for t in coreference_set()]
    together, _ = whole
    apart, _ = look(one, size=100)
    np.testing.assert_allclose(together["score"], apart["score"])
    width = {name: found["high"][MIXED] - found["low"][MIXED] for name, found in (("t", together), ("a", apart))}
    assert width["t"] > width["a"] > 0
    few = [Annotated(t.text, t.links, template="the only one", mentions=t.mentions) for t in coreference_set()[:5]]
    alone, _ = look(few)
    assert alone["score"][GOLD] == 1
    assert np.isnan(alone["low"][GOLD])


def zeros_for(batch):
    n = batch.tokens[""].valid.shape[1]
    return torch.zeros(len(batch.texts), HEADS, n, n)


def one_text():
    text = "Anna saw Bobs dog near Eve and she ran."
    spans = {word: (text.index(word), text.index(word) + len(word)) for word in ("Anna", "Bobs", "Eve", "she")}
    mentions = tuple(Mention(span) for span in spans.values())
    return Annotated(text, ((spans["she"], spans["Eve"]),), mentions=mentions), spans


def judge(annotated, maps_of, **other):
    batch = batch_of([annotated])
    reducer = Antecedents({"0": site_of()})
    seen = seen_of(batch, zeros_for(batch), **other)
    maps_of(seen["0"].maps, batch.tokens[""])
    reducer.update(batch, seen)
    found = {name.removeprefix("roles/coreference/"): value for name, value in reducer.result().items()}
    return found, reducer


def test_ties_share_the_credit_and_pieces_are_summed():
    annotated, spans = one_text()

    def fill(maps, tokens):
        she, anna, eve = (_tokens(tokens, 0, spans[word]) for word in ("she", "Anna", "Eve"))
        maps[0, :, she] = 0
        maps[0, 0, she, anna] = maps[0, 0, she, eve] = 0.5
        maps[0, 1, she, eve] = 0.6
        maps[0, 1, she, anna] = 0.4
        maps[0, 2, she, 0] = 0.9
        maps[0, 2, she, eve] = 0.1

    found, _ = judge(annotated, fill)
    assert found["score"][:3].tolist() == [0.5, 1.0, 1.0]
    assert found["random"][0] == pytest.approx(1 / 3)
    # Rows that are all zero are broken: they are not judged.
    assert found["n"].tolist() == [1, 1, 1, 0, 0, 0]
    assert np.isnan(found["score"][3:]).all()


def test_a_candidate_in_pieces_wins_by_their_sum():
    text = "The businesswoman met Bob and she ran."
    woman, bob, she = (4, 17), (22, 25), (30, 33)
    annotated = Annotated(text, ((she, woman),), mentions=(Mention(woman), Mention(bob)))

    def fill(maps, tokens):
        maps[0, :, _tokens(tokens, 0, she)] = 0
        pieces = _tokens(tokens, 0, woman)
        assert len(pieces) == 4
        maps[0, :, _tokens(tokens, 0, she), pieces] = 0.15
        maps[0, :, _tokens(tokens, 0, she), _tokens(tokens, 0, bob)] = 0.4

    found, _ = judge(annotated, fill)
    assert (found["score"] == 1).all()
    assert (found["uniform"] == 1).all()
    assert found["mass_lift"][0] == pytest.approx(0.6 / (4 / 5))


def test_an_anaphor_in_pieces_is_their_mean():
    text = "Anna met Bob. The businesswoman ran."
    anna, bob, woman = (0, 4), (9, 12), (18, 31)
    annotated = Annotated(text, ((woman, anna),), mentions=(Mention(anna), Mention(bob)))

    def fill(maps, tokens):
        pieces = _tokens(tokens, 0, woman)
        maps[0, :, pieces] = 0
        maps[0, :, pieces[0], _tokens(tokens, 0, bob)] = 0.9
        maps[0, :, pieces[0], _tokens(tokens, 0, anna)] = 0.1
        for piece in pieces[1:]:
            maps[0, :, piece, _tokens(tokens, 0, anna)] = 0.6
            maps[0, :, piece, _tokens(tokens, 0, bob)] = 0.4

    found, _ = judge(annotated, fill)
    # Means: Anna (0.1 + 3 * 0.6) / 4 = 0.475, Bob (0.9 + 3 * 0.4) / 4 = 0.525.
    assert (found["score"] == 0).all()
    assert found["mass_lift"][0] == pytest.approx(0.475 / 0.5)


def test_rows_that_are_not_finite_do_not_reach_the_mean():
    annotated, spans = one_text()

    def fill(maps, tokens):
        maps[0, 0, _tokens(tokens, 0, spans["she"]), 3] = float("nan")
        maps[0, 1, 2] = float("nan")

    found, _ = judge(annotated, fill)
    assert found["n"].tolist() == [0, 1, 1, 1, 1, 1]
    assert np.isfinite(found["score"][1:]).all()


def test_candidates_outside_the_window_do_not_count():
    annotated, _ = one_text()
    found, _ = judge(annotated, lambda maps, tokens: None, causal=True)
    assert found["random"][0] == pytest.approx(1 / 3)
    # A window of nine tokens before "she" holds Bobs and Eve, one of seven only Eve: no choice is left.
    found, _ = judge(annotated, lambda maps, tokens: None, causal=True, window=7)
    assert found["random"][0] == pytest.approx(1 / 2)
    found, _ = judge(annotated, lambda maps, tokens: None, causal=True, window=4)
    assert found["n"].tolist() == [0] * HEADS


def test_mentions_that_truncation_cuts_are_counted_and_not_scored():
    texts = coreference_set("dev")[:40]
    lengths = [len(pieces_of(text.text)) + 2 for text in texts]
    limit = int(np.median(lengths)) - 3
    batch = batch_of(texts, limit=limit)
    reducer = Antecedents({"0": site_of()})
    reducer.update(batch, seen_of(batch, zeros_for(batch)))
    cut = 0
    for text in texts:
        end = max(end for _, _, end in pieces_of(text.text)[: limit - 1])
        cut += choices(text)[0][0].anaphor[1] > end
    assert 0 < cut < len(texts)
    assert reducer.skipped["mention cut by truncation"] == cut
    assert reducer.result()["roles/coreference/n"][0] == len(texts) - cut


def test_texts_without_links_and_other_relations_are_counted():
    annotated, _ = one_text()
    other = Annotated(annotated.text, annotated.links, relation="dependency")
    batch = batch_of([annotated, other])
    batch.texts[1] = Text("plain")
    reducer = Antecedents({"0": site_of()})
    reducer.update(batch, seen_of(batch, zeros_for(batch)))
    assert reducer.skipped["text without coreference links"] == 1
    batch = batch_of([other])
    reducer.update(batch, seen_of(batch, zeros_for(batch)))
    assert reducer.skipped["text without coreference links"] == 2
    assert reducer.result()["roles/coreference/n"][0] == 1


def test_nothing_judged_is_not_applicable():
    reducer = Antecedents({"0": site_of()})
    found = reducer.result()
    for name in ("score", "chance", "excess", "low", "high", "p", "mass_lift"):
        assert np.isnan(found[f"roles/coreference/{name}"]).all()
    assert (found["roles/coreference/n"] == 0).all()
    assert np.isnan(reducer.reliability())


def test_cut_heads_and_cross_attention_are_not_applicable():
    texts = coreference_set("dev")[:20]
    batch = batch_of(texts)
    kept = (1, 4)
    sites = {"0": site_of(kept), "1": Site("1", "b", "b.o", 2, 2, 4, kind="cross", kept=(0, 1))}
    seen = seen_of(batch, planted(batch)[:, :2], site=sites["0"])
    n = batch.tokens[""].valid.shape[1]
    seen["1"] = Seen(sites["1"], torch.full((20, 2, n, n), 1 / n), None, seen["0"].queries, seen["0"].allowed)
    reducer = Antecedents(sites)
    reducer.update(batch, seen)
    score = reducer.result()["roles/coreference/score"]
    assert score.shape == (HEADS + 2,)
    assert np.flatnonzero(np.isfinite(score)).tolist() == [1, 4]
    assert score[1] == 1


def test_the_same_word_rule_takes_the_latest_repetition():
    text = "Ann met Bob. Ann saw Eve. Then Ann ran."
    first, second, third = ((m.start(), m.end()) for m in re.finditer("Ann", text))
    bob, eve = (8, 11), (21, 24)
    annotated = Annotated(text, ((second, first), (third, second)), mentions=(Mention(bob), Mention(eve)))
    found, _ = judge(annotated, lambda maps, tokens: None)
    assert found["n"][0] == 2
    assert found["same_word"][0] == 1
    assert found["nearest"][0] == 0
    assert found["proper"][0] == found["score"][0]
