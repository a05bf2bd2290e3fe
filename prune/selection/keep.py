"""Keep-rules: heads that stay, whatever they score."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt

from headwise.analysis.errors import BadInput
from headwise.analysis.sites import Site

log = logging.getLogger("headwise")

Head = Annotated[StrictInt, Field(ge=0)]


def _site_name(name: Any) -> Any:
    """YAML reads the site name `3` as a number; anything else that is no text stays an error."""
    return str(name) if isinstance(name, int) and not isinstance(name, bool) else name


SiteName = Annotated[str, BeforeValidator(_site_name)]


class Keep(BaseModel):
    """Which heads stay.

    Attributes:
        heads: heads by site.
        layers: sites by name, or by depth where one site has that depth.
        roles: how many heads of a role stay (those with the strongest evidence), or `all`.
        minimum_per_site: heads that stay in every site; 0 lets a site empty.

    >>> Keep(heads={3: [1, 7]}).heads
    {'3': [1, 7]}
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    heads: dict[SiteName, list[Head]] = Field(default_factory=dict)
    layers: list[StrictInt | str] = Field(default_factory=list)
    roles: dict[str, Annotated[StrictInt, Field(ge=0)] | Literal["all"]] = Field(default_factory=dict)
    minimum_per_site: StrictInt = Field(default=1, ge=0)

    def protected(self, sites: Mapping[str, Site], evidence: Any = None) -> dict[str, dict[int, str]]:
        """Why a head may not go: site name -> {head: the rule that keeps it}.

        Args:
            sites: sites of the model.
            evidence: an `Evidence` with roles; without it rules about roles are left out.

        Raises:
            BadInput: a rule names a site, head, layer or role that there is not; all of them at once.

        >>> site = Site("3", "attn", "attn.o", 2, 2, 8, kept=(0, 1), layer=3)
        >>> Keep(heads={"3": [1]}).protected({"3": site})
        {'3': {1: 'named in keep.heads'}}
        """
        mistakes: list[str] = []
        found: dict[str, dict[int, str]] = {name: {} for name in sites}
        for name, heads in self.heads.items():
            if name not in sites:
                mistakes.append(f"keep.heads: no site {name!r}; the model has {', '.join(sites)}")
            elif beyond := [head for head in heads if head >= sites[name].heads]:
                mistakes.append(f"keep.heads: no head {beyond} in site {name!r}; it has 0 to {sites[name].heads - 1}")
            else:
                found[name].update(dict.fromkeys(heads, "named in keep.heads"))
        for layer in self.layers:
            meant, mistake = _resolve(layer, sites)
            mistakes.extend(mistake)
            if meant is not None:
                found[meant].update(dict.fromkeys(range(sites[meant].heads), "its layer is named in keep.layers"))
        if evidence is not None:
            for role, number in self.roles.items():
                mistakes.extend(_keep_role(role, number, sites, evidence, found))
        if mistakes:
            raise BadInput("The keep-rules do not fit the model:\n" + "\n".join(f"  {line}" for line in mistakes))
        return {name: heads for name, heads in found.items() if heads}

    def tell_unmet(self, sites: Mapping[str, Site], evidence: Any) -> None:
        """Warn of rules about roles that ask in vain: fewer heads surely play the role than are to stay.

        >>> Keep().tell_unmet({}, None)
        """
        for role, number in self.roles.items():
            found = len(_holders(role, sites, evidence, {}))
            if number == "all" and not found:
                log.warning("keep.roles.%s: no head surely plays it, so none is kept for it", role)
            elif number != "all" and found < number:
                log.warning("keep.roles.%s: %s to stay, surely played by %s", role, number, found or "none")


def _resolve(layer: int | str, sites: Mapping[str, Site]) -> tuple[str | None, list[str]]:
    if isinstance(layer, str) and layer in sites:
        return layer, []
    at_depth = [name for name, site in sites.items() if site.layer == layer]
    if len(at_depth) == 1:
        return at_depth[0], []
    if at_depth:
        return None, [f"keep.layers: {layer} could be any of {', '.join(at_depth)}; name the sites instead"]
    return None, [f"keep.layers: no layer {layer!r}; the model has {', '.join(sites)}"]


def _keep_role(
    role: str,
    number: int | str,
    sites: Mapping[str, Site],
    evidence: Any,
    found: dict[str, dict[int, str]],
) -> list[str]:
    """Protect the strongest heads of a role; heads that another rule keeps anyway count first."""
    assigned = evidence.arrays.get(f"roles/{role}/assigned")
    if assigned is None:
        known = sorted({name.split("/")[1] for name in evidence.arrays if name.endswith("/assigned")})
        return [f"keep.roles: the evidence knows no role {role!r}; it has {', '.join(known) or 'none'}"]
    holders = _holders(role, sites, evidence, found)
    wanted = len(holders) if number == "all" else int(number)
    for *_, site, head in sorted(holders)[:wanted]:
        found[site].setdefault(head, f"one of the strongest {role} heads (keep.roles)")
    return []


def _holders(
    role: str, sites: Mapping[str, Site], evidence: Any, found: Mapping[str, Mapping[int, str]]
) -> list[tuple[bool, float, int, str, int]]:
    """The heads that play a role, to be sorted: those that stay anyway, then by their evidence; site and head last."""
    assigned = evidence.arrays.get(f"roles/{role}/assigned")
    if assigned is None:
        return []
    strength = evidence.arrays.get(f"roles/{role}/excess", assigned)
    return [
        (site not in found or head not in found[site], -float(np.nan_to_num(strength[index])), index, site, head)
        for index, (site, head) in enumerate(evidence.heads)
        if assigned[index] and site in sites and head in sites[site].kept
    ]
