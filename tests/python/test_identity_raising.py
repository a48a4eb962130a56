# SPDX-License-Identifier: Apache-2.0
"""Objects whose own code raises while a module that reaches them is identified.

The module runs, whatever they raise. Where an object can be read without its code it is identified,
else the refusal names it.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from torch import nn

X = torch.ones(2, 3)


class BoomError(Exception):
    pass


def boom(*_: Any, **__: Any) -> Any:
    raise BoomError("it cannot be looked at")


def odd(name: str) -> Any:
    """Makes an object whose method of this name raises."""
    member: Any = property(boom) if name == "__class__" else boom
    return type("Odd", (), {name: member})()


RAISING = (
    "__getattr__", "__getattribute__", "__eq__", "__hash__", "__repr__", "__len__", "__bool__",
    "__iter__", "__reduce_ex__", "__reduce__", "__getstate__", "__class__", "keys", "__contains__",
    "__getitem__", "__call__", "__str__", "__dir__", "__instancecheck__",
)  # fmt: skip


def odd_subclass(base: type) -> Any:
    """Makes an object of a class derived from a plain type, most of whose methods raise."""
    names = ("__repr__", "__hash__", "__eq__", "__len__", "__iter__", "__bool__", "keys", "items")
    return type("Odd", (base,), dict.fromkeys(names, boom))()


def odd_class() -> Any:
    """Makes an object of a class that cannot be described."""
    names = ("__repr__", "__instancecheck__", "__subclasscheck__")
    meta = type("Meta", (type,), dict.fromkeys(names, boom))
    return meta("Odd", (), {})()


def odd_slot() -> Any:
    return type("Odd", (), {"__slots__": ("text",), "__getattr__": boom})()


MAKERS: dict[str, Callable[[], Any]] = {
    **{name: functools.partial(odd, name) for name in RAISING},
    **{
        f"a {base.__name__}": functools.partial(odd_subclass, base)
        for base in (dict, list, tuple, set, str, int, types.ModuleType("m").__class__)
        if base is not types.ModuleType
    },
    "a class": odd_class,
    "a slot": odd_slot,
}


class Doubles(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def as_global(value: Any) -> nn.Module:
    names: dict[str, Any] = {"nn": nn, "__name__": "odd_globals", "held": value, "never": False}
    exec(
        "class Module(nn.Module):\n"
        "    def forward(self, x):\n"
        "        if never:\n"
        "            x = held.cast(x)\n"
        "        return x * 2\n",
        names,
    )
    module: nn.Module = names["Module"]()
    return module


def as_global_of_helper(value: Any) -> nn.Module:
    names: dict[str, Any] = {"nn": nn, "__name__": "odd_globals", "held": value, "never": False}
    exec(
        "def helper(x):\n"
        "    return held(x) if never else x * 2\n"
        "class Module(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return helper(x)\n",
        names,
    )
    module: nn.Module = names["Module"]()
    return module


def in_closure(value: Any) -> nn.Module:
    class Module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if value is not None else x

    return Module()


def as_default(value: Any) -> nn.Module:
    class Module(nn.Module):
        def forward(self, x: torch.Tensor, held: Any = value) -> torch.Tensor:
            return x * 2

    return Module()


def as_keyword_default(value: Any) -> nn.Module:
    class Module(nn.Module):
        def forward(self, x: torch.Tensor, *, held: Any = value) -> torch.Tensor:
            return x * 2

    return Module()


def in_class(value: Any) -> nn.Module:
    module: nn.Module = type("Module", (Doubles,), {"held": value})()
    return module


def in_attribute(value: Any, holding: Callable[[Any], Any] = lambda value: value) -> nn.Module:
    module = Doubles()
    module.__dict__["held"] = holding(value)
    return module


def in_submodule(value: Any) -> nn.Module:
    return nn.Sequential(in_attribute(value))


def on_function(value: Any) -> nn.Module:
    class Module(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    Module.forward.held = value  # type: ignore[attr-defined]
    return Module()


def in_hook(value: Any) -> nn.Module:
    module = Doubles()
    module.register_forward_hook(functools.partial(lambda held, *_: None, value))
    return module


class Box:
    def __init__(self, value: Any) -> None:
        self.value = value


def in_set(value: Any) -> Any:
    try:
        return {value}
    except (BoomError, TypeError):  # it has no hash
        return [value]


PLACES: dict[str, Callable[[Any], nn.Module]] = {
    "global": as_global,
    "global of a helper": as_global_of_helper,
    "closure": in_closure,
    "default": as_default,
    "keyword default": as_keyword_default,
    "class": in_class,
    "attribute": in_attribute,
    "submodule": in_submodule,
    "function": on_function,
    "hook": in_hook,
    "dict": functools.partial(in_attribute, holding=lambda value: {"a": value}),
    "list": functools.partial(in_attribute, holding=lambda value: [1, value]),
    "tuple": functools.partial(in_attribute, holding=lambda value: (1, value)),
    "set": functools.partial(in_attribute, holding=in_set),
    "object": functools.partial(in_attribute, holding=Box),
    "partial": functools.partial(in_attribute, holding=lambda value: functools.partial(max, value)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_module_runs(name: str) -> None:
    for place, make in PLACES.items():
        module = make(MAKERS[name]())
        want = module(X)
        modcache.reset_stats()
        for _ in range(4):
            assert torch.equal(modcache.lookup_or_run(module, X, "k"), want), place
        counts = modcache.stats()
        bypassed = sum(counts[name] for name in counts if name.startswith("bypassed_"))
        assert (bypassed, counts["hits_memory"]) in ((4, 0), (0, 3)), place
        for key in ("k", "another"):
            assert modcache.explain(module, X, key).status, place
        assert torch.equal(modcache.cached(module, key="content")(X), want), place


@pytest.mark.parametrize("name", MAKERS)
def test_a_module_with_a_scope_is_cached(name: str) -> None:
    for place, make in PLACES.items():
        module = make(MAKERS[name]())
        want = module(X)
        modcache.reset_stats()
        for _ in range(5):
            assert torch.equal(
                modcache.lookup_or_run(module, X, "k", scope=f"{name} {place}"), want
            )
        for row in range(3):
            modcache.lookup_or_run(module, X, f"{row}", scope=f"{name} {place}")
        counts = modcache.stats()
        assert (counts["hits_memory"], counts["stored"]) == (4, 4), place


@pytest.mark.parametrize("name", MAKERS)
def test_a_cached_function_and_a_cached_method_run(name: str) -> None:
    value = MAKERS[name]()

    class Holding:
        def __init__(self) -> None:
            self.held = {"a": value}

        @modcache.cached(key="name")
        def doubled(self, x: torch.Tensor, name: str) -> torch.Tensor:
            return x * 2

    @modcache.cached(key="name")
    def doubled(x: torch.Tensor, name: str, held: Any = value) -> torch.Tensor:
        return x * 2 if value is not None else x

    holding = Holding()
    for _ in range(3):
        assert torch.equal(doubled(X, "k"), 2 * X)
        assert torch.equal(holding.doubled(X, "k"), 2 * X)


def error_of(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("name", MAKERS)
def test_strict_names_the_object(name: str) -> None:
    modcache.configure(strict=True)
    for place, make in PLACES.items():
        module = make(MAKERS[name]())
        error = error_of(functools.partial(modcache.lookup_or_run, module, X, "k"))
        in_fingerprint = error_of(functools.partial(modcache.fingerprint, module))
        assert (error is None) == (in_fingerprint is None), place
        if error is None:
            continue
        assert (type(error), type(in_fingerprint)) == (RuntimeError, TypeError), place
        for each in (error, in_fingerprint):
            assert "Odd" in str(each) or "held" in str(each), place
            assert "raised BoomError: it cannot be looked at" in str(each), place
            assert isinstance(each.__cause__, BoomError), place  # type: ignore[union-attr]


def test_the_warning_names_the_object(capfd: pytest.CaptureFixture[str]) -> None:
    class Warned(Doubles):
        pass

    module = Warned()
    module.held = [odd("__getattribute__")]
    modcache.lookup_or_run(module, X, "k")
    modcache.flush()
    (line,) = capfd.readouterr().err.splitlines()
    for part in ("Warned", "attribute 'held'", "Odd raised BoomError: it cannot be looked at"):
        assert part in line


@pytest.mark.parametrize("name", ["__getattr__", "__eq__", "__hash__", "__len__", "__bool__"])
@pytest.mark.parametrize("place", ["global", "attribute", "closure", "default"])
def test_an_object_that_can_be_read_is_identified(name: str, place: str) -> None:
    value = MAKERS[name]()
    value.number = 1
    module = PLACES[place](value)
    first = modcache.fingerprint(module)
    value.number = 2
    assert modcache.fingerprint(module) != first


@pytest.mark.parametrize("name", MAKERS)
def test_an_input_that_raises(name: str) -> None:
    class Takes(nn.Module):
        def forward(self, x: torch.Tensor, held: Any) -> torch.Tensor:
            return x * 2

    value = MAKERS[name]()
    for sample in ((X, value), (X, [value]), (X, {"a": value})):
        assert torch.equal(modcache.lookup_or_run(Takes(), sample, "k"), 2 * X)
        assert torch.equal(modcache.lookup_or_run(Takes(), sample, ["a", "b"]), 2 * X)


def test_an_interrupt_is_no_refusal() -> None:
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    module = in_attribute({type("Odd", (), {"__repr__": interrupt})()})
    with pytest.raises(KeyboardInterrupt):
        modcache.fingerprint(module)


def test_a_dataset_names_the_object(tmp_path: Path) -> None:
    class Rows(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.held = {odd("__repr__")}

        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> torch.Tensor:
            return X

    with pytest.raises(TypeError, match="BoomError: it cannot be looked at"):
        modcache.CachedDataset(Rows())[0]
