import json
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.analysis.annotations import (
    READERS,
    Annotated,
    Mention,
    choices,
    coreference_set,
    corpus_of,
    covering,
    read_annotations,
    read_jsonl,
    word_indexes,
    word_map,
    word_units,
    write_jsonl,
)
from headwise.analysis.annotations.annotated import head_word
from headwise.analysis.annotations.conllu import read_sentences
from headwise.analysis.annotations.templates import ANAPHORS, DEV, FILLERS, HELD_OUT, NAMES, NOUNS
from headwise.analysis.errors import BadInput


def at(text, part, nth=0):
    start = -1
    for _ in range(nth + 1):
        start = text.index(part, start + 1)
    return start, start + len(part)


def written(annotated):
    return [tuple(annotated.text[slice(*span)] for span in link) for link in annotated.links]


# --- the set that ships ---------------------------------------------------------------------------------


def agreement(phrase):
    """Gender or number of a phrase of the set, found from the word lists alone."""
    word = phrase.removeprefix("The ").removeprefix("the ")
    for kind, words in [*NOUNS.items(), *NAMES.items()]:
        if word in words:
            return {"p": "plural", "q": "plural"}.get(kind, kind)
    assert word in {"letter", "table", "room", "window", "photograph", "rumor"}
    return "n"


def anaphor_agreement(phrase):
    kinds = {kind for kind, forms in ANAPHORS.items() if phrase in forms.values()}
    return "plural" if kinds <= {"p", "q"} else kinds.pop()


def test_the_set_is_as_large_and_varied_as_promised():
    texts = coreference_set()
    assert len(texts) >= 600
    assert len({text.text for text in texts}) == len(texts)
    assert len({text.template for text in texts}) == len(DEV) + len(HELD_OUT) >= 40
    fillers = {w for table in (NOUNS, NAMES, FILLERS) for words in table.values() for w in words}
    used = {w for w in fillers if any(w in text.text for text in texts)}
    assert len(used) >= 200


def test_the_splits_share_no_template():
    dev, held = coreference_set("dev"), coreference_set("held-out")
    assert not {text.template for text in dev} & {text.template for text in held}
    assert len({text.template for text in held}) >= 10
    assert dev + held == coreference_set()
    with pytest.raises(BadInput, match="dev, held-out"):
        coreference_set("test")


def test_exactly_one_candidate_agrees_and_it_is_the_linked_one():
    for text in coreference_set():
        (anaphor, gold) = written(text)[0]
        earlier = [m for m in text.mentions if m.span[1] <= text.links[0][0][0]]
        agreeing = [m for m in earlier if agreement(text.text[slice(*m.span)]) == anaphor_agreement(anaphor)]
        assert [text.text[slice(*m.span)] for m in agreeing] == [gold], text.text
        assert len(earlier) >= 2


def test_offsets_heads_and_sentences_are_whole():
    for text in coreference_set():
        assert text.text[0].isupper()
        assert text.text[-1] in ".?"
        assert not set("[]<>{}|") & set(text.text)
        for mention in text.mentions:
            phrase = text.text[slice(*mention.span)]
            assert text.text[slice(*mention.head)] == phrase.split()[-1]
            assert mention.span == (0, len(phrase)) or not text.text[mention.span[0] - 1].isalnum()


def test_verbs_agree_with_their_subjects():
    for text in coreference_set():
        for subject, verb in (("they", "was"), ("she", "were"), ("he", "were"), ("it", "were")):
            assert f" {subject} {verb} " not in text.text


def test_no_simple_rule_finds_the_antecedent():
    found = [choices(text)[0] for text in coreference_set()]
    assert all(len(one) == 1 for one in found)
    asked = [one[0] for one in found]
    assert sum(one.gold[-1] for one in asked) / len(asked) <= 0.60
    assert sum(one.gold[0] for one in asked) / len(asked) <= 0.60
    for split in ("dev", "held-out"):
        part = [choices(text)[0][0] for text in coreference_set(split)]
        assert sum(one.gold[-1] for one in part) / len(part) <= 0.60
    distances = Counter(text.links[0][0][0] - text.links[0][1][1] > 25 for text in coreference_set())
    assert min(distances.values()) > 100


def test_antecedents_come_in_every_agreement_class():
    kinds = Counter(anaphor_agreement(written(text)[0][0]) for text in coreference_set())
    assert min(kinds[kind] for kind in ("f", "m", "plural")) > 150
    assert kinds["n"] > 20


# --- annotated texts and JSON lines ---------------------------------------------------------------------


