# SPDX-License-Identifier: Apache-2.0
"""What the identity of an eager module is made of."""

from __future__ import annotations

import copy
import enum
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import modcache
import numpy as np
import pytest
import torch
from growth import bypassed
from models import (
    frozen,
)
from processes import ProcessRunner
from torch import nn

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def helper_of_scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


GLOBAL_FACTOR = 2.0


class Scaled(nn.Module):
    """Depends on what is outside the instance."""

    factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return helper_of_scaled(x) * GLOBAL_FACTOR * self.factor


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass
class Recipe:
    amount: float
    parts: list[int]


class Holder(nn.Module):
    """Holds one plain attribute of any kind."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


DIFFERENT_VALUES = [
    (1, 2),
    (1, 1.0),
    (1, True),
    (0.0, -0.0),
    ("a", "b"),
    ("a", b"a"),
    (None, 0),
    ((1, 2), (2, 1)),
    ([1, [2]], [1, [3]]),
    ([1, 2], (1, 2)),
    ({"a": 1}, {"a": 2}),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({1, 2}, {1, 3}),
    (np.arange(3), np.array([0, 1, 3])),
    (np.arange(3), np.arange(3.0)),
    (torch.float32, torch.float64),
    (torch.zeros(2), torch.ones(2)),
    (torch.zeros(2), torch.zeros(2, 1)),
    ([torch.zeros(2)], [torch.ones(2)]),
    ({"t": {"u": torch.zeros(2)}}, {"t": {"u": torch.ones(2)}}),
    (Colour.RED, Colour.BLUE),
    (Recipe(1.0, [1]), Recipe(1.0, [2])),
    (nn.functional.relu, nn.functional.gelu),
    (torch.relu, torch.tanh),
    (lambda x: x + 1, lambda x: x + 2),
    (Path("a"), Path("b")),
]


@pytest.mark.parametrize(("one", "two"), DIFFERENT_VALUES)
def test_plain_attributes_of_eager_modules_count(one: Any, two: Any) -> None:
    first = modcache.fingerprint(Holder(one))
    assert first != modcache.fingerprint(Holder(two))
    assert first == modcache.fingerprint(Holder(copy.deepcopy(one)))
    holder = Holder(one)
    assert modcache.fingerprint(holder) == first
    holder.value = two
    assert modcache.fingerprint(holder) != first
    holder.value = one
    assert modcache.fingerprint(holder) == first


def test_containers_changed_in_place_count() -> None:
    holder = Holder({"a": [1, {"b": [Recipe(1.0, [1])]}], "c": np.zeros(3)})
    seen = [modcache.fingerprint(holder)]
    for change in (
        lambda value: value["a"].append(2),
        lambda value: value["a"][1].update(x=1),
        lambda value: value["a"][1]["b"][0].parts.append(5),
        lambda value: value["c"].__setitem__(1, 7.0),
    ):
        change(holder.value)
        seen.append(modcache.fingerprint(holder))
    assert len(set(seen)) == len(seen)


def test_the_device_is_no_part_of_it() -> None:
    assert modcache.fingerprint(Holder(torch.device("cpu"))) == modcache.fingerprint(
        Holder(torch.device("cuda:1"))
    )


def test_training_counts_where_it_can_matter() -> None:
    plain, dropping = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Sequential(nn.Dropout())
    assert modcache.fingerprint(plain.train()) == modcache.fingerprint(plain.eval())
    assert modcache.fingerprint(dropping.train()) != modcache.fingerprint(dropping.eval())


@pytest.mark.parametrize(
    ("target", "replacement"),
    [
        ("helper_of_scaled", lambda x: x * 3),
        ("GLOBAL_FACTOR", 3.0),
        ("Scaled.factor", 3.0),
        ("Scaled.forward", lambda self, x: x * 12),
    ],
)
def test_code_and_globals_that_an_eager_module_uses_count(
    target: str, replacement: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Scaled()
    before = modcache.lookup_or_run(module, X, "k")
    monkeypatch.setattr(f"{__name__}.{target}", replacement)
    assert not torch.equal(module(X), before)
    assert torch.equal(modcache.lookup_or_run(module, X, "k"), module(X))


ENCODER_FILE = """
import torch
from {helper_module} import tweak
class FromFile(torch.nn.Module):
    def forward(self, x):
        {comment}
        return tweak(x) * {factor}
