"""How the report looks: text from data stays text, drawings are right, a browser shows them without complaint."""

from __future__ import annotations

import html.parser
import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.analysis.errors import BadInput
from headwise.prune.report import compare, content, write, write_comparison
from headwise.prune.report.colours import LIGHT, ramp, role_colours
from headwise.prune.report.document import Head
from headwise.prune.report.escape import fenced
from headwise.prune.report.escape import markdown as as_markdown
from headwise.prune.report.head_map import head_maps
from headwise.prune.report.html import html as as_html
from headwise.prune.report.markdown import markdown as page_in_markdown
from headwise.prune.report.matrix import picture

_spec = importlib.util.spec_from_file_location("report_fixture", Path(__file__).with_name("report_fixture.py"))
assert _spec is not None
assert _spec.loader is not None
fixture = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fixture)

CHROMIUM = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium not found: the report was not opened in a browser")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fixture.write_run(tmp_path_factory.mktemp("runs") / "minilm")


# Text from data stays text


class Tags(html.parser.HTMLParser):
    """Collects tags, attributes and text as a browser reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def test_hostile_text_is_text_in_html(tmp_path: Path) -> None:
    page = as_html(content(fixture.hostile_run(tmp_path / "run")))
    read = Tags()
    read.feed(page)
    assert read.tags.count("script") == 1
    assert "img" not in read.tags
    assert not [name for name, _ in read.attributes if name.startswith("on")]
    assert "<img src=x onerror=alert(1)>" in read.text
    assert "{{7*7}}" in read.text
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "␛[31m" in page


def test_hostile_text_is_text_in_markdown(tmp_path: Path) -> None:
    page = page_in_markdown(content(fixture.hostile_run(tmp_path / "run")))
    outside = re.sub(r"(?ms)^(`{3,})[^\n]*\n.*?^\1$", "", page)
    assert "<script>alert(2)</script>" in page
    assert not re.search(r"<(script|img)", outside)
    assert not re.search(r"(?<!\\)\]\(", outside)
    assert "\x1b" not in page
    assert "\u202e" not in page
    for line in outside.splitlines():
        if line.startswith("|"):
            cells = len(re.findall(r"(?<!\\)\|", line))
        assert not line.startswith("# $"), "a newline in a name made a heading"
    assert cells


def test_a_table_row_of_hostile_text_keeps_its_columns(tmp_path: Path) -> None:
    page = page_in_markdown(content(fixture.hostile_run(tmp_path / "run")))
    tables = re.findall(r"(?m)(?:^\|.*\n)+", page)
    assert len(tables) >= 8
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, table


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40))
def test_markdown_text_is_one_line_and_has_no_live_marks(text: str) -> None:
    line = as_markdown(text)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e]", line)
    assert not re.search(r"(?<!\\)(?:\\\\)*[*_`\[\]|~$#]", re.sub(r"\\.", "", line))
    assert "<" not in line
    assert ">" not in line


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="`~a\n", max_size=30))
def test_a_code_block_cannot_be_closed_from_inside(code: str) -> None:
    lines = fenced(code).split("\n")
    fence = lines[0]
    assert lines[-1] == fence
    assert not [line for line in lines[1:-1] if line.strip().startswith(fence)]


def test_the_page_asks_nothing_of_the_network_and_allows_only_its_own_style_and_script(run: Path) -> None:
    page = as_html(content(run))
    read = Tags()
    read.feed(page)
    addresses = [value or "" for name, value in read.attributes if name in ("src", "href", "srcset", "action")]
    assert addresses
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in addresses)
    policy = next(v for n, v in read.attributes if n == "content" and v and "default-src" in v)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http:" not in policy
    assert not [name for name, _ in read.attributes if name == "style"]


# Drawings


def test_map_shows_every_head_once_and_removed_ones_small() -> None:
    heads = [
        Head(str(layer), h, f"{layer}.{h}", "", layer, kept=(layer + h) % 2 == 0)
        for layer in range(3)
        for h in range(4)
    ]
    (drawing,) = head_maps(heads, {}, "")
    assert (drawing.across, drawing.down) == ("head", "layer")
    assert len(drawing.cells) == 12
    assert len({cell.size for cell in drawing.cells}) == 2
    assert [cell.title.splitlines()[0] for cell in drawing.cells[:2]] == ["head 0.0: kept", "head 0.1: removed"]
    assert [mark.text for mark in drawing.left] == ["2", "2", "2"]


def test_map_of_a_deep_model_lies_down() -> None:
    heads = [Head(str(layer), h, f"{layer}.{h}", "", layer) for layer in range(30) for h in range(9)]
    (drawing,) = head_maps(heads, {}, "")
    assert drawing.across == "layer"
    assert drawing.width > drawing.height


def test_picture_has_one_pixel_a_pair_in_the_ramps_colours() -> None:
    import base64
    import io

    from PIL import Image

    address = picture(np.array([[1.0, 0.0], [-1.0, np.nan]]), LIGHT)
    image = Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))).convert("RGB")
    pixels = [image.getpixel((x, y)) for y in range(2) for x in range(2)]
    assert pixels == [LIGHT[2], LIGHT[1], LIGHT[0], (128, 128, 128)]


def test_ramp_gets_steadily_lighter_towards_nothing() -> None:
    light = ramp(LIGHT, 127).astype(float) @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(light[:64]) > 0).all()
    assert (np.diff(light[63:]) < 0).all()


def test_every_role_has_its_own_colour_and_letter() -> None:
    colours = role_colours([*fixture.ROLES, "mine", "mind"]).values()
    for part in ("css", "letter", "light", "dark"):
        assert len({getattr(colour, part) for colour in colours}) == len(colours)


# Big models


def test_page_of_1024_heads_stays_under_five_megabytes(tmp_path: Path) -> None:
    run = fixture.write_run(tmp_path / "run", {"": (32, 32)})
    sizes = {ending: path.stat().st_size for ending, path in write(run).items()}
    assert sizes["html"] <= 5_000_000
    assert "data:image/png" in (run / "report.html").read_text()


def test_beyond_1024_heads_pairs_replace_the_matrix(tmp_path: Path) -> None:
    run = fixture.write_run(tmp_path / "run", {"": (33, 32)})
    report = content(run)
    assert report.similarity is not None
    assert not report.similarity.drawn
    assert len(report.similarity.pairs) == 20
    page = as_html(report)
    assert "data:image/png" not in page
    assert len(page) <= 5_000_000


# Several runs


def test_comparison_puts_runs_side_by_side_at_a_shared_setting(tmp_path: Path) -> None:
    first = fixture.write_run(tmp_path / "a", {"": (2, 4)})
    second = fixture.write_run(tmp_path / "b", {"": (2, 4)}, removed=0.25)
    speed = json.loads((second / "speed.json").read_text())
    fixture.edited(second / "speed.json", rows=[row for row in speed["rows"] if row["batch"] == 1])
    found = compare([first, second])
    assert found.setting == (1, 128)
    assert [run.removed for run in found.runs] == [4, 2]
    assert [run.ratio for run in found.runs] == [1.012, 1.012]
    assert found.runs[0].upper == 0.0252
    assert found.notes == ()
    pages = write_comparison([first, second], tmp_path / "out")
    assert pages["html"].read_text().count('class="dot"') == 2
    assert json.loads(pages["json"].read_text())["runs"][1]["name"] == "b"
    assert "| 2 | b |" in pages["md"].read_text()


def test_comparison_says_what_does_not_compare(tmp_path: Path) -> None:
    first = fixture.write_run(tmp_path / "a", {"": (2, 4)})
    second = fixture.write_run(tmp_path / "b", {"": (2, 4)}, model="another")
    fixture.edited(second / "accuracy.json", metric="perplexity")
    notes = " ".join(compare([first, second]).notes)
    assert "different models" in notes
    assert "different metrics" in notes
    assert "measured otherwise: 2" in notes


def test_an_analysis_cannot_be_compared(tmp_path: Path) -> None:
    run = fixture.write_run(tmp_path / "a", {"": (2, 4)}, pruned=False)
    with pytest.raises(BadInput, match="holds an analysis"):
        compare([run])


# In a browser


def opened(page: Path, profile: Path) -> tuple[str, list[str]]:
    """The page's document after its script ran, and what the browser complained of."""
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    flags += [f"--user-data-dir={profile}", "--enable-logging=stderr", "--dump-dom", page.as_uri()]
    done = subprocess.run([CHROMIUM, *flags], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@in_browser
def test_browser_shows_hostile_report_without_complaint(tmp_path: Path) -> None:
    run = fixture.hostile_run(tmp_path / "run")
    document, complaints = opened(write(run)["html"], tmp_path / "profile")
    assert complaints == []
    assert "<title>owned" not in document
    # The script ran: it uncovers the line that it writes to.
    assert re.search(r'<output id="readout" class="readout">Point at the matrix', document)


@in_browser
def test_browser_shows_comparison_without_complaint(tmp_path: Path) -> None:
    run = fixture.write_run(tmp_path / "run", {"": (2, 4)})
    _, complaints = opened(write_comparison([run, run], tmp_path / "out")["html"], tmp_path / "profile")
    assert complaints == []


@in_browser
def test_pointing_at_the_matrix_reads_the_pair(tmp_path: Path) -> None:
    run = fixture.write_run(tmp_path / "run")
    report = content(run)
    assert report.similarity is not None
    assert report.similarity.matrix is not None
    order = report.similarity.order
    row, column = 50, 7
    value = report.similarity.matrix[order[row], order[column]]
    # The policy would stop a second script, so this copy goes without it: that it does is part of the test.
    event = f"""<script>
      const area = document.querySelector(".area"), box = area.getBoundingClientRect();
      const at = (i, size) => (i + 0.5) / {len(order)} * size;
      area.dispatchEvent(new PointerEvent("pointermove",
        {{clientX: box.left + at({column}, box.width), clientY: box.top + at({row}, box.height)}}));
    </script></body>"""
    page = as_html(report).replace("</body>", event)
    guarded, bare = tmp_path / "guarded.html", tmp_path / "bare.html"
    guarded.write_text(page, encoding="utf-8")
    bare.write_text(re.sub(r"<meta http-equiv=\"Content-Security-Policy\".*?>\n", "", page), encoding="utf-8")
    _, complaints = opened(guarded, tmp_path / "one")
    assert complaints
    document, complaints = opened(bare, tmp_path / "two")
    assert complaints == []
    read = re.search(r'<output id="readout"[^>]*>([^<]*)<', document)
    assert read is not None
    names, _, number = read[1].rpartition(": ")
    assert names == f"{report.heads[order[row]].label} and {report.heads[order[column]].label}"
    assert float(number.replace("−", "-")) == pytest.approx(value, abs=0.006)


def test_steps_towards_a_drop_are_a_table(tmp_path: Path) -> None:
    folder = fixture.write_run(tmp_path / "run")
    plan = json.loads((folder / "plan.json").read_text())
    steps = [{"heads": 2, "drop": 0.01, "upper": 0.02, "passed": True}]
    steps += [{"heads": 4, "drop": 0.02, "upper": None, "passed": False}, {"heads": "4"}]
    plan["expected"] = {"cost": 1.0, "reach": steps}
    (folder / "plan.json").write_text(json.dumps(plan))
    write(folder)
    lines = (folder / "report.md").read_text().splitlines()
    assert "| 2 | 1.0 | 2.0 | yes |" in lines
    assert "| 4 | 2.0 | – | no: the walk ends here |" in lines
    assert any(line.endswith("Expected before the cut: cost by redundancy 1.") for line in lines)
    page = (folder / "report.html").read_text()
    assert '<tr><th class="n">2</th><td class="n">1.0</td>' in page
    assert "&#34;passed" not in page
