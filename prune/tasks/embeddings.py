"""Sentence embeddings, pooled as the checkpoint itself says."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headwise.analysis.corpus.batching import Batch, Batches
from headwise.analysis.corpus.fetching import not_fetched
from headwise.analysis.errors import BadInput, first_line
from headwise.analysis.progress import track
from headwise.prune.tasks.in_numbers import in_numbers
from headwise.prune.tasks.outcome import judging

log = logging.getLogger("headwise")

#: The names that sentence-transformers gave the ways of pooling until it called them by one key.
_LEGACY = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class Pooling:
    """How token vectors become one vector: sentence-transformers' ways, by its names.

    Attributes:
        modes: `mean`, `cls`, `max`, `lasttoken`, `weightedmean`, `mean_sqrt_len_tokens`; several are joined.
        normalise: whether the result is scaled to length 1.
    """

    modes: tuple[str, ...] = ("mean",)
    normalise: bool = True

    def __call__(
        self, hidden: Float[Tensor, "batch token width"], valid: Bool[Tensor, "batch token"]
    ) -> Float[Tensor, "batch pooled"]:
        """One vector a text; padding plays no part.

        >>> Pooling()(torch.ones(1, 2, 4), torch.tensor([[True, False]])).tolist()
        [[0.5, 0.5, 0.5, 0.5]]
        """
        # The accumulation is in float32: half precision loses the small differences that a cut makes.
        wide = hidden.float()
        pooled = torch.cat([_POOLED[mode](wide, valid) for mode in self.modes], dim=-1)
        return nn.functional.normalize(pooled, dim=-1) if self.normalise else pooled


def _mean(hidden: Tensor, valid: Tensor, power: float = 1.0) -> Tensor:
    mask = valid.unsqueeze(-1).to(hidden.dtype)
    return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1) ** power


def _weighted(hidden: Tensor, valid: Tensor) -> Tensor:
    """Later tokens weigh more (Muennighoff 2022): the first valid token 1, the next 2, …."""
    weights = (valid.long().cumsum(-1) * valid).unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)


def _at(hidden: Tensor, position: Tensor) -> Tensor:
    return hidden[torch.arange(len(hidden), device=hidden.device), position]


_POOLED: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": _mean,
    "mean_sqrt_len_tokens": lambda hidden, valid: _mean(hidden, valid, 0.5),
    "weightedmean": _weighted,
    "cls": lambda hidden, valid: _at(hidden, valid.long().argmax(1)),
    "lasttoken": lambda hidden, valid: _at(hidden, valid.shape[1] - 1 - valid.flip(1).long().argmax(1)),
    "max": lambda hidden, valid: hidden.masked_fill(~valid.unsqueeze(-1), float("-inf")).max(1).values,
}


def own_pooling(model: Any) -> Pooling:
    """The pooling that a sentence-transformers checkpoint states, else the normalised mean.

    Args:
        model: as it was opened, from a folder or, at a commit, from the hub.

    Raises:
        BadInput: the checkpoint states a way of pooling, or a further layer, that is not known here, or cannot be asked.

    >>> own_pooling(torch.nn.Linear(1, 1)).modes
    ('mean',)
    """
    name = str(getattr(model, "name_or_path", "") or "")
    commit = getattr(getattr(model, "config", None), "_commit_hash", None)
    modules = _read(name, "modules.json", commit)
    if modules is None:
        return Pooling()
    kinds = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in modules]
    unknown = sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"})
    if unknown:
        raise BadInput(
            f"{name}: sentence-transformers module {', '.join(unknown)} is not supported in the embedding "
            "tasks; expected Transformer, Pooling and Normalize"
        )
    modes: tuple[str, ...] = ("mean",)
    if "Pooling" in kinds:
        path = modules[kinds.index("Pooling")].get("path", "1_Pooling")
        modes = _modes(_read(name, f"{path}/config.json", commit) or {}, name)
    return Pooling(modes, "Normalize" in kinds)


def _modes(config: Mapping[str, Any], name: str) -> tuple[str, ...]:
    given = config.get("pooling_mode")
    if given is None:
        given = [mode for key, mode in _LEGACY.items() if config.get(key)] or ["mean"]
    modes = (given,) if isinstance(given, str) else tuple(given)
    if unknown := [mode for mode in modes if mode not in _POOLED]:
        raise BadInput(f"{name}: pooling {unknown} is not known; expected one of {', '.join(_POOLED)}")
    return modes


def _read(name: str, file: str, commit: str | None) -> Any:
    """A JSON file of the checkpoint, None where it has none."""
    path: str | None = str(Path(name) / file)
    if not Path(name).is_dir() and not Path(name).is_absolute() and name:
        path = _fetched(name, file, commit)
    if path is None or not Path(path).is_file():
        return None
    try:
        return json.loads(Path(path).read_text("utf-8"))
    except ValueError as error:
        raise BadInput(f"{path}: not JSON: {error}") from error


def _fetched(name: str, file: str, commit: str | None) -> str | None:
    """Where a file of a repository lies, None if it has none. Another pooling in its stead would give other numbers."""
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return hf_hub_download(name, file, revision=commit)
    except Exception as error:
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            return None
        if constants.HF_HUB_OFFLINE:
            log.warning("%s: offline nobody can tell whether it has a %s; taken as if it had none", name, file)
            return None
        reason = not_fetched(error) or first_line(error)
        raise BadInput(f"{name}: {file}, which says how it makes embeddings: {reason}") from error


def embed(model: nn.Module, batch: Batch, pooling: Pooling) -> Float[Tensor, "batch pooled"]:
    """A vector per text of the batch: the encoder's last hidden states, pooled."""
    config: Any = model.config
    if getattr(config, "is_encoder_decoder", False):
        encoder: Any = model.get_encoder()  # type: ignore[operator]
        inputs = {name: value for name, value in batch.inputs.items() if not name.startswith("decoder_")}
    else:
        encoder, inputs = getattr(model, "base_model", model), batch.inputs
    found = encoder(**inputs)
    hidden = getattr(found, "last_hidden_state", None)
    if hidden is None:
        return _of_towers(found, type(model).__name__)
    # Patches and frames are all there: images and clips are not padded.
    valid = batch.tokens[""].valid if "" in batch.tokens else hidden.new_ones(hidden.shape[:2], dtype=torch.bool)
    return pooling(hidden, valid)


