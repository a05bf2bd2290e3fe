"""Sites: where the attention heads of a model live."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from headwise.analysis.errors import BadInput, UnknownModel
from headwise.analysis.sites import families
from headwise.analysis.sites.anatomy import attention_like, dissect, number, widths
from headwise.analysis.sites.paths import root_path
from headwise.analysis.sites.places import places


@dataclass(frozen=True)
class Site:
    """One attention block call of the forward pass.

    Heads are counted as in the dense model, always; `kept` says which of them are still there.

    Attributes:
        name: for people and files: `3`, `encoder.self.3`, `decoder.cross.0`, `vision.self.1`, `pool.0`.
        module: path of the attention module from the model's root.
        output: path of the output projection from the model's root.
        heads: query heads of the dense model.
        kv_heads: key/value heads of the dense model.
        head_dim: width of one head's context at the input of the output projection.
        kind: `self`, `cross` or `pool`.
        stack: `` for a single stack, else `encoder`, `decoder`, `text`, `vision`, ….
        layer: depth in the stack, from 0.
        call: which call of the module in one forward pass (shared layers are called many times).
        calls: how often one forward pass calls the module.
        kept: original indices of the heads that still exist, in their order at the projection's input.
        window: declared sliding window in keys, or None.
        refusal: why the site cannot be cut, or ``.
    """

    name: str
    module: str
    output: str
    heads: int
    kv_heads: int
    head_dim: int
    kind: str = "self"
    stack: str = ""
    layer: int = 0
    call: int = 0
    calls: int = 1
    kept: tuple[int, ...] = ()
    window: int | None = None
    refusal: str = ""

    def group(self, head: int) -> int:
        """The key/value head that serves a query head.

        >>> Site("0", "attn", "attn.o", heads=4, kv_heads=2, head_dim=8).group(3)
        1
        """
        return head // (self.heads // self.kv_heads)


def heads_of(sites: Mapping[str, Site]) -> list[tuple[str, int]]:
    """Every head as (site name, original index): the head axis of all evidence, in this order.

    >>> heads_of({"0": Site("0", "attn", "attn.o", heads=2, kv_heads=2, head_dim=8)})
    [('0', 0), ('0', 1)]
    """
    return [(name, head) for name, site in sites.items() for head in range(site.heads)]


def find_sites(model: nn.Module) -> dict[str, Site]:
    """Every attention site of a model by name, dense or cut, in the order of its modules.

    Sites are found by structure: a module that owns projections under the usual names, whose widths agree
    with a head count. A model that headwise has cut is read from its record, so that heads keep their
    ORIGINAL indices.

    Args:
        model: any `transformers` model, also on the meta device, or a module around one; nothing is changed.

    Returns:
        Site name to `Site`.

    Raises:
        UnknownModel: if no site is understood; the message lists the attention-like modules found.
        BadInput: if projections are quantised or wrapped by an adapter, or a cut model is a part among others.

    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(num_hidden_layers=2, num_attention_heads=4, hidden_size=32))
    >>> {name: site.heads for name, site in find_sites(model).items()}
    {'0': 4, '1': 4}
    """
    part = cut_part(model)
    if part is not None:
        return _in_part(model, part)
    found = list(dissect(model))
    if not found:
        raise UnknownModel(_not_understood(model))
    sites: list[Site] = []
    for anatomy, (stack, kind, layer) in zip(found, places([a.module for a in found]), strict=True):
        module = model.get_submodule(anatomy.module)
        calls = _calls(model, module)
        for call in range(calls):
            sites.append(Site(
                name="", module=anatomy.module, output=anatomy.output, heads=anatomy.heads,
                kv_heads=anatomy.kv_heads, head_dim=anatomy.head_dim, kind=kind, stack=stack,
                layer=layer if calls == 1 else _layer_of_call(model, anatomy.module, call), call=call,
                calls=calls, kept=tuple(range(anatomy.heads)), window=number(module, families.WINDOWS),
                refusal=_refusal(module),
            ))  # fmt: skip
    return _named(sites)


def _refusal(module: nn.Module) -> str:
    """Why a class of attention cannot be cut, or ``.

    FSMT calls its class just `Attention`, so the package counts, too; a class that was rewritten is told by a
    variable that the refused version of its forward has.
    """
    name, package = type(module).__name__, type(module).__module__.split(".")[-2:][0]
    local = inspect.unwrap(type(module).forward).__code__.co_varnames
    keys = (name, f"{package}.{name}", *(f"{name}:{variable}" for variable in local))
    return next((families.CUT_REFUSED[key] for key in keys if key in families.CUT_REFUSED), "")


def read_record(model: nn.Module) -> dict[str, Any] | None:
    """What headwise wrote into the configuration of a cut model, or None for a dense one."""
    record = getattr(getattr(model, "config", None), "headwise", None)
    return record if isinstance(record, dict) and record.get("sites") else None


def cut_part(model: nn.Module) -> str | None:
    """Path of the part that headwise has cut: `` for the model itself, None where nothing was cut.

    Modules around a model (of one's own, `DataParallel`, what `torch.compile` returns) have no configuration, or
    show that of the model inside: the record speaks of the module that has the sites.
    """
    path: str
    for path, module in model.named_modules():
        record = None if "_orig_mod" in module._modules else read_record(module)
        if record is not None and _recorded(module, record):
            return path
    return None if read_record(model) is None else ""


def _in_part(model: nn.Module, part: str) -> dict[str, Site]:
    """The sites of the one part that was cut, with paths from the model's root."""
    owner = model.get_submodule(part)
    inside = f"{part}." if part else ""
    list(dissect(owner, counted=False))  # raises where adapters were put around its projections
    beside = [] if not part else [a.module for a in dissect(model) if not a.module.startswith(inside)]
    if beside:
        raise BadInput(
            f"{part} was cut by headwise, and {beside[0]} beside it is another part: each counts its own heads. Look at "
            f"one at a time: model.get_submodule({part!r})"
        )
    sites = _recorded(owner, read_record(owner) or {"sites": {}})
    return {
        name: replace(site, module=inside + site.module, output=inside + site.output) for name, site in sites.items()
    }


def _recorded(model: nn.Module, record: dict[str, Any]) -> dict[str, Site]:
    sites: dict[str, Site] = {}
    for name, data in record["sites"].items():
        module, output = root_path(model, data["module"]), root_path(model, data["output"])
        if module is not None and output is not None:
            fields = {field: data[field] for field in _FIELDS}
            site = Site(name=name, module=module, output=output, kept=tuple(data["kept"]), **fields)
            _check_width(model, site)
            sites[name] = site
    return sites


_FIELDS = ("heads", "kv_heads", "head_dim", "kind", "stack", "layer", "call", "calls", "window", "refusal")


def _check_width(model: nn.Module, site: Site) -> None:
    path, _, bare = site.output.partition(":")
    module = model.get_submodule(path)
    width = getattr(module, bare).shape[1] * site.head_dim if bare else widths(module)[0]
    if width != max(1, len(site.kept)) * site.head_dim:
        raise BadInput(
            f"site {site.name}: the configuration says that heads {list(site.kept)} are left, but {site.output} takes "
            f"{width // site.head_dim} heads. This model was built from a cut model's configuration without its "
            "weights; open the checkpoint with headwise.prune.load, or delete `config.headwise` for a dense model."
        )


def _calls(model: nn.Module, module: nn.Module) -> int:
    config: Any = getattr(model, "config", None)
    name = families.SHARED_LAYERS.get(getattr(config, "model_type", ""))
    if name is None or not hasattr(config, "num_hidden_groups"):
        return 1
    groups = config.num_hidden_groups
    return int(getattr(config, name) // groups) if type(module).__name__.startswith("Albert") else 1


def _layer_of_call(model: nn.Module, path: str, call: int) -> int:
    group = int(next((part for part in path.split(".") if part.isdigit()), "0"))
    config: Any = model.config
    return int(group * (config.num_hidden_layers // config.num_hidden_groups) + call)


def _named(sites: list[Site]) -> dict[str, Site]:
    """Sites by the shortest names that keep them apart, unique in any model."""
    kinds = {(site.stack, site.kind) for site in sites if site.kind != "pool"}
    pools = {site.stack for site in sites if site.kind == "pool"}
    named: dict[str, Site] = {}
    for site in sites:
        if site.kind == "pool":
            parts = [site.stack if len(pools) > 1 else "", "pool", str(site.layer)]
        elif len(kinds) == 1:
            parts = [str(site.layer)]
        else:
            parts = [site.stack, site.kind, str(site.layer)]
        name = ".".join(part for part in parts if part)
        while name in named:
            name = _next(name)
        named[name] = replace(site, name=name)
    return named


def _next(name: str) -> str:
    head, _, last = name.rpartition(".")
    bumped = str(int(last) + 1)
    return f"{head}.{bumped}" if head else bumped


def _not_understood(model: nn.Module) -> str:
    seen = attention_like(model)
    told = f"{type(model).__name__}: no attention site was understood"
    if not seen:
        return f"{told}. This model has no attention, so it has no heads (state spaces, Fourier maps, convolutions have none)."
    return (
        f"{told}. Attention-like modules found: {'; '.join(seen[:8])}. "
        "A site needs query, key and value projections (apart or fused) and an output projection under names "
        "that headwise.analysis.sites.families knows; a new name is one line there."
    )
