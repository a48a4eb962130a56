# SPDX-License-Identifier: Apache-2.0
"""The code of a page in docs/recipes, as a test runs it."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

import torchvision_operators

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "recipes"
_Result = TypeVar("_Result")
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def code(name: str) -> str:
    """The one block of Python of ``docs/recipes/<name>.md``."""
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    (block,) = _BLOCK.findall(text)
    return str(block)


def run(name: str, **given: object) -> dict[str, object]:
    """Runs the recipe with the names that its page takes from the reader.

    Returns all names that it leaves. Each run makes its classes and wrappers anew, as a second
    start of a program does.
    """
    names = {"__name__": "recipe", **given}
    exec(compile(code(name), f"docs/recipes/{name}.md", "exec"), names)
    return names


def in_another_process(function: Callable[..., _Result], *arguments: object) -> _Result:
    """What a function of a test module returns in a Python that starts anew, in this folder."""
    context = multiprocessing.get_context("spawn")
    prepare = torchvision_operators.declare_missing
    with ProcessPoolExecutor(1, mp_context=context, initializer=prepare) as other:
        return other.submit(function, *arguments).result()
