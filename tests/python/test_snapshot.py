# SPDX-License-Identifier: Apache-2.0
"""An eager module that did not change is recognized without being walked, and any other is not.

Every change of a kind that the walk sees is made to a module that a snapshot knows. The judge is a
walk of its own: where it sees another module, the snapshot must not hold.
"""

from __future__ import annotations

import collections
import copy
import enum
import functools
import gc
import inspect
import random
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, Optional

import modcache
import pytest
import torch
from modcache._identity import known as known_modules
from modcache._identity.module_state import ModuleState, state_of
from modcache._identity.records import Records, same_leaves
from modcache._identity.snapshot import RefusedError, snapshot_of
from modcache._identity.walk import Walk
from torch import nn

FACTOR = 2.0
TABLE = {"scale": [1.0, 2.0]}


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Settings:
    def __init__(self) -> None:
        self.rate = 0.5
        self.sizes = [1, 2, {"deep": (3, 4)}]
        self.color = Color.RED


class Block(nn.Module):
    gain = 1.0
    gains: ClassVar[list[float]] = [1.0]

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.n = nn.LayerNorm(4)
        self.register_buffer("shift", torch.zeros(4))
        self.plain = torch.ones(4)
        self.count = 3
        self.settings = Settings()
        self.names = collections.OrderedDict(one=1, two=2)
        self.kinds = {"a", "b"}
        self.named = inspect.Arguments(["x"], None, None)  # a named tuple
        self.hints = {"x": Optional[torch.Tensor], "y": list[int]}  # noqa: UP045
        self.activation = torch.relu
        self.function = scaled
        self.part = functools.partial(scaled)
        self.bound = self.settings.sizes.__class__

    @property
    def width(self) -> int:
        return 4

    @staticmethod
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.n(x + self.b(self.activation(self.a(x)))) * self.gain + self.shift + self.plain
        return scaled(x) * self.settings.rate * TABLE["scale"][0]


def model() -> nn.Module:
    return nn.Sequential(Block(), Block()).requires_grad_(False).eval()


