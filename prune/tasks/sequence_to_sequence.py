"""Task: the text that an encoder-decoder writes for another: translation, summaries, answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from headwise.analysis.corpus.batching import Batch, batches, token_limit
from headwise.analysis.corpus.texts import Corpus, Text
from headwise.analysis.errors import BadInput
from headwise.analysis.progress import track
from headwise.prune.tasks.outcome import Outcome, judging
from headwise.prune.tasks.room_to_write import told_room


class SequenceToSequence(BaseModel):
    """What is written for each text, held against its pair: the mean over texts of the metric.

    chrF (Popović 2015) suits translation, ROUGE (Lin 2004) summaries, exact match short answers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["sequence-to-sequence"] = "sequence-to-sequence"
    metric: Literal["chrf", "rouge-1", "rouge-2", "rouge-l", "exact-match"] = Field(
        default="chrf",
        description="sentence chrF of sacrebleu, F1 of rouge-score (both 0 to 1), or the share of texts written exactly",
    )
    beams: Annotated[int, Field(ge=1, le=64)] = Field(default=1, description="1 writes greedily")
    new_tokens: Annotated[int, Field(ge=1, le=4096)] = Field(default=64, description="the most tokens written")

    def fit(
        self,
        model: nn.Module,
        tokenizer: Any,
        calibration: Corpus,
        *,
        batch_size: int = 32,
        max_length: int | None = None,
        seed: int = 0,
    ) -> FittedWriter:
        """The task, once model and texts are found to fit.

        Raises:
            BadInput: the model is no encoder-decoder that writes, a text has no pair, or the metric's
                library is missing.
        """
        if not writes_from_text(model):
            raise BadInput(f"{type(model).__name__} is no encoder-decoder that writes text")
        _check(calibration)
        _score_of(self.metric)("a", "a")
        # Positions end what is read, and what is written, if nothing else does.
        reads, writes = token_limit(tokenizer, model, max_length), told_room(model, self.new_tokens)
        return FittedWriter(self, tokenizer, batch_size, reads, writes)


def writes_from_text(model: nn.Module) -> bool:
    """Whether the model is an encoder-decoder with a language-model head.

    >>> writes_from_text(nn.Linear(1, 1))
    False
    """
    config: Any = getattr(model, "config", None)
    can = getattr(model, "can_generate", None)
    return bool(getattr(config, "is_encoder_decoder", False) and can is not None and can())


@dataclass(frozen=True, eq=False)
class FittedWriter:
    """How texts are read and how what is written is judged."""

    task: SequenceToSequence
    tokenizer: Any = field(repr=False)
    batch_size: int = 32
    max_length: int | None = None
    new_tokens: int = 64

    def losses(self, model: nn.Module, batch: Batch) -> Float[Tensor, " batch"]:
        """Mean nats of each pair's tokens, given its text."""
        ids, valid = self._read(model, [text.text for text in batch.texts])
        labels, there = self._read(model, [text.pair or "" for text in batch.texts], target=True)
        targets = labels.masked_fill(~there, -100)
        logits = model(input_ids=ids, attention_mask=valid.long(), labels=targets).logits.float()
        nats = nn.functional.cross_entropy(logits.transpose(1, 2), targets, ignore_index=-100, reduction="none")
        return nats.sum(-1) / there.sum(-1).clamp(min=1)

    def judge(self, model: nn.Module, corpus: Corpus) -> Outcome:
        """How close what is written comes to the pairs.

        Raises:
            BadInput: a text has no pair.
        """
        _check(corpus)
        alone = Corpus([Text(text.text) for text in corpus.texts], corpus.source)
        found = batches(alone, self.tokenizer, model=model, batch_size=self.batch_size, max_length=self.max_length)
        said: dict[int, str] = {}
        with judging(model):
            for batch in track(found, len(found), "writing texts"):
                written = model.generate(  # type: ignore[operator]
                    input_ids=batch.inputs["input_ids"], attention_mask=batch.inputs["attention_mask"],
                    do_sample=False, num_beams=self.task.beams, max_new_tokens=self.new_tokens,
                )  # fmt: skip
                texts = self.tokenizer.batch_decode(written, skip_special_tokens=True)
                said.update(zip(batch.index, texts, strict=True))
        order = sorted(said)
        texts = [corpus.texts[i] for i in order]
        score = _score_of(self.task.metric)
        scores = np.array([score(said[i], corpus.texts[i].pair or "") for i in order], dtype=np.float64)
        return Outcome(
            kind="sequence-to-sequence",
            metric=self.task.metric,
            value=float(scores.mean()),
            per_example=scores,
            higher_is_better=True,
            texts=texts,
            predictions=[said[i] for i in order],
            skipped={"no token": found.skipped} if found.skipped else {},
        )

    def _read(self, model: nn.Module, texts: Sequence[str], *, target: bool = False) -> tuple[Tensor, Tensor]:
        """Token ids of the texts, padded right, and which of them are there."""
        how = {"text_target": list(texts)} if target else {"text": list(texts)}
        rows = self.tokenizer(**how, truncation=self.max_length is not None, max_length=self.max_length)["input_ids"]
        device: Any = model.device
        ids = torch.full((len(rows), max(1, *(len(row) for row in rows))), self.tokenizer.pad_token_id or 0)
        valid = torch.zeros_like(ids, dtype=torch.bool)
        for i, row in enumerate(rows):
            ids[i, : len(row)], valid[i, : len(row)] = torch.tensor(row, dtype=torch.long), True
        return ids.to(device), valid.to(device)


def _score_of(metric: str) -> Callable[[str, str], float]:
    """What a metric makes of a written text and the right one.

    Raises:
        BadInput: the library that has the metric is not installed.
    """
    return {"chrf": _chrf, "exact-match": _exact}.get(metric) or _rouge(metric)


def _rouge(metric: str) -> Callable[[str, str], float]:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise BadInput("ROUGE needs rouge-score: pip install 'headwise[tasks]', or use metric: chrf") from error
    name = {"rouge-1": "rouge1", "rouge-2": "rouge2", "rouge-l": "rougeL"}[metric]
    scorer = RougeScorer([name], use_stemmer=False)
    return lambda said, right: float(scorer.score(right, said)[name].fmeasure)


def _exact(said: str, right: str) -> float:
    return float(said.split() == right.split())


def _chrf(said: str, right: str) -> float:
    try:
        from sacrebleu import sentence_chrf
    except ImportError as error:
        raise BadInput("chrF needs sacrebleu: pip install 'headwise[tasks]', or use metric: exact-match") from error
    return float(sentence_chrf(said, [right]).score) / 100


def _check(corpus: Corpus) -> None:
    if any(text.pair is None for text in corpus.texts):
        raise BadInput(f"{corpus.source}: what should be written stands in the second text; name its column (`pair:`)")
