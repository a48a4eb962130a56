# SPDX-License-Identifier: Apache-2.0
"""Globals that an installed package makes anew in each process do not count in a fingerprint."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import pytest
from modcache._installed.traversal import _members_of
from processes import ProcessRunner

PACKAGE = {
    "session.py": """
import os, time
from uuid import uuid4

SESSION = uuid4().hex
STARTED = time.time()
NAMES = [os.getpid()]
KIND = os.environ.get("KIND", "plain")
SCALE = 2.0
CALLS = {alias: lambda: 1.0 for alias in ("one", "two")}
ALIASES = {alias: function for function in CALLS.values() for alias in set("abcdefgh")}
""",
    "encoder.py": """
import torch
from .session import ALIASES, SESSION, STARTED, KIND as WHICH, SCALE


def where():
    return f"{SESSION}/{STARTED}"


def factor():
    return ALIASES["a"]() * SCALE if WHICH == "plain" else 1.0


class Encoder(torch.nn.Module):
    def forward(self, x):
        return x * factor() + len(where()) * 0
""",
    "__init__.py": "",
}
ASK = """
import sys, modcache
sys.path.insert(0, sys.argv[1])
from package import encoder
{change}
print(modcache.fingerprint(encoder.Encoder()))
"""

Fingerprint = Callable[..., str]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    folder = tmp_path / "site-packages"
    (folder / "package").mkdir(parents=True)
    for name, text in PACKAGE.items():
        (folder / "package" / name).write_text(text)
    return folder


def fingerprint_of(installed: Path, change: str) -> str:
    """What ASK prints, in a process that has imported modcache."""
    sys.path.insert(0, str(installed))
    names: dict[str, Any] = {"modcache": modcache}
    exec(f"from package import encoder\n{change}", names)
    return modcache.fingerprint(names["encoder"].Encoder())


@pytest.fixture
def fingerprint(installed: Path, processes: ProcessRunner) -> Fingerprint:
    """``fingerprint(change)`` in a forked process, in which the package is imported anew."""

    def in_a_process(change: str = "", **variables: str) -> str:
        return str(processes.run(fingerprint_of, installed, change, env=variables).value)

    return in_a_process


def fingerprint_in_a_new_process(installed: Path, change: str = "", **variables: str) -> str:
    """The same in a new interpreter: it takes seconds, and has a start of its own."""
    return subprocess.run(
        [sys.executable, "-c", ASK.format(change=change), str(installed)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
        text=True,
        capture_output=True,
        check=True,
    ).stdout


def test_a_session_s_number_does_not_count(installed: Path) -> None:
    first = fingerprint_in_a_new_process(installed)
    assert fingerprint_in_a_new_process(installed) == first


@pytest.mark.thorough
def test_the_order_of_aliases_from_a_set_does_not_count(installed: Path) -> None:
    first = fingerprint_in_a_new_process(installed, PYTHONHASHSEED="1")
    for seed in ("2", "3"):
        assert fingerprint_in_a_new_process(installed, PYTHONHASHSEED=seed) == first
    change = "encoder.ALIASES.update(a=encoder.ALIASES.pop('a'), z=len)"
    assert fingerprint_in_a_new_process(installed, change, PYTHONHASHSEED="1") != first


def test_what_comes_from_the_environment_does_count(fingerprint: Fingerprint) -> None:
    first = fingerprint()
    assert fingerprint(KIND="other") != first


def test_a_constant_that_was_replaced_does_count(fingerprint: Fingerprint) -> None:
    first = fingerprint()
    assert fingerprint("encoder.SCALE = 3.0") != first


def test_progress_bars_that_were_shown_do_not_count(
    installed: Path, fingerprint: Fingerprint
) -> None:
    """tqdm keeps locks and bars in its classes, from its first use on."""
    (installed / "package" / "bars.py").write_text(
        "import torch, tqdm.auto\n"
        "class bar(tqdm.auto.tqdm):\n"
        "    pass\n"
        "class Encoder(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        for _ in tqdm.auto.trange(2, disable=True):\n"
        "            x = sum(bar([x, x], disable=True))\n"
        "        return x\n"
    )
    change = (
        "from package import bars; encoder = bars\n"
        "before = modcache.fingerprint(bars.Encoder())\n"
        "bars.Encoder()(1.0)\n"
        "assert modcache.fingerprint(bars.Encoder()) == before\n"
    )
    assert fingerprint(change)


@pytest.mark.thorough
def test_the_start_method_of_processes_does_not_count(installed: Path) -> None:
    """Workers change it, and a process that was spawned has another one; joblib reads it."""
    (installed / "package" / "start.py").write_text(
        "import torch\n"
        "from multiprocessing import get_context\n"
        "CONTEXTS = [get_context('fork')]\n"
        "class Encoder(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x if get_context() is None else 2 * x * len(CONTEXTS)\n"
    )
    change = "from package import start as encoder"
    first = fingerprint_in_a_new_process(installed, change)
    for method in ("fork", "spawn"):
        chosen = f"{change}; import multiprocessing; multiprocessing.set_start_method({method!r})"
        assert fingerprint_in_a_new_process(installed, chosen) == first
    other = f"{change}; encoder.CONTEXTS.append(1)"
    assert fingerprint_in_a_new_process(installed, other) != first


@pytest.mark.thorough
def test_members_that_come_from_a_set_count_in_one_order(installed: Path) -> None:
    """SciPy's sparse arrays get methods in the order of a set of functions."""
    (installed / "package" / "members.py").write_text(
        "import torch\n"
        "class Matrix:\n"
        "    pass\n"
        "for name in set('abcdefgh'):\n"
        "    setattr(Matrix, name, lambda self, add=ord(name): add)\n"
        "class Encoder(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        m = Matrix()\n"
        "        return x + m.a() + m.b() + m.c() + m.d() + m.e() + m.f() + m.g() + m.h()\n"
    )
    change = "from package import members as encoder"
    first = fingerprint_in_a_new_process(installed, change, PYTHONHASHSEED="1")
    for seed in ("2", "3"):
        assert fingerprint_in_a_new_process(installed, change, PYTHONHASHSEED=seed) == first
    other = f"{change}; encoder.Matrix.a = encoder.Matrix.b"
    assert fingerprint_in_a_new_process(installed, other, PYTHONHASHSEED="1") != first


