# SPDX-License-Identifier: Apache-2.0
"""The reference is made of the docstrings: it builds without a warning, and its examples hold."""

from __future__ import annotations

import doctest
import importlib
import inspect
import warnings
from pathlib import Path

import modcache
import pages
import pdoc
import pytest

PACKAGE = Path(modcache.__path__[0])
# Those in Python: beside them lies the library, which looks like a module and is none.
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


def test_every_public_name_is_explained() -> None:
    silent = [
        name
        for name in modcache.__all__
        if not name.startswith("__") and not inspect.getdoc(getattr(modcache, name))
    ]
    assert silent == []


def test_it_builds_without_a_warning() -> None:
    folder = pages.ROOT / "build" / "docs"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*torch.jit")
        pdoc.render.configure(docformat="google", show_source=False, search=False)
        pdoc.pdoc("modcache", output_directory=folder)
    page = (folder / "modcache.html").read_text(encoding="utf-8")
    assert [name for name in modcache.__all__ if f'id="{name}"' not in page] == []
