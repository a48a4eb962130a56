# SPDX-License-Identifier: Apache-2.0
"""Values that installed packages hold: looked at without running code, and then recognized."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import modcache
import pytest
from modcache._identity.module_state import ModuleState, state_of

PACKAGE = {
    "__init__.py": "",
    "lazy/__init__.py": """
import sys, types

class Lazy(types.ModuleType):
    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        return found.part if name == "part" else found

from . import part
sys.modules[__name__].__class__ = Lazy
""",
    "lazy/part.py": "class part:\n    scale = 3.0\n",
    "values.py": """
import enum, operator
from collections import OrderedDict

class LazyMapping(OrderedDict):
    def __init__(self, names):
        self.names, self.loaded = names, []

    def __getitem__(self, name):
        self.loaded.append(name)
        return len(name)

    def items(self):
        return [(name, self[name]) for name in self.names]

    def __iter__(self):
        return iter(self.names)

class Version(str):
    __slots__ = ()

class Level(enum.IntEnum):
    LOW = 1

class Context:
    rate = 2.0

class Owner:
    def __init__(self):
        self.context = Context()

    rate = property(operator.attrgetter("context.rate"))

MAPPING = LazyMapping(["a", "b"])
VERSION = Version("1")
LEVEL = Level.LOW
OWNER = Owner()
""",
    "encoder.py": """
import torch
from . import lazy, values
from .values import Level, Owner, MAPPING, OWNER, VERSION


class Encoder(torch.nn.Module):
    def forward(self, x):
        scale = lazy.part.scale * OWNER.rate * Level.LOW * len(VERSION) * values.LEVEL
        return x * scale + len(MAPPING.names)
""",
}


@pytest.fixture
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module `encoder` of an installed package."""
    name = "values_package"
    for path, text in PACKAGE.items():
        file = tmp_path / "site-packages" / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    yield importlib.import_module(f"{name}.encoder")
    for module in [each for each in sys.modules if each.partition(".")[0] == name]:
        del sys.modules[module]


def recognized(module: Any) -> bool:
    for _ in range(6):
        modcache.fingerprint(module)
    known = state_of(module).known
    return known is not None and known.tensors() is not None


def test_it_is_recognized_and_no_code_of_the_package_runs(encoder: Any) -> None:
    module = encoder.Encoder()
    assert recognized(module)
    assert encoder.MAPPING.loaded == []


@pytest.mark.parametrize(
    "change",
    [
        lambda encoder: setattr(encoder, "VERSION", type(encoder.VERSION)("2")),
        lambda encoder: setattr(type(encoder.OWNER.context), "rate", 4.0),
        lambda encoder: encoder.MAPPING.names.append("c"),
        lambda encoder: setattr(encoder.Owner, "rate", property(lambda self: 4.0)),
    ],
    ids=["text", "a class", "a mapping's attribute", "a property"],
)
def test_a_change_is_seen(encoder: Any, change: Any) -> None:
    module = encoder.Encoder()
    assert recognized(module)
    before = modcache.fingerprint(module)
    change(encoder)
    assert modcache.fingerprint(module) != before
    assert modcache.fingerprint(module) == ModuleState().look(module).fingerprint