def test_what_is_written_is_read_back(tmp_path):
    texts = [
        *coreference_set()[:20],
        Annotated("a b", (((0, 1), (2, 3)),), "bond", ((2, 3),), "t", ("single",)),
        Annotated("a \u2028 b", candidates=(), mentions=(Mention((0, 1)),)),
    ]
    write_jsonl(tmp_path / "all.jsonl", texts)
    assert read_annotations(tmp_path / "all.jsonl") == texts


def test_every_malformed_row_is_named_with_its_line(tmp_path):
    rows = [
        json.dumps({"text": "Ann ran.", "links": []}),
        "{not json",
        json.dumps({"links": []}),
        json.dumps({"text": "Ann", "links": [[[0, 9], [0, 1]]]}),
        json.dumps({"text": "Ann", "links": [[[0, 1.5], [0, True]]]}),
        "",
        json.dumps({"text": "Ann", "link": []}),
        json.dumps({"text": "Ann", "links": [[[2, 1], [0, 1]]], "labels": ["a", "b"]}),
        json.dumps({"text": "Ann", "mentions": [{"span": [0, 3], "kind": "noun"}]}),
        "[1]",
    ]
    file = tmp_path / "bad.jsonl"
    file.write_text("\n".join(rows))
    with pytest.raises(BadInput) as caught:
        read_jsonl(file)
    message = str(caught.value)
    for expected in (
        f"{file}:2: not JSON",
        f"{file}:3: text: missing",
        f"{file}:4: ",
        "links[0][0]: got [0, 9], but the text has 3 characters",
        f"{file}:5: links[0][0][1]: got 1.5",
        f"{file}:7: link: unknown key, expected text, links",
        f"{file}:8: ",
        "expected 0 <= start < end",
        "labels: got 2, expected one for each of the 1 links",
        "kind: got 'noun', expected pronoun",
        f"{file}:10: row: got [1]",
        "A good row:",
    ):
        assert expected in message
    assert f"{file}:1:" not in message


def test_ten_mistakes_are_shown_and_the_rest_counted(tmp_path):
    file = tmp_path / "bad.jsonl"
    file.write_text("no\n" * 14)
    with pytest.raises(BadInput, match="14 mistakes") as caught:
        read_jsonl(file)
    assert str(caught.value).count(f"{file}:1") == 2  # lines 1 and 10
    assert "and 4 more" in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(BadInput, match="cannot be read"):
        read_jsonl(tmp_path / "none.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"text": "caf\xe9"}')
    with pytest.raises(BadInput, match="not UTF-8 at byte"):
        read_jsonl(tmp_path / "latin.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(BadInput, match="no annotated text"):
        read_jsonl(tmp_path / "empty.jsonl")
    (tmp_path / "a.xml").write_text("<a/>")
    with pytest.raises(BadInput, match=r"expected an ending of \.jsonl"):
        read_annotations(tmp_path / "a.xml")
    with pytest.raises(BadInput, match="kind 'xml', expected jsonl"):
        read_annotations(tmp_path / "a.xml", "xml")
    assert all(callable(reader) for reader in READERS.values())


@pytest.mark.parametrize(
    ("phrase", "head"),
    [
        ("the old king of Rome", "king"),
        ("Mrs. Long", "Long"),
        ("the baker's", "baker"),
        ("the baker 's", "baker"),
        ("a rabbit with a watch", "rabbit"),
        ("Mary, the queen", "Mary"),
        ("who", "who"),
        ("“Ann”", "Ann"),
        ("...", "..."),
    ],
)
def test_head_words(phrase, head):
    text = f"So {phrase} slept."
    assert text[slice(*head_word(text, at(text, phrase)))] == head


def test_clusters_do_not_depend_on_the_order_of_links():
    text = "a b c d e f"
    a, b, c, d, e, f = ((i, i + 1) for i in range(0, 11, 2))
    links = ((b, a), (d, c), (c, b), (f, e))
    for order in (links, links[::-1], links[2:] + links[:2]):
        found = Annotated(text, order).clusters()
        assert found[a] == found[b] == found[c] == found[d] != found[e] == found[f]


def test_choices_of_a_text_with_nested_and_later_mentions():
    text = "Ann of Rome met Eve. Ann said she knew Bob."
    ann, rome, eve = at(text, "Ann of Rome"), at(text, "Rome"), at(text, "Eve")
    again, she, bob = at(text, "Ann", 1), at(text, "she"), at(text, "Bob")
    # Two mentions with the head "Ann" are one candidate; Bob comes too late; Rome alone is no anaphor.
    mentions = tuple(Mention(span) for span in (ann, (0, 3), rome, eve, again, bob))
    found, left = choices(Annotated(text, ((again, ann), (she, again)), mentions=mentions))
    assert [text[slice(*one.anaphor)] for one in found] == ["Ann", "she"]
    assert [text[slice(*span)] for span in found[1].candidates] == ["Ann", "Rome", "Eve", "Ann"]
    assert found[1].gold == (True, False, False, True)
    assert found[0].same == (True, False, False)
    assert [one.kind for one in found] == ["proper", "pronoun"]
    assert left == {"first of its cluster": 1, "no wrong candidate": 0}


def test_an_anaphor_without_a_wrong_candidate_is_counted():
    assert choices(Annotated("Ann, she ran.", (((5, 8), (0, 3)),))) == (
        [],
        {"first of its cluster": 1, "no wrong candidate": 1},
    )


def test_annotations_travel_with_a_corpus():
    texts = coreference_set()[:3]
    assert [text.links for text in corpus_of(texts, "three").texts] == texts


# --- words and tokens -----------------------------------------------------------------------------------


def test_a_split_word_is_summed_as_a_target_and_averaged_as_a_source():
    maps = torch.tensor([[[0.1, 0.2, 0.3, 0.4], [0.4, 0.2, 0.2, 0.2], [0.2, 0.4, 0.2, 0.2], [0.1, 0.1, 0.1, 0.7]]])
    found = word_map(maps, torch.tensor([0, 1, 1, 2]))
    expected = torch.tensor([[[0.1, 0.5, 0.4], [0.3, 0.5, 0.2], [0.1, 0.2, 0.7]]])
    torch.testing.assert_close(found, expected)


@given(st.lists(st.integers(-1, 5), min_size=1, max_size=12), st.integers(0, 4), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_rows_of_a_word_map_sum_to_one_and_padding_changes_nothing(words, padding, seed):
    words, n = torch.tensor(words), len(words)
    maps = torch.rand(2, n, n, generator=torch.Generator().manual_seed(seed)).softmax(-1)
    found = word_map(maps, word_units(words, torch.ones(n, dtype=torch.bool)))
    torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:2]))
    lone = int((words == -1).sum())
    assert found.shape[1] == lone + len(set(words.tolist()) - {-1})
    padded = torch.nn.functional.pad(maps, (padding, 0, padding, 0), value=0.0)
    valid = torch.arange(n + padding) >= padding
    same = word_map(padded, word_units(torch.nn.functional.pad(words, (padding, 0), value=-1), valid))
    torch.testing.assert_close(same, found)