def test_what_a_class_method_notes_in_its_class_does_not_count(
    installed: Path, fingerprint: Fingerprint
) -> None:
    """As transformers notes of each class of models what it may do."""
    (installed / "package" / "noting.py").write_text(
        "import torch\n"
        "class Encoder(torch.nn.Module):\n"
        "    scale = 2.0\n"
        "    @classmethod\n"
        "    def can_scale(cls):\n"
        "        if getattr(cls, 'noted', None) is None:\n"
        "            cls.noted = True\n"
        "        return cls.noted\n"
        "    @classmethod\n"
        "    def choose(cls, scale):\n"
        "        cls.scale = scale\n"
        "    def forward(self, x):\n"
        "        return x * self.scale if self.can_scale() else x\n"
    )
    change = "from package import noting as encoder"
    first = fingerprint(change)
    noted = f"{change}; encoder.Encoder.can_scale()"
    assert fingerprint(noted) == first
    chosen = f"{change}; encoder.Encoder.choose(3.0)"
    assert fingerprint(chosen) != first


def test_packages_that_only_serve_count_by_their_files(
    installed: Path, fingerprint: Fingerprint
) -> None:
    """joblib notes its workers in tables when it starts the first one."""
    (installed / "joblib").mkdir()
    held = installed / "joblib" / "__init__.py"
    held.write_text("TABLE = {}\ndef jobs():\n    return TABLE.get('jobs', 1)\n")
    (installed / "package" / "parallel.py").write_text(
        "import torch\n"
        "from joblib import jobs\n"
        "class Encoder(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x * jobs()\n"
    )
    change = "from package import parallel as encoder"
    first = fingerprint(change)
    noted = f"{change}; import joblib; joblib.TABLE.update(jobs=2)"
    assert fingerprint(noted) == first
    held.write_text(held.read_text() + "VERSION = 2\n")
    assert fingerprint(change) != first


def test_loading_and_saving_are_no_part_of_a_module(
    installed: Path, fingerprint: Fingerprint
) -> None:
    (installed / "package" / "saved.py").write_text(
        "import torch\n"
        "PLACES, SCALES = {}, {}\n"
        "class Encoder(torch.nn.Module):\n"
        "    @classmethod\n"
        "    def from_pretrained(cls, name):\n"
        "        return PLACES[name]\n"
        "    def scale(self):\n"
        "        return SCALES.get('x', 1.0)\n"
        "    def forward(self, x):\n"
        "        return self.from_pretrained('x') if x is None else x * self.scale()\n"
    )
    change = "from package import saved as encoder"
    first = fingerprint(change)
    placed = f"{change}; encoder.PLACES.update(x=1)"
    assert fingerprint(placed) == first
    scaled = f"{change}; encoder.SCALES.update(x=1)"
    assert fingerprint(scaled) != first


def test_members_of_native_classes_count_in_one_order(
    installed: Path, fingerprint: Fingerprint
) -> None:
    names = [name for name, _ in _members_of(bytearray)]
    assert names == sorted(names)
    pytest.importorskip("tokenizers")  # written in Rust, where that order is drawn anew
    (installed / "package" / "tokens.py").write_text(
        "import torch\n"
        "from tokenizers import Tokenizer\n"
        "class Encoder(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return Tokenizer.from_str(x).truncation or Tokenizer(x).padding\n"
    )
    change = "from package import tokens as encoder"
    found = {fingerprint(change) for _ in range(3)}
    assert len(found) == 1
