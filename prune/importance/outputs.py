"""Outputs: a loss without labels, whose gradient says how far a head moves what the model puts out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headwise.analysis.corpus.batching import Batch
from headwise.analysis.errors import BadInput
from headwise.analysis.gates.still import still
from headwise.analysis.progress import track
from headwise.prune.importance.finite import require_finite


@dataclass(frozen=True)
class Outputs:
    """A random direction of the outputs, per text: squared gradients average to those of all outputs together.

    With r drawn from a sphere such that E r r^T = 1, E (grad r.z)(grad r.z)^T = sum_k grad z_k grad z_k^T (Hutchinson,
    1990). So every text counts, also those that the model is sure of, whose gradient by their label is next to
    nothing. Directions of class scores are centred, since a shift of all changes nothing; token scores are taken at
    one token a text (those of starts and ends where answers are found), hidden states where there are no scores.

    Attributes:
        seed: of the directions; with the text's content it fixes each, whatever the batches.
    """

    seed: int = 0

    def losses(self, model: nn.Module, batch: Batch) -> Float[Tensor, " batch"]:
        """The output of each text along its direction, shape [batch].

        Raises:
            BadInput: the model gives neither scores nor hidden states.
        """
        output, scored = put_out(model, batch)
        rows: list[Tensor] = []
        for text, row in zip(batch.texts, output, strict=True):
            generator = torch.Generator().manual_seed((int(text.id[:12], 16) + self.seed) % 2**63)
            index = len(rows)
            if row.ndim > 1:
                row = _one_token(row, batch, index, generator)
            # Wide only now: a language model's scores of all tokens are the largest tensor there is.
            row = row.double()
            rows.append((_direction(len(row), scored and len(row) > 1, generator).to(row) * row).sum())
        return torch.stack(rows)


def put_out(model: nn.Module, batch: Batch) -> tuple[Tensor, bool]:
    """What a model puts out, [batch, …, output], and whether these are scores of classes or words.

    Raises:
        BadInput: the model gives neither scores nor hidden states.
    """
    found = model(**batch.inputs)
    output: Tensor | None = getattr(found, "logits", None)
    if output is not None:
        return output, True
    if getattr(found, "start_logits", None) is not None:
        return torch.stack([found.start_logits, found.end_logits], dim=-1), False
    output = getattr(found, "last_hidden_state", None)
    if output is None:
        raise BadInput(f"loss outputs: {type(model).__name__} gives neither logits nor hidden states; use labels")
    return output, False


def scores_texts(model: nn.Module, batches: Iterable[Batch]) -> bool:
    """Whether a model's outputs are scores of whole texts: then one direction a text says much about all of them."""
    for batch in batches:
        with still(model), torch.no_grad():
            logits = getattr(model(**batch.inputs), "logits", None)
        return isinstance(logits, Tensor) and logits.ndim == 2 and len(logits) == len(batch.texts)
    return False


def outputs_of(model: nn.Module, batches: Iterable[Batch], seed: int = 0) -> dict[str, float]:
    """What a model puts out along each text's random direction, by the text's id.

    Raises:
        BadInput: neither scores nor hidden states, or numbers that are not finite.
    """
    found: dict[str, float] = {}
    with still(model), torch.no_grad():
        for batch in track(batches, label="Reading outputs"):
            values = Outputs(seed).losses(model, batch)
            require_finite(values, "what the model puts out", batch)
            found.update(zip((text.id for text in batch.texts), values.tolist(), strict=True))
    return found


def _direction(size: int, centred: bool, generator: torch.Generator) -> Tensor:
    """A point on a sphere whose second moment is 1; `centred`, 1 less what moves all outputs alike.

    Signs would do, too, but of two classes every second direction would be the one that changes nothing.
    """
    drawn = torch.randn(size, generator=generator, dtype=torch.float64)
    if centred:
        drawn = drawn - drawn.mean()
    return drawn * float((size - centred) ** 0.5 / drawn.norm())


def _one_token(row: Tensor, batch: Batch, index: int, generator: torch.Generator) -> Tensor:
    """The output at one real token, drawn by the text."""
    tokens = next(iter(batch.tokens.values()), None)
    if tokens is not None and tokens.valid.shape[1] == len(row):
        row = row[tokens.valid[index].to(row.device)]
    return row[int(torch.randint(0, len(row), (), generator=generator))]
