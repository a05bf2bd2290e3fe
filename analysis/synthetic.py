"""Synthetic inputs: a small batch that a model of any modality accepts, made from its configuration."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headwise.analysis.errors import BadInput

LENGTH = 12


def synthetic_inputs(model: nn.Module, *, seed: int = 0) -> dict[str, Any]:
    """Inputs for one forward pass: the first of a few candidates that the model runs with.

    They mean nothing and reach what their kinds reach; they serve to compare a model with itself.

    Args:
        model: a `transformers` model; run once or more, without gradients.
        seed: of the random tokens, pixels and waves.

    Raises:
        BadInput: if the model ran with none of the candidates, with what the last one met.

    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(num_hidden_layers=1, num_attention_heads=2, hidden_size=16)).eval()
    >>> synthetic_inputs(model)["input_ids"].shape
    torch.Size([2, 12])
    """
    met: list[str] = []
    for inputs in _candidates(model, seed):
        try:
            with torch.no_grad():
                output = model(**inputs)
        except Exception as error:
            met.append(f"{sorted(inputs)}: {type(error).__name__}: {str(error).strip()[:160]}")
            continue
        if _finite(output):
            return inputs
        met.append(f"{sorted(inputs)}: the output is not finite")
    raise BadInput(
        f"{type(model).__name__}: no synthetic input fits its forward ({'; '.join(dict.fromkeys(met[:2]))}); pass real ones"
    )


def main_output(output: Any) -> Tensor:
    """Every floating tensor of a model's output, flattened in order, as float64 (caches left out)."""
    return torch.cat([tensor.detach().double().flatten() for tensor in _tensors(output)])


def _finite(output: Any) -> bool:
    tensors = list(_tensors(output))
    return bool(tensors) and all(bool(torch.isfinite(tensor).any()) for tensor in tensors)


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.is_floating_point() and output.numel():
            yield output
    elif isinstance(output, dict):
        for name, value in output.items():
            if not any(word in str(name) for word in ("past", "cache", "attentions", "hidden_states", "loss")) or (
                str(name) in ("last_hidden_state", "image_hidden_states")
            ):
                yield from _tensors(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from _tensors(value)


# ------------------------------------------------------------------------------------------------ candidates
def _candidates(model: Any, seed: int) -> Iterator[dict[str, Any]]:
    draw = _Draw(model, seed)
    names = [name for name in inspect.signature(model.forward).parameters if name not in ("kwargs", "args")]
    makers = draw.makers()
    full = {name: makers[name]() for name in names if name in makers}
    images = [name for name in full if name in _IMAGES]
    # Text alone first where there is text: pixels want their own placeholder tokens in it.
    if "input_ids" in full and images and not draw.both:
        yield {name: value for name, value in full.items() if name not in _IMAGES}
    yield full
    if images:
        for shape in draw.image_shapes():
            yield {**full, **{name: draw.noise(*shape) for name in images if name == "pixel_values"}}
        yield {name: value for name, value in full.items() if name not in _IMAGES}
    for dropped in ("attention_mask", "decoder_input_ids", "position_ids", "token_type_ids", "pixel_mask", "bbox"):
        if dropped in full:
            yield {name: value for name, value in full.items() if name != dropped}
    if "input_ids" not in full and "inputs_embeds" in names:
        yield {**full, "inputs_embeds": draw.noise(2, LENGTH, draw.width())}
    for length in (64, 128, 400, 1600, 3200):
        for name, shape in draw.signal_shapes(length):
            if name in names:
                yield {name: draw.noise(*shape)} | (
                    {"decoder_input_ids": draw.ids()[:, :7]} if "decoder_input_ids" in names else {}
                )
    for shape in draw.signal_shapes(LENGTH):
        yield {names[0]: draw.noise(*shape[1])}
    yield {names[0]: draw.noise(2, LENGTH, draw.width())}


_IMAGES = ("pixel_values", "pixel_mask", "image_grid_thw", "image_sizes", "spatial_shapes", "pixel_attention_mask",
           "pixel_values_videos", "video_grid_thw", "mm_token_type_ids", "image_position_ids", "grid_thw")  # fmt: skip


class _Draw:
    """Random tensors in the sizes that a configuration speaks of."""

    def __init__(self, model: Any, seed: int) -> None:
        self.config = model.config
        self.parameter = next(model.parameters())
        self.generator = torch.Generator().manual_seed(seed)
        # Dual encoders want both modalities at once.
        self.both = not getattr(model, "can_generate", lambda: False)() and not self._get("image_token_id", 0)

    def _get(self, name: str, default: Any = None) -> Any:
        """A number of the configuration, or of the first part that has it."""
        own = getattr(self.config, name, None)
        if own is not None:
            return own
        parts = [getattr(self.config, part, None) for part in getattr(self.config, "sub_configs", ()) or ()]
        return next((value for part in parts if (value := getattr(part, name, None)) is not None), default)

    def width(self) -> int:
        return self._get("hidden_size") or self._get("d_model") or self._get("embed_dim") or 32

    def noise(self, *shape: int) -> Tensor:
        values = torch.randn(*shape, generator=self.generator)
        return values.to(dtype=self.parameter.dtype, device=self.parameter.device)

    def ids(self) -> Tensor:
        vocabulary = self._get("vocab_size", 64)
        special = [v for name in dir(self.config) if name.endswith(("token_id", "token_index"))
                   if isinstance(v := getattr(self.config, name, None), int)]  # fmt: skip
        plain = [token for token in range(3, min(vocabulary, 400)) if token not in special] or [0]
        chosen = torch.randint(0, len(plain), (2, LENGTH), generator=self.generator)
        return torch.tensor(plain)[chosen].to(self.parameter.device)

    def mask(self) -> Tensor:
        mask = torch.ones(2, LENGTH, dtype=torch.long, device=self.parameter.device)
        mask[1, LENGTH - 3 :] = 0
        return mask

    def image_shapes(self) -> list[tuple[int, ...]]:
        channels = self._get("num_channels", 3) or 3
        size = self._get("image_size", 32) or 32
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        patch = self._get("patch_size", 4) or 4
        patch = patch if isinstance(patch, int) else patch[0]
        frames = self._get("num_frames", 4) or 4
        return [(2, channels, height, width), (2, frames, channels, height, width), (2, channels, 64, 64),
                (2, 1, channels, height, width), (2, 16, channels * patch**2), (16, channels * patch**2),
                (2, channels, frames, height, width)]  # fmt: skip

    def signal_shapes(self, length: int) -> list[tuple[str, tuple[int, ...]]]:
        mel = self._get("num_mel_bins") or self._get("input_feat_per_channel") or self._get("feature_size") or 80
        return [("input_features", (2, mel, length)), ("input_features", (2, length, mel)), ("input_values", (2, length)),
                ("input_values", (2, 1, length)), ("input_values", (2, length, mel))]  # fmt: skip

    def makers(self) -> dict[str, Any]:
        ids = self.ids()
        return {
            "input_ids": lambda: ids, "attention_mask": self.mask, "decoder_input_ids": lambda: ids[:, :7],
            "pixel_values": lambda: self.noise(*self.image_shapes()[0]), "bbox": lambda: _boxes(ids),
            "visual_feats": lambda: self.noise(2, 4, self._get("visual_feat_dim", 32)),
            "visual_pos": lambda: self.noise(2, 4, self._get("visual_pos_dim", 4)),
        }  # fmt: skip


def _boxes(ids: Tensor) -> Tensor:
    corner = ids.remainder(8)
    return torch.stack([corner, corner, corner + 4, corner + 4], dim=-1)
