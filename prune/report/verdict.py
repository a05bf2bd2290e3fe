"""The verdict: what was removed, what it cost, what it gained, how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwise.prune.report.cost import bound_in_words, cost, cost_in_words, with_unit
from headwise.prune.report.document import Figure, Head, Limit, Role, Similarity, Verdict
from headwise.prune.report.folder import Folder
from headwise.prune.report.formats import (
    count,
    fixed,
    in_metric,
    number,
    percent_change,
    plural,
    times,
)
from headwise.prune.report.gain import gain, gain_in_words, leading_row, setting


def verdict_of_prune(folder: Folder, heads: Sequence[Head]) -> Verdict:
    """The verdict on a pruned model, from what was measured; what was not measured is said."""
    accuracy, speed, proof = folder.accuracy, folder.speed, folder.proof
    gone = sum(not head.kept for head in heads)
    start = f"{gone:,} of {plural(len(heads), 'head')} {'is' if gone == 1 else 'are'} gone"
    parts = []
    if accuracy:
        parts.append(cost_in_words(accuracy))
    if speed.get("rows"):
        parts.append(gain_in_words(speed["rows"]))
    figures = [_removed(folder, heads, gone)]
    figures += [cost(accuracy)] if accuracy else []
    figures += [gain(speed)] if speed.get("rows") else []
    figures += [_proof(proof)] if proof else []
    headline = f"{start}: {', '.join(parts)}." if parts else f"{start}."
    return Verdict(headline=headline, figures=tuple(figures), limits=limits_of(folder, leading_row(speed)))


def verdict_of_analysis(heads: Sequence[Head], roles: Sequence[Role], similarity: Similarity | None) -> Verdict:
    """What stands out where nothing was removed."""
    playing = sum(bool(head.roles) for head in heads)
    layers = len({(head.track, head.layer) for head in heads})
    headline = f"{plural(len(heads), 'head')} in {plural(layers, 'layer')}"
    figures = [Figure("Heads", count(len(heads)), (f"in {plural(layers, 'layer')}, nothing was removed",))]
    if roles:
        headline += f"; {playing:,} of them play a known role"
        most = roles[0]
        details = [f"{len(heads) - playing:,} heads play none of the {len(roles)} roles looked for"]
        if most.heads:
            details.insert(0, f"most often {most.name} ({plural(most.heads, 'head')})")
        figures.append(Figure("With a role", count(playing), tuple(details)))
    if similarity:
        figures.append(_redundancy(similarity))
        if similarity.clusters:
            members = sum(len(cluster.members) for cluster in similarity.clusters)
            headline += f"; {members} fall into {plural(len(similarity.clusters), 'group')} of like heads"
    return Verdict(headline=f"{headline}.", figures=tuple(figures))


def limits_of(folder: Folder, row: Mapping[str, Any]) -> tuple[Limit, ...]:
    """The recipe's limits, each with what it was compared with.

    >>> asked = Folder("run", ".", (), recipe={"limits": {"speedup": 1.1}})
    >>> limits_of(asked, {"ratio": {"median": 1.2}})[0].kept
    True
    """
    asked = folder.recipe.get("limits")
    limits = []
    for name, allowed in asked.items() if isinstance(asked, dict) else ():
        if not isinstance(allowed, int | float):
            continue
        metric = str(folder.accuracy.get("metric", ""))
        if name == "drop":
            measured = folder.accuracy.get("upper")
            words = f"drop at most {with_unit(allowed, metric)}; {bound_in_words(measured, metric)}"
            kept = None if measured is None else measured <= allowed
        elif name == "speedup":
            ratio = row.get("ratio", {})
            measured = ratio.get("median")
            words = (
                f"speed at least {times(allowed)}; measured {times(measured)} "
                f"({times(ratio.get('low'))} to {times(ratio.get('high'))}){_at(row)}"
            )
            kept = None if measured is None else measured >= allowed
        elif name == "size":
            measured = share_left(folder.speed.get("bytes"))
            words = f"size at most {in_metric(allowed, 'share')} of the dense model's; measured {in_metric(measured, 'share')}"
            kept = None if measured is None else measured <= allowed
        else:
            measured, kept, words = None, None, f"{name}: {number(allowed)}; this page does not judge it"
        limits.append(Limit(str(name), float(allowed), measured, kept, words))
    return tuple(limits)


def _at(row: Mapping[str, Any]) -> str:
    """Of which setting a limit on the speed speaks."""
    return f" at {setting(row)}" if "batch" in row else ""


def share_left(sizes: Any) -> float | None:
    """The cut model's bytes as a share of the dense one's; None if they were not measured.

    >>> share_left({"dense": 100, "cut": 80})
    0.8
    """
    dense, cut = (sizes or {}).get("dense"), (sizes or {}).get("cut")
    return cut / dense if dense and cut is not None else None


def _removed(folder: Folder, heads: Sequence[Head], gone: int) -> Figure:
    details = [f"{fixed(100 * gone / max(1, len(heads)), 1)} % of the heads"]
    parameters = folder.speed.get("parameters") or {}
    if parameters:
        change = percent_change(parameters.get("dense"), parameters.get("cut"))
        details.append(f"{change} parameters ({count(parameters.get('cut'))} left)")
    sites = folder.plan.get("remove", {})
    details.append(f"from {plural(len(sites), 'site')}")
    return Figure("Removed", f"{gone:,} of {len(heads):,}", tuple(details))


def _proof(proof: Mapping[str, Any]) -> Figure:
    passed = bool(proof.get("passed"))
    sites = proof.get("sites", {})
    details = [
        "removing the heads gives what silencing them gives" if passed else "removing differs from silencing",
        f"largest relative difference {number(proof.get('worst'), 2)} over {plural(len(sites), 'site')}, "
        f"limit {number(proof.get('limit'), 1)}",
    ]
    ends = proof.get("end_to_end") or {}
    if ends.get("difference") is not None:
        floor = number(ends.get("floor"), 2)
        details.append(f"end to end {number(ends['difference'], 2)}, beside a rounding floor of {floor}")
    return Figure("Proof", "passed" if passed else "failed", tuple(details), "good" if passed else "bad")


def _redundancy(similarity: Similarity) -> Figure:
    details = []
    if similarity.pairs:
        pair = similarity.pairs[0]
        details.append(f"strongest pair {pair.first} and {pair.second} ({number(pair.value, 2)})")
    details.append(f"by {similarity.measure}, over all pairs of heads")
    return Figure("Groups of like heads", count(len(similarity.clusters)), tuple(details))
