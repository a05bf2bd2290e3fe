"""Tokenizers that know a list of words, each one token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast


def of_words(
    words: Sequence[str], *, split: Any = None, framed: bool = False, unk_token: str = "[UNK]", **named: Any
) -> PreTrainedTokenizerFast:
    """Word to its place in the list.

    Args:
        words: the vocabulary, special tokens included.
        split: what parts a text; at blanks and punctuation by default.
        framed: whether `[CLS]` goes before a text, and `[SEP]` after it.
        unk_token: what stands for any other word.
        **named: `pad_token`, `mask_token`, … and further options.
    """
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=unk_token))
    raw.pre_tokenizer = split or pre_tokenizers.Whitespace()
    if framed:
        raw.post_processor = processors.BertProcessing(("[SEP]", words.index("[SEP]")), ("[CLS]", words.index("[CLS]")))
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token=unk_token, **named)
