"""Roles by what a token is, by distance, on random sequences and on links: hand-computed and planted."""

import importlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from headwise.analysis.analyze import analyze
from headwise.analysis.annotations import Annotated, choices, windows
from headwise.analysis.capture.processes import shared_capture
from headwise.analysis.capture.seen import Seen
from headwise.analysis.corpus.batching import Batch, Tokens, batches
from headwise.analysis.corpus.texts import Corpus, Text
from headwise.analysis.errors import BadInput
from headwise.analysis.roles import ROLES
from headwise.analysis.roles.assignment import assign, inferred
from headwise.analysis.roles.dealing import dealt
from headwise.analysis.roles.links import OFFSETS, Links
from headwise.analysis.roles.mass import RelationMass
from headwise.analysis.roles.offsets import FixedOffset
from headwise.analysis.roles.random_sequences import duplicate, induction, looks_back, repeated_sequences
from headwise.analysis.roles.relation import View
from headwise.analysis.roles.search import Search
from headwise.analysis.roles.tokens import rare_tokens
from headwise.analysis.sites import Site, find_sites
from tests.word_tokenizers import of_words

WORDS = ["?", "[S]", "the", "dog", "saw", "12", "3.5", ",", ".", "(", '"', "-", "cat", "##cat", "and"]


def tokenizer_of(words=WORDS):
    return of_words(words, split=pre_tokenizers.WhitespaceSplit(), unk_token="?", pad_token="[S]")


def tokens_of(text, tokenizer=None):
    tokenizer = tokenizer or tokenizer_of()
    ids = torch.tensor([tokenizer.convert_tokens_to_ids(text.split())])
    special = ids == 1
    zero = torch.zeros(*ids.shape, 2, dtype=torch.long)
    return Tokens(
        ids, ids >= 0, special, torch.where(special, -1, torch.arange(ids.shape[1])), zero, tokenizer=tokenizer
    )


def keys_of(role, text):
    tokens = tokens_of(text)
    length = tokens.ids.shape[1]
    chosen = ROLES[role].relation(View(tokens, tokens, torch.ones(1, length, length, dtype=torch.bool), same=True))
    assert torch.equal(chosen, chosen[:, :1].expand_as(chosen))
    return [word for word, there in zip(text.split(), chosen[0, 0].tolist(), strict=True) if there]


TEXT = '[S] the dog saw 12 3.5 , . ( " - cat and'


@pytest.mark.parametrize(
    ("role", "wanted"),
    [
        ("number", ["12", "3.5"]), ("function-word", ["the", "and"]), ("comma", [","]), ("full-stop", ["."]),
        ("bracket", ["("]), ("quotation-mark", ['"']), ("dash", ["-"]), ("colon", []),
        ("punctuation", [",", ".", "(", '"', "-"]),
    ],
)  # fmt: skip
def test_token_classes(role, wanted):
    assert keys_of(role, TEXT) == wanted


def test_the_beginning_of_a_longer_word_is_no_function_word():
    relation = ROLES["function-word"].relation
    tokens = tokens_of("[S] the dog and ##cat and")
    # As a tokenizer of pieces says it: "and" with what follows is one word, the last "and" another.
    tokens = replace(tokens, words=torch.tensor([[-1, 0, 1, 2, 2, 3]]))
    every = torch.ones(1, 6, 6, dtype=torch.bool)
    assert relation(View(tokens, tokens, every, same=True))[0, 0].tolist() == [False, True, False, False, False, True]
    # Dealt anew, a piece stays one wherever it comes to stand.
    moved = dealt(tokens, [Text("a")], "0")
    chosen = relation(View(moved, moved, every, same=True))[0, 0]
    assert sorted(moved.words[0, chosen].tolist()) == [0, 3]
    unknown = replace(tokens, words=torch.full_like(tokens.words, -1))
    assert relation(View(unknown, unknown, every, same=True))[0, 0].sum() == 3


def view_of(ids, causal=False):
    ids = torch.tensor([ids])
    tokens = Tokens(ids, ids >= 0, ids < 0, ids, torch.zeros(*ids.shape, 2, dtype=torch.long))
    allowed = torch.ones(1, ids.shape[1], ids.shape[1], dtype=torch.bool)
    return View(tokens, tokens, allowed.tril() if causal else allowed, same=True)


