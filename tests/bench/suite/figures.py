# SPDX-License-Identifier: Apache-2.0
"""Draws the figures of a run: one file for each family of measurements, and one of the bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from suite.results import Results

OURS, RIVAL, LIMIT = "#1f6f8b", "#b0b7bd", "#d8a24a"
_LIMITS = ("memmap", "memcpy", "dict", "sequential", "the module", "from_file", "one tensor")
_INCHES_PER_BAR = 0.2


def families(found: Results) -> dict[str, list[str]]:
    """The names of what was measured, by what stands before the comma in them."""
    grouped: dict[str, list[str]] = {}
    for name, one in found["measurements"].items():
        if one["medians"]:
            grouped.setdefault(name.partition(",")[0], []).append(name)
    return grouped


def file_of(family: str) -> str:
    return f"{family.lower().replace(' ', '-')}.svg"


def draw(found: Results, folder: Path) -> list[Path]:
    """Writes the files and returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for family, names in families(found).items():
        files.append(folder / file_of(family))
        _save(_bars(names, found), files[-1])
    files.append(folder / "bounds.svg")
    _save(_bounds(found), files[-1])
    return files


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("svg")
    # The same figures give the same bytes, and text stays text.
    mpl.rcParams.update({"svg.hashsalt": "modcache", "svg.fonttype": "none", "font.size": 8})
    from matplotlib import pyplot as plt

    return plt


def _save(figure: Any, file: Path) -> None:
    figure.savefig(file, metadata={"Date": None}, bbox_inches="tight")
    _pyplot().close(figure)
    lines = file.read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join(line.rstrip() for line in lines) + "\n", encoding="utf-8")


def _color(subject: str) -> str:
    if subject.startswith(("modcache", "scripted, ", "C++, ")):
        return OURS
    return LIMIT if subject.startswith(_LIMITS) else RIVAL


def _bars(names: list[str], found: Results) -> Any:
    """A panel for each measurement: medians as bars, least to most as lines."""
    plt = _pyplot()
    spreads = [next(iter(found["measurements"][name]["medians"].values())) for name in names]
    heights = [len(spread) for spread in spreads]
    figure, panels = plt.subplots(
        len(names),
        squeeze=False,
        height_ratios=heights,
        figsize=(7, _INCHES_PER_BAR * sum(heights) + 0.6 * len(names)),
        layout="constrained",
    )
    for panel, name, spread in zip(panels[:, 0], names, spreads, strict=True):
        subjects = sorted(spread, key=lambda subject: -spread[subject]["median"])
        medians = [spread[subject]["median"] for subject in subjects]
        low = [max(0.0, spread[s]["median"] - spread[s]["least"]) for s in subjects]
        high = [max(0.0, spread[s]["most"] - spread[s]["median"]) for s in subjects]
        colors = [_color(subject) for subject in subjects]
        panel.barh(subjects, medians, xerr=(low, high), color=colors, error_kw={"lw": 0.8})
        panel.set_xscale("log")
        panel.set_title(f"{name}, us", loc="left")
        panel.spines[["top", "right"]].set_visible(False)
    return figure


def _bounds(found: Results) -> Any:
    """How far each path is from its bound; 1 is the bound, and less is better."""
    plt = _pyplot()
    rows = [row for row in found["table"] if "share_of_bound" in row["none"]]
    figure, panel = plt.subplots(
        figsize=(7, _INCHES_PER_BAR * len(rows) + 0.8), layout="constrained"
    )
    places = range(len(rows), 0, -1)
    shares = [max(0.02, row["none"]["share_of_bound"]) for row in rows]
    colors = [OURS if share <= 1 else RIVAL for share in shares]
    panel.barh(places, shares, color=colors)
    panel.set_yticks(places, [row["path"] for row in rows])
    panel.axvline(1.0, color="black", lw=0.8)
    panel.set_xscale("log")
    panel.set_title("share of the bound, match=none", loc="left")
    panel.spines[["top", "right"]].set_visible(False)
    return figure
