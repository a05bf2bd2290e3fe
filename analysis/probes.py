"""Behaviours that roles are for, each measured as one number, the higher the worse."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from headwise.analysis.corpus.batching import Batch, Tokens, batches
from headwise.analysis.corpus.minimal_pairs import Pair, agreement_pairs, preference
from headwise.analysis.corpus.texts import Corpus
from headwise.analysis.roles.random_sequences import LENGTH, repeated_sequences
from headwise.analysis.sites.class_names import named_for

#: Sequences said twice, and sentence pairs at most: for a causal model, and for one that fills gaps, which has to
#: read a sentence once for each of its tokens.
SEQUENCES = 8
PAIRS = {"next": 64, "gaps": 16}
#: Texts that a loss is measured on, and tokens of each: it is measured again for every draw of heads.
TEXTS, TOKENS = 16, 128
#: Of the tokens, every so-many-th is masked: in texts, and in the second half of sequences said twice.
_GAPS, _GAPS_SAID_TWICE = 7, 4

_MEASURED = {
    ("repetition", "next"): "the loss on the second half of random sequences said twice",
    ("repetition", "gaps"): "the loss on masked tokens of random sequences said twice",
    ("agreement", "next"): "the log-likelihood of sentences that disagree over those that agree",
    ("agreement", "gaps"): "the pseudo-log-likelihood of sentences that disagree over those that agree",
    ("language", "next"): "the loss on the next token of the texts",
    ("language", "gaps"): "the loss on masked tokens of the texts",
}


@dataclass(frozen=True)
class Probe:
    """A behaviour.

    Attributes:
        kind: `repetition`, `agreement`, `language` or `task`.
        measured: what goes up when it suffers, as part of a sentence; in nats.
        count: sequences, pairs or texts it is measured on.
        measure: the number, on the model as it is.
    """

    kind: str
    measured: str
    count: int
    measure: Callable[[], float]


@dataclass(frozen=True)
class OwnLoss:
    """What a model without a language-modelling head is judged by.

    Attributes:
        name: of the task.
        count: texts.
        measure: mean loss of the model as it is.
    """

    name: str
    count: int
    measure: Callable[[nn.Module], float]


def reads_as(model: nn.Module, tokenizer: Any, causal: bool) -> tuple[str, str]:
    """How a model can be probed – `next` token, `gaps`, or neither – and why not, if neither.

    Args:
        model: the model.
        tokenizer: of the checkpoint.
        causal: whether all its self-attention looks back only.

    >>> reads_as(nn.Linear(1, 1), None, causal=False)
    ('', 'the model has no language-modelling head')
    """
    if getattr(model, "get_output_embeddings", lambda: None)() is None:
        return "", "the model has no language-modelling head"
    if causal:
        return "next", ""
    fills = named_for(model, "ForMaskedLM")
    if fills and getattr(tokenizer, "mask_token_id", None) is not None:
        return "gaps", ""
    return "", "the model neither predicts the next token nor fills gaps"


def probe_of(
    kind: str,
    way: str,
    model: nn.Module,
    tokenizer: Any,
    texts: Iterable[Batch] = (),
    pairs: Sequence[Pair] | None = None,
    seed: int = 0,
) -> Probe:
    """The probe of a behaviour, for a model that is read in a `way` that `reads_as` names.

    Args:
        kind: `repetition`, `agreement` or `language`.
        way: `next` or `gaps`.
        model: the model.
        tokenizer: of the checkpoint.
        texts: batches for `language`.
        pairs: for `agreement`; generated ones if None; so many of them are drawn as `PAIRS` says.
        seed: of what is drawn.
    """
    measured = _MEASURED[kind, way]
    if kind == "agreement":
        sentences = agreement_pairs(PAIRS[way], seed) if pairs is None else _drawn(pairs, PAIRS[way], seed)
        mask = tokenizer.mask_token_id if way == "gaps" else None
        return Probe(kind, measured, len(sentences), lambda: -preference(model, tokenizer, sentences, mask=mask))
    if kind == "language":
        kept = list(texts)
        count = sum(len(batch.texts) for batch in kept)
        if way == "next":
            return Probe(kind, measured, count, lambda: loss(model, kept))
        return Probe(kind, measured, count, lambda: gap_loss(model, kept, tokenizer.mask_token_id, _gaps))
    size = min(int(model.get_input_embeddings().num_embeddings), len(tokenizer))  # type: ignore[operator]
    device = next(model.parameters()).device
    # Other sequences than the ones that found the heads.
    again = repeated_sequences(size, reserved=tokenizer.all_special_ids, seed=seed + 1, count=SEQUENCES, device=device)
    if way == "next":
        return Probe(kind, measured, SEQUENCES, lambda: loss(model, again, start=LENGTH))
    return Probe(kind, measured, SEQUENCES, lambda: gap_loss(model, again, tokenizer.mask_token_id, _gaps_said_twice))


def _drawn(pairs: Sequence[Pair], count: int, seed: int) -> list[Pair]:
    """So many of the pairs, drawn: files have their phenomena one after the other."""
    return random.Random(seed).sample(list(pairs), min(count, len(pairs)))


def few_texts(
    corpus: Corpus, tokenizer: Any, model: nn.Module, max_length: int | None = None, seed: int = 0
) -> list[Batch]:
    """Sixteen of the texts, cut to 128 tokens: enough for a loss that is measured once for every draw."""
    drawn = corpus.sample(TEXTS, seed, stratified=False)
    length = TOKENS if max_length is None else min(TOKENS, max_length)
    return list(batches(drawn, tokenizer, batch_size=TEXTS, max_length=length, model=model))


def loss(model: nn.Module, batches: Iterable[Batch], start: int = 0) -> float:
    """Mean loss of the next token in nats, from position `start` on; padding left out."""
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in batches:
            ids, valid = batch.tokens[""].ids, batch.tokens[""].valid
            logits = model(**batch.inputs).logits[:, start:-1].float()
            picked = logits.gather(-1, ids[:, start + 1 :, None]).squeeze(-1) - logits.logsumexp(-1)
            judged = valid[:, start + 1 :] & valid[:, start:-1]
            total -= float(picked[judged].double().sum())
            count += int(judged.sum())
    return total / max(1, count)


def gap_loss(
    model: nn.Module, batches: Iterable[Batch], mask: int, gaps: Callable[[Tokens], Bool[Tensor, "batch token"]]
) -> float:
    """Mean loss of masked tokens in nats.

    Args:
        model: one that fills gaps.
        batches: the texts.
        mask: id of the token that stands in a gap.
        gaps: which tokens of a batch are masked.
    """
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in batches:
            tokens = batch.tokens[""]
            chosen = gaps(tokens)
            logits = model(**{**batch.inputs, "input_ids": tokens.ids.masked_fill(chosen, mask)}).logits[chosen]
            nats = nn.functional.cross_entropy(logits.float(), tokens.ids[chosen], reduction="sum")
            total, count = total + float(nats), count + int(chosen.sum())
    return total / max(1, count)


def _every(step: int, tokens: Tokens) -> Bool[Tensor, "batch token"]:
    """Every so-many-th token of each text that is not special, from another one on in every row."""
    plain = tokens.valid & ~tokens.special
    number = plain.cumsum(-1) + torch.arange(len(plain), device=plain.device)[:, None]
    return plain & (number % step == 0)


def _gaps(tokens: Tokens) -> Bool[Tensor, "batch token"]:
    return _every(_GAPS, tokens)


def _gaps_said_twice(tokens: Tokens) -> Bool[Tensor, "batch token"]:
    second = torch.arange(tokens.ids.shape[1], device=tokens.ids.device) >= LENGTH
    return _every(_GAPS_SAID_TWICE, replace(tokens, special=tokens.special | ~second))