def test_random_sequence_relations_are_transformer_lens():
    ids = [5, 6, 7, 5, 6, 5, 5]
    view = view_of(ids, causal=True)
    n = len(ids)
    equal = np.array([[ids[q] == ids[k] and k < q for k in range(n)] for q in range(n)])
    rolled = np.roll(equal, 1, axis=1)
    rolled[:, 0] = False
    assert np.array_equal(duplicate(view)[0].numpy(), equal)
    assert np.array_equal(induction(view)[0].numpy(), np.tril(rolled))


def test_rare_tokens_are_the_rarest_tenth():
    rare = rare_tokens([Batch({}, [], {"": view_of([5] * 50 + [6] * 45 + [7] * 3 + [8] * 2).keys})])
    assert rare(view_of([5, 6, 7, 8, 9]))[0, 0].tolist() == [False, False, True, True, False]


def one_site(heads=2):
    return {"0": Site("0", "a", "a.o", heads, heads, 1, kept=tuple(range(heads)))}


def planted_offset(offset, length=20, heads=2, strength=0.6):
    maps = torch.full((1, heads, length, length), (1 - strength) / length)
    for q in range(length):
        k = q + offset
        maps[:, 0, q, k if 0 <= k < length else q] += strength
    maps[:, 1] = 1 / length
    return maps


@pytest.mark.parametrize("offset", [-5, 3])
@pytest.mark.parametrize("tile", [20, 7])
def test_a_fixed_offset_is_found_and_measured(offset, tile):
    sites, reducer = one_site(), FixedOffset(one_site())
    maps, every = planted_offset(offset), torch.ones(1, 20, 20, dtype=torch.bool)
    for i in range(24):
        batch = Batch({}, [Text(f"text {i}")], {})
        for start in range(0, 20, tile):
            rows = slice(start, start + tile)
            seen = Seen(sites["0"], maps[:, :, rows], None, every[:, rows, 0], every[:, rows], start=start)
            reducer.update(batch, {"0": seen})
    sums, found = reducer.measured()
    assert found["offset"][0] == offset
    tested = inferred(sums)
    assert tested["score"][0] == pytest.approx(0.62, abs=1e-6)
    assert tested["chance"][0] == pytest.approx(0.05, abs=1e-6)
    assert tested["excess"][1] == pytest.approx(0, abs=1e-6)
    assert tested["n"][0] in [cells * (20 - abs(offset)) for cells in (10, 11, 12, 13)]
    assert assign({"fixed-offset": tested}, ROLES)["roles/fixed-offset/assigned"].tolist() == [True, False]


def test_sequences_are_said_twice_and_differ():
    found = repeated_sequences(1000, reserved=[3, 4], seed=1, length=16, count=10)
    ids = torch.cat([batch.inputs["input_ids"] for batch in found])
    assert ids.shape == (10, 32)
    assert torch.equal(ids[:, :16], ids[:, 16:])
    assert len({tuple(row) for row in ids.tolist()}) == 10
    assert not torch.isin(ids, torch.tensor([3, 4])).any()
    assert all(len(set(row[:16])) == 16 for row in ids.tolist())


def test_a_planted_induction_head_is_found():
    sites = one_site()
    masses = RelationMass(sites, {name: ROLES[name] for name in ("induction", "duplicate-token")})
    for batch in repeated_sequences(500, length=16, count=32):
        count = len(batch.texts)
        maps = torch.ones(count, 2, 32, 32).tril()
        maps = maps / maps.sum(-1, keepdim=True)
        for q in range(16, 32):
            maps[:, 0, q] *= 0.3
            maps[:, 0, q, q - 15] += 0.7
        allowed = torch.ones(count, 32, 32, dtype=torch.bool).tril()
        masses.update(batch, {"0": Seen(sites["0"], maps, None, allowed[:, :, 0], allowed)})
    found = assign({name: inferred(masses.measured(name)) for name in masses.roles}, ROLES)
    assert found["roles/induction/assigned"].tolist() == [True, False]
    assert not found["roles/duplicate-token/assigned"].any()
    rows = np.arange(16, 32)
    np.testing.assert_allclose(found["roles/induction/chance"], np.mean(1 / (rows + 1)), atol=1e-6)
    assert found["roles/induction/n"].tolist() == [512, 512]


def gpt2(seed=0):
    torch.manual_seed(seed)
    return GPT2LMHeadModel(GPT2Config(vocab_size=len(WORDS), n_embd=16, n_layer=2, n_head=4, n_positions=96)).eval()


