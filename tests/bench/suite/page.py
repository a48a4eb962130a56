# SPDX-License-Identifier: Apache-2.0
"""Writes the figures of a run into a page, between marks; the words around them are a person's.

A page and its folder of figures lie beside the JSON and are named after it: benchmarks.json,
benchmarks.md, benchmarks/.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from suite import figures, results, table
from suite.results import Results


class PageError(Exception):
    """A page that is not there, or lacks a mark."""


def page_of(file: Path) -> Path:
    return file.with_suffix(".md")


def write(file: Path) -> list[Path]:
    """Writes page and figures of a JSON file; returns what was written."""
    found, page = results.read(file), page_of(file)
    if not page.exists():
        raise PageError(f"{page} is not there: it has the words around the figures")
    drawn = figures.draw(found, file.with_suffix(""))
    page.write_text(filled(page.read_text(encoding="utf-8"), found, file.stem), encoding="utf-8")
    return [page, *drawn]


def filled(text: str, found: Results, folder: str) -> str:
    """The page with all that is generated made anew; `folder` has its figures."""
    for name, content in sections(found, folder).items():
        begin, end = f"<!-- begin: {name} -->\n", f"<!-- end: {name} -->"
        before, mark, rest = text.partition(begin)
        _, other_mark, after = rest.partition(end)
        if not mark or not other_mark:
            raise PageError(f"the page has no place for '{name}': {begin.strip()} and {end}")
        text = f"{before}{begin}{content}\n{end}{after}"
    return text


def sections(found: Results, folder: str) -> dict[str, str]:
    return {
        "machine": machine(found),
        "table": table.as_markdown(found),
        "measurements": "\n\n".join(measurements(found, folder)),
    }


def machine(found: Results) -> str:
    of_machine, versions = found["machine"], found["versions"]
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    rounds = f"{found['rounds']} round{'s' if found['rounds'] != 1 else ''}"
    quick = ", a quick look" if found["quick"] else ""
    return (
        f"{of_machine['processor']}, {of_machine['cores']} cores, Linux {of_machine['kernel']}, "
        f"Python {of_machine['python']}; {rounds}{quick}; load average "
        f"{of_machine['load']:.1f}, this run among it.\n{packages}."
    )


def measurements(found: Results, folder: str) -> Iterator[str]:
    """A family after the other: its picture, then a table for each measurement."""
    for family, names in figures.families(found).items():
        yield f"### {family[0].upper()}{family[1:]}"
        yield f"![{family}]({folder}/{figures.file_of(family)})"
        for name in names:
            yield _of_one(name, found)


def _of_one(name: str, found: Results) -> str:
    one = found["measurements"][name]
    columns = list(one["medians"])
    heads = {"none": "match=none", "input": "default"}
    lines = [
        f"**{name}**: {one['title']}, in microseconds",
        "",
        "| " + " | ".join(["", *(heads[match] for match in columns)]) + " |",
        "| --- |" + " ---: |" * len(columns),
    ]
    for subject in one["medians"][columns[0]]:
        cells = [_cell(one["medians"][match].get(subject)) for match in columns]
        lines.append("| " + " | ".join([subject, *cells]) + " |")
    return "\n".join(lines)


def _cell(spread: dict[str, float] | None) -> str:
    if spread is None:
        return ""
    low, high = table.short(spread["least"]), table.short(spread["most"])
    return f"{table.short(spread['median'])} ({low} to {high})"
