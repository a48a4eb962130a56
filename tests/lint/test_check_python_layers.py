# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
from check_python_layers import faults, packages_of
from planting import Write
from tree_check import ROOT

pytest_plugins = ["planting"]

PACKAGE = "python_shim/modcache"


def plant(write: Write, files: dict[str, str]) -> None:
    """Files below the package; what they import has to be there, as it is in a tree."""
    for name in ("_call/rows.py", "_call/eager.py", "_lookup/lookup.py", "_identity/walk.py"):
        write(f"{PACKAGE}/{name}", "")
    for name, text in files.items():
        write(f"{PACKAGE}/{name}", text)


def faults_of_imports(root: Path) -> list[str]:
    """Without those about the table: a planted tree uses little of what it allows."""
    return [fault for fault in faults(root) if not fault.startswith("tests/lint/")]


def test_this_tree_keeps_the_layers() -> None:
    assert faults(ROOT) == []


def test_the_table_names_every_package() -> None:
    packages = packages_of((ROOT / "tests/lint/layers.md").read_text(encoding="utf-8"))
    folders = {path.parent.name for path in (ROOT / PACKAGE).glob("*/__init__.py")}
    assert set(packages) == folders
    assert packages["_code"] == packages["_library"] == frozenset()


def test_no_module_but_the_public_face_stands_beside_the_packages() -> None:
    assert [path.name for path in (ROOT / PACKAGE).glob("*.py")] == ["__init__.py"]


def test_an_empty_tree_has_no_fault(tree: Path) -> None:
    assert faults(tree) == []


@pytest.mark.parametrize(
    "text",
    [
        "import modcache._lookup.lookup",
        "import torch, modcache._lookup.lookup as found",
        "from modcache._lookup.lookup import lookup_or_run",
        "from modcache._lookup import lookup",
        "from modcache._lookup import lookup_or_run",
        "from modcache import _lookup",
        "from modcache import lookup_or_run",
        "import modcache",
        "from .._lookup.lookup import lookup_or_run",
        "from .._lookup import lookup",
        "from .. import _lookup",
        "def f():\n    from modcache._lookup import lookup",
        "class A:\n    def f(self):\n        import modcache._lookup.lookup",
        "async def f():\n    if True:\n        import modcache",
        "try:\n    import modcache._lookup.lookup\nexcept ImportError:\n    pass",
        "if TYPE_CHECKING:\n    from modcache._lookup import lookup",
    ],
)
def test_an_import_from_above_is_found(tree: Path, write: Write, text: str) -> None:
    plant(write, {"_call/rows.py": f"{text}\n"})
    (fault,) = faults_of_imports(tree)
    assert fault.startswith("modcache/_call/rows.py:")
    assert "package '_call' may not import modcache" in fault


@pytest.mark.parametrize(
    "text",
    [
        "import torch",
        "from torch import modcache",
        "from modcache._identity.walk import Walk",
        "from modcache._identity import walk",
        "from .._identity.walk import Walk",
        "from modcache._call.eager import call",
        "from . import eager",
        "from .eager import call",
        "from modcache import _guards",
        "from modcache._guards import Snapshot",
        "def f():\n    from modcache._identity import walk",
    ],
)
def test_an_import_from_below_is_none(tree: Path, write: Write, text: str) -> None:
    plant(write, {"_call/rows.py": f"{text}\n"})
    assert faults_of_imports(tree) == []


def test_the_public_face_imports_everything(tree: Path, write: Write) -> None:
    plant(write, {"__init__.py": "from modcache._lookup.lookup import lookup_or_run\n"})
    assert faults_of_imports(tree) == []


@pytest.mark.parametrize("lazily", [False, True])
def test_a_circle_inside_of_a_package_is_found(tree: Path, write: Write, lazily: bool) -> None:
    back = "from modcache._call import rows\n"
    plant(
        write,
        {
            "_call/rows.py": "from modcache._call.eager import call\n",
            "_call/eager.py": f"def f():\n    {back}" if lazily else back,
        },
    )
    (fault,) = faults_of_imports(tree)
    first, second = "modcache._call.eager", "modcache._call.rows"
    assert fault == f"{first} -> {second} -> {first}: a circle of imports"


def test_an_annotation_is_no_circle(tree: Path, write: Write) -> None:
    plant(
        write,
        {
            "_call/rows.py": "from modcache._call.eager import call\n",
            "_call/eager.py": "if TYPE_CHECKING:\n    from modcache._call.rows import Rows\n",
        },
    )
    assert faults_of_imports(tree) == []


def test_the_other_branch_is_not_for_types_alone(tree: Path, write: Write) -> None:
    text = "if TYPE_CHECKING:\n    pass\nelse:\n    from modcache._call import rows\n"
    plant(write, {"_call/rows.py": "from modcache._call import eager\n", "_call/eager.py": text})
    assert len(faults_of_imports(tree)) == 1


def test_a_package_that_the_table_lacks_is_found(tree: Path, write: Write) -> None:
    plant(write, {"_attic/old.py": "", "_loose.py": ""})
    assert len(faults_of_imports(tree)) == 2


def test_what_is_wrong_in_the_table_is_found(tree: Path, write: Write) -> None:
    write(
        "tests/lint/layers.md",
        "| `_a/` | one | _b, _gone |\n| `_b/` | two | _a |\n| `_c/` | three | - |\n",
    )
    found = faults(tree)
    assert any("'_a' may import '_gone', which is none" in fault for fault in found)
    assert any("'_b' may import '_a', which is not below" in fault for fault in found)


def test_an_arrow_that_nobody_takes_is_found(tree: Path, write: Write) -> None:
    write("tests/lint/layers.md", "| `_a/` | one | _b |\n| `_b/` | two | - |\n")
    write(f"{PACKAGE}/_a/x.py", "")
    write(f"{PACKAGE}/_b/x.py", "")
    (fault,) = faults(tree)
    assert fault.endswith("package '_a' may import '_b', and does not")
    write(f"{PACKAGE}/_a/x.py", "from modcache._b import x\n")
    assert faults(tree) == []
