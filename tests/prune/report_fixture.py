"""A run folder as `headwise prune` leaves it, made of numbers that are known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from scipy.cluster.hierarchy import fcluster, leaves_list, linkage
from scipy.spatial.distance import squareform

ROLES = ("previous", "next", "self", "window", "first-token", "separator", "punctuation", "coreference", "broad")


def sites_of(shape: dict[str, tuple[int, int]], kv_share: int = 1) -> list[dict]:
    """Site facts: `shape` gives layers and heads of every stack (`` for a single one)."""
    sites = []
    for track, (layers, heads) in shape.items():
        for layer in range(layers):
            name = f"{track}.{layer}" if track else str(layer)
            stack, _, kind = track.rpartition(".")
            sites.append(
                {"name": name, "heads": heads, "kv_heads": heads // kv_share, "head_dim": 32, "layer": layer}
                | {"kind": kind or "self", "stack": stack}
            )
    return sites


def similarity_matrix(heads: int, rng: np.random.Generator) -> np.ndarray:
    """Correlations with a few families of like heads in them."""
    families = rng.integers(0, max(3, heads // 5), size=heads)
    centres = rng.normal(size=(families.max() + 1, 24))
    strength = rng.beta(2.2, 1.4, size=(heads, 1)) * 1.6
    vectors = strength * centres[families] + rng.normal(size=(heads, 24)) * 0.9
    matrix = np.corrcoef(vectors)
    np.fill_diagonal(matrix, 1.0)
    return (matrix + matrix.T) / 2


def evidence_arrays(heads: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    matrix = similarity_matrix(heads, rng)
    arrays = {"similarity/pearson": matrix.astype(np.float32)}
    arrays["similarity/cosine"] = np.clip(matrix + rng.normal(scale=0.05, size=matrix.shape), -1, 1).astype(np.float32)
    arrays["similarity/hellinger"] = np.clip(0.5 + matrix / 2, 0, 1).astype(np.float32)
    arrays["similarity_error/hellinger"] = np.full(matrix.shape, 0.0125, dtype=np.float32)
    arrays["similarity/pearson_chance"] = np.zeros_like(matrix, dtype=np.float32)
    arrays["similarity/cosine_chance"] = np.full(matrix.shape, 0.03, dtype=np.float32)
    distance = np.clip(1 - matrix, 0, None)
    np.fill_diagonal(distance, 0)
    tree = linkage(squareform(distance, checks=False), method="average")
    label = fcluster(tree, 0.5, criterion="distance")
    importance = rng.lognormal(mean=-4, sigma=1.1, size=heads)
    best = {number: max(np.flatnonzero(label == number), key=lambda i: importance[i]) for number in set(label)}
    arrays |= {
        "clusters/label": label.astype(np.int64),
        "clusters/present": np.arange(heads),
        "clusters/order": leaves_list(tree).astype(np.int64),
        "clusters/linkage": tree,
        "clusters/representative": np.array([best[label[i]] == i for i in range(heads)]),
        "importance/gradient": importance,
    }
    for name, high in (("entropy", 4.5), ("distance", 18.0), ("confidence", 0.9), ("context_norm", 2.0)):
        arrays[f"statistics/{name}"] = rng.uniform(0.1, high, size=heads)
    for role in ROLES:
        arrays |= role_arrays(role, heads, rng)
    return arrays


def role_arrays(role: str, heads: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    chance = np.full(heads, {"coreference": 0.31, "punctuation": 0.12, "broad": 0.5}.get(role, 0.04))
    playing = rng.random(heads) < 0.11
    excess = np.where(playing, rng.uniform(0.15, 0.6, heads), rng.normal(0, 0.01, heads)) * (1 - chance)
    half = rng.uniform(0.005, 0.03, heads)
    p = np.where(playing, 10 ** rng.uniform(-9, -4, heads), rng.uniform(0.1, 1, heads))
    found = {
        "score": chance + excess, "chance": chance, "excess": excess, "low": excess - half, "high": excess + half,
        "p": p, "q": np.minimum(1, p * 3), "n": np.full(heads, 4096.0), "assigned": playing,
    }  # fmt: skip
    return {f"roles/{role}/{name}": values for name, values in found.items()}


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def write_evidence(folder: Path, sites: list[dict], seed: int = 0) -> tuple[list[list], dict[str, np.ndarray]]:
    heads = [[site["name"], head] for site in sites for head in range(site["heads"])]
    arrays = evidence_arrays(len(heads), np.random.default_rng(seed))
    (folder / "evidence").mkdir(parents=True)
    save_file(arrays, folder / "evidence" / "arrays.safetensors")
    facts = {"sites": sites, "clusters": {"threshold": 0.5, "mean": 0.93, "low": 0.86, "high": 1.0}}
    write_json(folder / "evidence" / "evidence.json", {"schema": 1, "heads": heads, "facts": facts})
    return heads, arrays


def write_plan(folder: Path, model: str, heads: list[list], arrays: dict[str, np.ndarray], remove: int) -> None:
    """The lowest scores go; every head has a reason."""
    score, similarity = arrays["importance/gradient"], arrays["similarity/pearson"].copy()
    np.fill_diagonal(similarity, -2)
    order = np.argsort(score)
    gone = set(order[:remove].tolist())
    rank = {int(i): position for position, i in enumerate(order)}
    plan: dict = {"schema": 1, "model": model, "remove": {}, "reasons": {}, "score": {}}
    for i, (site, head) in enumerate(heads):
        plan["score"].setdefault(site, []).append(float(score[i]))
        other = int(similarity[i].argmax())
        like = f"{heads[other][0]}.{heads[other][1]} (r = {similarity[i, other]:.2f})"
        reason = f"kept: it stands for its group, which holds {like}"
        if i in gone:
            plan["remove"].setdefault(site, []).append(head)
            reason = f"score {rank[i] + 1} from below of {len(heads)}; its group keeps {like}"
        plan["reasons"].setdefault(site, {})[str(head)] = reason
    plan["budget"] = {"fraction": remove / len(heads), "scope": "model", "heads": remove}
    plan["expected"] = {"operation_ratio": 1.226, "parameters_removed": 1774080}
    plan["made_with"] = {"headwise": "0.1.0", "seed": 0}
    write_json(folder / "plan.json", plan)


def speed_facts() -> dict:
    rows = []
    for batch, length, dense, ratio, operations in (
        (1, 32, 8.12, 1.146, 1.207), (1, 128, 19.4, 1.012, 1.213), (8, 32, 41.3, 1.187, 1.207),
        (8, 128, 187.0, 1.219, 1.226),
    ):  # fmt: skip
        spread = 0.018 if batch == 8 else 0.05
        rows.append(
            {
                "batch": batch, "length": length,
                "dense_ms": {"median": dense, "low": dense * 0.98, "high": dense * 1.03},
                "cut_ms": {"median": dense / ratio, "low": dense / ratio * 0.98, "high": dense / ratio * 1.02},
                "ratio": {"median": ratio, "low": ratio - spread, "high": ratio + spread},
                "operation_ratio": operations, "significant": ratio - spread > 1,
            }
        )  # fmt: skip
    return {
        "schema": 1, "rows": rows, "parameters": {"dense": 22713216, "cut": 20939136},
        "bytes": {"dense": 90852864, "cut": 83756544}, "operations": {"dense": 5.52e9, "cut": 4.50e9}, "threads": 2,
        "drift": {"steady": False, "unsteady": [[1, 128]]},
        "notes": ["length 512 is more than the model's positions allow"],
    }  # fmt: skip


def accuracy_facts() -> dict:
    return {
        "schema": 1, "kind": "embedding-probe", "metric": "accuracy", "higher_is_better": True,
        "dense": {"value": 0.8031, "low": 0.7702, "high": 0.8347},
        "cut": {"value": 0.7953, "low": 0.7617, "high": 0.8274},
        "drop": 0.0078, "interval": [-0.0126, 0.0284], "upper": 0.0252, "p": 0.5034, "test": "McNemar, exact",
        "flips": {"lost": 21, "gained": 16}, "n": 636,
        "per_class": {"strings": {"n": 61, "dense": 0.84, "cut": 0.82},
                      "a|b <i>": {"n": 25, "dense": 0.76, "cut": 0.8}},
        "skipped": {"empty": 2}, "beside": {"macro-f1": {"dense": 0.79, "cut": 0.78}},
        "changed": [
            {"text": "Strings are <b>immutable</b> | sequences", "label": "strings",
             "dense": "strings", "cut": "a|b <i>", "score": {"dense": 1.0, "cut": 0.0}},
            {"text": "The with statement", "label": None, "dense": None, "cut": None,
             "score": {"dense": 1.0, "cut": 0.25}},
        ],
        "against_dense": {"agreement": 0.921, "kl": 0.034},
    }  # fmt: skip


def environment_facts(model: str, model_class: str, auto_class: str) -> dict:
    return {
        "schema": 1, "headwise": "0.1.0",
        "versions": {"python": "3.11.2", "torch": "2.13.0", "transformers": "5.24.0", "numpy": "2.3.5"},
        "seed": 0, "device": "cpu", "dtype": "float32", "threads": 2,
        "model": {"id": model, "revision": "c9745ed1", "class": model_class,
                  "auto_class": auto_class, "model_type": "bert", "hash": "5f3a9c1d2b7e4a60"},
        "texts": {
            "calibration": {"source": "embedded", "count": 1024, "hash": "9b1c22aa01f4e7d3", "overlap_removed": 3},
            "evaluation": {"source": "embedded", "count": 636, "hash": "1d7c55b0a3e99f42", "skipped": {"empty": 2}},
        },
        "started": "2025-06-02T10:15:04Z", "finished": "2025-06-02T10:17:31Z",
        "command": ["headwise", "prune", model, "--recipe", "quickstart"],
    }  # fmt: skip


RECIPE = """\
schema: 1
description: Remove heads that the others can replace.
model: {id: all-MiniLM-L6-v2}
score: {kind: redundancy}
remove: {fraction: 0.5}
limits: {drop: 0.02, speedup: 1.1}
seed: 0
"""


def write_run(
    folder: Path,
    shape: dict[str, tuple[int, int]] | None = None,
    *,
    model: str = "all-MiniLM-L6-v2",
    model_class: str = "BertModel",
    auto_class: str = "AutoModel",
    removed: float = 0.5,
    kv_share: int = 1,
    seed: int = 0,
    pruned: bool = True,
) -> Path:
    """Write a whole run folder, or with `pruned=False` what an analysis leaves, and return its path."""
    sites = sites_of(shape or {"": (6, 12)}, kv_share)
    heads, arrays = write_evidence(folder, sites, seed)
    write_json(folder / "environment.json", environment_facts(model, model_class, auto_class))
    if not pruned:
        return folder
    write_plan(folder, model, heads, arrays, remove=int(len(heads) * removed))
    proof = {site["name"]: 3.1e-7 + 1e-8 * i for i, site in enumerate(sites)}
    write_json(
        folder / "proof.json",
        {
            "schema": 1, "limit": 1e-5, "sites": proof, "worst": max(proof.values()), "passed": True,
            "bfloat16": {"worst": 4.1e-3, "limit": 1.6e-2},
            "end_to_end": {"difference": 2.4e-6, "floor": 1.9e-6, "floor_kernels": ["eager", "sdpa"]},
        },
    )  # fmt: skip
    errors = {
        s["name"]: {"error_before": 0.31 - 0.01 * i % 0.2, "error_after": 0.12 - 0.003 * i % 0.08}
        for i, s in enumerate(sites)
    }
    write_json(folder / "compensation.json", {"schema": 1, "kind": "reconstruction", "sites": errors})
    write_json(folder / "accuracy.json", accuracy_facts())
    write_json(folder / "speed.json", speed_facts())
    (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    for name in ("config.json", "headwise.json", "modeling_headwise.py", "modules.json", "model.safetensors"):
        (checkpoint / name).write_text("{}", encoding="utf-8")
    return folder


def edited(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes), encoding="utf-8")


HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=alert(1)>|`*_[a](http://evil.test)"
    "\x1b[31m\u202e\n# $x$ {{7*7}}'\""
)


def hostile_run(folder: Path) -> Path:
    """A run where every text that data can bring is hostile."""
    run = write_extras(write_run(folder, {"": (2, 4)}, model=HOSTILE))
    edited(run / "stability.json", score=HOSTILE, how=HOSTILE, again={"times": 0, "how": HOSTILE + HOSTILE})
    edited(run / "latency.json", setting={HOSTILE: HOSTILE})
    edited(run / "recovery.json", kind=HOSTILE)
    edited(run / "speed.json", kernel=HOSTILE, dtype=HOSTILE, device=HOSTILE, compiled=HOSTILE, notes=[HOSTILE])
    moved = {"before": 1.0, "after": 2.0, "moved": 1.0, "most": {"head": HOSTILE, "before": 1.0, "after": 2.0}}
    edited(
        run / "drift.json", statistics={HOSTILE: moved}, roles={HOSTILE: {"before": 1, "after": 0}},
        changed=[{"head": HOSTILE, "before": [HOSTILE], "after": [], "excess": {HOSTILE: [0.3, 0.1]}}],
    )  # fmt: skip
    facts = json.loads((run / "evidence" / "evidence.json").read_text())
    facts["facts"]["interventions"] = {
        HOSTILE: {"verdict": HOSTILE, "measured": HOSTILE, "heads": [HOSTILE], "effect": 1.0},
        "self": {"verdict": "not applicable", "reason": HOSTILE},
    }
    write_json(run / "evidence" / "evidence.json", facts)
    plan = json.loads((run / "plan.json").read_text())
    for site in plan["reasons"].values():
        for head in site:
            site[head] = HOSTILE
    edited(run / "plan.json", reasons=plan["reasons"], budget={HOSTILE: HOSTILE})
    edited(
        run / "accuracy.json", metric=HOSTILE, test=HOSTILE, kind=HOSTILE,
        per_class={HOSTILE: {"n": 1, HOSTILE: 0.5}},
        changed=[{"text": HOSTILE, "label": HOSTILE, "dense": HOSTILE, "cut": HOSTILE}],
    )  # fmt: skip
    edited(run / "compensation.json", kind=HOSTILE, sites={HOSTILE: {"error_before": 0.2, "error_after": 0.1}})
    (run / "recipe.yaml").write_text(
        f"description: {json.dumps(HOSTILE)}\n# ```\n# <script>alert(2)</script>\n"
        f"limits: {{{json.dumps(HOSTILE)}: 1}}\n"
    )
    path = run / "evidence" / "arrays.safetensors"
    arrays = load_file(path)
    role = HOSTILE.replace("/", "∕")
    arrays |= {
        name.replace("roles/broad/", f"roles/{role}/"): array
        for name, array in arrays.items()
        if name.startswith("roles/broad/")
    }
    arrays[f"roles/{role}/assigned"][:] = True
    save_file(arrays, path)
    return run


def write_extras(run: Path) -> Path:
    """What only some runs leave, added to a whole run: all that a report can show."""
    times = {"dense_ms": {"median": 3.0, "low": 2.9, "high": 3.1}, "cut_ms": {"median": 2.0, "low": 1.9, "high": 2.1}}
    timed = times | {"ratio": {"median": 1.5, "low": 1.4, "high": 1.6}, "significant": True}
    writing = {
        "batch": 1, "length": 32, "new_tokens": 16, "prefill": timed, "decode": timed | {"significant": False},
        "tokens_per_second": {"dense": 100.0, "cut": 125.0}, "cache_bytes": {"dense": 4096, "cut": 2048},
    }  # fmt: skip
    edited(
        run / "speed.json", forecast={"batch": 8, "length": 128, "asked": 160, "now": 187.0, "then": 151.5, "kept": True,
                  "measured": {"median": 153.4, "low": 152.0, "high": 155.0}},
        attention={**timed, "operation_ratio": 1.75, "blocks": ["a"]}, generation=[writing],
        memory={"dense": 5_000_000, "cut": 4_000_000}, kernel="sdpa", dtype="float32", device="cpu", compiled=None,
    )  # fmt: skip
    facts = json.loads((run / "evidence" / "evidence.json").read_text())
    facts["facts"]["interventions"] = {
        "previous": {
            "role": "previous", "reason": "", "says": "Causal: without 0.1, 0.2 …", "as_harmful": 0,
            "measured": "the loss on repeated words", "count": 8, "probe": "repetition",
            "verdict": "causal", "heads": ["0.1", "0.2"], "base": 1.0, "silenced": 2.5,
            "effect": 1.5, "random": {"mean": 0.1, "low": 0.0, "high": 0.3, "max": 0.4}, "draws": 50, "p": 0.0196,
        },
        "broad": {"verdict": "not applicable", "reason": "no behaviour is known for it", "random": None, "heads": [],
                  "probe": None, "measured": None, "effect": None},
    }  # fmt: skip
    write_json(run / "evidence" / "evidence.json", facts)
    write_json(
        run / "stability.json",
        {
            "schema": 1, "score": "gradient", "tau": 0.81, "low": 0.77, "high": 0.85, "resamples": 20, "how": "by text",
            "even": 2,
            "again": {
                "times": 6, "removed": 3, "share": 0.75, "least": 0.5, "most": 1.0, "chance": 0.375, "always": 1,
                "heads": {"0": {"1": 6}}, "how": "on halves",
            },
        },
    )  # fmt: skip
    write_json(
        run / "drift.json",
        {
            "schema": 1, "texts": 64, "heads": 2, "looked_for": ["self"], "roles": {"self": {"before": 1, "after": 0}},
            "changed": [{"head": "0.1", "before": ["self"], "after": [], "excess": {"self": [0.31, 0.002]}}],
            "statistics": {"entropy": {"before": 1.5, "after": 1.75, "moved": 0.25,
                                       "most": {"head": "0.2", "before": 1.0, "after": 1.9}}},
        },
    )  # fmt: skip
    write_json(
        run / "recovery.json",
        {"schema": 1, "kind": "distil", "epochs": 2, "loss": {"before": 0.5, "after": 0.25}, "path": [0.5, 0.3, 0.25],
         "texts": 70, "held_out": 10, "lora": 8,
         "untrained": {"cut": {"value": 0.71}, "drop": 0.25, "interval": [0.2, 0.3], "upper": 0.29, "p": 0.001}},
    )  # fmt: skip
    write_json(
        run / "latency.json",
        {"schema": 1, "setting": {"batch": 8, "length": 128, "device": "cpu"}, "off": 0.023, "steady": True},
    )
    return run
