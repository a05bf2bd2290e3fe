"""Duration: the passes over the texts that a run makes, and the time that it takes here, by what it goes to."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from headwise.prune.chance import DRAWS, TEXTS
from headwise.prune.compensation.values import ROUNDS, WIDEST
from headwise.prune.drift import TEXTS as DRIFT_TEXTS
from headwise.prune.forecast.needs import Needs
from headwise.prune.importance.passes import Passes
from headwise.prune.material import SELECTION
from headwise.prune.speed.generation import generates
from headwise.prune.tasks.text_classification import is_classifier

#: An eager pass with statistics, roles and similarity over a pass that only runs the model; all passes over their
#: products of matrices alone.
_LOOKING, _AROUND = 1.2, 1.15
#: Texts of the coreference set, and their tokens; tokens of random sequences (causal models).
_COREFERENCE, _SEQUENCES = 696 * 14, 32 * 64
#: Seconds that starting takes; bytes a second that are read, hashed and written.
_START, _BYTES_A_SECOND, _READ_A_SECOND = 8.0, 6e8, 8e9
#: Operations that a decision and a repair take a block, in cubes of its width; what judging a text at a time costs.
_DECIDED, _REPAIRED, _ONE_BY_ONE = 20, 12, 1.6
#: Where values are refitted: operations a token, in squares of what a block's heads read; those of a head and round in
#: cubes of the width (its directions, its matrix), and of each look at the whole in products of width and that square.
_SUMMED, _TURNED, _LOOKED = 3, 30, 8


@dataclass(frozen=True)
class Duration:
    """How long a run takes.

    Attributes:
        needs: its recipe, model and texts.
    """

    needs: Needs

    def parts(self) -> dict[str, Passes]:
        """Passes over the calibration texts by what they are for, at most; `chance` are the repairs of heads drawn at random."""
        recipe, passes = self.needs.recipe, self.needs.passes()
        parts = {"scores": passes.ask(recipe.score)}
        parts["search"] = passes.ask(recipe.compensate, self._tried())
        parts["search"].forward += SELECTION * self._tried()
        parts["repair"] = passes.ask(recipe.compensate)
        parts["recovery"] = passes.ask(recipe.recover)
        parts["chance"] = passes.ask(recipe.compensate, DRAWS + 1)
        return parts

    def passes(self) -> float:
        """All of them, but for those of chance; a pass forward and back counts three."""
        return 1 + self._judged() + sum(part.counted for name, part in self.parts().items() if name != "chance")

    def _judged(self) -> int:
        """Models that are judged in the end: dense, cut, and trained."""
        return 2 if self.needs.recipe.recover.kind == "none" else 3

    def _tried(self) -> int:
        """Removals that are repaired and judged before the plan is made, at most."""
        recipe = self.needs.recipe
        if not recipe.searched:
            return 0
        return recipe.search.evaluations if recipe.search.kind == "counts" else len(recipe.ladder(self.needs.sites))

    def seconds(self) -> dict[str, float]:
        """Seconds on this machine, by what they go to."""
        needs, recipe, texts, parts = self.needs, self.needs.recipe, self.needs.texts, self.parts()
        rate = {dtype: _operations_per_second(dtype) for dtype in (torch.float32, torch.float64)}
        own = torch.float32 if needs.width != 2 else torch.bfloat16
        rate.setdefault(own, _operations_per_second(own))
        body = sum(p.numel() for n, p in needs.model.named_parameters() if "embed" not in n)
        embedded = needs.vocabulary() * max((c for _, c in needs.shapes()), default=0)
        token = _AROUND * 2.0 * body / rate[own]
        # Tied to the embeddings or not, scores over a vocabulary are computed by every pass that has a loss.
        scored = token + 2.0 * embedded / rate[own]
        calibrating, judging = (n * texts.mean for n in (texts.calibration, texts.evaluation))
        share = min(1.0, TEXTS / max(texts.evaluation, 1))
        blocks = float(sum(c**3 for _, c in needs.shapes())) / rate[torch.float64]
        repaired = _REPAIRED * blocks if needs.moments() else 0.0
        repaired += self._values(rate[torch.float32], rate[torch.float64])
        # Weights are frozen: a pass back costs as much as one forward.
        passed = {name: scored * calibrating * (some.forward + 2 * some.back) for name, some in parts.items()}
        also = _COREFERENCE + (0 if is_classifier(needs.model) else _SEQUENCES)
        alike = 2 * 2.0 * needs.heads**2 * texts.calibration * texts.longest**2 / rate[torch.float32]
        products = 3 * 2.0 * calibrating * sum(c**2 for _, c in needs.shapes()) if needs.moments() else 0.0
        return {
            "start": _START + 8 * needs.weights() / _BYTES_A_SECOND,
            "evidence": _LOOKING * token * (calibrating + also) + alike,
            "scores": passed["scores"] + products / rate[torch.float32],
            "decision": (_DECIDED if recipe.score.kind == "reconstruction" else 0) * blocks
            * (7 if needs.grouped() else 1),
            "search": passed["search"] + self._tried() * repaired,
            # Where all weights learn, their gradients cost as much again.
            "recovery": passed["recovery"] + scored * calibrating * needs.learns() * parts["recovery"].back,
            "repair": passed["repair"] + passed["chance"] + (DRAWS + 2) * repaired,
            "judging": _ONE_BY_ONE * scored * judging * (self._judged() + (DRAWS + 2) * share),
            "proof": 7 * 2 * token * rate[own] / rate[torch.float32] * min(16, texts.calibration) * texts.mean,
            "drift": 2 * _LOOKING * token * min(1.0, DRIFT_TEXTS / max(texts.evaluation, 1)) * judging,
            "speed": self._timing(scored),
        }  # fmt: skip

    def _values(self, single: float, double: float) -> float:
        """Seconds of one repair that go to the values of heads that stay, at so many operations a second."""
        needs, texts, seconds = self.needs, self.needs.texts, 0.0
        for site, (out, columns) in zip(needs.sites.values(), needs.shapes(), strict=True):
            kept = round(site.heads * (1 - needs.share()))
            read = columns + kept * out
            if not needs.refits() or site.kv_heads < site.heads or not kept or read >= WIDEST:
                continue
            seconds += _SUMMED * texts.calibration * texts.mean * read**2 / single
            moved = ROUNDS * kept * (_TURNED * out**3 + 8 * site.head_dim * out * (read - columns))
            seconds += (moved + _LOOKED * out * read**2) / double
        return seconds

    def _timing(self, token: float) -> float:
        needs, grid = self.needs, self.needs.recipe.speed
        cells = sum(max(0.03, batch * length * token) for batch in grid.batches for length in grid.lengths)
        if generates(needs.model):
            # A token at a time takes as long as reading all weights, or as computing with them.
            one = max(token, needs.weights() / _READ_A_SECOND)
            cells += sum(batch * max(grid.lengths) * token + 16 * max(one, batch * token) for batch in grid.batches)
        least, asked = (1.25 * (8 + 3 * rounds) * cells for rounds in (6, max(6, grid.rounds)))
        return max(least, min(asked, grid.seconds or asked))


def _operations_per_second(dtype: torch.dtype, size: int = 256) -> float:
    matrix = torch.ones(size, size, dtype=dtype)
    matrix @ matrix
    best = float("inf")
    # Small and often: some of them the machine does without a pause.
    for _ in range(20):
        start = time.perf_counter()
        matrix @ matrix
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best
