"""A model whose heads are known, because its weights were set by hand."""

from __future__ import annotations

import random

import torch
from tokenizers.pre_tokenizers import BertPreTokenizer
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from headwise.analysis.corpus.texts import Corpus, Text
from tests.word_tokenizers import of_words

#: Longest text; each place has a hidden unit of its own, and so has a head's width.
PLACES = 40
WORDS = [f"word{i}" for i in range(60)]
MARKS = [".", ",", "!"]
#: Words that the twins look for.
RARE = WORDS[:15]
IS_MARK, IS_RARE = PLACES, PLACES + 1
#: What each head of site 0 is; those of site 1 are all indifferent.
PREVIOUS, PUNCTUATION, TWIN, OTHER_TWIN, DEAD = range(5)


def planted_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word, [CLS] and [SEP] around the text."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *MARKS, *WORDS]
    named = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return of_words(words, split=BertPreTokenizer(), framed=True, **named)


def planted_model() -> BertModel:
    """A BERT of two sites with five heads each."""
    tokenizer = planted_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=5 * PLACES, num_hidden_layers=2, num_attention_heads=5,
        intermediate_size=8, max_position_embeddings=PLACES,
    )  # fmt: skip
    torch.manual_seed(0)
    model = BertModel(config)
    with torch.no_grad():
        _features(model, tokenizer)
        for layer in model.encoder.layer:
            for linear in (layer.intermediate.dense, layer.output.dense, layer.attention.output.dense):
                linear.weight.zero_()
                linear.bias.zero_()
            for linear in (layer.attention.self.query, layer.attention.self.key):
                linear.weight.zero_()
                linear.bias.zero_()
            torch.nn.init.normal_(layer.attention.self.value.weight, std=0.1)
        _heads(model.encoder.layer[0].attention.self)
    return model.eval()


def _features(model: BertModel, tokenizer: PreTrainedTokenizerFast) -> None:
    embeddings = model.embeddings
    for table in (embeddings.word_embeddings, embeddings.position_embeddings, embeddings.token_type_embeddings):
        table.weight.zero_()
    embeddings.position_embeddings.weight[:, :PLACES] = torch.eye(PLACES)
    for word in MARKS:
        embeddings.word_embeddings.weight[tokenizer.convert_tokens_to_ids(word), IS_MARK] = 1
    for word in RARE:
        embeddings.word_embeddings.weight[tokenizer.convert_tokens_to_ids(word), IS_RARE] = 1


def _heads(attention: torch.nn.Module) -> None:
    query, key, value = (getattr(attention, part) for part in ("query", "key", "value"))

    def rows(head: int) -> slice:
        return slice(head * PLACES, (head + 1) * PLACES)

    # The query at place t carries the unit of place t - 1.
    key.weight[rows(PREVIOUS), :PLACES] = torch.eye(PLACES)
    query.weight[rows(PREVIOUS), 1:PLACES] = 4 * torch.eye(PLACES)[:, : PLACES - 1]
    for head, feature in ((PUNCTUATION, IS_MARK), (TWIN, IS_RARE), (OTHER_TWIN, IS_RARE)):
        key.weight[head * PLACES, feature] = 10
        query.bias[head * PLACES] = 10
    for linear in (query, key, value):
        linear.weight[rows(OTHER_TWIN)] = linear.weight[rows(TWIN)]
        linear.bias[rows(OTHER_TWIN)] = linear.bias[rows(TWIN)]
    value.weight[rows(DEAD)] = 0
    value.bias[rows(DEAD)] = 0


def planted_corpus(count: int = 150, seed: int = 0) -> Corpus:
    """Random words with a mark after every sixth or so, and rare ones among them."""
    draw = random.Random(seed)
    texts = []
    for _ in range(count):
        words = [draw.choice(WORDS if draw.random() > 0.15 else MARKS) for _ in range(draw.randint(8, PLACES - 4))]
        texts.append(Text(" ".join([*words, draw.choice(RARE), draw.choice(MARKS)])))
    return Corpus(texts, source="random words")
