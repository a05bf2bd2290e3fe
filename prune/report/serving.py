"""How to load the checkpoint, where it can be served, how to repeat the run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from headwise.prune.report.document import Head, Serving, Snippet
from headwise.prune.report.folder import Folder

#: Characters that a line of code on a page holds beside `model = `.
_WIDE = 64


def form_of(folder: Folder) -> str:
    """`headwise` (a manifest that is replayed), `native` (a stock checkpoint), or `` where there is none.

    `environment.json` may say it; otherwise the checkpoint's own files do.

    >>> form_of(Folder("run", ".", (), checkpoint=frozenset({"config.json", "headwise.json"})))
    'headwise'
    """
    said = _facts(folder).get("form")
    if said in ("headwise", "native"):
        return str(said)
    if {"modeling_headwise.py", "headwise.json"} & folder.checkpoint:
        return "headwise"
    return "native" if folder.checkpoint else ""


def servings(folder: Folder, heads: Sequence[Head]) -> tuple[Serving, ...]:
    """Every way to serve the checkpoint, with yes or no and the reason.

    >>> ours = Folder("run", ".", (), checkpoint=frozenset({"headwise.json", "modeling_headwise.py"}))
    >>> [(row.where, row.answer) for row in servings(ours, ())][:2]
    [('headwise', 'yes'), ('transformers', 'yes')]
    """
    form, facts = form_of(folder), _facts(folder)
    if not form:
        return ()
    needs = "with trust_remote_code=True, since its model is code of its own" if _own_code(folder) else "without a flag"
    ours = Serving("headwise", "yes", f"headwise.prune.load opens it like any checkpoint, {needs}.")
    if form == "native":
        stock = "A stock checkpoint: its config says how many heads there are."
        return (
            Serving("transformers", "yes", "from_pretrained, no flag needed."),
            Serving("engines that need the same number of heads everywhere", "yes", stock),
            ours,
        )
    remote = "modeling_headwise.py" in folder.checkpoint
    plain = (
        "from_pretrained with trust_remote_code=True runs modeling_headwise.py from the checkpoint; "
        "headwise need not be installed."
        if remote
        else "The checkpoint carries no modeling_headwise.py; load it with headwise."
    )
    return (
        ours,
        Serving("transformers", "yes" if remote else "no", plain),
        _uniform_engines(heads, facts),
    )


def loading(folder: Folder) -> tuple[Snippet, ...]:
    """Code that opens the checkpoint; paths are relative to the run folder.

    >>> loading(Folder("run", ".", (), checkpoint=frozenset({"headwise.json"})))[0].title
    'With headwise'
    """
    form = form_of(folder)
    if not form:
        return ()
    where = "checkpoint"
    auto = str((folder.environment.get("model") or {}).get("auto_class", "AutoModel"))
    flag = "" if form == "native" else ", trust_remote_code=True"
    leave = ", trust_remote_code=True" if _own_code(folder) else ""
    code = f"from headwise.prune import load\n\nmodel = {_called('load', where, leave)}"
    snippets = [Snippet("With headwise", code, "python")]
    if form == "native" or "modeling_headwise.py" in folder.checkpoint:
        title = "With transformers alone"
        reads = "tokenizer_config.json" in folder.checkpoint
        names = f"{auto}, AutoTokenizer" if reads else auto
        code = f"from transformers import {names}\n\nmodel = {_called(f'{auto}.from_pretrained', where, flag)}"
        code += f'\ntokenizer = AutoTokenizer.from_pretrained("{where}")' if reads else ""
        snippets.append(Snippet(title, code, "python"))
        if "modules.json" in folder.checkpoint:
            code = (
                "from sentence_transformers import SentenceTransformer\n\n"
                f"model = {_called('SentenceTransformer', where, flag)}"
            )
            snippets.append(Snippet("With sentence-transformers", code, "python"))
    return tuple(snippets)


def _own_code(folder: Folder) -> bool:
    """Whether the model itself is Python code in the checkpoint; a tokenizer that is does not matter here."""
    return bool((folder.environment.get("model") or {}).get("own_code"))


def _called(name: str, where: str, flag: str) -> str:
    """A call in one line, or in three where one would be wide."""
    line = f'{name}("{where}"{flag})'
    return line if len(line) <= _WIDE else f'{name}(\n    "{where}"{flag}\n)'


def repeating(folder: Folder) -> tuple[Snippet, ...]:
    """Commands that make the same run again and that rebuild this page.

    >>> repeating(Folder("run", ".", ()))[-1].code
    'headwise report .'
    """
    environment = folder.environment
    model = environment.get("model") or {}
    snippets = []
    command = environment.get("command")
    if command:
        text = command if isinstance(command, str) else shlex.join(str(part) for part in command)
        snippets.append(Snippet("The command of this run", text, "sh"))
    if folder.recipe_text and model.get("id"):
        parts = ["headwise", "prune", str(model["id"]), "--recipe", "recipe.yaml"]
        if model.get("revision"):
            parts += ["--revision", str(model["revision"])]
        snippets.append(Snippet("From the recipe in this folder", shlex.join(parts), "sh"))
        snippets.append(
            Snippet("Carry it out again, and compare plan and weights bit for bit", "headwise report --verify .", "sh")
        )
    snippets.append(Snippet("Rebuild this page, without the model", "headwise report .", "sh"))
    return tuple(snippets)


def _facts(folder: Folder) -> Mapping[str, Any]:
    found = folder.environment.get("serving")
    return found if isinstance(found, dict) else {}


def _uniform_engines(heads: Sequence[Head], facts: Mapping[str, Any]) -> Serving:
    """Whether an engine that knows one head count for all layers can serve the model."""
    where = "engines that need the same number of heads everywhere"
    kept: dict[str, int] = {}
    for head in heads:
        kept[head.site] = kept.get(head.site, 0) + head.kept
    fewest, most = min(kept.values(), default=0), max(kept.values(), default=0)
    reason = str(facts.get("native_reason") or "")
    if fewest != most:
        uneven = f"The sites keep between {fewest} and {most} heads; scope: uniform in the recipe makes them equal."
        return Serving(where, "no", uneven)
    if facts.get("native"):
        return Serving(where, "after saving again", 'save(model, folder, form="native") writes a stock checkpoint.')
    return Serving(where, "no", reason or "The stock config of this family cannot state the new number of heads.")