def test_spans_find_their_tokens_even_inside_words():
    # "[CLS] the rat - hole ##s [SEP]": "rat-holes" has three words, the last in two pieces.
    offsets = torch.tensor([[0, 0], [0, 3], [4, 7], [7, 8], [8, 12], [12, 13], [0, 0]])
    words = torch.tensor([-1, 0, 1, 2, 3, 3, -1])
    assert word_indexes((4, 13), offsets, words) == [1, 2, 3]
    assert covering((4, 12), offsets, words).tolist() == [False, False, True, True, True, True, False]
    assert covering((0, 3), offsets, words).nonzero().flatten().tolist() == [1]


def test_a_span_that_is_cut_off_has_no_tokens():
    offsets, words = torch.tensor([[0, 3], [4, 7]]), torch.tensor([0, 1])
    assert covering((4, 9), offsets, words) is None
    assert covering((8, 9), offsets, words) is None
    assert word_indexes((8, 9), offsets, words) == []


# --- other people's formats -----------------------------------------------------------------------------

CONLLU = """\
# newdoc id = one
# text = I don't know.
1\tI\tI\tPRON\t_\t_\t4\tnsubj\t_\tEntity=(1-person-1)
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\t_\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\t_\t_\t4\tadvmod\t_\t_
4\tknow\tknow\tVERB\t_\t_\t0\troot\t_\tSpaceAfter=No
4.1\tknown\tknow\tVERB\t_\t_\t_\t_\t0:root\t_
5\t.\t.\tPUNCT\t_\t_\t4\tpunct\t_\t_

# text = The man from Rome gonna see him
1\tThe\tthe\tDET\t_\t_\t2\tdet\t_\tEntity=(2-person-2
2\tman\tman\tNOUN\t_\t_\t5\tnsubj\t_\t_
3\tfrom\tfrom\tADP\t_\t_\t4\tcase\t_\t_
4\tRome\tRome\tPROPN\t_\t_\t2\tnmod\t_\tEntity=(3-place-1)2)
5-6\tgonna\t_\t_\t_\t_\t_\t_\t_\t_
5\tgoing\tgo\tVERB\t_\t_\t0\troot\t_\t_
6\tto\tto\tPART\t_\t_\t5\tmark\t_\t_
7\tsee\tsee\tVERB\t_\t_\t5\txcomp\t_\t_
8\thim\the\tPRON\t_\t_\t7\tobj\t_\tEntity=(2-person-1)(9[1/2]-x-1)

# newdoc id = two
# text = Me
1\tMe\tI\tPRON\t_\t_\t0\troot\t_\tEntity=(1-person-1)
"""


