"""Anatomy: the projections that an attention module owns, found by name and checked by width."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from headwise.analysis.errors import BadInput
from headwise.analysis.sites import families


@dataclass(frozen=True)
class Anatomy:
    """Where one attention module keeps its heads.

    Paths are relative to the model's root, names of parts relative to the module. Counts are what the
    module has NOW; on a cut model `sites.find_sites` puts the dense ones in their place.

    Attributes:
        module: path of the attention module.
        output: path of the output projection; `module:name` where it is a bare parameter.
        query: name of the query projection, or ``.
        key: name of the key projection, or ``.
        value: name of the value projection, or ``.
        fused: name of a projection that holds queries, keys and values, or ``.
        fused_kv: name of a projection that holds keys and values, or ``.
        heads: query heads.
        kv_heads: key/value heads.
        head_dim: width of a head's context.
    """

    module: str
    output: str
    query: str
    key: str
    value: str
    fused: str
    fused_kv: str
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def bare(self) -> bool:
        """Whether the projections are parameters with a head axis instead of modules (XLNet)."""
        return ":" in self.output


def is_linear(module: nn.Module | None) -> bool:
    """Whether a module is a matrix that maps features to features, of any class.

    >>> is_linear(nn.Linear(2, 2)), is_linear(nn.LayerNorm(2))
    (True, False)
    """
    if module is None:
        return False
    weight = getattr(module, "weight", None)
    name = type(module).__name__
    return ("Linear" in name or name == "Conv1D") and getattr(weight, "ndim", 0) == 2


def widths(module: Any) -> tuple[int, int]:
    """Input and output features of a linear map, whichever way its class stores the weight.

    >>> widths(nn.Linear(2, 3))
    (2, 3)
    """
    rows, columns = module.weight.shape
    return (rows, columns) if type(module).__name__ == "Conv1D" else (columns, rows)


def dissect(model: nn.Module, *, counted: bool = True) -> Iterator[Anatomy]:
    """Every attention module of a model with its anatomy, in the order of the model's modules.

    Args:
        model: any `transformers` model; nothing is changed.
        counted: leave out modules whose widths do not agree with a head count. A cut model is read without
            this check (its counts are in its record, and widths that a norm needs stay as they were).

    Raises:
        BadInput: if projections are quantised or wrapped by an adapter: their rows are not heads.
    """
    modules = dict(model.named_modules())
    claimed: set[str] = set()
    for path, module in modules.items():
        if any(path.startswith(inner + ".") for inner in claimed):
            continue
        anatomy = _anatomy(path, module, modules, counted)
        if anatomy is not None:
            claimed.add(path)
            yield anatomy


def attention_like(model: nn.Module) -> list[str]:
    """Paths of modules that look like attention, understood or not, for error messages."""
    seen: dict[str, str] = {}
    for path, module in model.named_modules():
        name = type(module).__name__
        if any(word in name.lower() for word in ("attention", "attn")):
            seen.setdefault(name, f"{path} ({name}: {', '.join(n for n, _ in module.named_children()) or 'no parts'})")
    return list(seen.values())


def number(owner: Any, names: Iterable[str]) -> int | None:
    """The first of the named attributes that is a positive integer, or None."""
    for name in names:
        value = getattr(owner, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _anatomy(path: str, module: nn.Module, modules: dict[str, nn.Module], counted: bool) -> Anatomy | None:
    if isinstance(module, nn.MultiheadAttention):
        return _multihead(path, module)
    if all(isinstance(getattr(module, n, None), nn.Parameter) and getattr(module, n).ndim == 3 for n in "qkvo"):
        bare: nn.Parameter = getattr(module, "o")  # noqa: B009 - a parameter by its usual name
        heads, width = bare.shape[1:]
        return Anatomy(path, f"{path}:o", "q", "k", "v", "", "", heads, heads, width)
    if any(isinstance(getattr(module, mark, None), nn.Parameter) for mark in families.RECURRENT):
        return None
    parts = _parts(path, module)
    query, key, value = (_first(parts, names) for names in (families.QUERY, families.KEY, families.VALUE))
    # Short convolutions and gated units own an `in_proj`, too: one matrix is attention only under its name.
    named = "att" in type(module).__name__.lower() or "att" in path.rpartition(".")[2].lower()
    fused = _first(parts, families.FUSED) if named and not query else ""
    fused_kv = _first(parts, families.FUSED_KV) if query and not value else ""
    if not fused and not (query and (fused_kv or key)):
        return None
    output = _output(path, _first(parts, families.OUTPUT), modules)
    if not output:
        return None
    numbers = _counts(module, modules, path, query, key, fused, widths(modules[output])[0])
    if numbers is None and counted:
        return None
    heads, kv_heads, head_dim = numbers or (0, 0, 0)
    return Anatomy(path, output, query, "" if fused_kv else key, value, fused, fused_kv, heads, kv_heads, head_dim)


def _parts(path: str, module: nn.Module) -> dict[str, tuple[str, nn.Module]]:
    """The matrices that a module owns by name, each with its path: that of the matrix inside, where it is wrapped."""
    parts: dict[str, tuple[str, nn.Module]] = {}
    for name, child in module.named_children():
        if _projection(f"{path}.{name}".lstrip("."), child):
            parts[name] = (name, child)
            continue
        inner = next((n for n in families.WRAPPED if is_linear(getattr(child, n, None))), "")
        if inner and len([grandchild for grandchild in child.children() if is_linear(grandchild)]) == 1:
            parts[name] = (f"{name}.{inner}", child.get_submodule(inner))
    return parts


def _first(parts: dict[str, tuple[str, nn.Module]], names: Iterable[str]) -> str:
    """The path of the first of the named parts that is there, or ``."""
    found = next((name for name in names if name in parts), "")
    return parts[found][0] if found else ""


def _multihead(path: str, module: nn.MultiheadAttention) -> Anatomy:
    width = module.out_proj.weight.shape[1] // module.num_heads
    output = f"{path}.out_proj"
    return Anatomy(path, output, "", "", "", "in_proj_weight", "", module.num_heads, module.num_heads, width)


def _projection(path: str, child: nn.Module) -> bool:
    if hasattr(child, "base_layer") or hasattr(child, "lora_A"):
        raise BadInput(f"{path} is wrapped by an adapter ({type(child).__name__}); merge it into the weights "
                       "first (`model = model.merge_and_unload()`), then find heads.")  # fmt: skip
    name = type(child).__name__
    weight = getattr(child, "weight", None)
    quantised = callable(weight) or hasattr(child, "qweight") or any(
        mark in name for mark in ("4bit", "8bit", "Quant", "GPTQ", "AWQ"))  # fmt: skip
    if quantised and ("Linear" in name or hasattr(child, "qweight")):
        raise BadInput(f"{path} is quantised ({name}): its rows cannot be cut; dequantise first "
                       "(load the checkpoint without a quantisation config, or `model.dequantize()`).")  # fmt: skip
    return is_linear(child)


def _output(path: str, own: str, modules: dict[str, nn.Module]) -> str:
    if own:
        return f"{path}.{own}" if path else own
    parent = path.rpartition(".")[0]
    for name in families.SIBLING_OUTPUT:
        candidate = f"{parent}.{name}" if parent else name
        if is_linear(modules.get(candidate)):
            return candidate
    return ""


def _counts(
    module: nn.Module, modules: dict[str, nn.Module], path: str, query: str, key: str, fused: str, context: int,
) -> tuple[int, int, int] | None:  # fmt: skip
    """Heads, key/value heads and context width: from the module's own numbers, else from its config."""
    config = _config(module, modules, path)
    heads = number(module, families.HEAD_COUNTS)
    width = number(module, families.HEAD_WIDTHS)
    if heads is None or context % heads:
        heads = context // width if width and context % width == 0 else number(config, families.CONFIG_HEAD_COUNTS)
    if heads is None or context % heads:
        return None
    head_dim = context // heads
    kv_heads = number(module, families.KV_COUNTS)
    if kv_heads is None and fused:
        total = widths(module.get_submodule(fused))[1]
        kv_heads = (total // head_dim - heads) // 2 if total % head_dim == 0 else heads
    elif kv_heads is None and key:
        query_width = number(module, ("head_dim",)) or widths(module.get_submodule(query))[1] // heads
        kv_heads = widths(module.get_submodule(key))[1] // query_width
    kv_heads = kv_heads or heads
    return (heads, kv_heads, head_dim) if kv_heads <= heads and heads % kv_heads == 0 else None


def _config(module: nn.Module, modules: dict[str, nn.Module], path: str) -> Any:
    while True:
        config = getattr(module, "config", None)
        if config is not None and not isinstance(config, dict):
            return config
        if not path:
            return None
        path = path.rpartition(".")[0]
        module = modules[path]
