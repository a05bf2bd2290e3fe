"""Task: which of several answers is right, by a head that chooses or by the likelihood of each answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from headwise.analysis.corpus.batching import LEFT_BY_NATURE, Batch, accepted, is_chooser, token_limit
from headwise.analysis.corpus.encoding import with_choice
from headwise.analysis.corpus.texts import Corpus, Text
from headwise.analysis.errors import BadInput
from headwise.analysis.gates.uncached import uncached
from headwise.analysis.progress import track
from headwise.prune.tasks.causal_lm import is_causal_lm
from headwise.prune.tasks.outcome import Outcome, judging
from headwise.prune.tasks.windows import token_losses


class MultipleChoice(BaseModel):
    """How often the right answer gets the highest score.

    A head of multiple choice scores each answer beside the text. A causal language model is asked how likely
    each answer is after the text: the sum of its tokens' log-probabilities, by default over the answer's length
    in characters, as evaluation harnesses do (`acc_norm`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["multiple-choice"] = "multiple-choice"
    normalise: Literal["characters", "tokens", "none"] = Field(
        default="characters", description="what a language model's log-probability of an answer is divided by"
    )

    def fit(
        self,
        model: nn.Module,
        tokenizer: Any,
        calibration: Corpus,
        *,
        batch_size: int = 32,
        max_length: int | None = None,
        seed: int = 0,
    ) -> FittedChoice:
        """The task, once model and texts are found to fit.

        Raises:
            BadInput: the model neither chooses nor predicts the next token, or a text has no choices or no label
                that is one of them.
        """
        if not is_chooser(model) and not is_causal_lm(model):
            raise BadInput(
                f"{type(model).__name__} cannot choose: load a multiple-choice checkpoint or a causal language model"
            )
        _check(calibration)
        return FittedChoice(self, tokenizer, token_limit(tokenizer, model, max_length), batch_size)


@dataclass(frozen=True, eq=False)
class _Row:
    """A text with one of its choices: token ids, where the choice begins, and what its score is divided by."""

    ids: list[int]
    types: list[int] | None = None
    start: int = 0
    length: float = 1.0


@dataclass(frozen=True, eq=False)
class FittedChoice:
    """How texts and answers are read."""

    task: MultipleChoice
    tokenizer: Any = field(repr=False)
    limit: int | None = None
    batch_size: int = 32

    def losses(self, model: nn.Module, batch: Batch) -> Float[Tensor, " batch"]:
        """Cross entropy of the right answer among each text's own.

        Raises:
            BadInput: a text has no choices, or no label that is one of them.
        """
        _check(Corpus(batch.texts, "batch"))
        # One row a text in every call, so that the gradients of a call are those of its texts.
        rows = [self._rows([text], model) for text in batch.texts]
        calls = [
            self._scores(model, [mine[min(k, len(mine) - 1)] for mine in rows]) for k in range(max(map(len, rows)))
        ]
        scores = torch.stack(calls, dim=1)
        there = torch.tensor([[k < len(mine) for k in range(len(calls))] for mine in rows], device=scores.device)
        right = torch.tensor([text.right for text in batch.texts], device=scores.device)
        return nn.functional.cross_entropy(scores.masked_fill(~there, float("-inf")), right, reduction="none")

    def judge(self, model: nn.Module, corpus: Corpus) -> Outcome:
        """The share of texts whose right answer scores highest.

        Raises:
            BadInput: a text has no choices, or no label that is one of them.
        """
        _check(corpus)
        rows = self._rows(corpus.texts, model)
        # Longest first, so that a batch that does not fit in memory fails at once.
        order = sorted(range(len(rows)), key=lambda k: (-len(rows[k].ids), k))
        groups = [order[at : at + self.batch_size] for at in range(0, len(order), self.batch_size)]
        scores = np.empty(len(rows))
        with judging(model):
            for group in track(groups, len(groups), "weighing answers"):
                scores[group] = self._scores(model, [rows[k] for k in group]).double().cpu().numpy()
        ends = np.cumsum([len(text.choices) for text in corpus.texts])
        said = [int(part.argmax()) for part in np.split(scores, ends[:-1])]
        right = np.array([a == text.right for a, text in zip(said, corpus.texts, strict=True)], dtype=np.float64)
        return Outcome(
            kind="multiple-choice",
            metric="accuracy",
            value=float(right.mean()),
            per_example=right,
            higher_is_better=True,
            texts=list(corpus.texts),
            predictions=[text.choices[i] for text, i in zip(corpus.texts, said, strict=True)],
        )

    def _rows(self, texts: Sequence[Text], model: nn.Module) -> list[_Row]:
        """Every text with every choice, in order."""
        chooses = is_chooser(model)
        return [(self._beside if chooses else self._after)(text, choice) for text in texts for choice in text.choices]

    def _beside(self, text: Text, choice: str) -> _Row:
        read = with_choice(text, choice, apart=True)
        found = self.tokenizer(
            read.text, read.pair, truncation=self.limit is not None, max_length=self.limit, verbose=False
        )
        return _Row(list(found["input_ids"]), found.get("token_type_ids"))

    def _after(self, text: Text, choice: str) -> _Row:
        """The text and the choice after it; what is too long loses its beginning."""
        context = with_choice(text, "", apart=False).text
        whole = with_choice(text, choice, apart=False).text
        before, ids = (
            self.tokenizer(one, add_special_tokens=False, verbose=False)["input_ids"] for one in (context, whole)
        )
        head = list(self.tokenizer("a", verbose=False)["input_ids"][:1])
        first = getattr(self.tokenizer, "bos_token_id", None)
        if head != [first]:
            # Something has to stand before the first token of all, or nothing would predict it.
            other = first if first is not None else getattr(self.tokenizer, "eos_token_id", None)
            head = [] if before or other is None else [other]
        ids, start = [*head, *ids], max(1, len(head) + len(before))
        lost = max(0, len(ids) - self.limit) if self.limit is not None else 0
        lengths = {"characters": len(choice), "tokens": len(ids) - start, "none": 1}
        return _Row(ids[lost:], None, max(1, start - lost), float(max(1, lengths[self.task.normalise])))

    def _scores(self, model: nn.Module, rows: Sequence[_Row]) -> Float[Tensor, " row"]:
        """A number for each row; of the rows of one text, the highest wins."""
        device: Any = model.device
        left = is_chooser(model) and getattr(model.config, "model_type", "") in LEFT_BY_NATURE
        width = max(len(row.ids) for row in rows)
        ids = torch.full((len(rows), width), self.tokenizer.pad_token_id or 0)
        valid, types = torch.zeros_like(ids), torch.full_like(ids, getattr(self.tokenizer, "pad_token_type_id", 0) or 0)
        scored = torch.zeros_like(ids, dtype=torch.bool)
        for i, row in enumerate(rows):
            at = width - len(row.ids) if left else 0
            place = slice(at, at + len(row.ids))
            ids[i, place], valid[i, place] = torch.tensor(row.ids), 1
            types[i, place] = torch.tensor(row.types or 0)
            scored[i, row.start : len(row.ids)] = True
        inputs = {"input_ids": ids.to(device), "attention_mask": valid.to(device)}
        if not is_chooser(model):
            logits = model(**inputs, **uncached(model)).logits
            nats = token_losses(logits, inputs["input_ids"], scored.to(device)).sum(-1)
            return -nats / torch.tensor([row.length for row in rows], device=nats.device)
        if rows[0].types is not None and "token_type_ids" in accepted(model):
            inputs["token_type_ids"] = types.to(device)
        found: Tensor = model(**{name: value.unsqueeze(1) for name, value in inputs.items()}).logits
        return found.float().squeeze(-1)


def _check(corpus: Corpus) -> None:
    if any(len(text.choices) < 2 for text in corpus.texts):
        raise BadInput(
            f"{corpus.source}: every text needs two or more choices; name their column, or a column for each "
            "(`choices: endings`, `choices: [ending0, ending1]`)"
        )
    wrong = next((text for text in corpus.texts if text.right is None), None)
    if wrong is not None:
        raise BadInput(
            f"{corpus.source}: label {wrong.label!r} is none of the {len(wrong.choices)} choices of "
            f"{wrong.text[:60]!r}; expected its number (from 0), its letter or its words"
        )
