# SPDX-License-Identifier: Apache-2.0
"""The table of bounds as text, for the end of a run and for the page."""

from __future__ import annotations

from typing import Any

from suite.results import Results

HEAD = ("path", "match=none", "default", "bound", "")


def cells(row: dict[str, Any]) -> tuple[str, str, str, str, str]:
    unmatched, default = row["none"], row["input"]
    return (
        str(row["path"]),
        figure(unmatched, row["unit"]),
        "" if default["verdict"] == "the same" else figure(default, row["unit"]),
        str(row["bound"]),
        verdict(unmatched, default),
    )


def figure(found: dict[str, Any], unit: str) -> str:
    """The median of the rounds, and in brackets the least and the most."""
    if "median" not in found:
        return "-"
    low, high = short(found["least"]), short(found["most"])
    return f"{short(found['median'])} {unit} ({low} to {high})"


def short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def verdict(unmatched: dict[str, Any], default: dict[str, Any]) -> str:
    """One word for both columns where they agree."""
    found = [str(unmatched["verdict"]), str(default["verdict"])]
    known = [word for word in found if word in ("ok", "falls short")]
    if not known:
        return found[0] if found[0] != "the same" else found[1]
    return known[0] if len(set(known)) == 1 else f"{known[0]}; default {known[1]}"


def as_text(results: Results) -> str:
    rows = [HEAD, *(cells(row) for row in results["table"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = []
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(line.rstrip())
    return "\n".join(lines)


def as_markdown(results: Results) -> str:
    lines = ["| " + " | ".join(HEAD) + " |", "| --- | ---: | ---: | ---: | --- |"]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in results["table"]]
    return "\n".join(lines)
