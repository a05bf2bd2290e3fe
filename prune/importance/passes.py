"""Passes: those over the calibration texts that scores and repair will make, counted without making any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headwise.analysis.sites import Site


@dataclass
class Passes:
    """What `Calibration` would have to pass the texts for, if it were asked the same in the same order.

    Scores and repairs say by `foretell` what they will ask for. What one of them has had counts for none that come
    after it.

    Attributes:
        sites: of the model.
        texts: how many there are.
        batches: that they come in.
        scored: whether the model's outputs are scores of whole texts.
        forward: passes forward alone.
        back: passes forward and back.

    >>> passes = Passes({}, texts=8, batches=2, scored=True)
    >>> passes.gradients("outputs", slopes=True)
    >>> passes.outputs()
    >>> passes.contexts()
    >>> passes.forward, passes.back, passes.counted
    (1.0, 1.0, 4.0)
    """

    sites: Mapping[str, Site]
    texts: int
    batches: int
    scored: bool
    forward: float = 0.0
    back: float = 0.0
    _known: dict[str, set[str]] = field(default_factory=dict, repr=False)

    @property
    def counted(self) -> float:
        """In passes forward; one forward and back counts three."""
        return self.forward + 3 * self.back

    def gradients(self, loss: str = "labels", *, moments: bool = False, slopes: bool = False) -> None:
        """As `Calibration.gradients`."""
        if loss == "auto":
            loss = "outputs" if self.scores_texts() else "labels"
        wanted = {name for name, asked in (("moments", moments), ("slopes", slopes)) if asked}
        if loss not in self._known or not wanted <= self._known[loss]:
            self.back += 1
            # What was had before stays had.
            self._known[loss] = self._known.get(loss, set()) | wanted

    def contexts(self) -> None:
        """As `Calibration.contexts`."""
        self._once("none")

    def scores_texts(self) -> bool:
        """As `Calibration.scores_texts`: a single batch tells.

        >>> passes = Passes({}, texts=8, batches=2, scored=True)
        >>> passes.scores_texts(), passes.forward
        (True, 0.5)
        """
        self._once("scores texts", 1 / max(self.batches, 1))
        return self.scored

    def outputs(self) -> None:
        """As `Calibration.outputs`."""
        if "outputs" not in self._known:
            self._once("dense outputs")

    def moments(self, weight: str, loss: str = "labels") -> None:
        """As `Calibration.moments`."""
        if weight == "gradient":
            self.gradients(loss, moments=True)
        else:
            self.contexts()

    def ask(self, method: Any, times: int = 1) -> Passes:
        """Count what a score or a repair asks for, made so many times; these alone come back.

        >>> from headwise.prune.compensation.bias import Bias
        >>> passes = Passes({}, 8, 2, True)
        >>> passes.ask(Bias()).forward, passes.ask(Bias()).forward
        (1.0, 0.0)
        """
        forward, back = self.forward, self.back
        for _ in range(times):
            method.foretell(self)
        return replace(self, forward=self.forward - forward, back=self.back - back)

    def anew(self) -> Passes:
        """Those over the same texts of another model, of which nothing is known.

        >>> passes = Passes({}, 8, 2, True)
        >>> passes.contexts()
        >>> passes.anew().forward
        0.0
        """
        return replace(self, forward=0.0, back=0.0, _known={})

    def add(self, others: Passes, times: int = 1) -> None:
        """Count others in, so many times.

        >>> passes, others = Passes({}, 8, 2, True), Passes({}, 8, 2, True, forward=1.0)
        >>> passes.add(others, 3)
        >>> passes.forward
        3.0
        """
        self.forward += times * others.forward
        self.back += times * others.back

    def _once(self, what: str, part: float = 1.0) -> None:
        if what not in self._known:
            self.forward += part
            self._known[what] = set()
