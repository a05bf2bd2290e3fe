"""Twin: a copy of a model to be cut, which holds the attention weights anew and looks at all others where they are."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from torch import nn

from headwise.analysis.sites import Site


def twin(model: nn.Module, sites: Iterable[Site]) -> nn.Module:
    """A copy whose weights outside the sites are the model's own memory: most of a large model is there only once.

    Repair and cut write into weights of sites alone, or put new ones in the place of others, so neither of the two
    models shows in the other. Training in place would: copy a model that is to be trained as a whole.

    Args:
        model: the dense model.
        sites: what has weights of its own in the copy.

    >>> from transformers import BertConfig, BertModel
    >>> from headwise.analysis.sites import find_sites
    >>> model = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=9))
    >>> two = twin(model, find_sites(model).values())
    >>> both = [one.embeddings.word_embeddings.weight for one in (model, two)]
    >>> both[0] is both[1], both[0].data_ptr() == both[1].data_ptr()
    (False, True)
    """
    own = {
        id(parameter)
        for site in sites
        for path in (site.module, site.output.partition(":")[0])
        for parameter in model.get_submodule(path).parameters()
    }
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        if id(parameter) not in own and type(parameter) is nn.Parameter:
            # A Parameter of its own: what the cut puts in its place is put there in the copy alone.
            memo[id(parameter)] = nn.Parameter(parameter.data, requires_grad=parameter.requires_grad)
    return copy.deepcopy(model, memo)
