"""Synthetic inputs: a small batch that a model of any modality accepts, made from its configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headwise.analysis.errors import BadInput
from headwise.analysis.gates.still import same_way

TOKENS = 12
PATCHES = 16
WAVES = (TOKENS, 64, 128, 400, 1600, 4000)

# Names of inputs by what they hold, where forwards agree on them.
_PIXELS = ("pixel_values", "pixel_values_videos", "images", "image", "prompt_pixel_values", "prompt_masks")
_SIGNALS = ("input_features", "input_values", "audio_values", "past_values", "audio_mel")
_GRIDS = ("grid_thw", "image_grid_thw", "video_grid_thw", "target_sizes", "spatial_shapes")
#: What is seen or heard.
SENSES = (*_PIXELS, *_SIGNALS)
_MASKS = ("attention_mask", "input_features_mask", "feature_attention_mask", "audio_mel_mask", "pixel_attention_mask")


def synthetic_inputs(model: nn.Module, *, seed: int = 0) -> dict[str, Any]:
    """Inputs for one forward pass: the first of some candidates that the model runs with.

    They mean nothing and reach what their kinds reach; they serve to compare a model with itself.

    Args:
        model: a `transformers` model; run once or more, without gradients.
        seed: of the random tokens, pixels and waves.

    Raises:
        BadInput: if the model runs with none of the candidates, with what the first ones met.

    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(num_hidden_layers=1, num_attention_heads=2, hidden_size=16)).eval()
    >>> synthetic_inputs(model)["input_ids"].shape
    torch.Size([2, 12])
    """
    met: dict[str, str] = {}
    for inputs in _candidates(model, _Draw(model, seed)):
        try:
            with same_way(model), torch.no_grad():
                output = model(**inputs)
        except Exception as error:
            # Whatever a foreign forward raises, the next candidate may suit it.
            met.setdefault(f"{type(error).__name__}: {' '.join(str(error).split())[:160]}", ", ".join(sorted(inputs)))
            continue
        if _finite(output):
            return inputs
        met.setdefault("the output is not finite", ", ".join(sorted(inputs)))
    told = "; ".join(f"with {names or 'nothing'}: {error}" for error, names in list(met.items())[:3])
    raise BadInput(f"{type(model).__name__}: no synthetic input fits its forward ({told}); pass real ones")


def main_output(output: Any) -> Tensor:
    """Every floating tensor of a model's output, flattened in order, as float64; caches, maps and losses left out.

    >>> main_output({"logits": torch.ones(1, 2), "loss": torch.ones(())})
    tensor([1., 1.], dtype=torch.float64)
    """
    return torch.cat([tensor.detach().double().flatten() for tensor in _tensors(output)])


def _finite(output: Any) -> bool:
    tensors = list(_tensors(output))
    return bool(tensors) and all(bool(torch.isfinite(tensor).any()) for tensor in tensors)


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.is_floating_point() and output.numel():
            yield output
    elif isinstance(output, Mapping):
        aside = ("past", "cache", "attentions", "loss", "hidden_states")
        for name, value in output.items():
            if name == "last_hidden_state" or not any(word in str(name) for word in aside):
                yield from _tensors(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from _tensors(value)


# ------------------------------------------------------------------------------------------------ candidates
def _candidates(model: Any, draw: _Draw) -> Iterator[dict[str, Any]]:
    """Inputs to try: text, then the shapes that pixels and waves come in, each with fewer and fewer extras."""
    parameters = inspect.signature(model.forward).parameters
    names = [n for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    required = [n for n in names if parameters[n].default is inspect.Parameter.empty]
    scenes: list[dict[str, Callable[[], Any]]] = []
    if "input_ids" in names:
        # Pixels want their own placeholder tokens in the text, so text comes alone first, unless both are wanted.
        scenes += [draw.text()] if not draw.both else []
    pixels, signals = [n for n in _PIXELS if n in names], [n for n in _SIGNALS if n in names]
    if pixels or any(n in names for n in _GRIDS):
        scenes += draw.images()
    if signals:
        scenes += draw.signals()
    scenes += [draw.text(), {}]
    for scene in scenes:
        makers = {**draw.extras(), **scene}
        full = {name: makers[name]() for name in names if name in makers}
        full |= {name: draw.noise(2, TOKENS, draw.width) for name in required if name not in full}
        yield full
        without = {name: value for name, value in full.items() if name not in _MASKS or name in required}
        if len(without) < len(full):
            yield without
    yield {name: draw.noise(2, TOKENS, draw.width) for name in required[:1] or names[:1]}
    if len(required) == 1 and draw.features != draw.width:
        yield {required[0]: draw.noise(2, TOKENS, draw.features)}
    if "encoder_hidden_states" in names:
        # Decoders and query transformers that only run beside an encoder.
        encoded = {"encoder_hidden_states": draw.noise(2, TOKENS, draw.encoded)}
        own: dict[str, Any] = {n: draw.extras()[n]() for n in ("query_embeds", "input_ids") if n in names}
        yield {**dict(list(own.items())[:1]), **encoded}
        yield {**own, **encoded}
    if "inputs_embeds" in names:
        yield {"inputs_embeds": draw.noise(2, TOKENS, draw.width)}


class _Draw:
    """Random tensors in the sizes that a configuration speaks of."""

    def __init__(self, model: Any, seed: int) -> None:
        self.config = model.config
        parameter = next(model.parameters())
        self.dtype, self.device = parameter.dtype, parameter.device
        self.generator = torch.Generator().manual_seed(seed)
        self.width = self.number("hidden_size", "d_model", "embed_dim", "n_embd", default=32)
        self.features = self.number("input_dim", default=self.width)
        self.encoded = self.number("encoder_hidden_size", "cross_attention_hidden_size", default=self.width)
        self.channels = self.number("num_channels", "in_channels", "in_chans", "num_input_channels", default=3)
        self.patch = self.number("patch_size", default=4)
        # Dual encoders want both modalities at once.
        self.both = not model.can_generate() and not self.number("image_token_id", "image_token_index", default=0)

    def number(self, *names: str, default: int) -> int:
        """The first number among the named ones, of the configuration or of the first part that has it."""
        parts = [self.config, *(getattr(self.config, n, None) for n in getattr(self.config, "sub_configs", ()) or ())]
        for part in parts:
            for name in names:
                value = getattr(part, name, None)
                value = value[0] if isinstance(value, (list, tuple)) and value else value
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
        return default

    def noise(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator).to(dtype=self.dtype, device=self.device)

    def whole(self, values: Any) -> Tensor:
        return torch.as_tensor(values, dtype=torch.long, device=self.device)

    def ids(self, tokens: int = TOKENS) -> Tensor:
        """Random tokens that are not special."""
        special = {v for n in dir(self.config) if n.endswith(("token_id", "token_index"))
                   if isinstance(v := getattr(self.config, n, None), int)}  # fmt: skip
        plain = [t for t in range(3, min(self.number("vocab_size", default=64), 400)) if t not in special] or [0]
        chosen = torch.randint(0, len(plain), (2, tokens), generator=self.generator)
        return self.whole(plain)[chosen.to(self.device)]

    def mask(self, tokens: int = TOKENS) -> Tensor:
        """Ones; the second row ends in three padded places."""
        mask = torch.ones(2, tokens, dtype=torch.long, device=self.device)
        mask[1, tokens - 3 :] = 0
        return mask

    def text(self) -> dict[str, Callable[[], Any]]:
        ids = self.ids()
        return {
            "input_ids": lambda: ids, "attention_mask": self.mask, "decoder_input_ids": lambda: ids[:, :7],
            "qformer_input_ids": lambda: ids, "bbox": lambda: _boxes(ids),
        }  # fmt: skip

    def extras(self) -> dict[str, Callable[[], Any]]:
        """Inputs that a few kinds of model want besides."""
        return {
            **{name: value for name, value in self.text().items() if name != "attention_mask"},
            "visual_feats": lambda: self.noise(2, 4, self.number("visual_feat_dim", default=32)),
            "visual_pos": lambda: self.noise(2, 4, self.number("visual_pos_dim", default=4)),
            "query_embeds": lambda: self.noise(2, 4, self.width),
            "flattened_patches": lambda: torch.cat(
                [torch.ones(2, PATCHES, 2, dtype=self.dtype, device=self.device),
                 self.noise(2, PATCHES, self.number("patch_embed_hidden_size", default=768))], dim=-1),
            "image_attention_mask": lambda: torch.ones(2, TOKENS, 1, dtype=torch.long, device=self.device),
            "aspect_ratio_ids": lambda: self.whole([[1], [1]]),
            "aspect_ratio_mask": lambda: torch.ones(
                2, 1, self.number("max_num_tiles", default=4), dtype=torch.long, device=self.device),
            "image_position_ids": self.places, "pixel_position_ids": self.places,
            "num_patches": lambda: PATCHES, "use_cache": lambda: False,
        }  # fmt: skip

    def places(self) -> Tensor:
        """Row and column of each patch."""
        side = int(PATCHES**0.5)
        return self.whole([[[i // side, i % side] for i in range(PATCHES)]] * 2)

    def images(self) -> list[dict[str, Callable[[], Any]]]:
        """The shapes that pixels come in: pictures, clips, tiles, and patches with their grid."""
        c, size = self.channels, self.number("image_size", "img_size", default=32)
        frames = self.number("num_frames", "frames_per_clip", default=4)
        temporal = self.number("temporal_patch_size", default=2)
        flat = c * self.patch * self.patch
        shapes = [(2, c, size, size), (2, c, 64, 64), (2, frames, c, size, size), (2, 1, c, size, size),
                  (2, 2, c, size, size), (2, 1, 1, c, size, size), (2, 1, self.number("max_num_tiles", default=4), c, size, size),
                  (2, PATCHES, flat), (2, c, frames, size, size)]  # fmt: skip
        scenes: list[dict[str, Callable[[], Any]]] = [
            dict.fromkeys(_PIXELS, lambda shape=shape: self.noise(*shape)) | {
                "attention_mask": self.mask,
                "spatial_shapes": lambda: self.whole([[4, 4], [4, 4]]),
                "pixel_attention_mask": lambda: torch.ones(2, PATCHES, dtype=torch.long, device=self.device),
            }
            for shape in shapes
        ]  # fmt: skip
        for width in (flat * temporal, flat, self.width):
            packed = dict.fromkeys((*_PIXELS, "hidden_states"), lambda width=width: self.noise(PATCHES, width))
            scenes.append({**packed, **dict.fromkeys(_GRIDS, lambda: self.whole([[1, 4, 4]]))})
        pictures = dict.fromkeys(_PIXELS, lambda: self.noise(PATCHES, c, self.patch, self.patch))
        return [*scenes, {**pictures, **dict.fromkeys(_GRIDS, lambda: self.whole([[1, 4, 4]]))},
                {**pictures, **dict.fromkeys(_GRIDS, lambda: self.whole([[4, 4]]))}]  # fmt: skip

    def signals(self) -> list[dict[str, Callable[[], Any]]]:
        """The shapes that sounds and series come in, from short to long."""
        bins = self.number(
            "num_mel_bins",
            "input_feat_per_channel",
            "input_feat_size",
            "feature_size",
            "n_mels",
            "hidden_size",
            default=80,
        )
        lags = max(getattr(self.config, "lags_sequence", None) or [0])
        lengths = (self.number("max_length", "context_length", "prediction_length", "spec_size", default=TOKENS) + lags,
                   *WAVES,
                   2 * self.number("max_source_positions", default=TOKENS))  # fmt: skip
        inputs = self.number("num_input_channels", default=1)
        found: list[dict[str, Callable[[], Any]]] = []
        for length in dict.fromkeys(lengths):
            for shape in ((2, length, bins), (2, bins, length), (2, length), (2, 1, length), (2, 1, length, bins),
                          (2, length, inputs)):  # fmt: skip
                scene = dict.fromkeys((*_SIGNALS, "past_observed_mask"), lambda shape=shape: self.noise(*shape))
                scene["past_time_features"] = lambda length=length: self.noise(
                    2, length, self.number("num_time_features", default=1)
                )
                ones = lambda length=length: torch.ones(2, length, dtype=torch.long, device=self.device)  # noqa: E731
                found.append({**scene, **dict.fromkeys(_MASKS, ones)})
        return found


def _boxes(ids: Tensor) -> Tensor:
    corner = ids.remainder(8)
    return torch.stack([corner, corner, corner + 4, corner + 4], dim=-1)
