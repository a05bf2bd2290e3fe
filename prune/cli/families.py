"""`headwise families`: the attention families that the tests cover, and what can be done with each."""

from __future__ import annotations

from headwise.prune.cli.options import AsJson, Quiet
from headwise.prune.cli.terminal import put, put_json, stdout, table


def families(as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Families whose heads are found, silenced and cut, as the tests measure it."""
    from headwise.prune.surgery.supported import SUPPORTED

    if as_json:
        put_json([row._asdict() for row in SUPPORTED])
    if as_json or quiet:
        return
    rows = [
        (row.family, row.config, f"no: {row.cut}" if row.cut else "yes", "yes" if row.generates else "",
         "yes" if row.native else "no")
        for row in SUPPORTED
    ]  # fmt: skip
    stdout().print(table("", ["family", "configuration", "can be cut", "generates", "native form"], rows))
    put(f"{len(rows)} families; the heads of all of them are found and can be silenced.")
    put("Any other model is read by its structure, and its cut is rehearsed on a copy of one block first.")
