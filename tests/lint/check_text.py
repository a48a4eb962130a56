# SPDX-License-Identifier: Apache-2.0
"""Rules about files as text: licence line, comments, named files, white space, no machine's path.

python tests/lint/check_text.py [root]
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tree_check import report

LICENCE = "SPDX-License-Identifier: Apache-2.0"
README_LINES_AT_MOST = 150
_CODE = re.compile(
    r"(\.(cpp|h|py|sh|cmake|map|in)|(^|/)CMakeLists\.txt|(^|/)(run|serve|make_wheel))$"
)
_TEXT = re.compile(_CODE.pattern + r"|\.(md|json|toml|txt)$|(^|/)\.[\w-]+$")
_PRODUCT = re.compile(
    r"^(csrc|torchscript_ops|command_line|triton_cache|python_shim)/.*\.(cpp|h|py)$"
)
_COMMENT = re.compile(r"\s*(//|#)")
# A comment that begins so is a fragment, whose subject the reader has to guess.
_FRAGMENT = re.compile(r"\s*(//|#) (Of|What|By|To) ")
# A comment, or a page beside the code, that sends a reader to one of our files.
_POINTS = re.compile(r"^(csrc|torchscript_ops|command_line|triton_cache)/.*\.(cpp|h|md)$")
_FILE = re.compile(r"(?<![\w/.-])(?:[\w-]+/)*[\w-]+\.(?:cpp|h|py|md)\b(?!\.)")
_FOREIGN = frozenset({"sqlite3.h", "torch/version.py"})  # of SQLite and torch
_MACHINE_PATH = re.compile(r"/(work|root|mnt|home/\w+|Users/\w+|opt/\w+)/\w")


def files_of(root: Path) -> list[str]:
    """Tracked files and new ones, without what git ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    return sorted(name for name in listed.stdout.splitlines() if (root / name).is_file())


def faults_of_code(name: str, lines: list[str]) -> Iterator[str]:
    # Line 2 where line 1 says which interpreter runs the file.
    if lines and not any(LICENCE in line for line in lines[:2]):
        yield f"{name}: the first line should say {LICENCE}"


def faults_of_comments(name: str, lines: list[str]) -> Iterator[str]:
    was_comment = False
    for number, line in enumerate(lines, 1):
        if _FRAGMENT.match(line) and not was_comment:
            yield f"{name}:{number}: a comment is a sentence with a subject: {line.strip()}"
        was_comment = _COMMENT.match(line) is not None


def ends_of(name: str) -> set[str]:
    """All ways to name a file: `c.h`, `b/c.h` and `a/b/c.h`."""
    parts = name.split("/")
    return {"/".join(parts[first:]) for first in range(len(parts))}


def faults_of_names(name: str, lines: list[str], known: frozenset[str]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        said = line if name.endswith(".md") else line.partition("//")[2]
        for found in _FILE.finditer(said):
            if found[0] not in known:
                yield f"{name}:{number}: there is no file {found[0]}"


def faults_of_text(name: str, text: str) -> Iterator[str]:
    if text and not text.endswith("\n"):
        yield f"{name}: no newline at the end"
    for number, line in enumerate(text.split("\n"), 1):
        if line != line.rstrip():
            yield f"{name}:{number}: white space at the end of the line"
        if "\t" in line:
            yield f"{name}:{number}: a tab"
        if _MACHINE_PATH.search(line):
            yield f"{name}:{number}: a path of one machine: {line.strip()}"


def faults(root: Path) -> list[str]:
    """One line for each breach."""
    found: list[str] = []
    files = files_of(root)
    known = _FOREIGN.union(*map(ends_of, files))
    for name in files:
        if not _TEXT.search(name) or name == "LICENSE":
            continue
        text = (root / name).read_text(encoding="utf-8")
        found += faults_of_text(name, text)
        if _CODE.search(name):
            found += faults_of_code(name, text.splitlines())
        if _PRODUCT.search(name):
            found += faults_of_comments(name, text.splitlines())
        if _POINTS.search(name):
            found += faults_of_names(name, text.splitlines(), known)
        if name == "README.md" and len(text.splitlines()) > README_LINES_AT_MOST:
            found.append(f"{name}: more than {README_LINES_AT_MOST} lines")
    return found


if __name__ == "__main__":
    sys.exit(report(faults))
