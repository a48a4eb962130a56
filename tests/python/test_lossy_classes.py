# SPDX-License-Identifier: Apache-2.0
"""Values of classes that leave something out when they are taken apart: never told by the rest."""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict, UserDict
from collections.abc import Callable
from typing import Any, NamedTuple

import modcache
import pytest
import torch
from models import Python
from torch.utils import _pytree as pytree

X = torch.arange(12.0).reshape(3, 4)
KEYS = ["a", "b", "c"]


class Out:
    """The registry knows its data, and nothing of the rest."""

    def __init__(self, data: Any, gain: Any = 1) -> None:
        self.data, self.gain = data, gain


pytree.register_pytree_node(
    Out, lambda out: ([out.data], None), lambda parts, _: Out(*parts), serialized_type_name="Out"
)


@dataclasses.dataclass
class Record:
    data: Any
    gain: Any = 1


pytree.register_dataclass(Record, field_names=["data"], drop_field_names=["gain"])


class Slotted(UserDict):  # type: ignore[type-arg]
    __slots__ = ("gain",)


class Items(dict):  # type: ignore[type-arg]
    pass


pytree.register_pytree_node(
    Items, lambda items: ([items["data"]], None), lambda parts, _: Items(data=parts[0])
)


class Fields(NamedTuple):
    data: Any


class Derived(Fields):
    """A named tuple whose values take attributes."""


class Level(enum.IntEnum):
    HIGH = 3


def with_gain(made: Any, gain: Any) -> Any:
    made.gain = gain
    return made


def with_item(data: Any, gain: Any) -> Any:
    return Items(data=data) if gain == 1 else Items(data=data, gain=gain)


def model_output(data: Any, gain: Any) -> Any:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    return with_gain(outputs.BaseModelOutput(last_hidden_state=data), gain)


MADE: dict[str, Callable[[Any, Any], Any]] = {
    "class": Out,
    "dataclass": Record,
    "dict": with_item,
    "OrderedDict": lambda data, gain: with_gain(OrderedDict(data=data), gain),
    "UserDict with slots": lambda data, gain: with_gain(Slotted(data=data), gain),
    "named tuple": lambda data, gain: with_gain(Derived(data), gain),
    "ModelOutput": model_output,
}


def gain_of(value: Any) -> Any:
    return value.get("gain", 1) if type(value) is Items else value.gain


def data_of(value: Any) -> Any:
    if isinstance(value, UserDict):
        return value["data"]
    return next(iter(value.values())) if isinstance(value, dict) else value.data


@pytest.mark.parametrize("key", ["k", KEYS], ids=["whole", "rows"])
@pytest.mark.parametrize("name", MADE)
def test_what_is_left_out_of_an_argument_counts(name: str, key: Any, counted: Any) -> None:
    module = Python(lambda value: data_of(value) * gain_of(value))
    for gain in (2, 3):
        found = modcache.lookup_or_run(module, (MADE[name](X, gain),), key, scope="s")
        assert torch.equal(found, X * gain)
    assert "stored" not in counted()


@pytest.mark.parametrize("name", MADE)
def test_what_is_left_out_of_a_result_is_not_lost(name: str, counted: Any) -> None:
    module = Python(lambda x: MADE[name](x, "hello"))
    for _ in range(2):
        assert gain_of(modcache.lookup_or_run(module, X, "k", scope="s")) == "hello"
    assert counted() == {"bypassed_type": 2}
    dataset: Any = modcache.CachedDataset([MADE[name](X, "hello")], scope="t")
    with pytest.raises(TypeError, match="cannot be cached"):
        dataset[0]


@pytest.mark.parametrize("name", ["class", "dataclass", "dict"])
def test_values_without_anything_else_are_cached(name: str, counted: Any) -> None:
    module = Python(lambda value: MADE[name](data_of(value) * 2, 1))
    for _ in range(2):
        found = modcache.lookup_or_run(module, MADE[name](X, 1), KEYS, scope="s")
        assert torch.equal(data_of(found), X * 2)
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 3}


def test_what_follows_from_the_parts_may_be_left_out(counted: Any) -> None:
    class Double(Out):
        def __init__(self, data: torch.Tensor) -> None:
            super().__init__(data, [data * 2, {"zero": 0.0}])

    Double.__qualname__ = "Double"
    globals()["Double"] = Double
    pytree.register_pytree_node(
        Double, lambda out: ([out.data], None), lambda parts, _: Double(*parts)
    )
    module = Python(lambda x: Double(x + 1))
    for _ in range(2):
        found = modcache.lookup_or_run(module, X, "k", scope="s")
        assert torch.equal(found.gain[0], (X + 1) * 2)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}
    for other in (-0.0, 0, None):
        changed = Double(X)
        changed.gain[1]["zero"] = other
        modcache.lookup_or_run(Python(lambda x, out=changed: out), X, "k", scope="t")
    assert counted() == {"bypassed_type": 3}


def test_an_attribute_that_json_would_change_is_not_stored(counted: Any) -> None:
    module = Python(lambda x: with_gain(UserDict(x=x), Level.HIGH))
    for _ in range(2):
        assert modcache.lookup_or_run(module, X, "k", scope="s").gain is Level.HIGH
    assert counted() == {"bypassed_type": 2}
