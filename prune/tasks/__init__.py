"""What a checkpoint is judged on: one kind of task a file.

A task is fitted once, on the dense model and the calibration texts; what comes back judges the dense and
the cut model alike (`judge`), and gives the per-example losses (`losses`) that scores differentiate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from headwise.analysis.corpus.batching import is_chooser
from headwise.analysis.corpus.texts import Corpus
from headwise.prune.tasks.agreement import Agreement
from headwise.prune.tasks.audio_classification import AudioClassification, is_audio_classifier
from headwise.prune.tasks.causal_lm import CausalLM, is_causal_lm
from headwise.prune.tasks.compare import compare
from headwise.prune.tasks.embedding_probe import EmbeddingProbe
from headwise.prune.tasks.embedding_retrieval import EmbeddingRetrieval
from headwise.prune.tasks.embedding_similarity import EmbeddingSimilarity
from headwise.prune.tasks.image_classification import ImageClassification, is_image_classifier
from headwise.prune.tasks.lm_eval import LMEval
from headwise.prune.tasks.masked_lm import MaskedLM, is_masked_lm
from headwise.prune.tasks.minimal_pairs import MinimalPairs
from headwise.prune.tasks.multi_label import MultiLabel
from headwise.prune.tasks.multiple_choice import MultipleChoice
from headwise.prune.tasks.outcome import Fitted, Outcome
from headwise.prune.tasks.question_answering import QuestionAnswering, answers_questions
from headwise.prune.tasks.sequence_to_sequence import SequenceToSequence, writes_from_text
from headwise.prune.tasks.text_classification import TextClassification, is_classifier
from headwise.prune.tasks.text_regression import TextRegression
from headwise.prune.tasks.token_classification import TokenClassification, is_tagger
from headwise.prune.tasks.transcription import Transcription, writes_what_it_hears

Task = (
    Agreement
    | AudioClassification
    | CausalLM
    | EmbeddingProbe
    | EmbeddingRetrieval
    | EmbeddingSimilarity
    | ImageClassification
    | LMEval
    | MaskedLM
    | MinimalPairs
    | MultiLabel
    | MultipleChoice
    | QuestionAnswering
    | SequenceToSequence
    | TextClassification
    | TextRegression
    | TokenClassification
    | Transcription
)

TASKS: dict[str, type[Task]] = {
    "text-classification": TextClassification,
    "multi-label": MultiLabel,
    "text-regression": TextRegression,
    "token-classification": TokenClassification,
    "multiple-choice": MultipleChoice,
    "question-answering": QuestionAnswering,
    "image-classification": ImageClassification,
    "audio-classification": AudioClassification,
    "transcription": Transcription,
    "lm-eval": LMEval,
    "causal-lm": CausalLM,
    "masked-lm": MaskedLM,
    "minimal-pairs": MinimalPairs,
    "sequence-to-sequence": SequenceToSequence,
    "embedding-probe": EmbeddingProbe,
    "embedding-retrieval": EmbeddingRetrieval,
    "embedding-similarity": EmbeddingSimilarity,
    "agreement": Agreement,
}

__all__ = ["TASKS", "Fitted", "Outcome", "Task", "choose_task", "compare"]

#: A probe needs this many texts a class on average; with fewer the labels are names, not classes.
_TEXTS_A_CLASS = 5


def choose_task(model: nn.Module, tokenizer: Any, corpus: Corpus) -> Task:
    """The task that fits the checkpoint and the texts, where the recipe names none.

    A language model predicts tokens, or chooses where there are choices; a classifier, tagger or finder of
    answers does that where the texts are labelled; an encoder-decoder with pairs writes; what hears and writes
    is held to what was said; a base model with labelled texts gets a probe, with rated pairs it is held to the
    ratings, with pairs it retrieves; everything else is judged by agreement with the dense model.

    >>> choose_task(nn.Linear(2, 2), None, Corpus([])).kind
    'agreement'
    """
    if any(text.media is not None for text in corpus.texts):
        return _task_of_media(model, corpus)
    labelled = bool(corpus.labels) and all(text.label is not None for text in corpus.texts)
    paired = len(corpus) > 0 and all(text.pair is not None for text in corpus.texts)
    fast = bool(getattr(tokenizer, "is_fast", False))
    chosen = labelled and all(text.right is not None for text in corpus.texts)
    heads: tuple[tuple[bool, Callable[[], Task]], ...] = (
        (chosen and (is_chooser(model) or is_causal_lm(model)), MultipleChoice),
        (is_causal_lm(model), CausalLM),
        (is_masked_lm(model) and getattr(tokenizer, "mask_token_id", None) is not None, MaskedLM),
        (is_tagger(model) and labelled and fast, TokenClassification),
        (answers_questions(model) and labelled and paired and fast, QuestionAnswering),
        (writes_from_text(model) and paired, SequenceToSequence),
    )
    for fits, task in heads:
        if fits:
            return task()
    if is_classifier(model):
        return _classifier_task(model, corpus) if labelled else Agreement()
    return _embedding_task(corpus, labelled, paired) if _is_base(model) else Agreement()


def _embedding_task(corpus: Corpus, labelled: bool, paired: bool) -> Task:
    """For models that end in hidden states."""
    if paired and labelled and all(isinstance(label, int | float) for label in corpus.labels):
        return EmbeddingSimilarity()
    if labelled and 2 <= len(corpus.labels) <= len(corpus) // _TEXTS_A_CLASS:
        return EmbeddingProbe()
    return EmbeddingRetrieval() if paired else Agreement()


def _task_of_media(model: nn.Module, corpus: Corpus) -> Task:
    """For images and clips: the class where model and data have classes, else as for texts without labels."""
    config: Any = model.config
    labelled = bool(corpus.labels) and all(text.label is not None for text in corpus.texts)
    if writes_what_it_hears(model) and all(text.pair is not None for text in corpus.texts):
        return Transcription()
    if labelled and is_image_classifier(model) and config.num_labels > 1:
        return ImageClassification()
    if labelled and is_audio_classifier(model) and config.num_labels > 1:
        return AudioClassification()
    if labelled and _is_base(model) and 2 <= len(corpus.labels) <= len(corpus) // _TEXTS_A_CLASS:
        return EmbeddingProbe()
    return Agreement()


def _classifier_task(model: nn.Module, corpus: Corpus) -> Task:
    """By the number of outputs, and by how the checkpoint says that it was trained."""
    config: Any = model.config
    if config.num_labels == 1:
        return TextRegression() if all(isinstance(label, int | float) for label in corpus.labels) else Agreement()
    several = getattr(config, "problem_type", None) == "multi_label_classification"
    return MultiLabel() if several else TextClassification()


def _is_base(model: nn.Module) -> bool:
    """Whether the model ends in hidden states: `base_model` is then the model itself."""
    return getattr(model, "base_model", None) is model
