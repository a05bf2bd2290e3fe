"""Task: which class a text belongs to, read from its sentence embedding by a linear probe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from headwise.analysis.corpus.batching import Batch, batches
from headwise.analysis.corpus.texts import Corpus, Label
from headwise.analysis.errors import BadInput
from headwise.prune.tasks.embeddings import Pooling, embed, embed_all, own_pooling
from headwise.prune.tasks.metrics import METRICS, MetricName, value_of
from headwise.prune.tasks.outcome import Outcome


class EmbeddingProbe(BaseModel):
    """A logistic regression on the dense model's embeddings of the calibration texts, then kept fixed.

    The same probe judges the dense and the cut model, so the drop is what the cut did to the embeddings.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    #: What it tells from one another: texts of which all are the same judge little (`one_label`).
    tells_apart: ClassVar[str] = "label"

    kind: Literal["embedding-probe"] = "embedding-probe"
    metric: MetricName = Field(default="accuracy", description="what is reported")
    strength: Annotated[float, Field(gt=0)] = Field(
        default=10.0, description="inverse of the probe's regularisation (scikit-learn's C)"
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
    ) -> FittedProbe:
        """The probe, fitted on the calibration texts as `model` (the dense one) embeds them.

        Raises:
            BadInput: the calibration texts have fewer than two classes.
        """
        from sklearn.linear_model import LogisticRegression

        if len(calibration.labels) < 2 or any(text.label is None for text in calibration.texts):
            raise BadInput(
                f"{calibration.source}: a probe needs a label on every text and at least two classes, got "
                f"{calibration.labels or 'no labels'}; name the label column, or use task: {{kind: agreement}}"
            )
        pooling = own_pooling(model)
        found = batches(calibration, tokenizer, model=model, batch_size=batch_size, max_length=max_length)
        vectors = embed_all(model, found, pooling)
        seen = ~np.isnan(vectors).any(axis=1)
        names = tuple(calibration.labels)
        numbers = np.array([names.index(t.label) for t in calibration.texts if t.label is not None])
        probe = LogisticRegression(C=self.strength, max_iter=5000, random_state=seed)
        probe.fit(vectors[seen].astype(np.float64), numbers[seen])
        weight, bias = probe.coef_, probe.intercept_
        if len(names) == 2:
            # Two classes have one row in scikit-learn: the second's logit against the first's.
            weight, bias = np.concatenate([0 * weight, weight]), np.concatenate([0 * bias, bias])
        return FittedProbe(
            self.metric, names, torch.from_numpy(weight).float(), torch.from_numpy(bias).float(),
            pooling, tokenizer, batch_size, max_length,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class FittedProbe:
    """The probe with all that embedding takes: a fixed linear layer behind any model of this shape."""

    metric: str
    names: tuple[Label, ...]
    weight: Float[Tensor, "label width"]
    bias: Float[Tensor, " label"]
    pooling: Pooling
    tokenizer: Any
    batch_size: int = 32
    max_length: int | None = None

    def losses(self, model: nn.Module, batch: Batch) -> Float[Tensor, " batch"]:
        """The probe's cross entropy of each text's label, differentiable through the embedding."""
        vectors = embed(model, batch, self.pooling)
        logits = vectors @ self.weight.to(vectors.device).T + self.bias.to(vectors.device)
        numbers = torch.tensor([self._number(text.label) for text in batch.texts], device=vectors.device)
        return nn.functional.cross_entropy(logits, numbers, reduction="none")

    def judge(self, model: nn.Module, corpus: Corpus) -> Outcome:
        """How often (or by what metric) the fixed probe names the right class.

        Raises:
            BadInput: a label that the calibration texts did not have.
        """
        numbers = np.array([self._number(text.label) for text in corpus.texts])
        found = batches(corpus, self.tokenizer, model=model, batch_size=self.batch_size, max_length=self.max_length)
        vectors = torch.from_numpy(embed_all(model, found, self.pooling))
        seen = ~vectors.isnan().any(-1).numpy()
        probabilities = (vectors[seen] @ self.weight.T + self.bias).softmax(-1).numpy()
        said, right = probabilities.argmax(-1), numbers[seen]
        return Outcome(
            kind="embedding-probe",
            metric=self.metric,
            value=value_of(self.metric, right, said),
            per_example=(said == right).astype(np.float64),
            higher_is_better=True,
            texts=[text for text, ok in zip(corpus.texts, seen, strict=True) if ok],
            predictions=[self.names[i] for i in said],
            labels=[self.names[i] for i in right],
            rows=np.stack([right, said], axis=1),
            measure=METRICS[self.metric],
            probabilities=probabilities,
            skipped={"no token": int((~seen).sum())} if not seen.all() else {},
        )

    def _number(self, label: Label | None) -> int:
        if label is None or label not in self.names:
            raise BadInput(
                f"label {label!r} was not among the calibration texts' labels "
                f"{', '.join(map(repr, self.names))}: the probe cannot name it"
            )
        return self.names.index(label)
