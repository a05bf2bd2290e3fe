"""Task: which class an image belongs to, by the checkpoint's own classification head."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from headwise.analysis.corpus.texts import Corpus
from headwise.analysis.sites.class_names import named_for
from headwise.prune.tasks.metrics import MetricName
from headwise.prune.tasks.shown import fitted_to
from headwise.prune.tasks.text_classification import FittedClassification


class ImageClassification(BaseModel):
    """Any image-classification checkpoint on labelled images: a folder a class, or a data set's column of images."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    #: What it tells from one another: texts of which all are the same judge little (`one_label`).
    tells_apart: ClassVar[str] = "label"

    kind: Literal["image-classification"] = "image-classification"
    metric: MetricName = Field(default="accuracy", description="what is reported")
    labels: dict[str, int | str] = Field(
        default={}, description="label of the data: the model's label (name or number), where names do not say it"
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
    ) -> FittedClassification:
        """The task with its labels matched to the model's outputs.

        Raises:
            BadInput: the model has no such head, the data are no images, or a label is not one of the model's.
        """
        fits = is_image_classifier(model)
        return fitted_to(self, model, tokenizer, calibration, batch_size, fits=fits, kind="image", words="images")


def is_image_classifier(model: nn.Module) -> bool:
    """Whether the model's class, or one that it derives from, classifies images.

    >>> is_image_classifier(nn.Linear(1, 1))
    False
    """
    return named_for(model, "ForImageClassification")