"""


def fingerprint_of_package(directory: str) -> str:
    import importlib
    import sys

    sys.path.insert(0, directory)
    return modcache.fingerprint(importlib.import_module("package.main").FromFile())


def test_code_in_files_counts_across_processes(tmp_path: Path, processes: ProcessRunner) -> None:
    def write(factor: int = 2, tweak: str = "x + 1", comment: str = "") -> str:
        directory = tmp_path / f"{factor}{tweak}{comment}"
        package = directory / "package"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "helpers.py").write_text(
            f"def tweak(x):\n    return inner(x)\n\ndef inner(x):\n    return {tweak}\n"
        )
        (package / "main.py").write_text(
            ENCODER_FILE.format(helper_module="package.helpers", factor=factor, comment=comment)
        )
        return str(directory)

    fingerprint = {
        name: processes.run(fingerprint_of_package, write(**options)).value
        for name, options in {
            "first": {},
            "comment": {"comment": "# why"},
            "own code": {"factor": 3},
            "helper's helper": {"tweak": "x + 2"},
        }.items()
    }
    assert fingerprint["comment"] == fingerprint["first"]
    assert len(set(fingerprint.values())) == 3


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


def test_parametrizations_count() -> None:
    module = Normed().requires_grad_(False)
    before = modcache.lookup_or_run(module, X, "k")
    module.linear.parametrizations.weight.original0.data.mul_(3)
    assert not torch.equal(module(X), before)
    assert torch.equal(modcache.lookup_or_run(module, X, "k"), module(X))


def test_forward_hooks_and_a_replaced_forward_count() -> None:
    module = frozen(nn.Linear(4, 4))
    plain = modcache.lookup_or_run(module, X, "k")
    hook = module.register_forward_hook(lambda module, inputs, output: output + 1)
    assert torch.equal(modcache.lookup_or_run(module, X, "k"), plain + 1)
    hook.remove()
    hook = module.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
    assert torch.equal(modcache.lookup_or_run(module, X, "k"), module(X))
    hook.remove()
    module.forward = lambda x: x - 1
    assert torch.equal(modcache.lookup_or_run(module, X, "k"), X - 1)
    del module.forward
    assert torch.equal(modcache.lookup_or_run(module, X, "k"), plain)


class WithGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source = torch.Generator()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def test_an_attribute_that_cannot_be_hashed_needs_a_scope(counted: Any, capfd: Any) -> None:
    module = WithGenerator()
    for _ in range(3):
        assert torch.equal(modcache.lookup_or_run(module, X, "k"), X + 1)
    assert bypassed(counted()) == {"bypassed_identity": 3}
    lines = [line for line in capfd.readouterr().err.splitlines() if "modcache" in line]
    assert len(lines) == 1
    assert "'source'" in lines[0]
    assert "WithGenerator" in lines[0]
    assert "scope" in lines[0]
    assert "it cannot be identified" in lines[0]
    with pytest.raises(TypeError, match="'source'"):
        modcache.fingerprint(module)
    for _ in range(2):
        modcache.lookup_or_run(module, X, "k", scope="answered for")
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}


class WithSlot(nn.Module):
    __slots__ = ("scale",)

    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def test_a_slot_of_a_module_is_an_attribute_of_it() -> None:
    module = frozen(WithSlot())
    for _ in range(6):
        modcache.lookup_or_run(module, X, "k")
    module.scale = 3.0
    assert torch.equal(modcache.lookup_or_run(module, X, "k"), module(X))


class Kind(type):
    scale = 2.0


class OfAKind(nn.Module, metaclass=Kind):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * type(self).scale


def test_the_class_of_its_class_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    module = frozen(OfAKind())
    for _ in range(6):
        modcache.lookup_or_run(module, X, "k")
    monkeypatch.setattr(Kind, "scale", 3.0)
    assert torch.equal(modcache.lookup_or_run(module, X, "k"), module(X))


class Scale:
    def __init__(self, factor: float) -> None:
        self.factor = factor


class ByAddress(nn.Module):
    """As filelock and others register objects: each under its own id."""

    def __init__(self, *factors: float, weak: bool) -> None:
        super().__init__()
        self.scales = [Scale(factor) for factor in factors]
        self.by_id: Any = weakref.WeakValueDictionary() if weak else {}
        self.by_id.update({id(scale): scale for scale in self.scales})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for scale in self.by_id.values():
            x = x * scale.factor
        return x


@pytest.mark.parametrize("weak", [False, True])
def test_keys_that_are_the_addresses_of_their_values_tell_no_processes_apart(weak: bool) -> None:
    module, again = ByAddress(2.0, 3.0, weak=weak), ByAddress(2.0, 3.0, weak=weak)
    assert modcache.fingerprint(module) == modcache.fingerprint(again)
    assert modcache.fingerprint(module) != modcache.fingerprint(ByAddress(2.0, 4.0, weak=weak))
    modcache.lookup_or_run(module, X, "k")
    module.scales[1].factor = 5.0
    assert torch.equal(modcache.lookup_or_run(module, X, "k"), module(X))


def test_other_numbers_as_keys_count() -> None:
    module, other = ByAddress(2.0, weak=False), ByAddress(2.0, weak=False)
    module.by_id, other.by_id = {1: module.scales[0]}, {2: other.scales[0]}
    assert modcache.fingerprint(module) != modcache.fingerprint(other)
