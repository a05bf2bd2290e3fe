"""Removable: the heads of a plan that can go from a model, or why they cannot, before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from headwise.analysis.errors import CannotCut
from headwise.analysis.gates import check_heads
from headwise.analysis.sites import Site

Heads = Mapping[str, Sequence[int]]


def removable(model: nn.Module, sites: Mapping[str, Site], heads: Heads) -> dict[str, list[int]]:
    """The heads to remove by site, sorted; those that are gone already are left out.

    Args:
        model: only read.
        sites: the model's, by name.
        heads: ORIGINAL head indices by site name.

    Raises:
        BadInput: a site or head that the model does not have; all mistakes at once.
        CannotCut: the heads are there, but a site allows no cut, or not of them alone.

    >>> from transformers import BertConfig, BertModel
    >>> from headwise.analysis.sites import find_sites
    >>> model = BertModel(BertConfig(num_hidden_layers=2, num_attention_heads=4, hidden_size=32))
    >>> removable(model, find_sites(model), {"0": [3, 1]})
    {'0': [1, 3]}
    """
    wanted = check_heads(sites, heads)
    there = {name: [head for head in listed if head in sites[name].kept] for name, listed in wanted.items()}
    remove = {name: listed for name, listed in there.items() if listed}
    refused = {name: sites[name].refusal for name in remove if sites[name].refusal}
    if refused:
        listed = "; ".join(f"site {name}: {reason}" for name, reason in refused.items())
        raise CannotCut(
            f"cannot cut {listed}. Gating works (headwise.analysis.gated); leave these sites out of the plan."
        )
    _untied(model, sites, remove)
    _same_in_all_calls(sites, remove)
    return remove


def _untied(model: nn.Module, sites: Mapping[str, Site], remove: Heads) -> None:
    owners: dict[int, str] = {}
    for name, site in sites.items():
        path, _, bare = site.output.partition(":")
        weight = getattr(model.get_submodule(path), bare or "weight")
        other = owners.setdefault(id(weight), name)
        if sites[other].module != site.module and (name in remove or other in remove):
            raise CannotCut(
                f"sites {other} and {name} are two modules with one tied weight, so neither can lose heads by itself. "
                "Gating works (headwise.analysis.gated); leave these sites out of the plan."
            )


def _same_in_all_calls(sites: Mapping[str, Site], remove: Heads) -> None:
    for name in remove:
        site = sites[name]
        twins = [other for other in sites.values() if other.module == site.module]
        if any(sorted(remove.get(twin.name, [])) != sorted(remove[name]) for twin in twins):
            names = ", ".join(twin.name for twin in twins)
            raise CannotCut(
                f"sites {names} are one module called {site.calls} times, so a cut takes the same heads from all of "
                f"them; the plan takes {remove[name]} from site {name} only: name the same heads at each of them."
            )
