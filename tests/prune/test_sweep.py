"""One walk for many budgets: plans that hold one another, numbers that no way of running changes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.analysis.errors import BadInput
from headwise.analysis.sites import Site
from headwise.prune.importance.fisher import QuadraticCosts
from headwise.prune.selection import Budget, Keep, select
from headwise.prune.selection.path import walk

scenes = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 3),
        "groups": st.integers(1, 4),
        "per_group": st.integers(1, 2),
        "unit": st.sampled_from(["group", "even", "head"]),
        "scope": st.sampled_from(["model", "site", "uniform"]),
        "minimum": st.integers(0, 2),
        "most": st.integers(1, 24),
        "gone": st.integers(0, 1),
        "seed": st.integers(0, 99),
    }
)


@given(scenes)
@settings(max_examples=120, deadline=None)
def test_every_beginning_of_the_path_is_what_its_budget_alone_selects(scene):
    heads, generator = scene["groups"] * scene["per_group"], np.random.default_rng(scene["seed"])
    sites, forms = {}, {}
    for layer in range(scene["layers"]):
        kept = tuple(range(scene["gone"] * scene["per_group"], heads))
        sites[str(layer)] = Site(str(layer), f"l.{layer}", f"l.{layer}.o", heads, scene["groups"], 8, kept=kept)
        root = generator.normal(size=(len(kept), len(kept)))
        forms[str(layer)] = root @ root.T
    costs, how = QuadraticCosts(forms), {"scope": scene["scope"], "unit": scene["unit"]}
    how["keep"] = Keep(minimum_per_site=scene["minimum"])
    try:
        path = walk(sites, costs, Budget(heads=scene["most"]), **how)
    except BadInput:
        return
    for count in range(1, scene["most"] + 1):
        try:
            alone = select(sites, costs, Budget(heads=count), score="fisher", **how)
        except BadInput:
            continue
        found = path.beginning(count, "fisher")
        assert (found.remove, found.reasons) == (alone.remove, alone.reasons), count
        assert found.cost == alone.cost