def texts_of(count=60, seed=0):
    draw = np.random.default_rng(seed)
    words = [word for word in WORDS[2:] if not word.startswith("##")]
    return Corpus([Text(" ".join(draw.choice(words, size=24))) for _ in range(count)], "random words")


@pytest.mark.parametrize("door", ["eager", "tiles"])
def test_every_pass_of_an_analysis_goes_through_the_door_that_is_asked_for(door, monkeypatch):
    gold = [Annotated("a b a c", (((4, 5), (0, 1)),), "echo")]
    went = []
    for module in ("headwise.analysis.analyze", "headwise.analysis.roles.search"):
        passing = importlib.import_module(module).shared_capture
        monkeypatch.setattr(
            f"{module}.shared_capture",
            lambda *a, door, to=passing, **how: (went.append(door), to(*a, door=door, **how))[1],
        )
    analyze(
        gpt2(), tokenizer_of(), texts_of(8), measures=[], roles=["previous", "induction"], annotated=gold, door=door
    )
    assert went == [door] * 3


def test_random_weights_play_no_role_and_not_applicable_is_an_answer():
    model, tokenizer = gpt2(), tokenizer_of()
    evidence = analyze(model, tokenizer, texts_of(), measures=[])
    # Tokens repeat often in a vocabulary of fifteen: what looks like a class of tokens stays below the effect.
    assert evidence.roles() == [[]] * 8
    assert (evidence["roles/induction/n"] > 0).all()
    assert set(evidence.facts["reliability"]) >= {"previous", "induction", "fixed-offset", "broad"}
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    bert = BertModel(BertConfig(vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                                intermediate_size=16)).eval()  # fmt: skip
    assert not looks_back(bert, find_sites(bert))
    found = analyze(bert, tokenizer, texts_of(), measures=[], roles=["previous", "induction"])
    assert np.isnan(found["roles/induction/score"]).all()
    assert found["roles/induction/n"].tolist() == [0, 0]


def linked(text, links, labels=(), relation="dependency", **more):
    places, start = [], 0
    for word in text.split():
        places.append((start, start + len(word)))
        start += len(word) + 1
    return Annotated(text, tuple((places[a], places[b]) for a, b in links), relation, labels=tuple(labels), **more)


def links_seen(gold, choose, causal=False, heads=2):
    """Head 0 attends to what `choose` says, word by word; head 1 is indifferent."""
    sites, reducer = one_site(heads), Links(one_site(heads))
    tokenizer = tokenizer_of(["?", "[S]", *sorted({word for one in gold for word in one.text.split()})])
    for batch in batches(Corpus([Text(one.text, links=one) for one in gold]), tokenizer, batch_size=4):
        count, length = batch.inputs["input_ids"].shape
        valid = batch.tokens[""].valid
        allowed = valid[:, :, None] & valid[:, None]
        if causal:
            allowed = allowed & torch.ones(length, length, dtype=torch.bool).tril()
        maps = allowed[:, None].expand(count, heads, length, length) / allowed.sum(-1).clamp(min=1)[:, None, :, None]
        maps = maps.clone()
        for i, text in enumerate(batch.texts):
            for q, k in choose(text.links).items():
                maps[i, 0, q] *= 0.2
                maps[i, 0, q, k] += 0.8
        reducer.update(batch, {"0": Seen(sites["0"], maps, None, valid, allowed)})
    return reducer


def chains(count=40):
    """Sentences of eight words, the object's head two to four words back."""
    draw = np.random.default_rng(0)
    found = []
    for i in range(count):
        back = int(draw.integers(2, 5))
        words = [f"w{i}x{k}" for k in range(8)]
        found.append((linked(" ".join(words), [(6, 6 - back), (1, 0)], ["obj", "det"]), back))
    return found


