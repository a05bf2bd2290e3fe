"""The gate's self-test: silencing a head must change the output, and taking the gate away must give the same bits."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import nn

from headwise.analysis.errors import BadInput, HeadwiseError
from headwise.analysis.gates import gated
from headwise.analysis.gates.hooked import hooked
from headwise.analysis.gates.still import still
from headwise.analysis.gates.synthetic import main_output, synthetic_inputs
from headwise.analysis.sites import Site, families, find_sites

log = logging.getLogger("headwise")


def self_test(model: nn.Module, inputs: Mapping[str, Any] | None = None, *, every: bool = False) -> list[str]:
    """The sites whose gates were tried; a model whose gates do nothing, or stay, raises.

    Attention that no family of the tests covers may be read wrongly: its heads would all look unimportant.
    One site of each such class is tried.

    Args:
        model: a model that `find_sites` understands; it is what it was afterwards.
        inputs: what to run it with; synthetic inputs by default, and no test where none fit.
        every: try every site, of known classes, too.

    Raises:
        HeadwiseError: naming the site whose gate changed nothing or was not undone.

    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(num_hidden_layers=2, num_attention_heads=4, hidden_size=32))
    >>> self_test(model), self_test(model, every=True)
    ([], ['0', '1'])
    """
    sites = find_sites(model)
    names = list(sites) if every else _one_of_each(model, sites)
    if not names:
        return []
    with still(model), torch.no_grad():
        if inputs is None:
            try:
                inputs = synthetic_inputs(model)
            except BadInput as error:
                log.warning("the gates of %s were not tried: %s", type(model).__name__, error)
                return []
        dense = _run(model, inputs)
        return [name for name in names if _tried(model, sites[name], inputs, dense)]


def proven(module: nn.Module) -> bool:
    """Whether the tests cover this class of attention: by its name, in the library's own code, on a tested release.

    >>> proven(nn.MultiheadAttention(8, 2)), proven(nn.Linear(2, 2))
    (True, False)
    """
    kind = type(module)
    own = kind.__module__.startswith(("transformers.models.", "torch.nn."))
    return own and kind.__name__ in families.PROVEN and transformers.__version__ in families.RELEASES


def _one_of_each(model: nn.Module, sites: Mapping[str, Site]) -> list[str]:
    first: dict[str, str] = {}
    for name, site in sites.items():
        module = model.get_submodule(site.module)
        if not proven(module):
            first.setdefault(type(module).__name__, name)
    return list(first.values())


def _tried(model: nn.Module, site: Site, inputs: Mapping[str, Any], dense: torch.Tensor) -> bool:
    reached: list[bool] = []
    watch = model.get_submodule(site.module).register_forward_hook(lambda *_: reached.append(True))
    with hooked([watch]), gated(model, {site.name: list(site.kept)}):
        silenced = _run(model, inputs)
    if not reached:
        return False  # these inputs do not come by
    if torch.equal(silenced, dense):
        raise HeadwiseError(
            f"site {site.name}: silencing all its heads changes no output, so nothing that is measured there would count; "
            f"{type(model.get_submodule(site.module)).__name__} does not hand its heads to {site.output} as expected"
        )
    if not torch.equal(_run(model, inputs), dense):
        raise HeadwiseError(f"site {site.name}: the model gives other numbers after its gate was taken away")
    return True


def _run(model: nn.Module, inputs: Mapping[str, Any]) -> torch.Tensor:
    torch.manual_seed(0)  # some forwards draw; every pass must draw the same
    return main_output(model(**inputs))
