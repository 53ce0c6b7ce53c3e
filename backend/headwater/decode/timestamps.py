"""Converts dates and times, as printed with `DateStyle=ISO, TimeZone=UTC`, to the text that a device stores.

A year that SQLite's date functions do not know becomes null in timestamps (BC), and is kept in dates.
"""

from __future__ import annotations

from collections.abc import Callable

from headwater_rules.plan import ConversionOptions

Convert = Callable[[str], str | None]

_FIRST_DAY = "0000-01-01"
_LAST_DAY = "9999-12-31"
_MAX_DIGITS = 6
_CLOCK = 8  # hh:mm:ss


def date(text: str) -> str:
    if text == "infinity":
        return _LAST_DAY
    return _FIRST_DAY if text == "-infinity" else text


def time(options: ConversionOptions) -> Convert | None:
    return _clock_in_iso(options) if options.timestamps_iso8601 else None


def timestamp(options: ConversionOptions) -> Convert:
    """Years from 10000 on are kept, years BC are null."""
    clock_text = _clock(options)
    joint = "T" if options.timestamps_iso8601 else " "
    first, last = _ends(clock_text, joint, "")

    def convert(text: str) -> str | None:
        if text[10:11] == " " and text[-1] != "C":
            return f"{text[:10]}{joint}{clock_text(text[11:])}"
        if text.endswith("infinity"):
            return first if text[0] == "-" else last
        if text.endswith(" BC"):
            return None
        day, clock = text.split(" ")
        return f"{day}{joint}{clock_text(clock)}"

    return convert


def timestamptz(options: ConversionOptions) -> Convert:
    """Years from 10000 on and years BC are null."""
    clock_text = _clock(options)
    joint = "T" if options.timestamps_iso8601 else " "
    first, last = _ends(clock_text, joint, "Z")

    def convert(text: str) -> str | None:
        if text[10:11] == " " and text[-3:] == "+00":
            return f"{text[:10]}{joint}{clock_text(text[11:-3])}Z"
        if text.endswith("infinity"):
            return first if text[0] == "-" else last
        if text.endswith(("+00", "+00 BC")):
            return None
        raise ValueError("the session's time zone is not UTC")

    return convert


def _ends(clock_text: Callable[[str], str], joint: str, zone: str) -> tuple[str, str]:
    """The texts for minus and plus infinity."""
    return f"{_FIRST_DAY}{joint}{clock_text('00:00:00')}{zone}", f"{_LAST_DAY}{joint}{clock_text('23:59:59')}{zone}"


def _clock(options: ConversionOptions) -> Callable[[str], str]:
    return _clock_in_iso(options) if options.timestamps_iso8601 else str


def _clock_in_iso(options: ConversionOptions) -> Callable[[str], str]:
    """`hh:mm:ss[.f]` with exactly the configured number of digits, cut and never rounded."""
    digits = min(options.timestamp_digits, _MAX_DIGITS)
    zeros = "." + "0" * digits if digits else ""
    width = _CLOCK + len(zeros)

    def convert(clock: str) -> str:
        if len(clock) == width:
            return clock
        return clock + zeros if len(clock) == _CLOCK else (clock + zeros[1:])[:width]

    return convert
