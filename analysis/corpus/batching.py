"""Texts to batches: token ids, what is padding, what is special, and which word a token belongs to."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headwise.analysis.corpus.encoding import Row, encode, with_choice
from headwise.analysis.corpus.texts import HOW, Corpus, Text
from headwise.analysis.devices import home
from headwise.analysis.errors import BadInput
from headwise.analysis.sites.class_names import named_for

#: Tokenizers that know no limit say so with a huge number.
_NO_LIMIT = 1_000_000
#: Label of a position that no loss counts, as torch's cross entropy has it.
IGNORED = -100
#: Relative positions, and a head that reads the last token.
LEFT_BY_NATURE = frozenset({"xlnet"})


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens of one stream of a batch, with what the roles need to know about them.

    Attributes:
        ids: token ids.
        valid: False where padded.
        special: True for tokens that the tokenizer adds or reserves ([CLS], </s>, …), False for padding.
        words: index of the token's word in its text (see `word_spans`), -1 where there is none; the words
            of a pair's second text count on from the first's.
        offsets: characters [start, end) of the token in its own text, without surrounding blanks.
        second: True where the token belongs to the pair's second text.
        tokenizer: turns ids back into strings.
    """

    ids: Int[Tensor, "batch token"]
    valid: Bool[Tensor, "batch token"]
    special: Bool[Tensor, "batch token"]
    words: Int[Tensor, "batch token"]
    offsets: Int[Tensor, "batch token 2"]
    second: Bool[Tensor, "batch token"] | None = None
    tokenizer: Any = field(default=None, repr=False)

    def strings(self) -> list[list[str]]:
        """The tokens as the tokenizer writes them, padding included."""
        if self.tokenizer is None:
            raise BadInput("these tokens came without a tokenizer: pass tokenizer= to Tokens to read strings")
        return [self.tokenizer.convert_ids_to_tokens(row) for row in self.ids.tolist()]


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch: what the model is called with, the texts, and their tokens.

    Attributes:
        inputs: keyword arguments of the model's forward.
        texts: the examples, a row each.
        tokens: stream name to tokens: `` for the only or the encoder stream, `decoder` for a decoder's.
        index: each row's position in the corpus (batches are sorted by length).
        targets: for encoder-decoders, the token that each decoder position should predict, -100 for none.
        width: of images and clips, positions of the longest attention block, which no tokens tell; else 0.
    """

    inputs: dict[str, Tensor]
    texts: list[Text]
    tokens: dict[str, Tokens]
    index: tuple[int, ...] = ()
    targets: Int[Tensor, "batch token"] | None = None
    width: int = 0


def token_limit(tokenizer: Any, model: Any = None, max_length: int | None = None) -> int | None:
    """The most tokens a text may have: the smallest of what the user, tokenizer and model allow.

    None where nobody sets a limit (relative positions without a tokenizer limit).

    >>> token_limit(None, max_length=32)
    32
    """
    limits = [max_length, getattr(tokenizer, "model_max_length", None)]
    if model is not None:
        positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if isinstance(positions, int) and positions > 0:
            limits.append(positions - _position_offset(model))
    known = [int(limit) for limit in limits if limit is not None and limit < _NO_LIMIT]
    return min(known) if known else None


def _position_offset(model: Any) -> int:
    """Positions that the RoBERTa line reserves below its first token: padding index + 1."""
    for module in model.modules():
        if _counts_positions_itself(module):
            return int(getattr(module, "padding_idx", 0) or 0) + 1
    return 0


def _counts_positions_itself(module: Any) -> bool:
    return hasattr(type(module), "create_position_ids_from_input_ids")


def accepted(model: Any) -> set[str]:
    """Names of what a model's forward takes."""
    return set(inspect.signature(model.forward).parameters)


def is_chooser(model: Any) -> bool:
    """Whether the model's class, or one that it derives from, chooses between answers.

    >>> is_chooser(None)
    False
    """
    return named_for(model, "ForMultipleChoice")


def fill_of(tokenizer: Any) -> int:
    """What fills up a row: the pad token, else the end of text, else 0; the mask hides it anyway.

    >>> fill_of(None)
    0
    """
    named = (getattr(tokenizer, f"{kind}_token_id", None) for kind in ("pad", "eos", "unk"))
    return next((int(value) for value in named if value is not None), 0)


