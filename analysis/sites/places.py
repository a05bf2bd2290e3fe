"""Places: which stack, kind and depth a module's path speaks of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

# Words of a path, as people call the stack: what it reads, else the first part that says what it does.
_TOWERS = (
    ("vision", ("vision", "visual", "image", "vit", "pixel")),
    ("text", ("text", "language", "llm", "thinker")),
    ("audio", ("audio", "speech", "acoustic")),
)
_HALVES = ("encoder", "decoder")
_CROSS = ("cross", "encoder_attn", "encdecattention", "enc_dec", "encoder_decoder_att")
_POOL = ("pool",)


def places(paths: Sequence[str]) -> list[tuple[str, str, int]]:
    """Stack, kind and layer of each attention module, from its path alone.

    The layer is the number in the path; where a path holds several (stages of blocks), or two modules of
    a kind share one, it is the running count within the stack.

    >>> places(["encoder.layers.0.self_attn", "decoder.layers.0.self_attn", "decoder.layers.0.encoder_attn"])
    [('encoder', 'self', 0), ('decoder', 'self', 0), ('decoder', 'cross', 0)]
    >>> places(["h.0.attn", "h.1.attn"])
    [('', 'self', 0), ('', 'self', 1)]
    """
    split = [_split(path) for path in paths]
    kinds = [_kind(path, tail) for path, (_, _, tail) in zip(paths, split, strict=True)]
    stacks = _stacks([head for head, _, _ in split], kinds)
    counted: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, (stack, kind) in enumerate(zip(stacks, kinds, strict=True)):
        counted[stack, kind].append(index)
    layers = [0] * len(paths)
    for members in counted.values():
        numbers = [split[index][1] for index in members]
        simple = all(len(n) == 1 for n in numbers) and len({n[0] for n in numbers}) == len(numbers)
        for order, index in enumerate(members):
            layers[index] = split[index][1][0] if simple else order
    return list(zip(stacks, kinds, layers, strict=True))


def _split(path: str) -> tuple[str, list[int], str]:
    """What stands before the first number, the numbers, and what stands behind the last."""
    parts = path.split(".")
    at = [i for i, part in enumerate(parts) if part.isdigit()]
    if not at:
        return path, [], parts[-1]
    # T5 numbers the sub-layers of a block: `block.3.layer.1.EncDecAttention` is layer 3.
    numbers = [int(parts[i]) for i in at]
    if len(at) == 2 and parts[at[1] - 1] == "layer" and parts[at[0] - 1] == "block":
        numbers = numbers[:1]
    return ".".join(parts[: at[0]]), numbers, ".".join(parts[at[-1] + 1 :])


def _kind(path: str, tail: str) -> str:
    lowered = tail.lower()
    if any(word in lowered for word in _CROSS):
        return "cross"
    if any(word in path.lower() for word in _POOL) or (path.endswith("head.attention")):
        return "pool"
    return "self"


def _stacks(heads: list[str], kinds: list[str]) -> list[str]:
    """A name per module, empty where all (but pooling heads) live in one list of layers."""
    own = {head for head, kind in zip(heads, kinds, strict=True) if kind != "pool"}
    if len(own) <= 1:
        return [""] * len(heads)
    names = {head: _name(head) for head in own}
    taken = list(names.values())
    for head, name in names.items():
        if taken.count(name) > 1:
            names[head] = _longer(head, name)
    return [names.get(head) or _name(head) for head in heads]


def _name(head: str) -> str:
    words = head.lower()
    tower = next((name for name, marks in _TOWERS if any(mark in words for mark in marks)), "")
    # `decoder.bert.encoder` is a decoder: the outer part decides.
    half = next((half for part in words.split(".") for half in _HALVES if half in part), "")
    return tower or half or head.split(".")[0]


def _longer(head: str, name: str) -> str:
    """A stack name that tells two stacks of one tower apart: `text.encoder`, `text.decoder`."""
    rest = [
        part for part in head.lower().split(".") if part not in ("model", "layers", "layer", "blocks", "block", name)
    ]
    inner = next((word for word in ("encoder", "decoder") if word != name and any(word in part for part in rest)), "")
    return f"{name}.{inner}" if inner else "-".join(rest) or name
