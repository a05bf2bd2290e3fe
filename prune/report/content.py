"""From a run folder to the report as plain data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headwise.prune.plan.by_hand import edited
from headwise.prune.report.alike import main_measure, similarity_of
from headwise.prune.report.document import Report
from headwise.prune.report.folder import Folder, read_folder
from headwise.prune.report.heads import head_rows, scores_of, stacks_of
from headwise.prune.report.played import interventions_in, role_rule, roles_in
from headwise.prune.report.serving import loading, repeating, servings
from headwise.prune.report.verdict import verdict_of_analysis, verdict_of_prune


def content(run_folder: str | Path) -> Report:
    """The report on a run, from the files of its folder alone: no model is needed.

    A folder that holds evidence but no plan gives a report on heads, similarity and roles.

    Args:
        run_folder: what `headwise prune` or `headwise analyze` wrote.

    Raises:
        BadInput: the folder is no run folder, or one of its files cannot be read.

    >>> content("no-such-run")
    Traceback (most recent call last):
    headwise.analysis.errors.BadInput: no-such-run: no such folder; give the folder of a finished run
    """
    folder = read_folder(Path(run_folder))
    heads = head_rows(folder, main_measure(folder))
    roles, similarity = roles_in(folder, heads), similarity_of(folder, heads)
    pruned = bool(folder.plan)
    verdict = verdict_of_prune(folder, heads) if pruned else verdict_of_analysis(heads, roles, similarity)
    return Report(
        kind="prune" if pruned else "analyze",
        name=folder.name,
        model=_model(folder),
        verdict=verdict,
        stacks=stacks_of(heads, folder.facts),
        heads=heads,
        score_name=scores_of(folder)[1],
        similarity=similarity,
        roles=roles,
        role_rule=role_rule(folder.facts) if roles else "",
        interventions=interventions_in(folder),
        accuracy=dict(folder.accuracy),
        speed=dict(folder.speed),
        compensation=dict(folder.compensation),
        recovery=dict(folder.recovery),
        proof=dict(folder.proof),
        stability=dict(folder.stability),
        latency=dict(folder.latency),
        drift=dict(folder.drift),
        plan={key: folder.plan[key] for key in ("budget", "expected", "made_with") if folder.plan.get(key)},
        serving=servings(folder, heads),
        loading=loading(folder),
        repeating=repeating(folder) if folder.environment else (),
        recipe=folder.recipe_text,
        environment=tuple(_flat(folder.environment)),
        notes=tuple(_notes(folder)),
    )


def _model(folder: Folder) -> dict[str, Any]:
    model = folder.environment.get("model")
    if isinstance(model, dict) and model:
        return dict(model)
    return {"id": folder.plan.get("model") or folder.facts.get("model") or folder.name}


def _flat(found: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """(what, value) for every leaf, nested names joined by a blank."""
    for key, value in found.items():
        name = f"{above} {key}".strip()
        if isinstance(value, Mapping):
            yield from _flat(value, name)
        elif isinstance(value, list):
            yield name, " ".join(str(part) for part in value)
        elif value is not None and name != "schema":
            yield name, value if isinstance(value, str) else json.dumps(value)


def _notes(folder: Folder) -> Iterator[str]:
    """What must be known of the texts; what a reader would look for in vain, and why."""
    for part, texts in (folder.environment.get("texts") or {}).items():
        notes = texts.get("notes")
        for note in notes if isinstance(notes, list) else ():
            yield f"{part[:1].upper()}{part[1:]} texts: {note}."
    if not folder.plan:
        return
    added, kept = edited(folder.plan.get("reasons") or {})
    if added or kept:
        yield (
            f"The plan was edited by hand; heads added to those that go: {added}, taken out: {kept}. What it expected, and "
            "how firm it is, is said of the plan as it was decided."
        )
    sizes = folder.speed.get("parameters") or {}
    if (sizes.get("cut") or 0) > (sizes.get("dense") or 0) > 0:
        yield (
            f"The cut model is larger than the dense one, {sizes['cut']:,} against {sizes['dense']:,} parameters: single "
            "heads left groups of unequal size, whose keys and values are repeated (unit: group or even avoids it)."
        )
    missing = {
        "accuracy was not measured": folder.accuracy,
        "speed was not measured": folder.speed,
        "the proof that removing equals silencing is missing": folder.proof,
        "no evidence was saved, so roles and similarity are missing": folder.arrays,
        "no checkpoint is in the folder": folder.checkpoint,
    }
    for words, found in missing.items():
        if not found:
            yield f"{words[0].upper()}{words[1:]}."
    if folder.proof and not folder.proof.get("passed"):
        yield "The proof failed: the model without the heads does not do what it did with the heads silenced."
    expected = folder.plan.get("expected")
    search = expected.get("search") if isinstance(expected, Mapping) else None
    if isinstance(search, Mapping) and search.get("reproducible") is False:
        yield "The search for the heads was stopped by the clock: the same recipe may give another plan."
