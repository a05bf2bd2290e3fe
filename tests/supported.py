"""The table that ships, made from the matrix: `python -m tests.supported` writes it."""

from __future__ import annotations

from pathlib import Path

from headwise.prune.checkpoint.native import native_reason
from headwise.prune.surgery import cut
from tests.families import FAMILIES, Family
from tests.models import build


def native_plan(family: Family) -> dict[str, list[int]]:
    """The same number of heads at every site, whole groups where there are groups."""
    return {
        site.name: list(range(site.heads // site.kv)) if 1 < site.kv < site.heads else [site.heads - 1]
        for site in family.sites
    }


def supported_source(native: dict[str, bool]) -> str:
    """The text of `prune/surgery/supported.py`, which `headwise families` prints."""
    rows = "".join(
        f'    Supported("{f.name}", "{f.config}", "{f.refusal}", {f.generates}, {native.get(f.name, False)}),\n'
        for f in FAMILIES.values()
    )
    return (
        '"""The attention families that the tests cover. Written by `python -m tests.supported`."""\n\n'
        "from __future__ import annotations\n\nfrom typing import NamedTuple\n\n\n"
        "class Supported(NamedTuple):\n"
        '    """One family.\n\n    Attributes:\n        family: how people call it.\n'
        "        config: its configuration class.\n"
        "        cut: why it cannot be cut, or ``.\n        generates: whether generation is compared, too.\n"
        '        native: whether equal numbers of heads have a native form.\n    """\n\n'
        "    family: str\n    config: str\n    cut: str\n    generates: bool\n    native: bool\n\n\n"
        f"SUPPORTED = (\n{rows})\n"
    )


def main() -> None:
    """Write the table that ships."""
    native = {f.name: not native_reason(cut(build(f), native_plan(f))) for f in FAMILIES.values() if not f.refusal}
    Path(__file__).parents[1].joinpath("prune", "surgery", "supported.py").write_text(supported_source(native))


if __name__ == "__main__":
    main()
