"""Hooks of one pass over the data: what the attention modules hand out, site by site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headwise.analysis.capture.maps import probabilities, rows_that_count
from headwise.analysis.capture.seen import Seen, Visibility, streams_of
from headwise.analysis.corpus.batching import Batch
from headwise.analysis.corpus.grids import Grid, grid_of
from headwise.analysis.devices import home
from headwise.analysis.errors import BadInput
from headwise.analysis.sites import Site

#: Bytes of the largest block that glibc does not map apart (M_MMAP_THRESHOLD, 32 MB on 64-bit), less its own header.
_LARGEST = 32 * 2**20 - 2**13


class Hooks:
    """The hooks of one pass, and what they caught in the last forward pass."""

    def __init__(self, model: nn.Module, sites: Mapping[str, Site], needs: frozenset[str]) -> None:
        self.model, self.sites, self.needs = model, sites, needs
        # Heads of a spread model are compared with one another, so they have to meet.
        self.home = home(model)
        self.outputs: dict[str, list[Any]] = {}
        self.inputs: dict[str, list[Any]] = {}
        self.element: dict[str, int] = {}
        self.excluded: dict[str, int] = {}
        self.sinks = {
            name
            for name, site in sites.items()
            if any("sink" in path for path, _ in model.get_submodule(site.module).named_parameters())
        }
        self._handles: list[Any] = []
        self._grids: dict[Any, Grid | None] = {}
        self._maps_at: dict[str, int] = {}

    def __enter__(self) -> Hooks:
        _keep_freed_memory()
        try:
            for path in dict.fromkeys(site.module for site in self.sites.values()):
                if "maps" in self.needs:
                    self._handles.append(self._watch_output(path))
            for path in dict.fromkeys(site.output for site in self.sites.values()):
                if "contexts" in self.needs:
                    self._handles.append(self._watch_input(path))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.forget()

    def forget(self) -> None:
        """Drop what the last forward pass left."""
        self.outputs.clear()
        self.inputs.clear()

    def _watch_output(self, path: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            self.outputs.setdefault(path, []).append(self._only_maps(path, output))

        return self.model.get_submodule(path).register_forward_hook(hook)

    def _watch_input(self, path: str) -> Any:
        if ":" in path:
            raise BadInput(
                f"{path} is read without being called, so that its contexts cannot be seen; leave its site "
                "out with sites=, or ask only for measures of maps."
            )

        def hook(_module: nn.Module, inputs: Any) -> None:
            self.inputs.setdefault(path, []).append(inputs[0])

        return self.model.get_submodule(path).register_forward_pre_hook(hook)

    def _only_maps(self, path: str, output: Any) -> Any:
        """A module's output without what is never looked at, once it is known where its maps stand."""
        at = self._maps_at.get(path)
        if at is None or not isinstance(output, tuple | list) or at >= len(output) or not _is_map(output[at]):
            return output
        return tuple(part if i == at else None for i, part in enumerate(output))

    def look(self, batch: Batch) -> Iterator[dict[str, Seen]]:
        """What the last forward pass showed, all sites at once; forgets it afterwards.

        Each yield is told apart by `Seen.start`; rows that had to be left out are counted in `excluded`.
        """
        visible = Visibility(batch)
        seen = {name: self._look_at(site, batch, visible) for name, site in self.sites.items()}
        self.forget()
        seen, self.excluded = rows_that_count(seen, self.sinks)
        yield seen

    def _look_at(self, site: Site, batch: Batch, visible: Visibility) -> Seen:
        # A site that lost every head runs a ghost in their place, which nobody wants to see.
        present, real = max(1, len(site.kept)), len(site.kept)
        maps = contexts = None
        if "contexts" in self.needs:
            contexts = by_head(site, self.caught(self.inputs, site, site.output), present)[:, :, :real].to(self.home)
        if "maps" in self.needs:
            output = self.caught(self.outputs, site, site.module)
            known = self.element.get(site.name)
            maps, at = probabilities(site, output, len(batch.texts), present, known)
            self.element[site.name] = self._maps_at[site.module] = at
            maps = maps[:, :real].to(self.home)
        length = maps.shape[2] if maps is not None else contexts.shape[1] if contexts is not None else 0
        width = maps.shape[3] if maps is not None else visible.width(site, length)
        module = self.model.get_submodule(site.module)
        queries, allowed = visible(site, module, maps, length, width)
        streams = streams_of(site, batch.tokens)
        return Seen(site, maps, contexts, queries, allowed, *streams, **self.laid_out(site, batch, streams, width))

    def laid_out(self, site: Site, batch: Batch, streams: tuple[str | None, str | None], width: int) -> dict[str, Any]:
        """How a site's tokens lie in an image, if they are not those of a text or a clip."""
        pixels = batch.inputs.get("pixel_values")
        if streams != (None, None) or pixels is None:
            return {}
        key = site.module, width, tuple(pixels.shape)
        if key not in self._grids:
            self._grids[key] = grid_of(self.model, site.module, pixels, width) if site.kind == "self" else None
        return {"grid": self._grids[key], "ordered": self._grids[key] is not None}

    def caught(self, caught: Mapping[str, list[Any]], site: Site, path: str) -> Any:
        """What the site's own call of a module left, checked against the number of calls."""
        times = len(caught.get(path, ()))
        expected = max(site.calls, 1)
        if times != expected:
            raise BadInput(
                f"site {site.name}: the hook on {path} fired {times} times in one forward pass, expected "
                f"{expected}. The module is called another way (a fast or fused path skips it): "
                "run the model with plain modules, or leave this site out with sites=."
            )
        return caught[path][site.call]


def _keep_freed_memory() -> None:
    """Have the C library keep what a batch frees for the next one.

    Maps of all sites are alive until they are looked at. glibc gives such an amount back to the system when it is
    freed, and the next batch gets it page by page, which takes as long as the statistics; unless it has seen a block
    of the largest size that it treats so come and go. The block is never written to. Other libraries do not care.
    """
    torch.empty(_LARGEST, dtype=torch.uint8)


def _is_map(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dim() == 4


def by_head(site: Site, projected: Tensor, heads: int) -> Tensor:
    """The projection's input as [batch, query, head, head_dim], in float32.

    Raises:
        BadInput: the input has another width than the site's description says.
    """
    if projected.dim() != 3 or projected.shape[-1] != heads * site.head_dim:
        raise BadInput(
            f"site {site.name}: {site.output} gets {tuple(projected.shape)}, expected [batch, query, "
            f"{heads * site.head_dim}] ({heads} heads of width {site.head_dim}). The site is described "
            "wrongly: find it again with find_sites(model)."
        )
    return projected.float().reshape(*projected.shape[:2], heads, site.head_dim)
