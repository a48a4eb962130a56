# SPDX-License-Identifier: Apache-2.0
"""Real text that every machine has: docstrings, labelled by the package they come from.

The docstrings are parsed from the source files of the standard library and of torch, so nothing is
imported or downloaded. The choice depends on nothing but the installed releases: every start gets
the same texts in the same order.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import itertools
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = (
    "asyncio",
    "email",
    "http",
    "importlib",
    "logging",
    "multiprocessing",
    "unittest",
    "xml",
    "torch.cuda",
    "torch.distributions",
    "torch.fx",
    "torch.nn",
)
MIN_CHARACTERS = 40
TEST_EVERY = 5

_Documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Text:
    """One docstring. `key` names it for the cache; `label` is an index into PACKAGES."""

    key: str
    text: str
    label: int
    is_test: bool


def load_texts(count: int) -> list[Text]:
    """The first `count` texts, spread over all packages as evenly as they allow.

    Raises ValueError where there are fewer than `count` texts, or `count` leaves a package out.
    """
    if count < TEST_EVERY * len(PACKAGES):
        raise ValueError(
            f"{count} texts are too few: {TEST_EVERY} of each of the {len(PACKAGES)} packages "
            f"are {TEST_EVERY * len(PACKAGES)}"
        )
    per_package = [_texts_of(label) for label in range(len(PACKAGES))]
    rounds = itertools.zip_longest(*per_package)
    texts = [text for one_round in rounds for text in one_round if text is not None]
    if count > len(texts):
        raise ValueError(f"{count} texts were asked for, {len(texts)} are there")
    return texts[:count]


@functools.cache
def _texts_of(label: int) -> list[Text]:
    package = PACKAGES[label]
    # The release stands in the key: another release's docstring may be another text.
    release = _release_of(package)
    by_text: dict[str, str] = {}
    for name, text in _docstrings(package):
        if len(text) >= MIN_CHARACTERS:
            by_text.setdefault(text, f"{release}/{name}")
    # A property's getter and setter share one name: the first docstring keeps it.
    by_key: dict[str, str] = {}
    for text, key in by_text.items():
        by_key.setdefault(key, text)
    # Ordered by a hash, so that a small `count` does not come from one source file.
    ordered = sorted(by_key.items(), key=lambda item: hashlib.sha256(item[0].encode()).digest())
    return [
        Text(key, text, label, is_test=rank % TEST_EVERY == TEST_EVERY - 1)
        for rank, (key, text) in enumerate(ordered)
    ]


def _release_of(package: str) -> str:
    if package.startswith("torch"):
        return f"torch-{importlib.metadata.version('torch')}"
    return f"python-{platform.python_version()}"


def _docstrings(package: str) -> Iterator[tuple[str, str]]:
    """(`module:qualified.name`, docstring) of all that `package` documents, in source order."""
    top, *below = package.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        raise RuntimeError(f"package '{top}' has no source files on this machine")
    root = Path(spec.origin).parent.joinpath(*below)
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if "test" in parts or "tests" in parts:
            continue
        module = ".".join([package, *(part for part in parts if part != "__init__")])
        tree = ast.parse(path.read_bytes(), filename=str(path))
        yield from _documented_below(tree, module, ())


def _documented_below(
    node: ast.AST, module: str, names: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    if isinstance(node, _Documented):
        if not isinstance(node, ast.Module):
            names = (*names, node.name)
        text = ast.get_docstring(node)
        if text:
            yield f"{module}:{'.'.join(names)}", text
    for child in ast.iter_child_nodes(node):
        yield from _documented_below(child, module, names)
