import errno
import gzip
import hashlib
import json

import datasets
import numpy as np
import pandas
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BartConfig,
    BartModel,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5Model,
)

from headwise.analysis.corpus import (
    Corpus,
    Text,
    Tokens,
    batches,
    disjoint,
    embedded_corpus,
    read_dataset,
    read_source,
    read_table,
    read_texts,
    word_spans,
)
from headwise.analysis.errors import BadInput

WORDS = ["the", "cat", "##s", "sat", ".", "on", "mat", "'", "s", "!"]


def bert_tokenizer(**options):
    vocab = {w: i for i, w in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    raw = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    names = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    return PreTrainedTokenizerFast(tokenizer_object=raw, **special, **names, **options)


def gpt_tokenizer(**options):
    """Byte-level, without a pad token, whose unknown token is its end of text: like GPT-2's."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate([*alphabet, "Ġc", "Ġca", "at", "<|end|>"])}
    raw = Tokenizer(models.BPE(vocab, [("Ġ", "c"), ("Ġc", "a"), ("a", "t")]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.add_special_tokens(["<|end|>"])
    special = {"bos_token": "<|end|>", "eos_token": "<|end|>", "unk_token": "<|end|>"}
    names = {"model_input_names": ["input_ids", "attention_mask"]}
    return PreTrainedTokenizerFast(tokenizer_object=raw, **special, **names, **options)


def metaspace_tokenizer():
    """One pre-token for a whole text, as in the Llama 2 line: its own word indices would all be 0."""
    letters = "▁thecasonm.!'"
    vocab = {c: i for i, c in enumerate(["<unk>", "</s>", *dict.fromkeys(letters)])}
    raw = Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", eos_token="</s>")


def corpus(*texts, **options):
    return Corpus([t if isinstance(t, Text) else Text(t) for t in texts], **options)


def tiny(kind, config, **options):
    torch.manual_seed(0)
    return kind(config(**options)).eval()


BERT = {
    "vocab_size": 14,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 24,
}


# --- texts


def test_id_is_a_sha256_of_the_content_alone():
    assert Text("née").id == hashlib.sha256("née".encode()).hexdigest()[:16]
    assert Text("a", label=1).id == Text("a").id
    assert len({Text("a").id, Text("a", "b").id, Text("ab").id, Text("b", "a").id}) == 4


def labelled(n=100):
    return corpus(*[Text(f"text {i}", label="abc"[i % 10 // 4]) for i in range(n)], source="made")


def test_sample_keeps_the_proportions_of_the_labels():
    drawn = labelled().sample(25, seed=3)
    counts = {label: sum(t.label == label for t in drawn.texts) for label in "abc"}
    assert counts == {"a": 10, "b": 10, "c": 5}
    assert [t.text for t in drawn.texts] == [t.text for t in labelled().sample(25, seed=3).texts]
    assert [t.text for t in drawn.texts] != [t.text for t in labelled().sample(25, seed=4).texts]
    assert len(labelled().sample(1000)) == 100
    with pytest.raises(BadInput, match="at least 1"):
        labelled().sample(0)


def test_split_is_a_function_of_content():
    first, second = labelled().split(0.4, seed=1)
    assert (len(first), len(second)) == (40, 60)
    backwards = Corpus(list(labelled().texts)[::-1], source="made").split(0.4, seed=1)[0]
    assert {t.text for t in backwards.texts} == {t.text for t in first.texts}
    assert {t.text for t in labelled().split(0.4, seed=2)[0].texts} != {t.text for t in first.texts}
    assert disjoint(first, second)[1] == 0
    assert sum(t.label == "c" for t in first.texts) == 8


def test_split_keeps_equal_texts_together():
    doubled = Corpus([*labelled().texts, *labelled().texts])
    first, second = doubled.split(0.5)
    assert not {t.id for t in first.texts} & {t.id for t in second.texts}
    with pytest.raises(BadInput, match="too few to split"):
        corpus("a", "a").split(0.5)


def test_hash_names_the_content_in_any_order():
    assert labelled().hash == Corpus(list(labelled().texts)[::-1], source="other").hash
    assert labelled().hash != labelled(99).hash


def test_overlap_leaves_calibration_and_is_counted():
    calibration = corpus(*[f"c{i}" for i in range(98)], "e0", "e1", source="x")
    kept, removed = disjoint(calibration, corpus(*[f"e{i}" for i in range(100)], source="y"))
    assert removed == 2
    assert len(kept) == 98
    assert all(t.text.startswith("c") for t in kept.texts)


def test_too_much_overlap_or_one_source_is_refused():
    calibration = corpus(*[f"c{i}" for i in range(1000)], source="x")
    # One text in a thousand of the calibration, but one in ten of the evaluation.
    with pytest.raises(BadInput, match=r"10\.0% in common"):
        disjoint(calibration, corpus("c5", *[f"e{i}" for i in range(9)], source="y"))
    with pytest.raises(BadInput, match="what decides must not judge"):
        disjoint(calibration, corpus("z", source="x"))


# --- the embedded text


def test_embedded_text_is_labelled_prose():
    found = embedded_corpus()
    counts = {label: sum(t.label == label for t in found.texts) for label in found.labels}
    assert min(counts.values()) >= 20
    assert len(counts) >= 10
    assert len({t.text for t in found.texts}) == len(found) > 500
    assert not any("::=" in t.text or ">>>" in t.text for t in found.texts)
    assert found.skipped["in several topics"] > 0


# --- words


@pytest.mark.parametrize("make", [bert_tokenizer, gpt_tokenizer, metaspace_tokenizer])
def test_words_are_the_same_whatever_the_tokenizer(make):
    text = "the cats sat  on the mat's!"
    batch = next(iter(batches(corpus(text), make())))
    tokens = batch.tokens[""]
    spans = word_spans(text)
    for word, (start, end), special in zip(
        tokens.words[0].tolist(), tokens.offsets[0].tolist(), tokens.special[0].tolist(), strict=True
    ):
        if word >= 0:
            assert spans[word][0] <= start < end
            assert text[start:end] == text[start:end].strip()
        else:
            assert special or start == end
    assert set(range(len(spans))) <= set(tokens.words[0].tolist())


def test_pairs_count_their_words_on_and_know_their_side():
    batch = next(iter(batches(corpus(Text("the cat", "sat on"), "mat"), bert_tokenizer())))
    tokens = batch.tokens[""]
    assert tokens.words.tolist() == [[-1, 0, 1, -1, 2, 3, -1], [-1, 0, -1, -1, -1, -1, -1]]
    assert tokens.second[0].tolist() == [False, False, False, False, True, True, False]
    assert tokens.offsets[0].tolist()[4:6] == [[0, 3], [4, 6]]
    assert tokens.special.tolist()[1] == [True, False, True, False, False, False, False]
    assert batch.inputs["token_type_ids"].tolist()[0] == [0, 0, 0, 0, 1, 1, 1]
    assert tokens.strings()[1][:3] == ["[CLS]", "mat", "[SEP]"]
    with pytest.raises(BadInput, match="without a tokenizer"):
        Tokens(tokens.ids, tokens.valid, tokens.special, tokens.words, tokens.offsets).strings()


def test_unknown_words_are_text_unless_the_token_has_another_use():
    bert = next(iter(batches(corpus("the xyz"), bert_tokenizer()))).tokens[""]
    assert bert.ids[0, 2] == 1
    assert bert.special.tolist() == [[True, False, False, True]]
    gpt = next(iter(batches(corpus("<|end|>a"), gpt_tokenizer()))).tokens[""]
    assert gpt.special.tolist() == [[True, False]]


def test_a_slow_tokenizer_gives_tokens_without_words():
    class Slow:
        is_fast, padding_side, model_max_length = False, "right", 8
        all_special_ids, pad_token_id, eos_token_id, unk_token_id = [0], 0, None, None
        model_input_names = ("input_ids", "attention_mask")

        def __call__(self, texts, pairs, max_length, **options):
            ids = [[ord(c) for c in text][:max_length] for text in texts]
            return {"input_ids": ids, "special_tokens_mask": [[0] * len(row) for row in ids]}

    found = batches(corpus("abc", "a much longer one"), Slow())
    tokens = next(iter(found)).tokens[""]
    assert tokens.ids[1].tolist() == [97, 98, 99, 0, 0, 0, 0, 0]
    assert (tokens.words == -1).all()
    assert found.truncated == 1


# --- batches


def test_batches_are_sorted_by_length_cover_the_corpus_and_can_be_walked_twice():
    texts = corpus(*["the " * n for n in (1, 5, 3, 2, 4, 6, 1)])
    found = batches(texts, bert_tokenizer(), batch_size=3)
    passes = [[batch.index for batch in found] for _ in range(2)]
    assert passes[0] == passes[1] == [(5, 1, 4), (2, 3, 0), (6,)]
    assert len(found) == 3
    assert [b.inputs["input_ids"].shape[1] for b in found] == [8, 5, 3]
    unsorted = batches(texts, bert_tokenizer(), batch_size=3, sort=False)
    assert [i for batch in unsorted for i in batch.index] == list(range(7))


def test_truncation_stops_at_the_smallest_limit_and_is_counted():
    texts = corpus("the " * 50, "cat")
    model = tiny(BertModel, BertConfig, **BERT)
    found = batches(texts, bert_tokenizer(), model=model)
    assert (found.limit, found.truncated) == (24, 1)
    model(**next(iter(found)).inputs)
    assert batches(texts, bert_tokenizer(model_max_length=10), model=model).limit == 10
    assert batches(texts, bert_tokenizer(model_max_length=10), model=model, max_length=5).limit == 5
    assert batches(texts, bert_tokenizer()).limit is None
    roberta = tiny(RobertaModel, RobertaConfig, **BERT, pad_token_id=1)
    found = batches(texts, bert_tokenizer(), model=roberta)
    assert found.limit == 22
    roberta(**next(iter(found)).inputs)


def test_bad_requests_are_refused():
    with pytest.raises(BadInput, match="no texts"):
        batches(corpus(source="nothing"), bert_tokenizer())
    with pytest.raises(BadInput, match="batch size"):
        batches(corpus("a"), bert_tokenizer(), batch_size=0)
    with pytest.raises(BadInput, match="max length"):
        batches(corpus("a"), bert_tokenizer(), max_length=0)


def test_texts_without_tokens_are_left_out_and_counted():
    found = batches(corpus("a", ""), gpt_tokenizer(), batch_size=1)
    assert (len(found), found.skipped) == (1, 1)


def test_a_tokenizer_without_pad_token_is_filled_up_and_left_as_it_was():
    tokenizer = gpt_tokenizer()
    batch = next(iter(batches(corpus("a cat", "a"), tokenizer)))
    assert batch.inputs["input_ids"][1, 1:].unique().tolist() == [tokenizer.eos_token_id]
    assert batch.inputs["attention_mask"][1].tolist() == [1, 0, 0]
    assert not batch.tokens[""].special[1].any()
    assert tokenizer.pad_token is None


SMALL = {"vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
FAMILIES = {
    "bert": (BertModel, BertConfig, {**BERT, "vocab_size": 300}),
    "roberta": (RobertaModel, RobertaConfig, {**BERT, "vocab_size": 300, "pad_token_id": 0}),
    "gpt2": (GPT2Model, GPT2Config, {"vocab_size": 300, "n_embd": 16, "n_layer": 2, "n_head": 2}),
    "llama": (LlamaModel, LlamaConfig, {**SMALL, "intermediate_size": 16}),
    "t5": (T5Model, T5Config, {"vocab_size": 300, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_heads": 2,
                               "num_layers": 2, "decoder_start_token_id": 0}),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_reach_the_output(family, side):
    kind, config, options = FAMILIES[family]
    model = tiny(kind, config, **options)
    make = gpt_tokenizer if family in ("gpt2", "llama") else bert_tokenizer
    texts = corpus("the cat sat on the mat", "cat", "the cat .")
    together = batches(texts, make(padding_side=side), model=model)
    alone = batches(texts, make(), model=model, batch_size=1)
    stream = "decoder" if family == "t5" else ""
    seen = {}
    for name, found in (("together", together), ("alone", alone)):
        for batch in found:
            with torch.inference_mode():
                out = model(**batch.inputs).last_hidden_state
            for row, valid, i in zip(out, batch.tokens[stream].valid, batch.index, strict=True):
                seen[name, i] = row[valid]
    for i in range(3):
        torch.testing.assert_close(seen["together", i], seen["alone", i], atol=1e-5, rtol=1e-5)


def test_an_encoder_decoder_says_what_it_reads():
    torch.manual_seed(0)
    small = {
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
    }
    wide = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    model = BartModel(BartConfig(vocab_size=14, **wide, **small, pad_token_id=0, decoder_start_token_id=3)).eval()
    batch = next(iter(batches(corpus("the cat", "mat"), bert_tokenizer(), model=model)))
    assert batch.inputs["decoder_input_ids"].tolist() == [[3, 2, 4, 5], [3, 2, 10, 0]]
    assert batch.targets.tolist() == [[2, 4, 5, 3], [2, 10, 3, -100]]
    assert batch.tokens["decoder"].words.tolist() == [[-1, -1, 0, 1], [-1, -1, 0, -1]]
    assert "token_type_ids" not in batch.inputs
    own = model(input_ids=batch.inputs["input_ids"][:1])
    given = model(**{name: value[:1] for name, value in batch.inputs.items()})
    torch.testing.assert_close(own.last_hidden_state, given.last_hidden_state)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.text(max_size=30), min_size=1, max_size=8),
    st.integers(1, 4),
    st.sampled_from(["left", "right"]),
)
def test_any_texts_become_whole_batches(texts, size, side):
    found = batches(corpus(*texts), gpt_tokenizer(padding_side=side), batch_size=size)
    index = [i for batch in found for i in batch.index]
    assert len(index) + found.skipped == len(texts)
    for batch in found:
        tokens = batch.tokens[""]
        for i, text in enumerate(batch.texts):
            spans, words = word_spans(text.text), tokens.words[i].tolist()
            assert len(spans) == 0 or max(words) < len(spans)
            assert (tokens.ids[i][tokens.valid[i]] >= 0).all()
            shown = set(range(len(spans))) - set(words)
            assert not shown or any(ord(c) > 127 for c in text.text), (text.text, words)


# --- reading


def test_texts_a_line_each(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\ufeffone\n\n  two \n\u2028x\n", encoding="utf-8")
    found = read_texts(path)
    assert [t.text for t in found.texts] == ["one", "two", "x"]
    assert found.skipped == {"empty text": 1}
    assert found.source == str(path)


@pytest.mark.parametrize(
    ("content", "match"), [(b"", "no text in it"), (b"\xff\xfe\x00", "not UTF-8"), (None, "No such file")]
)
def test_unreadable_texts(tmp_path, content, match):
    path = tmp_path / "a.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput, match=match):
        read_texts(path)
    with pytest.raises(BadInput, match=match):
        read_source(str(path))


ROWS = [("a good, film", "pos"), ('she said "no"', "neg"), ("dull\nfilm", "neg")]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "json", "parquet"])
def test_every_format_gives_the_same_rows(tmp_path, suffix):
    path = tmp_path / f"rows.{suffix}"
    frame = pandas.DataFrame({"mood": [m for _, m in ROWS], "review": [r for r, _ in ROWS]})
    if suffix == "parquet":
        frame.to_parquet(path)
    elif suffix.startswith("json"):
        frame.to_json(path, orient="records", lines=suffix == "jsonl")
    else:
        frame.to_csv(path, index=False, sep="," if suffix == "csv" else "\t")
    found = read_table(path, "review", "mood")
    assert [(t.text, t.label) for t in found.texts] == ROWS
    assert found.notes == ()
    with pytest.raises(BadInput, match=r"no column 'text' for the text; the columns are 'mood', 'review'"):
        read_table(path, "text")
    with pytest.raises(BadInput, match=r"no column 'x' for the label"):
        read_source(str(path), label="x")


def test_quotes_that_are_text_keep_every_row(tmp_path):
    lines = ['"Great', "dull", 'so "so"', 'the "end', '"All right" he said', '"Fine"']
    path = tmp_path / "bare.tsv"
    path.write_text("sentence\tlabel\n" + "".join(f"{line}\t{i % 2}\n" for i, line in enumerate(lines)))
    # The trap: read as quoting, a mark swallows lines.
    assert len(pandas.read_csv(path, sep="\t")) < len(lines)
    found = read_table(path, "sentence", "label")
    assert [t.text for t in found.texts] == lines
    assert [t.label for t in found.texts] == [0, 1] * 3
    assert "read as text" in found.notes[0]


def test_quoted_fields_with_line_breaks_stay_whole_in_a_tsv(tmp_path):
    path = tmp_path / "quoted.tsv"
    path.write_text('text\tlabel\n"two\nlines\tand a tab"\tx\nplain\ty\n')
    assert [t.text for t in read_table(path, "text").texts] == ["two\nlines\tand a tab", "plain"]


def test_a_csv_with_one_bare_quote_keeps_its_rows(tmp_path):
    path = tmp_path / "bare.csv"
    path.write_text('text,label\n"half,1\nwhole,0\n5" disk,1\n')
    assert [t.text for t in read_table(path, "text", "label").texts] == ['"half', "whole", '5" disk']


def test_a_header_is_no_row_where_columns_are_numbered(tmp_path):
    path = tmp_path / "named.tsv"
    path.write_text("Label\tid\ttext\npos\t1\tgood\nneg\t2\ttext\n")
    found = read_table(path, 2, 0)
    assert [(text.text, text.label) for text in found.texts] == [("good", "pos"), ("text", "neg")]
    assert found.notes == ("the first line is taken for a header, by its names; header: false reads it as a row",)
    assert len(read_table(path, 2, 0, header=False)) == 3
    path.write_text("pos\t1\tthe text\nneg\t2\tlabel me\n")
    assert (len(read_table(path, 2, 0)), read_table(path, 2, 0).notes) == (2, ())


def test_no_header_and_label_in_any_column(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("1,good film\n0,bad film\n")
    found = read_table(path, 1, 0)
    assert [(t.text, t.label) for t in found.texts] == [("good film", 1), ("bad film", 0)]
    assert read_table(path, "1", "-2").texts == found.texts
    path.write_text("good film,x,1\nbad film,y,0\n")
    assert [t.label for t in read_table(path, 0, -1).texts] == [1, 0]
    path.write_text("text,label\ngood film,1\n")
    assert len(read_table(path, 0, -1, header=True)) == 1
    with pytest.raises(BadInput, match="no column 5"):
        read_table(path, 5)


def test_rows_that_cannot_be_used_are_counted(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,label\nok,1\n,1\n   ,0\nno label,\ntoo,many,cells\nok2,0\n\n")
    found = read_table(path, "text", "label")
    assert [t.text for t in found.texts] == ["ok", "ok2"]
    assert found.skipped == {"empty text": 2, "no label": 1, "wrong number of columns": 1}
    assert found.summary()["skipped"] == found.skipped
    path.write_text("text,label\n,1\n")
    with pytest.raises(BadInput, match="no usable row"):
        read_table(path, "text", "label")


def test_labels_are_numbers_only_if_all_are(tmp_path):
    path = tmp_path / "a.csv"
    for cells, expected in ((["1", "0"], [1, 0]), (["1.5", "2"], [1.5, 2.0]), (["1", "b"], ["1", "b"])):
        path.write_text("text,label\n" + "".join(f"t{i},{cell}\n" for i, cell in enumerate(cells)))
        found = [t.label for t in read_table(path, "text", "label").texts]
        assert found == expected
        assert [type(x) for x in found] == [type(x) for x in expected]


def test_the_text_column_is_guessed_only_where_it_is_clear(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("label;sentence\n1;good, film\n")
    assert read_source(str(path), label="label").texts == [Text("good, film", label=1)]
    path.write_text("alpha,beta\n1,2\n")
    with pytest.raises(BadInput, match="which column holds the text"):
        read_table(path)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("a.jsonl", '{"text": "a"}\n{"text": \n', r"a\.jsonl:2: not JSON"),
        ("a.jsonl", "[1, 2]", "entry 1 is int"),
        ("a.jsonl", "", "the file is empty"),
        ("a.json", '[{"text": "a"', "not JSON"),
        ("a.jsonl", '{"text": 3}', "got int '3', expected text"),
        ("a.jsonl", '{"text": "a", "label": {"a": 1}}', "a label is dict"),
        ("a.csv", "", "the file is empty"),
        ("a.parquet", "no", "not a parquet file"),
        ("a.csv", None, "No such file"),
        ("a.xlsx", "x", r"\.xlsx files are not read; save it as"),
        ("a.doc", "x", "unknown kind of table"),
    ],
)
def test_unreadable_tables(tmp_path, name, content, match):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    label = "label" if content and "label" in content else None
    with pytest.raises(BadInput, match=match):
        read_table(path, "text", label)


def test_json_words_are_joined_and_missing_fields_counted(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [{"text": ["a", "b"]}, {"other": 1}, {"text": "c\u2028d"}]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    found = read_table(path, "text")
    assert [t.text for t in found.texts] == ["a b", "c\u2028d"]
    assert found.skipped == {"empty text": 1}


def test_a_cache_that_cannot_be_written_is_not_blamed_on_the_network(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", "/cache/hf")

    monkeypatch.setattr("datasets.load_dataset", refused)
    with pytest.raises(BadInput, match=r"Permission denied: '/cache/hf'; .* set HF_HOME to such a folder") as told:
        read_source(str(tmp_path), text="text")
    assert "network" not in str(told.value)


WHOLE = {"text": ["a b", "c d", "e"], "label": ["x", "y", "x"]}
RECORDS = [dict(zip(WHOLE, row, strict=True)) for row in zip(*WHOLE.values(), strict=True)]


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(WHOLE),
        json.dumps(WHOLE, indent=2),
        pandas.DataFrame(WHOLE).to_json(),
        pandas.DataFrame(WHOLE).to_json(orient="table"),
        json.dumps({"data": RECORDS}, indent=1),
        json.dumps({"version": "1.1", "data": RECORDS, "splits": ["a", "b"]}),
        json.dumps({"train": RECORDS}),
        json.dumps({"data": WHOLE}),
        "\n".join(map(json.dumps, RECORDS)),
        json.dumps(RECORDS),
    ],
)
def test_json_may_hold_whole_columns_or_its_rows_by_name(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_text(content)
    found = read_source(str(path), label="label")
    assert [(t.text, t.label) for t in found.texts] == [("a b", "x"), ("c d", "y"), ("e", "x")]
    assert found.rows == 3
    assert [note[:25] for note in found.notes] == (
        ["the rows are those of 'da"] if '", "data"' in content or "schema" in content else []
    )


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (
            {"text": ["a", "b"], "label": [1]},
            r"its lists differ in length \('text' has 2, 'label' has 1\); expected a list",
        ),
        ({"train": RECORDS, "test": RECORDS}, "several tables, 'train', 'test'; write the one that is meant"),
        ({"text": {"0": "a", "1": "b"}, "label": {"0": 1, "2": 0}}, "its columns have other rows; expected a list"),
        ({"name": "mine", "texts": ["a", "b"]}, "which column holds the text"),
        ({}, "the file is empty"),
    ],
)
def test_json_that_is_no_table_is_refused_and_told_how(tmp_path, content, match):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content, indent=1))
    with pytest.raises(BadInput, match=match):
        read_table(path)
    path.write_text('{"text": ["a",\n"b"')
    with pytest.raises(BadInput, match=r"a\.json:2: not JSON: .*; expected a list of objects"):
        read_table(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "b.json"])
def test_a_single_row_that_may_be_whole_columns_is_told(tmp_path, name, caplog):
    path = tmp_path / name
    if name == "a.parquet":
        pandas.DataFrame([WHOLE]).to_parquet(path)
    else:
        path.write_text(json.dumps(WHOLE | ({} if name == "a.jsonl" else {"name": "mine"})))
    found = read_source(str(path))
    assert [text.text for text in found.texts] == ["a b c d e"]
    assert "the only row holds a list in 'text', read as the 3 words of one text" in found.notes[0]
    assert found.notes[0] in caplog.text
    path.write_text('{"text": "a"}\n' * 2) if name != "a.parquet" else pandas.DataFrame(RECORDS).to_parquet(path)
    assert read_source(str(path)).notes == ()


def test_columns_of_a_text_file_are_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\n")
    with pytest.raises(BadInput, match="label column 'y' asked of a file with a text a line"):
        read_source(str(path), label="y")
    assert len(read_table(path)) == 1


def dataset():
    features = datasets.Features(
        {
            "premise": datasets.Value("string"),
            "hypothesis": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["yes", "maybe", "no"]),
        }
    )
    rows = {"premise": ["a", "b", "", "d"], "hypothesis": ["e", "f", "g", "h"], "label": [2, 0, 1, -1]}
    return datasets.Dataset.from_dict(rows, features=features)


def test_a_saved_data_set_gives_names_for_its_classes(tmp_path):
    datasets.DatasetDict({"train": dataset(), "test": dataset()}).save_to_disk(tmp_path / "both")
    dataset().save_to_disk(tmp_path / "one")
    for name in ("both", "one"):
        found = read_dataset(str(tmp_path / name), None, "test", "premise", "label", "hypothesis")
        assert found.texts == [Text("a", "e", "no"), Text("b", "f", "yes")]
        assert found.label_names == ("yes", "maybe", "no")
        assert found.skipped == {"empty text": 1, "no label": 1}
        assert found.source.endswith("[test]")
    with pytest.raises(BadInput, match="no split 'dev'; the splits are 'train', 'test'"):
        read_source(str(tmp_path / "both"), split="dev", text="premise")
    with pytest.raises(BadInput, match="no column 'text'"):
        read_source(str(tmp_path / "both"), text="text")


def test_a_folder_of_files_is_a_data_set(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.csv").write_text("text,label\none,1\ntwo,0\n")
    found = read_source(str(folder), text="text", label="label")
    assert found.texts == [Text("one", label=1), Text("two", label=0)]
    with pytest.raises(BadInput, match="split 'dev'"):
        read_source(str(folder), split="dev")


def test_a_data_set_that_cannot_be_had_says_what_was_asked(monkeypatch):
    asked = {}

    def refuse(name, config, **options):
        asked.update(name=name, config=config, **options)
        raise FileNotFoundError("Couldn't find any\ndata file")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(
        BadInput, match=r"data set 'nyu/glue', configuration 'sst2', split 'train'.*Couldn't find any data"
    ):
        read_source("nyu/glue:sst2", revision="main")
    assert asked == {"name": "nyu/glue", "config": "sst2", "split": "train", "revision": "main"}


def test_numpy_is_what_rows_are_kept_in():
    # The encoded rows stay in memory between passes; lists of Python integers would take ten times as much.
    found = batches(corpus("the cat"), bert_tokenizer())
    assert all(isinstance(row.ids, np.ndarray) for row in found._rows)


def test_how_many_rows_there_were_stands_in_the_record(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("text,label\na b,x\n,x\nc d,\ne f,y\none,two,three\n")
    found = read_source(str(file), label="label")
    assert found.summary()["rows"] == 5 == len(found) + sum(found.skipped.values())
    assert found.sample(1).summary()["rows"] == 5
    lines = tmp_path / "lines.txt"
    lines.write_text("a\n\nb\n")
    assert read_source(str(lines)).summary()["rows"] == 3


def test_no_class_is_a_label_where_labels_are_lists(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a", "label": ["x", "y"]}\n{"text": "b", "label": []}\n{"text": "c", "label": null}\n')
    found = read_source(str(file), label="label")
    assert [text.label for text in found.texts] == ["x y", ""]
    assert found.skipped == {"no label": 1}


@pytest.mark.parametrize("name", ["a.csv.gz", "a.csv", "a.jsonl", "a.txt", "a.parquet"])
def test_packed_files_are_told_as_such(name, tmp_path):
    (tmp_path / name).write_bytes(gzip.compress(b"text,label\na b,x\n"))
    with pytest.raises(BadInput, match="packed by gzip; unpack it first"):
        read_source(str(tmp_path / name), text=None if name == "a.txt" else "text")


def test_a_column_that_is_there_twice_is_not_chosen_in_silence(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("text,text,label\na b,c d,x\n")
    with pytest.raises(BadInput, match="2 columns are called 'text'; give that of the text by its number: 0 or 1"):
        read_source(str(file), text="text")
    with pytest.raises(BadInput, match="2 columns are called 'text'"):
        read_source(str(file))
    assert read_source(str(file), text=1, label="label").texts[0].text == "c d"