@pytest.fixture
def treebank(tmp_path):
    file = tmp_path / "small.conllu"
    file.write_text(CONLLU)
    return file


def test_dependencies_survive_ranges_and_empty_nodes(treebank):
    first, second, third = read_annotations(treebank, "dependencies")
    assert first.relation == "dependency"
    assert written(first) == [("I", "know"), ("do", "know"), ("n't", "know"), (".", "know")]
    assert first.labels == ("nsubj", "aux", "advmod", "punct")
    # "going to" is not spelled in "gonna": both words stand on all of it, and their own link is left out.
    assert ("man", "gonna") in written(second)
    assert ("see", "gonna") in written(second)
    assert second.skipped == {"fused with its head": 1}
    assert third.links == ()
    numbers = [word.number for word in read_sentences(treebank)[0].words]
    assert numbers == [1, 2, 3, 4, 5]


def test_entities_are_linked_within_their_document(treebank):
    one, two = read_annotations(treebank, "entities")
    assert one.text == "I don't know. The man from Rome gonna see him"
    assert written(one) == [("him", "The man from Rome")]
    man = next(m for m in one.mentions if one.text[slice(*m.span)].startswith("The"))
    assert (one.text[slice(*man.head)], man.kind) == ("man", "nominal")
    assert one.skipped == {"discontinuous": 1}
    assert two.links == ()
    # Nobody has to say which of the two a treebank is read for.
    everything = read_annotations(treebank)
    assert [text.relation for text in everything] == ["dependency"] * 3 + ["coreference"] * 2
    assert everything[3:] == [one, two]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("4\tnsubj", "9\tnsubj", "HEAD 9 is no word"),
        ("# text = I don't", "# text = We don't", "'I' is not where # text goes on"),
        ("1\tI\tI", "1\tI", ":1: "),
        ("1\tI\tI", "x\tI\tI", "not CoNLL-U"),
    ],
)
def test_broken_treebanks_are_refused_with_their_line(treebank, before, after, message):
    treebank.write_text(CONLLU.replace(before, after, 1))
    with pytest.raises(BadInput, match=r"small\.conllu:1: ") as caught:
        read_annotations(treebank)
    assert message in str(caught.value)


def test_a_missing_parser_is_named(treebank, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"headwise\[annotations\]"):
        read_annotations(treebank)


def test_a_treebank_without_text_or_entities(tmp_path):
    file = tmp_path / "bare.conllu"
    file.write_text(
        "".join(line for line in CONLLU.splitlines(True) if not line.startswith("#")).replace("Entity=", "X=")
    )
    assert read_annotations(file)[0].text == "I don't know."
    with pytest.raises(BadInput, match="no Entity="):
        read_annotations(file, "entities")
    file.write_text("\n")
    with pytest.raises(BadInput, match="no sentence"):
        read_annotations(file)


CONLL = """\
#begin document (a); part 0
a\t0\t0\tThe\t_\t_\t_\t_\t_\t_\t_\t_\t(1
a\t0\t1\tking\t_\t_\t_\t_\t_\t_\t_\t_\t
a\t0\t2\tof\t_\t_\t_\t_\t_\t_\t_\t_\t_
a\t0\t3\tRome\t_\t_\t_\t_\t_\t_\t_\t_\t(2)|1)

a\t0\t0\tHis\t_\t_\t_\t_\t_\t_\t_\t_\t(3|(1)
a\t0\t1\twife\t_\t_\t_\t_\t_\t_\t_\t_\t3)
#end document
#begin document (a); part 1
a 1 0 His NN * - - - - * (1)
#end document
"""


