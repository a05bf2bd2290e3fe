"""Task: the words of a text that answer a question, by the checkpoint's own head of starts and ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from headwise.analysis.corpus.batching import Batch, accepted, token_limit
from headwise.analysis.corpus.texts import Corpus, Text
from headwise.analysis.errors import BadInput
from headwise.analysis.progress import track
from headwise.analysis.sites.class_names import named_for
from headwise.prune.tasks.outcome import Outcome, judging
from headwise.prune.tasks.spans import Passage, best_answer, passages_of, score_of

_NO_ANSWER = "no answer"


class QuestionAnswering(BaseModel):
    """Overlap of the answer's words with the best of the right answers (F1), or equality (SQuAD, Rajpurkar 2016).

    The question is the text, the passage its pair, the label the answer (several right ones a line each; an
    empty one: the passage has no answer, Rajpurkar 2018). A passage longer than the model allows is read in
    overlapping windows, the best span of all counts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["question-answering"] = "question-answering"
    metric: Literal["f1", "exact-match"] = Field(default="f1", description="what is reported; the other stands beside")
    window: Annotated[int, Field(ge=16)] = Field(
        default=384, description="tokens of question and passage at a time; at most what the model allows"
    )
    stride: Annotated[int, Field(ge=1)] = Field(default=128, description="tokens that neighbouring windows share")
    longest: Annotated[int, Field(ge=1)] = Field(default=30, description="tokens of an answer at most")
    no_answer: bool | None = Field(
        default=None, description="whether a question may have none; if left out, whether one of the texts has none"
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
    ) -> FittedAnswering:
        """The task, once model and texts are found to fit.

        Raises:
            BadInput: the model answers no questions, the tokenizer tells no offsets, a text has no passage or
                no label, or torchmetrics is missing.
        """
        if not answers_questions(model):
            raise BadInput(f"{type(model).__name__} finds no answers: load a question-answering checkpoint")
        if not getattr(tokenizer, "is_fast", False):
            raise BadInput("finding answers needs a fast tokenizer: a slow one does not tell where its tokens stand")
        _check(calibration)
        score_of("a", ["a"])
        allowed = (
            any(text.label == "" for text in calibration.texts) if self.no_answer is None else self.no_answer
        )  # fmt: skip
        limits = [self.window, token_limit(tokenizer, model, max_length)]
        window = min(limit for limit in limits if limit is not None)
        return FittedAnswering(self, tokenizer, window, allowed, batch_size)


def answers_questions(model: nn.Module) -> bool:
    """Whether the model's class, or one that it derives from, finds answers in a text.

    >>> answers_questions(nn.Linear(1, 1))
    False
    """
    return named_for(model, "ForQuestionAnswering")


