"""What the top of the page says of the speed: of all settings, and no more than they bear."""

import json

import pytest

from headwise.prune.judgement import too_slow
from headwise.prune.report import content
from headwise.prune.report.gain import leading_row
from tests.prune import report_fixture as fixture


def row(median, *, sure=None, length=32, low=None, high=None, **more):
    """A setting; `sure`: whether it counts as a difference, by default if its interval leaves out 1."""
    low, high = low or median - 0.02, high or median + 0.02
    sure = not low <= 1 <= high if sure is None else sure
    return {
        "batch": 1, "length": length, "ratio": {"median": median, "low": low, "high": high}, "significant": sure, **more,
    }  # fmt: skip


NOISY = row(1.09, sure=False, p=0.01, drift={"low": 0.93, "high": 1.02}, length=128)


@pytest.mark.parametrize(
    ("rows", "says", "tone"),
    [
        ([row(1.19)], "1.19 times as fast", "good"),
        ([row(0.91)], "0.91 times as fast", "bad"),
        ([row(1.01)], "no significant difference in speed", "plain"),
        ([row(1.06), row(1.131)], "1.06 to 1.13 times as fast in all 2 settings", "good"),
        ([row(1.131), row(1.129)], "1.13 times as fast in all 2 settings", "good"),
        ([row(1.0), row(1.01)], "no significant difference in speed in any of 2 settings (1.00 to 1.01 times as fast)", "plain"),
        (
            [row(1.01), row(1.13), row(1.1)],
            "1.01 to 1.13 times as fast in 3 settings, in 2 of them significantly faster",
            "good",
        ),
        # The largest setting alone, which only the machine's noise keeps from counting, hid the gain of the other.
        (
            [row(1.13), NOISY],
            "1.09 to 1.13 times as fast in 2 settings, in 1 of them faster beyond the machine's own noise",
            "good",
        ),
        (
            [NOISY, NOISY],
            "no difference in speed beyond the machine's own noise in any of 2 settings (1.09 times as fast)",
            "plain",
        ),
        (
            [row(0.9), row(1.2), row(1.0)],
            "0.90 to 1.20 times as fast in 3 settings, in 1 of them significantly faster, in 1 of them significantly slower",
            "bad",
        ),
        ([row(1.2, sure=False, rounds=3)], "no difference in speed that 3 rounds could tell", "plain"),
    ],
)  # fmt: skip
def test_the_headline_speaks_of_all_settings(rows, says, tone, tmp_path):
    run = fixture.write_run(tmp_path / "run", {"": (2, 4)})
    fixture.edited(run / "speed.json", rows=rows)
    verdict = content(run).verdict
    assert verdict.headline == f"4 of 8 heads are gone: no significant difference in accuracy, {says}."
    assert next(f for f in verdict.figures if f.label == "Gain").tone == tone


def test_the_figure_tells_how_many_settings_are_sure_and_what_holds_the_largest_back(tmp_path):
    run = fixture.write_run(tmp_path / "run", {"": (2, 4)})
    fixture.edited(run / "speed.json", rows=[row(1.13), NOISY])
    gain = next(f for f in content(run).verdict.figures if f.label == "Gain")
    assert gain.value == "1.09–1.13×"
    assert "told apart from no difference in 2 of 2, from the machine's own noise in 1" in gain.detail
    assert gain.detail[-1].startswith("largest, batch 1 × length 128: 1.09×, 95 % interval 1.07× to 1.11×: no signif")


def test_a_limit_on_the_speed_says_at_which_setting_it_was_measured(tmp_path):
    run = fixture.write_run(tmp_path / "run", {"": (2, 4)})
    limit = next(limit for limit in content(run).verdict.limits if limit.name == "speedup")
    assert limit.words == "speed at least 1.10×; measured 1.22× (1.20× to 1.24×) at batch 8 × length 128"
    assert json.loads((run / "speed.json").read_text())["rows"][-1]["length"] == 128


def test_of_settings_with_as_many_tokens_commands_and_pages_mean_the_same():
    rows = [{"batch": 1, "length": 128, "ratio": {"median": 1.2}}, {"batch": 4, "length": 32, "ratio": {"median": 1.0}}]
    for found in (rows, rows[::-1]):
        assert leading_row({"rows": found})["batch"] == 4
        assert too_slow({"rows": found}, 1.1) == ["speedup: at least 1.1x asked, 1x at batch 4 × 32 tokens"]
