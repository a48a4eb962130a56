# SPDX-License-Identifier: Apache-2.0
"""The pages of the documentation: their code, their headings, and where they lead."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Pages whose every block of Python is run. README.md has tests of its own (tests/install), and the
# blocks of docs/deployment.md show one call each, of a model that stands elsewhere.
RUN = (
    "docs/coming-from.md",
    "docs/eviction.md",
    "docs/keys-and-scopes.md",
    "docs/limits.md",
    "docs/training.md",
)

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


def pages() -> list[Path]:
    """Every Markdown page that people read."""
    patterns = ("*.md", "docs/*.md", "docs/recipes/*.md", "csrc/*.md")
    return sorted(page for pattern in patterns for page in ROOT.glob(pattern))


def blocks(text: str, language: str) -> list[tuple[int, str]]:
    """The fenced blocks of a language: the line on which each begins, and what is in it."""
    return [
        (text.count("\n", 0, found.start(2)) + 1, found.group(2))
        for found in _FENCE.finditer(text)
        if found.group(1) == language
    ]


def links(text: str) -> list[str]:
    return _LINK.findall(_FENCE.sub("", text))


def anchors(text: str) -> set[str]:
    """The headings as a link names them: `# A title: of it` is #a-title-of-it."""
    found = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        words = re.sub(r"[^\w\- ]", "", heading.lower()).strip()
        found.add(words.replace(" ", "-"))
    return found


def broken_links(page: Path) -> list[str]:
    """Links of a page to files that are not there, or to headings that no page has."""
    broken = []
    for link in links(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):  # another machine's
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        if not target.exists():
            broken.append(f"{page.relative_to(ROOT)}: {link}: there is no such file")
        elif anchor and anchor not in anchors(target.read_text(encoding="utf-8")):
            broken.append(f"{page.relative_to(ROOT)}: {link}: there is no such heading")
    return broken