def test_links_are_chosen_words_against_the_best_offset():
    made = chains()
    gold = {one.text: back for one, back in made}
    reducer = links_seen([one for one, _ in made], lambda one: {6: 6 - gold[one.text], 1: 0})
    tests = reducer.tests()
    assert set(tests) == {"obj:to-head", "obj:from-head", "det:to-head", "det:from-head"}
    obj = tests["obj:to-head"]
    counts = np.bincount(list(gold.values()), minlength=5)
    assert obj["score"].tolist() == pytest.approx([1.0, 1 / 7])
    assert obj["chance"].tolist() == pytest.approx([counts.max() / 40] * 2)
    assert obj["offset"][0] == -counts.argmax()
    assert obj["n"].tolist() == [40, 40]
    assert obj["excess"][0] == pytest.approx(1 - counts.max() / 40)
    assert obj["low"][0] <= obj["excess"][0] <= obj["high"][0]
    # A determiner always stands right before its noun: an offset knows as much as the head does.
    assert tests["det:to-head"]["chance"][0] == 1.0
    assigned = assign(tests, {})
    assert assigned["roles/obj:to-head/assigned"].tolist() == [True, False]
    assert not assigned["roles/det:to-head/assigned"].any()


def test_what_a_causal_head_cannot_see_does_not_count():
    reducer = links_seen([one for one, _ in chains()], lambda one: {}, causal=True)
    tests = reducer.tests()
    assert set(tests) == {"obj:to-head"}
    assert tests["obj:to-head"]["n"].tolist() == [40, 40]
    assert (OFFSETS != 0).all()


def test_a_users_relation_with_candidates():
    texts = [f"a{i} b{i} c{i} d{i}" for i in range(40)]
    gold = []
    for text in texts:
        plain = linked(text, [(3, 0)], relation="bond")
        gold.append(
            Annotated(text, plain.links, "bond", candidates=(plain.links[0][1], (text.index("c"), text.index(" d"))))
        )
    # Most attention goes to b, which is no candidate; of the others, a has more than c.
    tests = links_seen(gold, lambda one: {3: 1}).tests()
    assert tests["bond"]["score"].tolist() == pytest.approx([0.5, 0.5])
    assert "bond:back" not in tests or tests["bond:back"]["n"].max() == 0


def test_a_link_has_to_beat_every_simple_rule():
    """Two candidates, one of them right, at distances that change: any choice of the two is right half of the time."""
    gold, right = [], {}
    draw = np.random.default_rng(3)
    for i in range(60):
        words = [f"w{i}x{k}" for k in range(9)]
        a, b = sorted(draw.choice(8, size=2, replace=False).tolist())
        target = int(draw.choice([a, b]))
        # The word that looks stands at the end; in a third of the texts the right one repeats it.
        words[8] = words[target] if i % 3 == 0 else words[8]
        plain = linked(" ".join(words), [(8, target), (a, b)], relation="bond")
        spans = plain.links[1]
        gold.append(Annotated(plain.text, plain.links[:1], "bond", candidates=spans))
        right[plain.text] = (target, a, b)
    found = links_seen(gold, lambda one: {8: right[one.text][0]}).tests()["bond"]
    nearest = np.mean([target == b for target, _, b in right.values()])
    assert found["random"].tolist() == pytest.approx([0.5, 0.5])
    assert found["uniform"].tolist() == pytest.approx([0.5, 0.5])
    assert found["nearest"].tolist() == pytest.approx([nearest] * 2)
    assert found["same_word"].tolist() == pytest.approx([1 / 3] * 2)
    assert found["best_offset"][0] < 0.5
    assert found["chance"].tolist() == pytest.approx([max(0.5, nearest)] * 2)
    assert found["score"].tolist() == pytest.approx([1.0, 0.5])
    # The head is right in all 60 texts; against a coin that is right by half in each, all differences are equal.
    assert found["p"][0] < 1e-6
    assigned = assign({"bond": found}, {})["roles/bond/assigned"]
    assert assigned.tolist() == [True, False]


def test_a_rule_of_words_with_many_tokens_is_one_to_beat():
    """A uniform head gives most to the word in most pieces: where that is the linked one it still has no role."""
    words = {"a": 1, "bcd": 3, "e": 1, "f": 1}
    pieces = Tokenizer(models.WordPiece({"?": 0, **{c: i + 1 for i, c in enumerate("abef")}, "##c": 5, "##d": 6},
                                        unk_token="?"))  # fmt: skip
    pieces.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, unk_token="?", pad_token="?")
    draw, gold = np.random.default_rng(0), []
    for _ in range(40):
        order = draw.permutation(list(words)).tolist()
        gold.append(linked(" ".join(order), [(order.index("a"), order.index("bcd"))], relation="bond"))
    sites, reducer = one_site(1), Links(one_site(1))
    for batch in batches(Corpus([Text(one.text, links=one) for one in gold]), tokenizer, batch_size=8):
        valid = batch.tokens[""].valid
        allowed = valid[:, :, None] & valid[:, None]
        maps = (allowed / allowed.sum(-1, keepdim=True))[:, None]
        reducer.update(batch, {"0": Seen(sites["0"], maps, None, valid, allowed)})
    found = reducer.tests()["bond"]
    assert found["score"].tolist() == found["uniform"].tolist() == [1.0]
    assert found["excess"].tolist() == [0.0]
    assert not assign({"bond": found}, {})["roles/bond/assigned"].any()


