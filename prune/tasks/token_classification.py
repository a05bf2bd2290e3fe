"""Task: a tag for every word, judged by the spans that the tags mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from headwise.analysis.corpus.batching import Batch, batches
from headwise.analysis.corpus.texts import Corpus, Text
from headwise.analysis.errors import BadInput
from headwise.analysis.progress import track
from headwise.analysis.sites.class_names import named_for
from headwise.prune.tasks.in_numbers import in_numbers
from headwise.prune.tasks.labels import label_numbers
from headwise.prune.tasks.outcome import Outcome, judging


class TokenClassification(BaseModel):
    """F1 of spans (CoNLL 2003), micro over all texts; with `accuracy`, the share of right tags.

    A text's words stand with blanks between, its label is their tags in the same way (a list of words and a
    list of tags, as data sets hold them, become that). A word's tag is read off its first token. Spans are
    those of `seqeval`: IOB2 and its kin, `O` outside.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    #: What it tells from one another: texts of which all are the same judge little (`one_label`).
    tells_apart: ClassVar[str] = "tag"

    kind: Literal["token-classification"] = "token-classification"
    metric: Literal["span-f1", "accuracy"] = Field(default="span-f1", description="what is reported")
    labels: dict[str, int | str] = Field(
        default={}, description="tag of the data: the model's label (name or number), where names do not say it"
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
    ) -> FittedTagger:
        """The task with the data's tags matched to the model's.

        Raises:
            BadInput: the model tags no tokens, the tokenizer tells no offsets, tags do not fit the words or
                the model, or `seqeval` is missing.
        """
        if not is_tagger(model):
            raise BadInput(f"{type(model).__name__} tags no tokens: load a token-classification checkpoint")
        if not getattr(tokenizer, "is_fast", False):
            raise BadInput("tagging words needs a fast tokenizer: a slow one does not tell which token is which word")
        if self.metric == "span-f1":
            spans_of([])
        fitted = FittedTagger(self, model.config, tokenizer, batch_size, max_length)
        fitted.numbers(calibration.texts, calibration.source)
        return fitted


def is_tagger(model: nn.Module) -> bool:
    """Whether the model's class, or one that it derives from, tags tokens.

    >>> is_tagger(nn.Linear(1, 1))
    False
    """
    return named_for(model, "ForTokenClassification")


def spans_of(tags: list[str]) -> set[tuple[str, int, int]]:
    """The spans that a row of tags means: (type, first word, last word).

    Raises:
        BadInput: `seqeval` is not installed.

    >>> spans_of(["B-PER", "I-PER", "O"])
    {('PER', 0, 1)}
    """
    try:
        from seqeval.metrics.sequence_labeling import get_entities
    except ImportError as error:
        raise BadInput(
            "span F1 needs seqeval: pip install 'headwise[tasks]', or use task: {kind: token-classification, "
            "metric: accuracy}"
        ) from error
    return {(str(kind), int(first), int(last)) for kind, first, last in get_entities(tags)} if tags else set()


@dataclass(frozen=True, eq=False)
class FittedTagger:
    """Tags matched to outputs, and how texts become batches."""

    task: TokenClassification
    config: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    batch_size: int = 32
    max_length: int | None = None

    def numbers(self, texts: Any, source: str = "texts") -> list[list[int]]:
        """Output number of every word's tag.

        Raises:
            BadInput: a text without tags, with more or fewer than words, or with one that is not the model's.
        """
        tags = [str(text.label).split() if text.label is not None else [] for text in texts]
        for text, row in zip(texts, tags, strict=True):
            if len(row) != len(text.text.split()):
                raise BadInput(
                    f"{source}: {len(row)} tags for the {len(text.text.split())} words of {text.text[:60]!r}; "
                    "expected as many tags as words, both with blanks between"
                )
        said = {tag: int(tag) if tag.isdecimal() else tag for row in tags for tag in row}
        known = label_numbers(list(said.values()), self.config, (), self.task.labels)
        return [[known[said[tag]] for tag in row] for row in tags]

    def losses(self, model: nn.Module, batch: Batch) -> Float[Tensor, " batch"]:
        """Mean cross entropy of each text's words."""
        logits: Tensor = model(**batch.inputs).logits.float()
        targets = torch.full(logits.shape[:2], -100, dtype=torch.long)
        for row, tags, places in zip(targets, self.numbers(batch.texts), _first_tokens(batch), strict=True):
            for word, token in places.items():
                row[token] = tags[word]
        targets = targets.to(logits.device)
        nats = nn.functional.cross_entropy(logits.transpose(1, 2), targets, ignore_index=-100, reduction="none")
        return nats.sum(-1) / (targets != -100).sum(-1).clamp(min=1)

    def judge(self, model: nn.Module, corpus: Corpus) -> Outcome:
        """F1 of spans over the corpus. Words cut off by the length limit count as `O`, and are reported."""
        right = [self._named(row) for row in self.numbers(corpus.texts, corpus.source)]
        said = [["O"] * len(row) for row in right]
        found = batches(corpus, self.tokenizer, model=model, batch_size=self.batch_size, max_length=self.max_length)
        lost = sum(len(row) for row in right)
        with judging(model):
            for batch in track(found, len(found), "tagging words"):
                likely = in_numbers(model(**batch.inputs).logits, batch).argmax(-1).cpu()
                for i, row, places in zip(batch.index, likely, _first_tokens(batch), strict=True):
                    lost -= len(places)
                    for word, token in places.items():
                        said[i][word] = self._named([int(row[token])])[0]
        rows = np.array([_counts(a, b, self.task.metric) for a, b in zip(right, said, strict=True)], dtype=np.float64)
        return Outcome(
            kind="token-classification",
            metric=self.task.metric,
            value=f1(rows),
            per_example=np.array([f1(row[None], nothing=1.0) for row in rows]),
            higher_is_better=True,
            texts=list(corpus.texts),
            predictions=[" ".join(row) for row in said],
            rows=rows,
            measure=f1,
            skipped={"words beyond the length limit, taken as O": lost} if lost else {},
        )

    def _named(self, numbers: list[int]) -> list[str]:
        return [str(self.config.id2label[number]) for number in numbers]


def f1(rows: np.ndarray, nothing: float = 0.0) -> float:
    """Micro F1 of rows (hits, named, right); of tags, of which as many are named as right, their accuracy.

    >>> f1(np.array([[1, 2, 1], [1, 1, 1]]))
    0.8
    """
    hits, named, right = rows.sum(axis=0)
    return float(2 * hits / (named + right)) if named + right else nothing


def _counts(right: list[str], said: list[str], metric: str) -> tuple[int, int, int]:
    if metric == "accuracy":
        return sum(a == b for a, b in zip(right, said, strict=True)), len(said), len(right)
    one, other = spans_of(right), spans_of(said)
    return len(one & other), len(other), len(one)


def _first_tokens(batch: Batch) -> list[dict[int, int]]:
    """For each text, word (by blanks) to its first token; words beyond the length limit are not there."""
    tokens = batch.tokens[""]
    found = []
    for row, text in enumerate(batch.texts):
        owner = _words(text)
        places: dict[int, int] = {}
        for token, (start, end) in enumerate(tokens.offsets[row].tolist()):
            if end > start and bool(tokens.valid[row, token]):
                places.setdefault(owner[start], token)
        found.append(places)
    return found


def _words(text: Text) -> list[int]:
    """For every character, the number of its word."""
    count, owner = -1, []
    before = " "
    for character in text.text:
        count += character.strip() != "" and before.strip() == ""
        owner.append(count)
        before = character
    return owner
