"""Classes of what is shown or played: what image and audio classification share."""

from __future__ import annotations

from typing import Any

from torch import nn

from headwise.analysis.corpus.texts import Corpus
from headwise.analysis.errors import BadInput
from headwise.prune.tasks.text_classification import Classifies, FittedClassification


def fitted_to(
    task: Classifies, model: nn.Module, tokenizer: Any, calibration: Corpus, batch_size: int,
    *, fits: bool, kind: str, words: str,
) -> FittedClassification:  # fmt: skip
    """The task with its labels matched to the model's outputs.

    Args:
        task: image or audio classification.
        model: the checkpoint.
        tokenizer: the checkpoint's processor.
        calibration: labelled media.
        batch_size: of what is judged.
        fits: whether the model's class is one that classifies them.
        kind: `image` or `audio`.
        words: what messages call them.

    Raises:
        BadInput: no head of two or more classes, data of another kind, or a label that is not one of the model's.
    """
    config: Any = model.config
    if not fits or config.num_labels < 2:
        raise BadInput(f"{type(model).__name__} has no head that tells {words} of two or more classes apart")
    if any(text.media is None or text.media.kind != kind for text in calibration.texts):
        column = "audio" if kind == "audio" else words
        raise BadInput(
            f"{calibration.source}: {task.kind} needs {words}; give a folder with a sub-folder a class, or a data set "
            f"with a column of {column}"
        )
    fitted = FittedClassification(task, config, tokenizer, calibration.label_names, batch_size, None)
    fitted.numbers(calibration)
    return fitted