class Batches:
    """Batches of a corpus, to be iterated as often as wished, each pass the same.

    Attributes:
        truncated: how many texts were longer than the limit.
        skipped: how many texts gave no token at all and are in no batch.
        limit: the most tokens a text may have, None for no limit.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Any,
        *,
        batch_size: int = 32,
        max_length: int | None = None,
        device: str | torch.device | None = None,
        sort: bool = True,
        model: Any = None,
    ) -> None:
        if batch_size < 1:
            raise BadInput(f"batch size: got {batch_size}, expected at least 1")
        if len(corpus) == 0:
            raise BadInput(f"{corpus.source}: no texts (skipped: {corpus.skipped or 'none'})")
        self.corpus, self.tokenizer, self.batch_size, self.model = corpus, tokenizer, batch_size, model
        self.device = torch.device(device or (home(model) if model is not None else "cpu"))
        self.limit = token_limit(tokenizer, model, max_length)
        if self.limit is not None and self.limit < 1:
            raise BadInput(f"max length: got {self.limit}, expected at least 1")
        self._chooses = is_chooser(model)
        self._rows = encode([self._read(text) for text in corpus.texts], tokenizer, self.limit)
        self.truncated = sum(row.truncated for row in self._rows)
        lengths = [len(row.ids) for row in self._rows]
        order = [i for i in range(len(corpus)) if lengths[i] > 0]
        self.skipped = len(corpus) - len(order)
        if sort:
            # Longest first: a batch that does not fit in memory fails at once, not at the end.
            order.sort(key=lambda i: (-lengths[i], i))
        self._order = order
        self._accepted = accepted(model) if model is not None else None
        self._is_pair = model is not None and bool(getattr(model.config, "is_encoder_decoder", False))
        self._left, self._positions = self._padding()

    def __len__(self) -> int:
        return -(-len(self._order) // self.batch_size)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text, in the order in which they come."""
        return [len(self._rows[i].ids) for i in self._order]

    @property
    def mark(self) -> str:
        """Sixteen hex digits that name the texts and their tokens, in the order in which they come."""
        digest = hashlib.sha256()
        for i in self._order:
            digest.update(self.corpus.texts[i].id.encode() + self._rows[i].ids.tobytes())
        return digest.hexdigest()[:16]

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self._order), self.batch_size):
            yield self._batch(self._order[start : start + self.batch_size])

    def _read(self, text: Text) -> Text:
        """What is read of an example in passing: of its choices the right one, or the first."""
        if not text.choices:
            return text
        return with_choice(text, text.choices[text.right or 0], apart=self._chooses)

    def _padding(self) -> tuple[bool, bool]:
        """Whether to pad left, and whether positions must then be told.

        Left padding shifts learned positions and puts padding where a head looks for the first token. So it is
        used where it is meant to be, in causal models that can be told positions; everywhere else a forward
        pass is the same, or only right, padded right.
        """
        left = getattr(self.tokenizer, "padding_side", "right") == "left" and not self._chooses
        if self.model is None or not left:
            return left, False
        if getattr(self.model.config, "model_type", "") in LEFT_BY_NATURE:
            return True, False
        causal = any(getattr(module, "is_causal", False) is True for module in self.model.modules())
        told = causal and not self._is_pair and "position_ids" in (self._accepted or ())
        return told, told

    def _batch(self, index: Sequence[int]) -> Batch:
        rows = [self._rows[i] for i in index]
        tokens = self._tokens(rows, self._left)
        inputs = {"input_ids": tokens.ids, "attention_mask": tokens.valid.long()}
        names = getattr(self.tokenizer, "model_input_names", ())
        wanted = "token_type_ids" in (self._accepted if self._accepted is not None else names)
        if wanted and "token_type_ids" in names:
            fill = getattr(self.tokenizer, "pad_token_type_id", 0)
            inputs["token_type_ids"] = self._stack([row.types for row in rows], self._left, fill)
        if self._positions:
            inputs["position_ids"] = (tokens.valid.long().cumsum(-1) - 1).clamp(min=0)
        if self._chooses:
            # One choice a text, in the shape that the head reads.
            inputs = {name: value.unsqueeze(1) for name, value in inputs.items()}
        streams, targets = {"": tokens}, None
        if self._is_pair and "decoder_input_ids" in (self._accepted or ()):
            streams["decoder"], targets = self._decoder(rows)
            inputs["decoder_input_ids"] = streams["decoder"].ids
            inputs["decoder_attention_mask"] = streams["decoder"].valid.long()
        return Batch(inputs, [self.corpus.texts[i] for i in index], streams, tuple(index), targets)

    def _decoder(self, rows: Sequence[Row]) -> tuple[Tokens, Tensor]:
        """The decoder's stream when a text is its own target: a start token, then the text."""
        shifted = [row.shifted(self._start) for row in rows]
        return self._tokens(shifted, False), self._stack([row.ids for row in rows], False, IGNORED)

    @property
    def _start(self) -> int:
        """The token that a decoder begins with."""
        config = self.model.config
        named = (getattr(config, name, None) for name in ("decoder_start_token_id", "bos_token_id"))
        return next((value for value in named if value is not None), self.pad_id)

    @property
    def pad_id(self) -> int:
        """What fills up a row, see `fill_of`."""
        return fill_of(self.tokenizer)

    def _tokens(self, rows: Sequence[Row], left: bool) -> Tokens:
        return Tokens(
            ids=self._stack([row.ids for row in rows], left, self.pad_id),
            valid=self._stack([np.ones(len(row.ids), dtype=bool) for row in rows], left, False),
            special=self._stack([row.special for row in rows], left, False),
            words=self._stack([row.words for row in rows], left, -1),
            offsets=self._stack([row.offsets for row in rows], left, 0),
            second=self._stack([row.second for row in rows], left, False),
            tokenizer=self.tokenizer,
        )

    def _stack(self, columns: Sequence[np.ndarray], left: bool, fill: int | bool) -> Tensor:
        width = max(len(column) for column in columns)
        out = np.full((len(columns), width, *columns[0].shape[1:]), fill, dtype=columns[0].dtype)
        for row, column in zip(out, columns, strict=True):
            row[width - len(column) if left else 0 : width if left else len(column)] = column
        return torch.from_numpy(out).to(self.device)


