"""Positional roles in two dimensions: where patches lie, what heads look at, and what chance gives."""

import numpy as np
import pytest
import torch
from transformers import (
    BeitConfig,
    BeitModel,
    CLIPVisionConfig,
    CLIPVisionModel,
    DeiTConfig,
    DeiTModel,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    SiglipVisionConfig,
    SiglipVisionModel,
    SwinConfig,
    SwinModel,
    ViTConfig,
    ViTForImageClassification,
)

from headwise.analysis.capture import capture
from headwise.analysis.capture.seen import Seen
from headwise.analysis.corpus.batching import Batch
from headwise.analysis.corpus.grids import Grid, grid_of
from headwise.analysis.corpus.texts import Text
from headwise.analysis.errors import BadInput
from headwise.analysis.roles import ROLES
from headwise.analysis.roles.assignment import assign, inferred
from headwise.analysis.roles.mass import RelationMass
from headwise.analysis.roles.offsets import FixedOffset
from headwise.analysis.roles.relation import View
from headwise.analysis.sites import Site, find_sites
from headwise.analysis.statistics import Statistics

#: An image of 3 by 4 patches behind two learned tokens.
GRID = Grid(before=2, rows=3, columns=4)
TOKENS = 14
IMAGE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
         "image_size": 24, "patch_size": 4}  # fmt: skip


def place(token):
    """Row and column of a token, None where it is no patch."""
    return None if token < GRID.before else divmod(token - GRID.before, GRID.columns)


def related(role, query, key):
    """By hand: does the key stand in the role's place beside the query?"""
    if role in ("first-token", "separator"):
        return key == 0 if role == "first-token" else key == 1
    mine, other = place(query), place(key)
    if mine is None or other is None:
        return False
    step = other[0] - mine[0], other[1] - mine[1]
    wanted = {"previous": (0, -1), "next": (0, 1), "above": (-1, 0), "below": (1, 0), "self": (0, 0)}
    return max(map(abs, step)) <= 2 if role == "window" else step == wanted[role]


def site(heads=2):
    return Site("0", "a", "a.o", heads, heads, 1, kept=tuple(range(heads)))


def seen_of(maps, **more):
    every = torch.ones(len(maps), TOKENS, TOKENS, dtype=torch.bool)
    given = {"grid": GRID, "query_stream": None, "key_stream": None} | more
    return Seen(site(maps.shape[1]), maps, None, every[:, :, 0], every, **given)


def in_tiles(reducer, batch, maps, step):
    whole = seen_of(maps)
    for start in range(0, TOKENS, step):
        rows = slice(start, start + step)
        part = Seen(whole.site, maps[:, :, rows], None, whole.queries[:, rows], whole.allowed[:, rows], None, None,
                    start=start, grid=GRID)  # fmt: skip
        reducer.update(batch, {"0": part})


POSITIONAL = ("previous", "next", "above", "below", "self", "window", "first-token", "separator")


@pytest.mark.parametrize("step", [TOKENS, 5])
def test_scores_and_chance_are_those_counted_by_hand(step):
    torch.manual_seed(0)
    maps = torch.rand(3, 2, TOKENS, TOKENS).softmax(-1)
    reducer = RelationMass({"0": site()}, ROLES)
    in_tiles(reducer, Batch({}, [Text(str(i)) for i in range(3)], {}), maps, step)
    found = reducer.result()
    for role in POSITIONAL:
        rows, score, chance = 0, np.zeros(2), 0.0
        for text in range(3):
            for query in range(TOKENS):
                keys = [key for key in range(TOKENS) if related(role, query, key)]
                if keys:
                    rows += 1
                    score += maps[text, :, query, keys].sum(-1).numpy()
                    chance += len(keys) / TOKENS
        assert found[f"roles/{role}/n"].tolist() == [rows, rows], role
        np.testing.assert_allclose(found[f"roles/{role}/score"], score / rows, rtol=1e-5, err_msg=role)
        np.testing.assert_allclose(found[f"roles/{role}/chance"], chance / rows, rtol=1e-6, err_msg=role)


def head_at(down, right, strength=0.6):
    """A head that puts so much on one place, the rest evenly; itself where the place is outside."""
    maps = torch.full((1, 1, TOKENS, TOKENS), (1 - strength) / TOKENS)
    for query in range(TOKENS):
        mine = place(query)
        key = query
        if mine is not None and 0 <= mine[0] + down < GRID.rows and 0 <= mine[1] + right < GRID.columns:
            key = GRID.before + (mine[0] + down) * GRID.columns + mine[1] + right
        maps[0, 0, query, key] += strength
    return maps


