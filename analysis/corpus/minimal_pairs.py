"""Minimal pairs: two sentences that differ in agreement alone, of which a language model should prefer one."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headwise.analysis.errors import BadInput

_HE = ("John", "Peter", "David", "Michael", "my uncle", "the king", "her brother", "the waiter")
_SHE = ("Mary", "Susan", "Anna", "Laura", "my aunt", "the queen", "his sister", "the waitress")
_FRAMES = (
    "{0} saw {1} in the mirror.",
    "{0} did not recognise {1} at all.",
    "{0}, who had talked to {2} before, blamed {1} for the mistake.",
    "{0} told {2} a long story and then bought {1} a drink.",
    "While {2} slept in the next room, {0} made {1} some tea.",
)


@dataclass(frozen=True)
class Pair:
    """Two sentences; the good one agrees."""

    good: str
    bad: str


def agreement_pairs(count: int = 64, seed: int = 0) -> list[Pair]:
    """Sentences whose reflexive agrees with its antecedent, and the same with the other gender.

    >>> agreement_pairs(2)[0].good != agreement_pairs(2)[0].bad
    True
    """
    draw = random.Random(seed)
    made = []
    for frame, (subjects, others, good, bad) in itertools.product(
        _FRAMES, ((_HE, _SHE, "himself", "herself"), (_SHE, _HE, "herself", "himself"))
    ):
        for subject, other in itertools.product(subjects, others):
            right, wrong = (frame.format(subject, word, other) for word in (good, bad))
            made.append(Pair(right[0].upper() + right[1:], wrong[0].upper() + wrong[1:]))
    return draw.sample(list(dict.fromkeys(made)), min(count, len(dict.fromkeys(made))))


def read_pairs(path: str | Path) -> list[Pair]:
    """Pairs of a JSON-lines file in the form of BLiMP: `sentence_good` and `sentence_bad`; other keys are ignored.

    Raises:
        BadInput: the file cannot be read, or a line is no such pair; the message names the line.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "one.jsonl")
    >>> _ = file.write_text('{"sentence_good": "She ran.", "sentence_bad": "She run."}')
    >>> read_pairs(file)[0].good
    'She ran.'
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read ({error})") from None
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            good, bad = row["sentence_good"], row["sentence_bad"]
        except (ValueError, KeyError, TypeError):
            raise BadInput(
                f"{path}:{number}: got {line[:60]!r}, expected an object with sentence_good and sentence_bad"
            ) from None
        if not (isinstance(good, str) and isinstance(bad, str) and good.strip() and bad.strip()):
            raise BadInput(f"{path}:{number}: sentence_good and sentence_bad must be sentences")
        found.append(Pair(good, bad))
    if not found:
        raise BadInput(f"{path}: no pair in it")
    return found


def preference(
    model: nn.Module, tokenizer: Any, pairs: Sequence[Pair], batch_size: int = 32, *, mask: int | None = None
) -> float:
    """Mean log-likelihood of the good sentence minus that of the bad one, in nats.

    Args:
        model: a causal language model, or with `mask` one that fills gaps.
        tokenizer: of the checkpoint.
        pairs: the sentences.
        batch_size: pairs a forward pass.
        mask: id of the mask token; then log-likelihoods are pseudo-log-likelihoods.
    """
    total = 0.0
    for start in range(0, len(pairs), batch_size):
        part = pairs[start : start + batch_size]
        sentences = [pair.good for pair in part] + [pair.bad for pair in part]
        if mask is None:
            scores = likelihoods(model, tokenizer, sentences)
        else:
            scores = pseudo_likelihoods(model, tokenizer, sentences, mask)
        total += float((scores[: len(part)] - scores[len(part) :]).sum())
    return total / len(pairs)


def likelihoods(model: nn.Module, tokenizer: Any, sentences: Sequence[str]) -> torch.Tensor:
    """Log-likelihood of every sentence, the sum over its tokens after the first."""
    ids, valid = _padded(model, tokenizer, sentences)
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=valid).logits[:, :-1].float()
    picked = logits.gather(-1, ids[:, 1:, None]).squeeze(-1) - logits.logsumexp(-1)
    total: torch.Tensor = (picked * valid[:, 1:]).sum(-1).double().cpu()
    return total


def pseudo_likelihoods(
    model: nn.Module, tokenizer: Any, sentences: Sequence[str], mask: int, together: int = 128
) -> torch.Tensor:
    """Pseudo-log-likelihood of every sentence: each token but the special ones masked in turn, and summed.

    After Salazar et al. (2020).

    Args:
        model: one that fills gaps.
        tokenizer: of the checkpoint.
        sentences: the sentences.
        mask: id of the token that stands in a gap.
        together: rows a forward pass, one row a gap.
    """
    ids, valid = _padded(model, tokenizer, sentences)
    special = torch.tensor(sorted(set(tokenizer.all_special_ids)), device=ids.device, dtype=torch.long)
    total = torch.zeros(len(sentences), dtype=torch.float64)
    with torch.no_grad():
        for gaps in torch.nonzero((valid > 0) & ~torch.isin(ids, special)).split(together):
            row, place = gaps.unbind(1)
            each = torch.arange(len(gaps), device=ids.device)
            masked = ids[row].clone()
            masked[each, place] = mask
            logits = model(input_ids=masked, attention_mask=valid[row]).logits[each, place].float()
            picked = logits.log_softmax(-1)[each, ids[row, place]]
            total.index_add_(0, row.cpu(), picked.double().cpu())
    return total


def _padded(model: nn.Module, tokenizer: Any, sentences: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids of all sentences, padded on the right with 0, and which of them count."""
    rows = [tokenizer(sentence)["input_ids"] for sentence in sentences]
    width = max(len(row) for row in rows)
    device = next(model.parameters()).device
    ids = torch.zeros(len(rows), width, dtype=torch.long, device=device)
    valid = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)], valid[i, : len(row)] = torch.tensor(row, device=device), 1
    return ids, valid