def test_conll2012_nests_and_keeps_documents_apart(tmp_path):
    file = tmp_path / "a.conll"
    file.write_text(CONLL)
    one, two = read_annotations(file)
    assert one.text == "The king of Rome His wife"
    assert written(one) == [("His", "The king of Rome")]
    assert [one.text[slice(*m.span)] for m in one.mentions] == ["The king of Rome", "Rome", "His", "His wife"]
    assert two.text == "His"
    assert two.links == ()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("3)\n", "\n", "a.conll:9: the document ends and these mentions are still open: 3"),
        ("(3|(1)", "(1)", "a.conll:8: coreference: 3) closes a mention that is not open"),
        ("(2)|1)", "(2)|1)|x", "a.conll:5: coreference: got 'x'"),
        ("#begin document (a); part 0\n", "", "a.conll:1: a word before any #begin"),
        ("a\t0\t2\tof", "of", "a.conll:4: "),
    ],
)
def test_broken_conll2012_is_refused_with_its_line(tmp_path, before, after, message):
    file = tmp_path / "a.conll"
    text = CONLL.replace(before, after, 1)
    if message.endswith("a.conll:4: "):
        text = text.replace("of\t_\t_\t_\t_\t_\t_\t_\t_\t_", "of\t_")
    file.write_text(text)
    with pytest.raises(BadInput) as caught:
        read_annotations(file)
    assert message in str(caught.value)


HEADER = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL\n"


def test_gap_reads_names_pronouns_and_rows_without_an_answer(tmp_path):
    file = tmp_path / "gap.tsv"
    rows = [
        '1\tAnn "met Eve; she ran.\tshe\t14\tAnn\t0\tFALSE\tEve\t9\tTRUE\tu\n',
        "2\tAnn met Eve; she ran.\tshe\t13\tAnn\t0\tFALSE\tEve\t8\tFALSE\tu\n",
    ]
    file.write_text(HEADER + "".join(rows))
    one, two = read_annotations(file)
    assert written(one) == [("she", "Eve")]
    assert [one.mention(span).kind for span in one.spans()] == ["proper", "proper", "pronoun"]
    assert two.links == ()
    assert len(two.candidates) == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            "1\tAnn met Eve; she ran.\tshe\t12\tAnn\t0\tFALSE\tEve\t8\tTRUE\tu",
            "gap.tsv:2: Pronoun: expected 'she' at 12",
        ),
        ("1\tAnn met Eve; she ran.\tshe\t13\tAnn\tzero\tFALSE\tEve\t8\tTRUE\tu", "gap.tsv:2: A-offset: got 'zero'"),
        ("1\tAnn met Eve; she ran.\tshe\t13\tAnn\t0\tno\tEve\t8\tTRUE\tu", "gap.tsv:2: A-coref: got 'no'"),
        ("1\tAnn", "gap.tsv:2: got 2 columns, expected 11"),
    ],
)
def test_broken_gap_rows_are_refused_with_their_line(tmp_path, row, message):
    file = tmp_path / "gap.tsv"
    file.write_text(HEADER + row + "\n")
    with pytest.raises(BadInput) as caught:
        read_annotations(file)
    assert message in str(caught.value)
    file.write_text("text\tlabel\n")
    with pytest.raises(BadInput, match="GAP's eleven columns"):
        read_annotations(file)


def test_a_kind_before_the_name_tells_what_the_name_does_not(tmp_path):
    file = tmp_path / "anything.text"
    write_jsonl(file, [Annotated("Ann said she ran.", links=(((9, 12), (0, 3)),))])
    with pytest.raises(BadInput, match=r"anything\.text: cannot tell its kind.*gap:.*anything"):
        read_annotations(file)
    assert read_annotations(f"jsonl:{file}") == read_annotations(file, "jsonl")
    with pytest.raises(BadInput, match="expected GAP's eleven columns"):
        read_annotations(f"gap:{file}")
    with pytest.raises(BadInput, match="cannot tell its kind"):
        read_annotations(f"novel:{file}")


def test_winobias_finds_the_other_occupation(tmp_path):
    file = tmp_path / "pro.txt.dev"
    file.write_text(
        "1 The cook met [the construction worker] and thanked [him].\n"
        "2 [The cook] met a construction worker because [she] was late, not [her] boss.\n"
    )
    one, two = read_annotations(file)
    assert one.text == "The cook met the construction worker and thanked him."
    assert written(one) == [("him", "the construction worker")]
    assert [one.text[slice(*m.span)] for m in one.mentions] == ["The cook", "the construction worker", "him"]
    assert written(two) == [("she", "The cook"), ("her", "she")]
    assert "a construction worker" in [two.text[slice(*m.span)] for m in two.mentions]
    file.write_text("1 [The cook] left.\n")
    with pytest.raises(BadInput, match=r"pro.txt.dev:1: got 1 phrases in brackets"):
        read_annotations(file)