@pytest.mark.parametrize(("down", "right"), [(1, -2), (-2, 0), (1, 1), (0, 3)])
@pytest.mark.parametrize("step", [TOKENS, 5])
def test_an_offset_in_two_dimensions_is_found_and_measured(down, right, step):
    uniform = torch.full((1, 1, TOKENS, TOKENS), 1 / TOKENS)
    maps = torch.cat([head_at(down, right), uniform], dim=1)
    reducer = FixedOffset({"0": site()})
    for i in range(30):
        in_tiles(reducer, Batch({}, [Text(f"image {i}")], {}), maps, step)
    sums, offset = reducer.measured()
    assert (offset["down"][0], offset["right"][0]) == (down, right)
    assert np.isnan(offset["offset"]).all()
    tested = inferred(sums)
    assert tested["score"][0] == pytest.approx(0.6 + 0.4 / TOKENS, abs=1e-6)
    assert tested["chance"][0] == pytest.approx(1 / TOKENS, abs=1e-6)
    assert tested["excess"][1] == pytest.approx(0, abs=1e-6)
    inside = (GRID.rows - abs(down)) * (GRID.columns - abs(right))
    assert tested["n"][0] in [cells * inside for cells in range(12, 17)]
    assert assign({"fixed-offset": tested}, ROLES)["roles/fixed-offset/assigned"].tolist() == [True, False]


def test_distance_is_that_of_patches():
    statistics = Statistics({"0": site(1)})
    maps = head_at(2, 1, strength=1.0)
    contexts = torch.ones(1, TOKENS, 1, 1)
    seen = seen_of(maps)
    statistics.update(Batch({}, [Text("a")], {}), {"0": Seen(**{**vars(seen), "contexts": contexts})})
    # Of twelve patches three have one two down and one right, the others look at themselves.
    assert statistics.mean("distance")[0] == pytest.approx(3 * np.hypot(2, 1) / 12, abs=1e-6)
    unknown = Statistics({"0": site(1)})
    lost = Seen(**{**vars(seen), "contexts": contexts, "grid": None, "ordered": False})
    unknown.update(Batch({}, [Text("a")], {}), {"0": lost})
    assert np.isnan(unknown.mean("distance")).all()


TOWERS = {
    "vit": (lambda: ViTForImageClassification(ViTConfig(**IMAGE)), 1),
    "deit": (lambda: DeiTModel(DeiTConfig(**IMAGE)), 2),
    "dinov2": (lambda: Dinov2WithRegistersModel(Dinov2WithRegistersConfig(**IMAGE, num_register_tokens=4)), 5),
    "siglip": (lambda: SiglipVisionModel(SiglipVisionConfig(**IMAGE)), 0),
    "clip": (lambda: CLIPVisionModel(CLIPVisionConfig(**IMAGE)), 1),
    "beit": (lambda: BeitModel(BeitConfig(**IMAGE)), 1),
}


class Kept(Statistics):
    """Remembers how tokens lie."""

    def update(self, batch, seen):
        self.grids = {name: one.grid for name, one in seen.items()}
        super().update(batch, seen)


@pytest.mark.parametrize("name", TOWERS)
def test_the_grid_of_a_tower_is_read_from_its_own_tokens(name):
    make, before = TOWERS[name]
    model = make().eval()
    sites = {name: site for name, site in find_sites(model).items() if site.kind == "self"}
    pixels = torch.rand(2, 3, 24, 24)
    kept = Kept(sites)
    data = [Batch({"pixel_values": pixels}, [Text("a"), Text("b")], {})]
    roles = RelationMass(sites, ROLES)
    capture(model, data, [kept, roles], sites=sites)
    assert set(kept.grids.values()) == {Grid(before, 6, 6)}
    found = roles.result()
    assert found["roles/above/n"].tolist() == [2 * 30] * 8
    assert found["roles/previous/n"].tolist() == [2 * 30] * 8
    # Randomly initialised heads look evenly: nothing beyond the one patch in so many tokens.
    assert np.abs(found["roles/above/excess"]).max() < 0.02
    assert found["roles/first-token/n"][0] == (2 * (before + 36) if before else 0)
    assert found["roles/separator/n"][0] == (2 * (before + 36) if before > 1 else 0)
    path = next(iter(sites.values())).module
    wide = grid_of(model, path, torch.rand(1, 3, 16, 32), before + 32)
    assert wide == Grid(before, 4, 8)
    for pixels, tokens in ((torch.rand(1, 3, 24, 24), before + 35), (torch.rand(1, 2, 3, 24, 24), before + 36)):
        assert grid_of(model, path, pixels, tokens) is None


def test_without_a_known_place_nothing_is_beside_anything():
    view = View(None, None, torch.ones(1, 3, 3, dtype=torch.bool), same=False)
    assert all(role.relation(view) is None for role in ROLES.values() if role.relation is not None)
    with pytest.raises(BadInput, match="not of an image"):
        _ = view.beside


def test_windows_of_an_image_are_refused_with_the_reason():
    sizes = {"image_size": 24, "patch_size": 2, "embed_dim": 16, "depths": [1], "num_heads": [2], "window_size": 3}
    model = SwinModel(SwinConfig(**sizes)).eval()
    sites = find_sites(model)
    data = [Batch({"pixel_values": torch.rand(2, 3, 24, 24)}, [Text("a"), Text("b")], {})]
    with pytest.raises(BadInput, match="attends within 16 windows of each image"):
        capture(model, data, [Statistics(sites)], sites=sites)