def _of_towers(found: Any, name: str) -> Float[Tensor, "batch joined"]:
    """What a pair of towers says of image and text, side by side.

    Raises:
        BadInput: the model gives no embeddings at all.
    """
    sides = [getattr(found, side, None) for side in ("image_embeds", "text_embeds")]
    if any(side is None for side in sides):
        raise BadInput(f"{name} gives neither hidden states nor embeddings, so it cannot be judged by them")
    return torch.cat([nn.functional.normalize(side.float(), dim=-1) for side in sides if side is not None], dim=-1)


def embed_all(model: nn.Module, batches: Batches, pooling: Pooling) -> np.ndarray:
    """`[text, width]` float32, in the corpus's order; NaN for a text that has no token."""
    found: np.ndarray | None = None
    with judging(model):
        for batch in track(batches, len(batches), "embedding texts"):
            vectors = in_numbers(embed(model, batch, pooling), batch).float().cpu().numpy()
            if found is None:
                found = np.full((len(batches.corpus), vectors.shape[1]), np.nan, dtype=np.float32)
            found[list(batch.index)] = vectors
    if found is None:
        raise BadInput(f"{batches.corpus.source}: no text gave a token")
    return found


def contrast(
    vectors: Float[Tensor, "batch width"],
    own: Float[Tensor, "batch width"],
    others: Float[Tensor, "other width"],
    same: Bool[Tensor, "batch other"],
    temperature: float = 0.05,
) -> Float[Tensor, " batch"]:
    """Cross entropy of finding one's own vector among fixed others by cosine (InfoNCE, van den Oord 2018).

    Unlike a distance to the own vector its gradient does not vanish where the model is the dense one, and
    unlike in-batch negatives it does not depend on the company.

    Args:
        vectors: what the model says now, with gradient.
        own: what each should match.
        others: what it should be told from.
        same: which of the others are the text itself (or equal to it): left out.
        temperature: of the softmax.

    >>> contrast(torch.eye(2), torch.eye(2), torch.eye(2), torch.eye(2).bool()).max().item() < 1e-6
    True
    """
    unit = nn.functional.normalize(vectors, dim=-1)
    right = (unit * nn.functional.normalize(own, dim=-1)).sum(-1, keepdim=True)
    wrong = (unit @ nn.functional.normalize(others, dim=-1).T).masked_fill(same, float("-inf"))
    logits = torch.cat([right, wrong], dim=-1) / temperature
    return -logits.log_softmax(-1)[:, 0]