class Watched:
    """A module, what a snapshot of it says, and what a walk of its own says."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.records = Records()
        self.renew()

    def renew(self) -> None:
        walk = Walk(self.module, self.records)
        snapshot = snapshot_of(self.module, walk, self.records)
        assert snapshot is not None, "modcache._guards is not beside the library: no Python headers"
        self.snapshot = snapshot
        self.leaves = walk.leaves
        self.tensors = [id(tensor) for tensor in walk.tensors]
        self._alive = walk.tensors

    def holds(self) -> bool:
        """Whether the snapshot does. Then the walk must find what it found."""
        found = self.snapshot.tensors()
        if found is None:
            return False
        walk = Walk(self.module, self.records)
        assert same_leaves(walk.leaves, self.leaves)
        assert [id(tensor) for tensor in found] == [id(tensor) for tensor in walk.tensors]
        return True

    def walk_differs(self) -> bool:
        walk = Walk(self.module, self.records)
        same = same_leaves(walk.leaves, self.leaves)
        return not same or [id(tensor) for tensor in walk.tensors] != self.tensors


def _set(path: str, name: str, value: Any) -> Callable[[nn.Module], None]:
    def change(module: nn.Module) -> None:
        setattr(module.get_submodule(path) if path else module, name, value)

    return change


def _hook(module: nn.Module, *_: Any) -> None:
    return None


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a number": _set("0", "count", 4),
    "a new attribute": _set("0", "extra", 4),
    "an attribute less": lambda m: delattr(m[0], "count"),
    "an attribute of an object": lambda m: setattr(m[1].settings, "rate", 0.25),
    "an object's class": lambda m: setattr(m[1].settings, "__class__", type("S", (Settings,), {})),
    "an item of a list": lambda m: m[0].settings.sizes.append(5),
    "an item deep inside": lambda m: m[0].settings.sizes[2].update(deep=(3, 5)),
    "the order of a dict": lambda m: m[0].names.move_to_end("one"),
    "an element of a set": lambda m: m[0].kinds.add("c"),
    "a named tuple": lambda m: setattr(m[0], "named", inspect.Arguments(["y"], None, None)),
    "an item inside of a named tuple": lambda m: m[0].named.args.append("y"),
    "a named tuple's class": lambda m: setattr(m[0], "named", (["x"], None, None)),
    "a type hint": lambda m: m[0].hints.update(x=torch.Tensor),
    "an enum": lambda m: setattr(m[0].settings, "color", Color.BLUE),
    "a function": _set("0", "function", lambda x: x),
    "a built-in function": _set("0", "activation", torch.tanh),
    "an instance's forward": _set("0", "forward", scaled),
    "a submodule": _set("0", "a", nn.Linear(4, 4)),
    "one submodule more": lambda m: m.append(nn.Identity()),
    "a submodule less": lambda m: m.pop(1),
    "one submodule twice": lambda m: m.append(m[0]),
    "a submodule that became None": lambda m: m[0]._modules.update(a=None),
    "a module's class": lambda m: setattr(m[0].a, "__class__", nn.Bilinear),
    "a hook": lambda m: m[0].a.register_forward_hook(_hook),
    "a hook before": lambda m: m[0].a.register_forward_pre_hook(_hook),
    "training": lambda m: m[0].n.train(),
    "one parameter more": lambda m: m[0].register_parameter("w", nn.Parameter(torch.ones(1))),
    "a parameter that became None": lambda m: m[0].a.register_parameter("bias", None),
    "a buffer that became None": lambda m: setattr(m[0], "shift", None),
    "a tensor in place of a number": _set("0", "count", torch.ones(1)),
    "a subclass of a tensor": lambda m: m[0].register_parameter(
        "w", type("P", (nn.Parameter,), {})(torch.ones(1))
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_changed_module_is_not_recognized(change: Callable[[Any], Any]) -> None:
    watched = Watched(model())
    assert watched.holds()
    change(watched.module)
    assert watched.snapshot.tensors() is None


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_is_seen_also_where_dicts_were_known_by_their_versions(
    change: Callable[[Any], Any],
) -> None:
    watched = Watched(model())
    for _ in range(3):
        assert watched.holds()
    watched.module[0].count, kept = 7, watched.module[0].count
    assert not watched.holds()
    watched.module[0].count = kept  # another version of the dict, with the same values
    for _ in range(3):
        assert watched.holds()
    change(watched.module)
    assert watched.snapshot.tensors() is None


CODE_CHANGES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a method": lambda patch: patch.setattr(Block, "forward", lambda self, x: x),
    "a new method": lambda patch: patch.setattr(Block, "more", lambda self: 1, raising=False),
    "a class attribute": lambda patch: patch.setattr(Block, "gain", 2.0),
    "an item of a class attribute": lambda patch: patch.setattr(Block, "gains", [2.0]),
    "a base's method": lambda patch: patch.setattr(nn.Linear, "more", 1, raising=False),
    "a static method": lambda patch: patch.setattr(Block, "doubled", staticmethod(scaled)),
    "a property": lambda patch: patch.setattr(Block, "width", property(lambda self: 5)),
    "a global number": lambda patch: patch.setitem(globals(), "FACTOR", 3.0),
    "a global dict": lambda patch: patch.setitem(globals(), "TABLE", {"scale": [1.0, 3.0]}),
    "inside a global dict": lambda patch: patch.setitem(TABLE, "scale", [5.0]),
    "a global that is gone": lambda patch: patch.delitem(globals(), "FACTOR"),
    "a global function": lambda patch: patch.setitem(globals(), "scaled", lambda x: x),
    "a function's code": lambda patch: patch.setattr(scaled, "__code__", (lambda x: x).__code__),
    "a function's defaults": lambda patch: patch.setattr(scaled, "__defaults__", (1,)),
    "a function's attribute": lambda patch: patch.setattr(scaled, "mark", 1, raising=False),
    "an object's class attribute": lambda patch: patch.setattr(Settings, "more", 1, raising=False),
    "what a trusted name leads to": lambda patch: patch.setattr(torch, "relu", torch.tanh),
}


@pytest.mark.parametrize("change", CODE_CHANGES.values(), ids=CODE_CHANGES.keys())
def test_changed_code_is_not_recognized(
    change: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(model())
    watched.module[0].function = torch.nn.functional.relu
    watched.renew()
    assert watched.holds()
    change(monkeypatch)
    is_known = watched.snapshot.tensors() is not None
    assert not (is_known and watched.walk_differs())
    if change is not CODE_CHANGES["what a trusted name leads to"]:  # of a builtin: what it is
        assert not is_known


def test_a_called_module_with_named_tuples_and_type_hints_is_recognized() -> None:
    module = model()
    for number in range(4):
        modcache.lookup_or_run(module, torch.ones(1, 4), f"k{number}")
    known = state_of(module).known
    assert known is not None
    assert known.tensors() is not None
    module[0].named = inspect.Arguments(["y"], None, None)
    assert known.tensors() is None


def test_a_hook_for_all_modules_ends_it() -> None:
    watched = Watched(model())
    handle = nn.modules.module.register_module_forward_hook(_hook)
    try:
        assert watched.snapshot.tensors() is None
    finally:
        handle.remove()
    assert watched.holds()


def test_tensors_are_handed_out_as_they_are_now() -> None:
    watched = Watched(model())
    first: Any = watched.module[0]
    first.a.weight = nn.Parameter(torch.zeros(4, 4), requires_grad=False)
    first.shift = torch.ones(4)
    found = watched.snapshot.tensors()
    assert found is not None
    assert any(tensor is first.a.weight for tensor in found)
    assert any(tensor is first.shift for tensor in found)


def test_tied_weights_are_handed_out_for_each_place_and_no_longer_once_untied() -> None:
    watched = Watched(model())
    first: Any = watched.module[0]
    first.a.weight = first.b.weight
    found = watched.snapshot.tensors()
    assert found is not None
    assert sum(tensor is first.b.weight for tensor in found) == 2
    watched.renew()
    assert watched.holds()
    first.a.weight = nn.Parameter(torch.zeros(4, 4), requires_grad=False)
    assert watched.snapshot.tensors() is None


def test_an_ordered_dict_is_known_in_whatever_order() -> None:
    watched = Watched(model())
    watched.module[0].names.move_to_end("one")
    watched.renew()
    assert watched.holds()


def test_an_address_that_came_back_is_another_object() -> None:
    watched = Watched(model())
    for _ in range(50):
        del watched.module[0].a
        gc.collect(0)
        watched.module[0].a = nn.Linear(4, 4).requires_grad_(False)
        assert watched.snapshot.tensors() is None


def test_it_keeps_nothing_alive() -> None:
    watched = Watched(model())
    kept = weakref.ref(watched.module), weakref.ref(watched.module[0].a.weight)
    snapshot = watched.snapshot
    del watched
    gc.collect()
    assert [reference() for reference in kept] == [None, None]
    assert snapshot.tensors() is None


def test_tensors_take_no_weak_reference() -> None:
    """With one torch.utils.swap_tensors, which module.to() may use, would refuse them."""
    watched = Watched(model())
    assert watched.holds()
    assert all(weakref.getweakrefcount(tensor) == 0 for tensor in watched.module.parameters())


UNKNOWN_TO_SNAPSHOTS: dict[str, Callable[[], Any]] = {
    "a NumPy array": lambda: __import__("numpy").zeros(3),
    "a default dict": lambda: collections.defaultdict(list),
    "a scripted module": lambda: torch.jit.script(nn.Linear(2, 2)),
    "an object with slots": lambda: type("Slotted", (), {"__slots__": ("a", "__weakref__")})(),
}


@pytest.mark.parametrize("make", UNKNOWN_TO_SNAPSHOTS.values(), ids=UNKNOWN_TO_SNAPSHOTS.keys())
def test_what_it_cannot_express_is_refused(make: Callable[[], Any]) -> None:
    module = nn.Linear(2, 2)
    module.extra = make()
    records = Records()
    with pytest.raises(RefusedError):
        snapshot_of(module, Walk(module, records), records)
    before = modcache.fingerprint(module)
    for _ in range(5):  # and is looked at in full each time
        assert modcache.fingerprint(module) == before


def _random_change(module: Any, chance: random.Random) -> None:
    """One of many changes, some of which change nothing that counts."""
    part = module[chance.randrange(2)]
    settings = part.settings
    chance.choice(
        [
            lambda: setattr(part, "count", chance.randrange(3)),
            lambda: setattr(part, f"new{chance.randrange(3)}", [chance.randrange(3)]),
            lambda: part.__dict__.pop(f"new{chance.randrange(3)}", None),
            lambda: setattr(settings, "rate", float(chance.randrange(3))),
            lambda: settings.sizes.append(chance.randrange(3)),
            lambda: len(settings.sizes) > 3 and settings.sizes.pop(),
            lambda: settings.sizes[2].update(deep=chance.randrange(3)),
            lambda: part.names.move_to_end(chance.choice(["one", "two"])),
            lambda: setattr(part, "settings", copy.deepcopy(settings)),
            lambda: setattr(part, "a", chance.choice([part.b, nn.Linear(4, 4), part.a])),
            lambda: setattr(part.n, "eps", chance.choice([1e-5, 1e-6])),
            lambda: part.n.train(chance.random() < 0.5),
            lambda: part.register_forward_hook(_hook).remove(),
            lambda: part.register_forward_hook(_hook) and part._forward_hooks.popitem(),
            lambda: part.b.requires_grad_(chance.random() < 0.5),
            lambda: setattr(part.b.weight, "data", torch.randn(4, 4)),
            lambda: setattr(part.b, "weight", nn.Parameter(torch.randn(4, 4))),
            lambda: part.shift.add_(1),
            lambda: setattr(part, "plain", chance.choice([part.plain, torch.ones(4)])),
            lambda: setattr(Block, "gain", float(chance.randrange(3))),
            lambda: Block.gains.append(1.0),
            lambda: globals().__setitem__("FACTOR", float(chance.randrange(3))),
            lambda: TABLE["scale"].__setitem__(0, float(chance.randrange(3))),
            lambda: module.__setitem__(chance.randrange(2), Block()),
            lambda: None,
        ]
    )()


@pytest.fixture
def _as_it_was() -> Any:
    """What random changes do to this file."""
    kept = Block.gain, list(Block.gains), FACTOR, list(TABLE["scale"])
    yield
    Block.gain, Block.gains[:], TABLE["scale"][:] = kept[0], kept[1], kept[3]
    globals()["FACTOR"] = kept[2]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.usefixtures("_as_it_was")
def test_random_changes_are_judged_as_a_fresh_look_would(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_modules, "_PATIENCE", 0)
    monkeypatch.setattr(known_modules, "_MOST_PATIENCE", 0)
    chance = random.Random(seed)
    module = model()
    recognized = 0
    for _ in range(100):
        for _ in range(chance.choice([0, 1, 1, 2])):
            _random_change(module, chance)
        known = state_of(module).known
        recognized += known is not None and known.tensors() is not None
        assert modcache.fingerprint(module) == ModuleState().look(module).fingerprint
    assert recognized > 10  # snapshots held, too
