# SPDX-License-Identifier: Apache-2.0
"""Holds the import directions of the Python package, as tests/lint/layers.md has them.

The table of packages there is read from the document itself, so that it cannot fall behind. Its
order is the law: a package may import from those below it, and its row says from which it does. An
import inside a function counts like any other, and so does one for type checkers that leaves the
package.

Within a package no modules import each other in a circle. Imports for type checkers alone do not
count there: an annotation runs nothing, and a class may well be given to functions that it uses.

    python tests/lint/check_python_layers.py [root]     prints what is wrong; exit status 1 if
                                                        anything is
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tree_check import circle_in, report

LAYERS = "tests/lint/layers.md"
FOLDER = "python_shim"
NAME = "modcache"
TOP = f"{NAME}/__init__.py"  # the public face, which may import everything
COMPILED = f"{NAME}._guards"  # everything may import it

_TABLE_ROW = re.compile(r"^\|\s*`(_\w+)/`\s*\|[^|]*\|([^|]*)\|$", re.MULTILINE)


@dataclass(frozen=True)
class Import:
    """One module of this package that another imports."""

    target: str  # dotted: "modcache._call.rows"
    line: int
    is_for_types: bool


def packages_of(architecture: str) -> dict[str, frozenset[str]]:
    """What each package may import besides itself, in the order of the document's table."""
    cells = dict(_TABLE_ROW.findall(architecture))
    return {name: frozenset(re.findall(r"\w+", cell)) for name, cell in cells.items()}


def faults(root: Path) -> list[str]:
    """One line for each import that is against the rules; empty when all is well."""
    packages = packages_of((root / LAYERS).read_text(encoding="utf-8"))
    found = list(_faults_of_table(packages))
    sources = {_module_of(path, root): path for path in sources_of(root)}
    used: dict[str, set[str]] = {name: set() for name in packages}
    inside: dict[str, set[str]] = {name: set() for name in sources}
    for module, path in sources.items():
        name = path.relative_to(root / FOLDER).as_posix()
        package = name.split("/")[1]
        if name == TOP:
            continue
        if package not in packages:
            found.append(f"{name}: the table of {LAYERS} has no package '{package}'")
            continue
        for each in imports_of(path, module, frozenset(sources)):
            target = each.target.split(".")[1] if "." in each.target else ""
            if target == package:
                if not each.is_for_types:
                    inside[module].add(each.target)
            elif target in packages[package]:
                used[package].add(target)
            elif each.target != COMPILED:
                found.append(
                    f"{name}:{each.line}: package '{package}' may not import {each.target}"
                )
    found += [
        f"{LAYERS}: package '{name}' may import '{other}', and does not"
        for name in packages
        if any(module.startswith(f"{NAME}.{name}.") for module in sources)
        for other in sorted((packages[name] & set(packages)) - used[name])
    ]
    if circle := circle_in(inside):
        found.append(f"{' -> '.join(circle)}: a circle of imports")
    return found


def _faults_of_table(packages: dict[str, frozenset[str]]) -> Iterator[str]:
    order = list(packages)
    for name, below in packages.items():
        for other in sorted(below):
            if other not in packages:
                yield f"{LAYERS}: package '{name}' may import '{other}', which is none"
            elif order.index(other) <= order.index(name):
                yield f"{LAYERS}: package '{name}' may import '{other}', which is not below"


def sources_of(root: Path) -> list[Path]:
    return sorted((root / FOLDER / NAME).rglob("*.py"))


def _module_of(path: Path, root: Path) -> str:
    parts = path.relative_to(root / FOLDER).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def imports_of(path: Path, module: str, known: frozenset[str]) -> Iterator[Import]:
    """All of this package that a file imports, wherever it does so."""
    is_package = path.name == "__init__.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node, is_for_types in _nodes_of(tree, False):
        for target in _targets_of(node, module, is_package, known):
            yield Import(target, getattr(node, "lineno", 0), is_for_types)


def _nodes_of(node: ast.AST, is_for_types: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below, and whether only a type checker reads it."""
    yield node, is_for_types
    for field, value in ast.iter_fields(node):
        is_body_for_types = (
            field == "body" and isinstance(node, ast.If) and _asks_for_types(node.test)
        )
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _nodes_of(child, is_for_types or is_body_for_types)


def _asks_for_types(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _targets_of(
    node: ast.AST, module: str, is_package: bool, known: frozenset[str]
) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if _is_ours(alias.name))
    elif isinstance(node, ast.ImportFrom):
        base = _base_of(node, module, is_package)
        if _is_ours(base):
            for alias in node.names:  # a name is a module of the base, or is in the base
                whole = f"{base}.{alias.name}"
                yield whole if whole in known or whole == COMPILED else base


def _base_of(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if node.level == 0:
        return node.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - node.level + is_package]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _is_ours(name: str) -> bool:
    return name.split(".")[0] == NAME


if __name__ == "__main__":
    sys.exit(report(faults))
