"""While a model is being trained: what its heads do at every evaluation, logged by the Trainer."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from headwise.analysis.capture import MEMORY, capture
from headwise.analysis.corpus.batching import Batches, batches
from headwise.analysis.corpus.portions import Portions
from headwise.analysis.corpus.texts import Corpus, Text
from headwise.analysis.inference import sign_flip_p
from headwise.analysis.roles import ROLES
from headwise.analysis.roles.assignment import Measured, assign
from headwise.analysis.roles.mass import RelationMass
from headwise.analysis.similarity.pearson import Pearson
from headwise.analysis.sites import Site, find_sites, heads_of
from headwise.analysis.statistics import Statistics

#: Texts and tokens a text that are looked at: so few that an evaluation of a thousand short texts takes at most a
#: twentieth longer (`benchmarks/callback.py`).
TEXTS, TOKENS = 16, 48
#: Roles that cost next to nothing beside the forward pass.
_ROLES = ("previous", "next", "self", "first-token", "separator", "punctuation")


class HeadsCallback(TrainerCallback):
    """At every evaluation, streams a fixed set of texts and logs, per site, how its heads are doing.

    | logged as `heads/<site>/…` | meaning |
    |---|---|
    | `redundancy` | mean over heads of the correlation with the most alike other head of the site |
    | `entropy` | mean entropy over that of an indifferent head, 1 = indifferent |
    | `dormant` | heads whose contexts are under 5 % of the site's mean |
    | `roles` | heads that play a role |

    What is not there is not logged: sites that have lost all their heads, the entropy of texts of one token.

    `heads/seconds` is what the look took. The training flags, gradients and the generators of random numbers
    are as before. At the end the curves are written to `heads.json` in the output folder.

    Args:
        texts: what is looked at, the first `count` of them.
        tokenizer: of the model; the Trainer's own if None.
        count: texts.
        max_length: tokens a text.

    >>> HeadsCallback(["A dog barks."]).curves
    []
    """

    def __init__(
        self, texts: Sequence[str], tokenizer: Any = None, *, count: int = TEXTS, max_length: int = TOKENS
    ) -> None:
        self.corpus = Corpus([Text(text) for text in texts[:count]], "texts of the callback")
        self.tokenizer, self.max_length = tokenizer, max_length
        self.curves: list[dict[str, float]] = []
        self._trainer_log: Any = None
        self._known: tuple[nn.Module, dict[str, Site], Batches] | None = None

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Look at the heads and log what they do."""
        found = self.measured(kwargs["model"], self.tokenizer or kwargs.get("processing_class"))
        self.curves.append({"step": state.global_step, **found})
        if not state.is_world_process_zero:
            return
        state.log_history.append({"step": state.global_step, "epoch": state.epoch or 0.0, **found})
        for report in self._reports(kwargs):
            report.on_log(args, state, control, logs=dict(found), model=kwargs["model"])

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write the curves."""
        if state.is_world_process_zero and self.curves:
            folder = Path(str(args.output_dir))
            folder.mkdir(parents=True, exist_ok=True)
            content = {"schema": 1, "curves": self.curves}
            (folder / "heads.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def _reports(self, kwargs: dict[str, Any]) -> list[TrainerCallback]:
        """The callbacks through which the Trainer reports (TensorBoard, Weights & Biases, the console, …)."""
        handler = self._trainer_log
        return [] if handler is None else [one for one in handler.callbacks if one is not self]

    def attach(self, trainer: Any) -> HeadsCallback:
        """Join a Trainer, so that what is logged also reaches what it reports to; returns the callback.

        `Trainer(callbacks=[callback])` alone keeps the log in the Trainer's state and in `heads.json`.
        """
        self._trainer_log = trainer.callback_handler
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        return self

    def measured(self, model: nn.Module, tokenizer: Any) -> dict[str, float]:
        """The numbers of one evaluation, by the name that they are logged under."""
        start = time.perf_counter()
        sites, data = self._what(model, tokenizer)
        statistics, pearson = Statistics(sites), Pearson(sites)
        masses = RelationMass(sites, {name: ROLES[name] for name in _ROLES})
        capture(model, Portions(data, len(heads_of(sites)), MEMORY), [statistics, pearson, masses], sites=sites)
        arrays = statistics.result() | pearson.result()
        arrays |= assign({name: _tested(masses.measured(name)) for name in masses.roles}, ROLES)
        owner = np.array([name for name, _ in heads_of(sites)])
        alike = arrays["similarity/pearson"].copy()
        np.fill_diagonal(alike, -np.inf)
        found: dict[str, float] = {}
        for name, site in sites.items():
            if not site.kept:
                continue  # nothing is left to speak of
            mine = owner == name
            inner = np.where(np.isnan(alike[np.ix_(mine, mine)]), -np.inf, alike[np.ix_(mine, mine)]).max(1)
            near = inner[np.isfinite(inner)]
            entropy = arrays["statistics/normalised_entropy"][mine]
            entropy = entropy[np.isfinite(entropy)]
            numbers = {
                "redundancy": float(near.mean()) if len(near) else 0.0,
                **({"entropy": float(entropy.mean())} if len(entropy) else {}),
                "dormant": float(arrays["statistics/dormant"][mine].sum()),
                "roles": float((arrays["roles/primary"][mine] >= 0).sum()),
            }
            found |= {f"heads/{name}/{what}": number for what, number in numbers.items()}
        return found | {"heads/seconds": time.perf_counter() - start}

    def _what(self, model: nn.Module, tokenizer: Any) -> tuple[dict[str, Site], Batches]:
        """The sites and the texts' tokens, found once: neither changes while the weights do."""
        if self._known is None or self._known[0] is not model:
            data = batches(self.corpus, tokenizer, max_length=self.max_length, model=model)
            self._known = model, find_sites(model), data
        return self._known[1:]


def _tested(sums: Measured) -> dict[str, np.ndarray]:
    """What assigning a role needs, without the intervals that nobody logs."""
    total = sums.rows.sum(0)
    excess = sums.excess.sum(0) / np.where(total > 0, total, np.nan)
    return {"excess": excess, "p": sign_flip_p(np.where(sums.rows > 0, sums.excess, np.nan))}
