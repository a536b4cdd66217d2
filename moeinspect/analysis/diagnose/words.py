"""Numbers as words of a sentence."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def of_all(part: int, whole: int, noun: str) -> str:
    """`all 3 requests`, `2 of 3 requests`, `the only request`."""
    if part == whole:
        return f"the only {noun}" if whole == 1 else f"all {counted(whole, noun)}"
    return f"{part:,} of {counted(whole, noun)}"


def percent(share: float) -> str:
    """`12.3 %`; never rounded to 0 or 100 unless it is."""
    if 0 < share < 0.0005:
        return "under 0.1 %"
    if 0.9995 < share < 1:
        return "over 99.9 %"
    return f"{100 * share:.1f} %"