def test_atoms_of_a_molecule_are_tokens_of_one_word():
    """A reaction whose atoms keep their order: what a mapping links is smaller than any word."""
    tokenizer = of_words("?CONSP>", split=pre_tokenizers.Split("", "isolated"), unk_token="?", pad_token="?")
    draw, gold = np.random.default_rng(1), []
    for _ in range(40):
        before = "".join(draw.choice(list("CONSP"), size=5))
        order = draw.permutation(5)
        after = "".join(before[k] for k in order)
        links = tuple(((6 + i, 7 + i), (int(k), int(k) + 1)) for i, k in enumerate(order))
        gold.append(Annotated(f"{before}>{after}", links, "atom"))
    sites, reducer = one_site(), Links(one_site())
    for batch in batches(Corpus([Text(one.text, links=one) for one in gold]), tokenizer, batch_size=8):
        count, length = batch.inputs["input_ids"].shape
        assert length == 11
        maps = torch.full((count, 2, length, length), 1 / length)
        for i, text in enumerate(batch.texts):
            for (q, _), (k, _) in text.links.links:
                maps[i, 0, q] *= 0.3
                maps[i, 0, q, k] += 0.7
        every = torch.ones(count, length, length, dtype=torch.bool)
        reducer.update(batch, {"0": Seen(sites["0"], maps, None, every[:, 0], every)})
    assert not reducer.skipped
    found = reducer.tests()
    assert set(found) == {"atom", "atom:back"}
    assert found["atom"]["n"].tolist() == [200, 200]
    # All ten other atoms can be chosen, and the sign in between.
    assert found["atom"]["score"].tolist() == pytest.approx([1.0, 1 / 10])
    assert assign(found, {})["roles/atom/assigned"].tolist() == [True, False]
    assert reducer.reliability("atom") > 0.9


@pytest.mark.parametrize("rows", [1, 4])
def test_links_in_tiles_that_cut_through_words_are_those_of_the_whole(rows):
    pieces = Tokenizer(models.WordPiece({"?": 0, **{c: i + 1 for i, c in enumerate("abef")}, "##c": 5, "##d": 6,
                                         "##a": 7}, unk_token="?"))  # fmt: skip
    pieces.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, unk_token="?", pad_token="?")
    draw, gold = np.random.default_rng(0), []
    for _ in range(40):
        order = draw.permutation(["a", "bcd", "e", "facd", "ba"]).tolist()
        gold.append(linked(" ".join(order), [(order.index("facd"), order.index("bcd"))], relation="bond"))
    gold[0] = linked("a bcd e facd ba a bcd e facd ba", [(3, 1)], relation="bond")
    sites, together, apart = one_site(), Links(one_site()), Links(one_site())
    data = batches(Corpus([Text(one.text, links=one) for one in gold]), tokenizer, batch_size=8, max_length=11)
    for batch in data:
        valid = batch.tokens[""].valid
        allowed = valid[:, :, None] & valid[:, None]
        noise = torch.randn(len(valid), 2, *allowed.shape[1:], generator=torch.Generator().manual_seed(1))
        maps = noise.masked_fill(~allowed[:, None], -torch.inf).softmax(-1).nan_to_num()
        together.update(batch, {"0": Seen(sites["0"], maps, None, valid, allowed)})
        for start in range(0, valid.shape[1], rows):
            part = slice(start, start + rows)
            tile = Seen(sites["0"], maps[:, :, part], None, valid[:, part], allowed[:, part], start=start)
            apart.update(batch, {"0": tile})
    assert together.skipped == apart.skipped
    expected, found = together.tests(), apart.tests()
    assert set(expected) == set(found) == {"bond", "bond:back"}
    for kind, parts in expected.items():
        for name, array in parts.items():
            np.testing.assert_allclose(found[kind][name], array, atol=1e-6, err_msg=f"{kind}/{name}")