def batches(
    corpus: Corpus,
    tokenizer: Any,
    *,
    batch_size: int = 32,
    max_length: int | None = None,
    device: str | torch.device | None = None,
    sort: bool = True,
    model: Any = None,
) -> Batches:
    """Batches of the corpus, sorted by length (longest first) and padded to each batch's longest text.

    Works with any tokenizer of `transformers`: with or without a pad token (the end-of-text token fills up;
    the attention mask hides it, and the tokenizer is left as it was), padding left or right. A tokenizer
    without character offsets (a "slow" one) gives tokens without words: `words` -1, `offsets` 0.

    Images and clips go through the checkpoint's processor instead; clips of one length share a batch.

    Args:
        corpus: the texts; pairs go to the tokenizer as pairs.
        tokenizer: of the checkpoint; its processor for images and clips.
        batch_size: texts a batch.
        max_length: the most tokens a text; longer ones are truncated and counted in `Batches.truncated`.
        device: where the tensors go; the model's by default.
        sort: False keeps the order of the corpus.
        model: names what its forward accepts and how long a text may be; needed by encoder-decoders, which
            also get `decoder_input_ids` (each text is its own target) and `Batch.targets`.

    Raises:
        BadInput: no corpus or no texts, texts for a model that sees or hears, or a batch size or length below 1.

    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> from transformers import PreTrainedTokenizerFast
    >>> words = Tokenizer(models.WordLevel({"?": 0, "a": 1, "b": 2}, unk_token="?"))
    >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
    >>> [b.inputs["input_ids"].tolist() for b in batches(Corpus([Text("a"), Text("a b")]), tokenizer)]
    [[[1, 2], [1, 0]]]
    """
    if not isinstance(corpus, Corpus):
        raise BadInput(f"corpus: got {type(corpus).__name__}. {HOW}")
    if any(text.media is not None for text in corpus.texts):
        from headwise.analysis.corpus.media_batching import MediaBatches

        return MediaBatches(corpus, tokenizer, batch_size=batch_size, device=device, sort=sort, model=model)
    if not hasattr(tokenizer, "all_special_ids"):
        raise BadInput(
            f"{corpus.source}: texts alone, but {type(tokenizer).__name__} reads images or clips; name a folder or a "
            "table of these"
        )
    return Batches(
        corpus,
        tokenizer,
        batch_size=batch_size,
        max_length=max_length,
        device=device,
        sort=sort,
        model=model,
    )
