# SPDX-License-Identifier: Apache-2.0
"""Fixtures: small trees to plant faults in.

No conftest.py: pytest knows one module of that name at a time, and tests/python has it.
PYTEST_DONT_REWRITE: nothing is asserted here.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tree_check import ROOT

Write = Callable[[str, str], Path]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree that has this project's rules and nothing else."""
    for name in ("tests/lint/layers.md", "pyproject.toml", ".clang-tidy", "csrc/base/mutex.h"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def write(tree: Path) -> Write:
    def write_file(name: str, text: str) -> Path:
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write_file
