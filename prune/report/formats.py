"""Numbers as text, the same on every page."""

from __future__ import annotations

import math

MISSING = "–"
# JSON writes whole floats as integers.
Number = float | int | None
# Metrics that are shares of something: a reader thinks of them in per cent and percentage points.
SHARES = (
    "accuracy", "f1", "agreement", "recall", "precision", "exact_match", "exact-match", "mrr", "ndcg", "rouge", "chrf",
    "wer", "cer",
)  # fmt: skip


def number(value: Number, digits: int = 3) -> str:
    """`value` with `digits` significant digits, and a true minus sign.

    >>> number(0.01234), number(-2.0), number(None), number(1234567), number(3.62e-7, 2)
    ('0.0123', '−2.00', '–', '1,234,567', '3.6 × 10⁻⁷')
    """
    if value is None or not math.isfinite(value):
        return MISSING
    if isinstance(value, int):
        return count(value).replace("-", "−")
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size >= digits:
        return f"{value:,.0f}".replace("-", "−")
    if size < -3:
        return _power(value, digits)
    return f"{value:.{max(0, digits - 1 - size)}f}".replace("-", "−")


def _power(value: float, digits: int) -> str:
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    mantissa = mantissa.replace("-", "−")
    return f"10{raised}" if mantissa == "1" else f"{mantissa} × 10{raised}"


def fixed(value: Number, places: int = 2) -> str:
    """`value` with `places` decimals.

    >>> fixed(0.9051), fixed(-0.5, 1), fixed(-0.0001)
    ('0.91', '−0.5', '0.00')
    """
    if value is None or not math.isfinite(value):
        return MISSING
    text = f"{value:.{places}f}"
    if float(text) == 0:
        text = text.removeprefix("-")
    return text.replace("-", "−")


def is_share(metric: str) -> bool:
    """Whether a metric is read in per cent.

    >>> is_share("accuracy"), is_share("macro_f1"), is_share("perplexity")
    (True, True, False)
    """
    name = metric.lower()
    return any(part in name for part in SHARES)


def in_metric(value: Number, metric: str) -> str:
    """A value of the metric.

    >>> in_metric(0.8031, "accuracy"), in_metric(23.456, "perplexity")
    ('80.3 %', '23.5')
    """
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{fixed(100 * value, 1)} %" if is_share(metric) else number(value)


def in_points(value: Number, metric: str) -> str:
    """A difference of two values of the metric, without its unit.

    >>> in_points(0.0042, "accuracy"), in_points(-0.5, "perplexity")
    ('0.4', '−0.500')
    """
    if value is None or not math.isfinite(value):
        return MISSING
    return fixed(100 * value, 1) if is_share(metric) else number(value)


def unit(metric: str) -> str:
    """What differences of the metric are counted in.

    >>> unit("accuracy"), unit("perplexity")
    ('points', 'perplexity')
    """
    return "points" if is_share(metric) else metric


def p_value(value: Number) -> str:
    """A p-value, never as 0.

    >>> p_value(0.3456), p_value(0.00001), p_value(None)
    ('0.35', '< 0.001', '–')
    """
    if value is None or not math.isfinite(value):
        return MISSING
    if value < 0.001:
        return "< 0.001"
    return f"{value:.3f}" if value < 0.1 else f"{value:.2f}"


def p_is(value: Number) -> str:
    """A p-value in a sentence.

    >>> p_is(0.3456), p_is(0.00001)
    ('p = 0.35', 'p < 0.001')
    """
    said = p_value(value)
    return f"p {said}" if said.startswith("<") else f"p = {said}"


def times(value: Number) -> str:
    """A ratio of speeds.

    >>> times(1.2261)
    '1.23×'
    """
    return MISSING if value is None or not math.isfinite(value) else f"{value:.2f}×"


def milliseconds(value: Number) -> str:
    """A duration given in milliseconds.

    >>> milliseconds(12.345), milliseconds(2345.6)
    ('12.3 ms', '2.35 s')
    """
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value / 1000:.2f} s" if value >= 1000 else f"{number(value)} ms"


def percent_change(before: Number, after: Number) -> str:
    """How much less or more `after` is than `before`.

    >>> percent_change(200, 150), percent_change(0, 1)
    ('−25.0 %', '–')
    """
    if not before or after is None or not math.isfinite(before) or not math.isfinite(after):
        return MISSING
    change = 100 * (after - before) / before
    sign = "+" if change > 0 else ""
    return f"{sign}{fixed(change, 1)} %"


def count(value: Number) -> str:
    """A whole number with separators.

    >>> count(22713216)
    '22,713,216'
    """
    return MISSING if value is None or not math.isfinite(value) else f"{int(value):,}"


def large(value: Number) -> str:
    """A large count with three significant digits.

    >>> large(5.52e9), large(12000)
    ('5.52 × 10⁹', '12,000')
    """
    if value is None or not abs(value) >= 1e6 or not math.isfinite(value):
        return count(value)
    return _power(float(value), 3)


def size(value: Number) -> str:
    """Bytes for people, in powers of 1000.

    >>> size(90852864), size(512)
    ('90.9 MB', '512 B')
    """
    if value is None or not math.isfinite(value):
        return MISSING
    amount = float(value)
    for name in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{int(amount)} B" if name == "B" else f"{amount:.1f} {name}"
        amount /= 1000
    return f"{amount:.1f} TB"


def plural(amount: int, one: str, many: str = "") -> str:
    """`1 head`, `2 heads`.

    >>> plural(1, "head"), plural(3, "class", "classes")
    ('1 head', '3 classes')
    """
    return f"{amount:,} {one if amount == 1 else many or one + 's'}"
