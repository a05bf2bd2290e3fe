"""Task: what is said in a clip, written down by a model that hears."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from headwise.analysis.corpus.batching import Batch, batches
from headwise.analysis.corpus.texts import Corpus
from headwise.analysis.errors import BadInput
from headwise.analysis.progress import track
from headwise.analysis.sites.class_names import named_for
from headwise.prune.tasks.outcome import Outcome, judging
from headwise.prune.tasks.room_to_write import told_room


class Transcription(BaseModel):
    """Word error rate (or that of characters): errors over all words of what was said, by jiwer.

    What is said in a clip is its pair. CTC models (Wav2Vec2, HuBERT, WavLM) are read by their likeliest token a
    frame, encoder-decoders (Whisper, Speech2Text) write greedily.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["transcription"] = "transcription"
    metric: Literal["wer", "cer"] = Field(default="wer", description="errors in words or in characters")
    plain: bool = Field(default=True, description="whether case and punctuation are left out of account")
    new_tokens: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=200, description="the most tokens that an encoder-decoder writes"
    )

    def fit(
        self,
        model: nn.Module,
        tokenizer: Any,
        calibration: Corpus,
        *,
        batch_size: int = 8,
        max_length: int | None = None,
        seed: int = 0,
    ) -> FittedTranscription:
        """The task, once model, processor and clips are found to fit.

        Raises:
            BadInput: the model writes nothing down, its checkpoint has no tokenizer, the data are no clips or
                do not say what is said in them, or jiwer is missing.
        """
        if not writes_what_it_hears(model):
            raise BadInput(f"{type(model).__name__} writes nothing down: load a CTC or speech-to-text checkpoint")
        if getattr(tokenizer, "tokenizer", None) is None:
            raise BadInput("transcription needs a processor with a tokenizer; the checkpoint has none")
        _check(calibration)
        errors_of("a", "a", self.metric, plain=self.plain)
        ctc = is_ctc(model)
        return FittedTranscription(
            self, tokenizer, ctc, batch_size, self.new_tokens if ctc else told_room(model, self.new_tokens)
        )


def is_ctc(model: nn.Module) -> bool:
    """Whether the model's class, or one that it derives from, gives a token or a blank a frame.

    >>> is_ctc(nn.Linear(1, 1))
    False
    """
    return named_for(model, "ForCTC")


def writes_what_it_hears(model: nn.Module) -> bool:
    """Whether the model transcribes: by CTC, or as an encoder-decoder.

    >>> writes_what_it_hears(nn.Linear(1, 1))
    False
    """
    hears = getattr(model, "main_input_name", "") in ("input_features", "input_values")
    config: Any = getattr(model, "config", None)
    can = getattr(model, "can_generate", None)
    writes = bool(getattr(config, "is_encoder_decoder", False)) and can is not None and bool(can())
    return hears and (is_ctc(model) or writes)