@dataclass(frozen=True, eq=False)
class FittedAnswering:
    """How passages are read, and whether a question may have no answer."""

    task: QuestionAnswering
    tokenizer: Any = field(repr=False)
    window: int
    allowed: bool
    batch_size: int = 32

    def losses(self, model: nn.Module, batch: Batch) -> Float[Tensor, " batch"]:
        """Mean cross entropy of the answer's first and last token; of the first token of all where there is none.

        Where an answer stands more than once, the first place counts; one cut off by the length limit counts
        as none, as in training.
        """
        tokens = batch.tokens[""]
        inside = tokens.valid if tokens.second is None else tokens.second & tokens.valid
        out = model(**batch.inputs)
        starts, ends = out.start_logits.float(), out.end_logits.float()
        places = [_place(text, tokens.offsets[i].tolist(), inside[i].tolist()) for i, text in enumerate(batch.texts)]
        # Padding on the left moves the first token.
        first = tokens.valid.long().argmax(1).tolist()
        found = [place or (first[i], first[i]) for i, place in enumerate(places)]
        shut = ~tokens.valid.to(starts.device)
        nats = [
            nn.functional.cross_entropy(
                logits.masked_fill(shut, -1e9), torch.tensor([span[side] for span in found], device=logits.device),
                reduction="none",
            )
            for side, logits in enumerate((starts, ends))
        ]  # fmt: skip
        return (nats[0] + nats[1]) / 2

    def judge(self, model: nn.Module, corpus: Corpus) -> Outcome:
        """How near the answers come to the right ones, over all questions.

        Raises:
            BadInput: a text has no passage or no label, or no question leaves room for its passage.
        """
        _check(corpus)
        passages = [
            passage
            for i, text in enumerate(corpus.texts)
            for passage in passages_of(self.tokenizer, text, i, self.window, self.task.stride)
        ]
        read = sorted({passage.text for passage in passages})
        if not read:
            raise BadInput(f"{corpus.source}: no question leaves room for its passage in {self.window} tokens")
        answers = self._answers(model, corpus, passages)
        texts = [corpus.texts[i] for i in read]
        scores = np.array([score_of(answers[i], right_answers(corpus.texts[i])) for i in read])
        exact, overlap = scores.T
        chosen = overlap if self.task.metric == "f1" else exact
        return Outcome(
            kind="question-answering",
            metric=self.task.metric,
            value=float(chosen.mean()),
            per_example=chosen,
            higher_is_better=True,
            texts=texts,
            predictions=[answers[i] or _NO_ANSWER for i in read],
            skipped={"question too long for its passage": len(corpus) - len(read)} if len(read) < len(corpus) else {},
            beside={"exact-match": float(exact.mean()), "f1": float(overlap.mean())},
        )

    def _answers(self, model: nn.Module, corpus: Corpus, passages: Sequence[Passage]) -> dict[int, str]:
        """Each example's answer, of all windows over its passage."""
        logits = self._logits(model, passages)
        windows: dict[int, list[tuple[Passage, np.ndarray, np.ndarray]]] = {}
        for passage, (starts, ends) in zip(passages, logits, strict=True):
            windows.setdefault(passage.text, []).append((passage, starts, ends))
        return {
            i: best_answer(corpus.texts[i].pair or "", mine, self.task.longest, allowed=self.allowed)
            for i, mine in windows.items()
        }

    def _logits(self, model: nn.Module, passages: Sequence[Passage]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of every window, the logits of its starts and of its ends."""
        order = sorted(range(len(passages)), key=lambda k: -len(passages[k].ids))
        groups = [order[at : at + self.batch_size] for at in range(0, len(order), self.batch_size)]
        found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        with judging(model):
            for group in track(groups, len(groups), "finding answers"):
                out = model(**self._inputs(model, [passages[k] for k in group]))
                starts, ends = (side.float().cpu().numpy() for side in (out.start_logits, out.end_logits))
                for row, k in enumerate(group):
                    size = len(passages[k].ids)
                    found[k] = starts[row, :size], ends[row, :size]
        return [found[k] for k in range(len(passages))]

    def _inputs(self, model: nn.Module, passages: Sequence[Passage]) -> dict[str, Tensor]:
        """Windows padded on the right."""
        device: Any = model.device
        ids = torch.full((len(passages), len(passages[0].ids)), self.tokenizer.pad_token_id or 0)
        valid, types = torch.zeros_like(ids), torch.zeros_like(ids)
        for i, passage in enumerate(passages):
            size = len(passage.ids)
            ids[i, :size], types[i, :size] = torch.from_numpy(passage.ids), torch.from_numpy(passage.types)
            valid[i, :size] = 1
        inputs = {"input_ids": ids, "attention_mask": valid}
        if "token_type_ids" in self.tokenizer.model_input_names and "token_type_ids" in accepted(model):
            inputs["token_type_ids"] = types
        return {name: value.to(device) for name, value in inputs.items()}


def right_answers(text: Text) -> list[str]:
    r"""The right answers of a question, none where the passage has none.

    >>> right_answers(Text("Who?", "Ann and Bo.", "Ann\nAnn and Bo")), right_answers(Text("Who?", "Rain.", ""))
    (['Ann', 'Ann and Bo'], [])
    """
    return [line for line in str(text.label).split("\n") if line]


def _place(text: Text, offsets: Sequence[Sequence[int]], inside: Sequence[bool]) -> tuple[int, int] | None:
    """First and last token of the first right answer that stands in the passage."""
    for answer in right_answers(text):
        start = (text.pair or "").find(answer)
        if start < 0:
            continue
        stop = start + len(answer)
        tokens = [
            k for k, ((a, b), ok) in enumerate(zip(offsets, inside, strict=True)) if ok and a < stop and b > start
        ]
        # A token list that ends before the answer does was cut off.
        if tokens and offsets[tokens[-1]][1] >= stop:
            return tokens[0], tokens[-1]
    return None


def _check(corpus: Corpus) -> None:
    if any(text.pair is None for text in corpus.texts):
        raise BadInput(f"{corpus.source}: the passage stands in the second text; name its column (`pair: context`)")
    if any(text.label is None for text in corpus.texts):
        raise BadInput(f"{corpus.source}: every question needs its answer as label; name its column (`label: answers`)")
