"""Images and clips to batches: the checkpoint's processor makes the inputs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headwise.analysis.corpus.batching import Batch, Batches, Tokens, accepted
from headwise.analysis.corpus.encoding import Row, encode
from headwise.analysis.corpus.media import Media
from headwise.analysis.corpus.texts import Corpus, Text
from headwise.analysis.devices import home
from headwise.analysis.errors import BadInput
from headwise.analysis.gates.hooked import hooked
from headwise.analysis.gates.still import still

#: Samples of two stretches of silence, which tell whether a processor brings all clips to one length.
_TRIED = (8000, 16000)


class MediaBatches(Batches):
    """Batches of images or clips, to be iterated as often as wished, each pass the same.

    Nothing is padded but by the processor itself: clips of different lengths go in different batches, because
    several families look at padding. What a decoder writes, or the text beside an image, is the example's pair.
    """

    def __init__(
        self, corpus: Corpus, processor: Any, *, batch_size: int, device: Any = None, sort: bool = True,
        model: Any = None,
    ) -> None:  # fmt: skip
        kinds = sorted({text.media.kind if text.media is not None else "text" for text in corpus.texts})
        if len(kinds) != 1:
            raise BadInput(f"{corpus.source}: {' and '.join(kinds)} in one corpus; give one of them")
        if batch_size < 1:
            raise BadInput(f"batch size: got {batch_size}, expected at least 1")
        self.corpus, self.batch_size, self.model, self.kind = corpus, batch_size, model, kinds[0]
        self.maker = _maker(processor, self.kind, corpus.source)
        self.tokenizer = getattr(processor, "tokenizer", None)
        self.device = torch.device(device or (home(model) if model is not None else "cpu"))
        self.truncated, self.skipped, self.limit = 0, 0, None
        self._left, self._positions = False, False
        self._accepted = accepted(model) if model is not None else None
        self._is_pair = model is not None and bool(getattr(model.config, "is_encoder_decoder", False))
        self._groups = self._grouped(sort)

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Batch]:
        for group in self._groups:
            yield self._made(group, self._width)

    @property
    def mark(self) -> str:
        """Sixteen hex digits that name the examples in the order in which they come."""
        order = "".join(self.corpus.texts[i].id for group in self._groups for i in group)
        return hashlib.sha256(order.encode()).hexdigest()[:16]

    def _grouped(self, sort: bool) -> list[tuple[int, ...]]:
        """The examples of every batch by their position; the longest clips first."""
        lengths = [self._samples(text.media) for text in self.corpus.texts]
        order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)) if sort else range(len(lengths))
        groups: list[list[int]] = []
        for i in order:
            if groups and len(groups[-1]) < self.batch_size and lengths[groups[-1][0]] == lengths[i]:
                groups[-1].append(i)
            else:
                groups.append([i])
        return [tuple(group) for group in groups]

    def _samples(self, media: Media | None) -> int:
        if media is None or self.kind == "image" or self._one_length:
            return 0
        return math.ceil(media.seconds * self._rate - 1e-6)

    @property
    def _rate(self) -> int:
        return int(self.maker.sampling_rate)

    @cached_property
    def _one_length(self) -> bool:
        """Whether the processor brings clips of any length to one (Whisper, AST)."""
        shapes = [
            {name: value.shape for name, value in self._inputs([np.zeros(count, np.float32)]).items()}
            for count in _TRIED
        ]
        return shapes[0] == shapes[1]

    def _inputs(self, shown: list[Any]) -> dict[str, Tensor]:
        """What the processor makes of decoded images or waves, as far as the model takes it."""
        if self.kind == "image":
            found = self.maker(images=shown, return_tensors="pt")
        else:
            found = self.maker(shown, sampling_rate=self._rate, return_tensors="pt")
        return {name: self._moved(value) for name, value in found.items() if self._takes(name)}

    def _takes(self, name: str) -> bool:
        return self._accepted is None or name in self._accepted

    def _moved(self, value: Tensor) -> Tensor:
        # Weights in half precision take pixels and waves in half precision alone.
        if value.is_floating_point() and self.model is not None:
            value = value.to(next(self.model.parameters()).dtype)
        return value.to(self.device)

    def _made(self, index: tuple[int, ...], width: int) -> Batch:
        texts = [self.corpus.texts[i] for i in index]
        media = [text.media for text in texts if text.media is not None]
        inputs = self._inputs([one.image() if self.kind == "image" else one.wave(self._rate) for one in media])
        streams: dict[str, Tokens] = {}
        targets = None
        if self._is_pair and self._takes("decoder_input_ids"):
            streams["decoder"], targets = self._decoder(self._written(texts))
            inputs["decoder_input_ids"] = streams["decoder"].ids
            if self._takes("decoder_attention_mask"):
                inputs["decoder_attention_mask"] = streams["decoder"].valid.long()
        elif self._accepted is not None and "input_ids" in self._accepted and self.kind == "image":
            streams[""] = self._tokens(encode(self._pairs(texts), self.tokenizer, None), False)
            inputs["input_ids"], inputs["attention_mask"] = streams[""].ids, streams[""].valid.long()
        return Batch(inputs, texts, streams, index, targets, width)

    def _written(self, texts: list[Text]) -> list[Row]:
        """What is said of the images or clips, as a decoder should write it."""
        rows = encode(self._pairs(texts), self.tokenizer, self._most_written)
        # Whisper's tokenizer begins a text with the decoder's start token, which comes before it anyway.
        return [row.without_first() if len(row.ids) > 1 and row.ids[0] == self._start else row for row in rows]

    @property
    def _most_written(self) -> int | None:
        """Tokens that a decoder has positions for."""
        positions = getattr(self.model.config, "max_target_positions", None)
        return positions if isinstance(positions, int) and positions > 0 else None

    def _pairs(self, texts: list[Text]) -> list[Text]:
        """What is said of the images or clips, as texts of their own.

        Raises:
            BadInput: nothing is said, or there is no tokenizer to read it.
        """
        name = type(self.model).__name__
        if self.tokenizer is None:
            raise BadInput(f"{name} reads text beside the {self.kind}, but no processor with a tokenizer was opened")
        if any(text.pair is None for text in texts):
            raise BadInput(
                f"{self.corpus.source}: {name} wants a text for each {self.kind} (what is said in it, or of it); "
                "name its column (`pair:`)"
            )
        return [Text(text.pair or "") for text in texts]

    @cached_property
    def _width(self) -> int:
        """Positions of the longest attention block, found by one example: what a budget of memory needs."""
        if self.model is None or not self._groups:
            return 0
        return positions_of(self.model, self._made(self._groups[0][:1], 0).inputs)


def _maker(processor: Any, kind: str, source: str) -> Any:
    """The part of a processor that takes images or waves."""
    names = ("image_processor",) if kind == "image" else ("feature_extractor", "audio_processor")
    part = next((found for name in names if (found := getattr(processor, name, None)) is not None), processor)
    fits = (
        hasattr(part, "sampling_rate") if kind == "audio" else "pixel_values" in getattr(part, "model_input_names", ())
    )
    if not fits:
        raise BadInput(
            f"{source}: {kind}s need a checkpoint with a processor of {kind}s, got {type(processor).__name__}; "
            "give texts, or a model that takes them"
        )
    return part


def positions_of(model: nn.Module, inputs: Mapping[str, Any]) -> int:
    """Positions of the longest attention block for one example, found by a pass over it.

    Where a block goes over an image by windows, the side of a square with as many entries as its maps have.

    >>> from transformers import ViTConfig, ViTModel
    >>> sizes = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 4}
    >>> model = ViTModel(ViTConfig(**sizes, image_size=8, patch_size=4))
    >>> positions_of(model, {"pixel_values": torch.ones(1, 3, 8, 8)})
    5
    """
    from headwise.analysis.sites import find_sites

    sizes = [1]

    def look(_module: nn.Module, given: Any) -> None:
        if given and isinstance(given[0], Tensor) and given[0].dim() > 2:
            rows, length = given[0].shape[:-1].numel(), given[0].shape[-2]
            sizes.append(math.ceil(math.sqrt(rows * length)))

    paths = {site.output.partition(":")[0] for site in find_sites(model).values()}
    watches = (model.get_submodule(path).register_forward_pre_hook(look) for path in paths)
    with hooked(watches), still(model), torch.no_grad():
        model(**inputs)
    return max(sizes)