@dataclass(frozen=True, eq=False)
class FittedTranscription:
    """How clips are heard and how what is written is judged."""

    task: Transcription
    processor: Any = field(repr=False)
    ctc: bool
    batch_size: int = 8
    new_tokens: int = 200

    def losses(self, model: nn.Module, batch: Batch) -> Float[Tensor, " batch"]:
        """Nats a token of what was said: of all ways to say it in the clip's frames (CTC), or one after another."""
        if not self.ctc:
            logits = model(**batch.inputs).logits.float()
            targets: Tensor = batch.targets  # type: ignore[assignment]
            nats = nn.functional.cross_entropy(logits.transpose(1, 2), targets, ignore_index=-100, reduction="none")
            return nats.sum(-1) / (targets != -100).sum(-1).clamp(min=1)
        config: Any = model.config
        chances = model(**batch.inputs).logits.float().log_softmax(-1)
        said = [self._spelled(text.pair or "") for text in batch.texts]
        lengths = torch.tensor([len(ids) for ids in said])
        flat = torch.tensor([i for ids in said for i in ids], dtype=torch.long)
        frames = torch.full((len(said),), chances.shape[1])
        # In float64: the gradient of few frames suffers in less; where no way fits the frames, the loss is 0.
        nats = nn.functional.ctc_loss(
            chances.double().transpose(0, 1), flat.to(chances.device), frames, lengths, blank=config.pad_token_id,
            reduction="none", zero_infinity=True,
        )  # fmt: skip
        return (nats / lengths.clamp(min=1).to(nats)).float()

    def judge(self, model: nn.Module, corpus: Corpus) -> Outcome:
        """Errors over all that was said in the corpus.

        Raises:
            BadInput: the data are no clips, or do not say what is said in them.
        """
        _check(corpus)
        found = batches(corpus, self.processor, model=model, batch_size=self.batch_size)
        said: dict[int, str] = {}
        with judging(model):
            for batch in track(found, len(found), "writing down what is said"):
                said.update(zip(batch.index, self._written(model, batch), strict=True))
        counted = [
            errors_of(said[i], text.pair or "", self.task.metric, plain=self.task.plain)
            for i, text in enumerate(corpus.texts)
        ]
        rows = np.array(counted, dtype=np.float64)
        seen = rows[:, 1] > 0
        if not seen.any():
            raise BadInput(f"{corpus.source}: nothing is said in any clip")
        rows = rows[seen]
        kept = [i for i, ok in enumerate(seen) if ok]
        return Outcome(
            kind="transcription",
            metric=self.task.metric,
            value=error_rate(rows),
            per_example=rows[:, 0] / rows[:, 1],
            higher_is_better=False,
            texts=[corpus.texts[i] for i in kept],
            predictions=[said[i] for i in kept],
            rows=rows,
            measure=error_rate,
            weights=rows[:, 1],
            skipped={"nothing said": int((~seen).sum())} if not seen.all() else {},
        )

    def _written(self, model: nn.Module, batch: Batch) -> list[str]:
        tokenizer = self.processor.tokenizer
        if self.ctc:
            ids = model(**batch.inputs).logits.argmax(-1)
            return list(tokenizer.batch_decode(ids))
        inputs = {name: value for name, value in batch.inputs.items() if not name.startswith("decoder_")}
        ids = model.generate(**inputs, do_sample=False, max_new_tokens=self.new_tokens)  # type: ignore[operator]
        return list(tokenizer.batch_decode(ids, skip_special_tokens=True))

    def _spelled(self, text: str) -> Sequence[int]:
        """Token ids in the case that the vocabulary knows best."""
        tokenizer = self.processor.tokenizer
        ways: list[list[int]] = [tokenizer(way)["input_ids"] for way in (text, text.upper(), text.lower())]
        unknown = tokenizer.unk_token_id
        return min(ways, key=lambda ids: sum(i == unknown for i in ids))


def errors_of(said: str, right: str, metric: str, *, plain: bool) -> tuple[int, int]:
    """How many words (or characters) are wrong, missing or too many, and how many there should be.

    Raises:
        BadInput: jiwer is not installed.

    >>> errors_of("the cat sat.", "The cat sat down", "wer", plain=True)
    (1, 4)
    """
    try:
        import jiwer
    except ImportError as error:
        raise BadInput("error rates need jiwer: pip install 'headwise[tasks]'") from error
    if plain:
        bare: Any = jiwer.RemovePunctuation  # untyped in the library
        simple = jiwer.Compose([jiwer.ToLowerCase(), bare(), jiwer.RemoveMultipleSpaces()])
        said, right = simple(said), simple(right)
    if not right.strip():
        return 0, 0
    found = (jiwer.process_words if metric == "wer" else jiwer.process_characters)(right, said)
    return (
        int(found.substitutions + found.deletions + found.insertions),
        int(found.hits + found.substitutions + found.deletions),
    )


def error_rate(rows: np.ndarray) -> float:
    """All errors over all that was said, of rows (errors, said).

    >>> error_rate(np.array([[1, 4], [1, 1]]))
    0.4
    """
    return float(rows[:, 0].sum() / rows[:, 1].sum())


def _check(corpus: Corpus) -> None:
    if any(text.media is None or text.media.kind != "audio" for text in corpus.texts):
        raise BadInput(f"{corpus.source}: transcription needs clips; give a folder of them, or a column of audio")
    if any(text.pair is None for text in corpus.texts):
        raise BadInput(
            f"{corpus.source}: what is said in each clip stands in the second text; name its column "
            "(`pair: transcription`)"
        )
