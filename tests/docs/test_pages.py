# SPDX-License-Identifier: Apache-2.0
"""Every block of Python on the pages runs, examples give what they show, links lead somewhere."""

from __future__ import annotations

import doctest
import io
from contextlib import redirect_stdout
from pathlib import Path

import pages
import pytest


@pytest.mark.parametrize("name", pages.RUN)
def test_the_code_of_a_page(name: str) -> None:
    """In order and in one namespace, as a reader would run it."""
    text = (pages.ROOT / name).read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "page"}
    found = pages.blocks(text, "python")
    assert found, "a page without code"
    for line, code in found:
        if ">>>" in code:
            assert failures_of(code, names, f"{name}:{line}") == ""
        else:
            # As many lines before it as in the page, so that a traceback names the line.
            exec(compile("\n" * (line - 1) + code, name, "exec"), names)


def failures_of(code: str, names: dict[str, object], name: str) -> str:
    """What doctest says; it runs the examples in ``names``."""
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(optionflags=options)
    test = doctest.DocTestParser().get_doctest(code, names, name, name, 0)
    said = io.StringIO()
    with redirect_stdout(said):
        runner.run(test, clear_globs=False)
    names.update(test.globs)
    return said.getvalue()


@pytest.mark.parametrize("page", pages.pages(), ids=lambda page: page.name)
def test_the_links_of_a_page(page: Path) -> None:
    assert pages.broken_links(page) == []


def test_a_broken_link_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    (tmp_path / "other.md").write_text("# A title: of it\n")
    page = tmp_path / "page.md"
    page.write_text("[a](other.md#a-title-of-it) [b](other.md#b) [c](gone.md) [d](https://d/e)\n")
    assert pages.broken_links(page) == [
        "page.md: other.md#b: there is no such heading",
        "page.md: gone.md: there is no such file",
    ]


def test_an_example_that_does_not_hold_is_found() -> None:
    assert "Expected:" in failures_of(">>> 1 + 1\n3\n", {}, "planted")
    assert failures_of(">>> 1 + 1\n2\n", {}, "planted") == ""