def test_links_that_truncation_cuts_are_counted_and_the_others_judged():
    gold = [linked(f"a{i} b{i} c{i} d{i} e{i}", [(0, 2), (1, 4)], relation="bond") for i in range(40)]
    sites, reducer = one_site(), Links(one_site())
    words = sorted({word for one in gold for word in one.text.split()})
    corpus = Corpus([Text(one.text, links=one) for one in gold])
    for batch in batches(corpus, tokenizer_of(["?", "[S]", *words]), batch_size=8, max_length=4):
        valid = batch.tokens[""].valid
        allowed = valid[:, :, None] & valid[:, None]
        maps = (allowed / allowed.sum(-1, keepdim=True))[:, None].expand(-1, 2, -1, -1)
        reducer.update(batch, {"0": Seen(sites["0"], maps, None, valid, allowed)})
    assert dict(reducer.skipped) == {"cut by truncation": 40}
    assert reducer.tests()["bond"]["n"].tolist() == [40, 40]


def test_windows_judge_every_anaphor_once():
    tokenizer = tokenizer_of(["?", "[S]"])
    words = [f"w{i}" for i in range(30)]
    text = " ".join(words)
    chain = [(3, 1), (7, 3), (12, 7), (14, 12), (21, 14), (29, 2)]
    others = tuple(linked(text, [(k, 0)]).links[0][0] for k in (0, 5, 9, 13, 18, 25))
    whole = linked(text, chain, relation="coreference")
    whole = Annotated(whole.text, whole.links, candidates=(*whole.spans(), *others))
    parts = windows([whole], tokenizer, limit=12)
    asked = [part.text[c.anaphor[0] : c.anaphor[1]] for part in parts for c in choices(part)[0]]
    assert asked == ["w3", "w7", "w12", "w14", "w21"]
    assert parts[0].skipped == {"link over more than a window": 1}
    assert windows([whole], tokenizer, limit=30) == [whole]
    assert all(len(part.text.split()) <= 12 for part in parts)
    with pytest.raises(BadInput, match="limit: got 1"):
        windows([whole], tokenizer, limit=1)


def test_annotated_texts_keep_to_the_memory_budget(monkeypatch):
    gold = [linked("the dog saw the cat", [(1, 2), (4, 2)], ["nsubj", "obj"])] * 32
    went = []

    def watched(*args, **how):
        went.append(shared_capture(*args, **how))
        return went[-1]

    monkeypatch.setattr("headwise.analysis.roles.search.shared_capture", watched)
    found = []
    for memory in (10**8, 500):
        evidence = analyze(
            gpt2(), tokenizer_of(), texts_of(8), measures=[], roles=["self"], annotated=gold, memory=memory
        )
        found.append({name: array for name, array in evidence.arrays.items() if "to-head" in name})
    assert [one.tiled for one in went] == [0, 32]
    assert found[0].keys() == found[1].keys() != set()
    for name, array in found[0].items():
        np.testing.assert_allclose(found[1][name], array, atol=1e-5, err_msg=name)


def test_annotations_are_tested_in_the_analysis():
    gold = [linked("the dog saw the cat", [(1, 2), (4, 2)], ["nsubj", "obj"])] * 40
    evidence = analyze(gpt2(), tokenizer_of(), texts_of(12), measures=[], roles=["previous"], annotated=gold)
    assert {"roles/nsubj:from-head/score", "roles/obj:to-head/q"} <= set(evidence.arrays)
    assert evidence.facts["links"]["texts"] == 40
    assert set(evidence.facts["reliability"]) >= {"previous", "nsubj:from-head", "obj:to-head"}
    json.dumps(evidence.facts["links"])
    clash = [linked("the dog", [(1, 0)], relation="previous")]
    with pytest.raises(BadInput, match="relation 'previous' has the name of a role"):
        analyze(gpt2(), tokenizer_of(), texts_of(12), measures=[], roles=["previous"], annotated=clash)


def test_the_search_names_every_role_in_order():
    model, tokenizer = gpt2(), tokenizer_of()
    data = batches(texts_of(8), tokenizer, model=model)
    from headwise.analysis.statistics import Statistics

    sites = find_sites(model)
    search = Search(model, tokenizer, sites, ["induction", "number", "previous"], data, memory=10**8)
    assert list(search.tests(Statistics(sites))) == ["induction", "number", "previous"]
