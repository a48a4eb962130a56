# SPDX-License-Identifier: Apache-2.0
"""modcache.cached on methods: of modules, and of plain objects."""

from __future__ import annotations

import gc
import inspect
import threading
import weakref
from collections.abc import Callable

import modcache
import pytest
import torch
from torch import nn

Growth = Callable[[], dict[str, int]]
X = torch.arange(6.0).reshape(3, 2)


class Loader:
    """Loads."""

    suffix = ""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    @modcache.cached(key="name")
    def load(self, name: str, times: int = 1) -> torch.Tensor:
        """Loads one."""
        return torch.full((2,), len(name + self.suffix) * self.scale * times)

    @modcache.cached(key=lambda self, name: f"{self.scale}/{name}")
    def keyed_by_self(self, name: str) -> torch.Tensor:
        return torch.full((2,), self.scale)

    @staticmethod
    @modcache.cached(key="name")
    def measured(name: str) -> torch.Tensor:
        return torch.tensor(len(name))

    @modcache.cached(key="name")
    @staticmethod
    def also_measured(name: str) -> torch.Tensor:
        return torch.tensor(len(name))

    @modcache.cached(key="name")
    @classmethod
    def made(cls, name: str) -> torch.Tensor:
        return torch.tensor(len(name + cls.suffix))


class LongLoader(Loader):
    suffix = "long"


def test_attributes_of_the_object_count(counted: Growth) -> None:
    loader = Loader()
    assert loader.load("ab").tolist() == [2, 2]
    assert loader.load(name="ab", times=1).tolist() == [2, 2]
    assert Loader().load("ab").tolist() == [2, 2]
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 2}
    loader.scale = 3.0
    assert loader.load("ab").tolist() == [6, 6]
    assert LongLoader().load("ab").tolist() == [6, 6]
    assert counted() == {"misses": 2, "stored": 2}


def test_it_looks_like_its_target() -> None:
    assert str(inspect.signature(Loader.load)).startswith("(self, name: 'str', times: 'int' = 1)")
    assert str(inspect.signature(Loader().load)).startswith("(name: 'str'")
    assert Loader.load.__doc__ == "Loads one."
    assert Loader.load.__qualname__ == "Loader.load"


def test_a_key_function_may_use_self() -> None:
    assert Loader(2.0).keyed_by_self("a").tolist() == [2, 2]
    assert Loader(3.0).keyed_by_self("a").tolist() == [3, 3]


def test_static_and_class_methods(counted: Growth) -> None:
    assert int(Loader.measured("abc")) == int(Loader().measured("abc")) == 3
    assert int(Loader.also_measured("abc")) == int(Loader().also_measured("abc")) == 3
    assert int(Loader.made("abc")) == int(Loader().made("abc")) == 3
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 3}
    assert int(LongLoader.made("abc")) == 7


def test_an_object_that_cannot_be_hashed_asks_for_a_scope() -> None:
    loader = Loader()
    loader.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"a _thread.lock .*scope="):
        loader.load("ab")


def test_objects_are_not_kept_alive() -> None:
    loader = Loader()
    loader.load("ab")
    gone = weakref.ref(loader)
    del loader
    gc.collect()
    assert gone() is None


class Slotted:
    __slots__ = ("scale",)

    def __init__(self, scale: float) -> None:
        self.scale = scale

    @modcache.cached(key="name")
    def load(self, name: str) -> torch.Tensor:
        return torch.tensor(len(name) * self.scale)


def test_objects_with_slots(counted: Growth) -> None:
    assert [float(Slotted(s).load("ab")) for s in (1.0, 2.0, 2.0)] == [2, 4, 4]
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 1}


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    @modcache.cached(key="ids")
    def encode(self, x: torch.Tensor, times: int = 1) -> torch.Tensor:
        return self.linear(x) * times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class PlainEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def encode(self, x: torch.Tensor, times: int = 1) -> torch.Tensor:
        return self.linear(x) * times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_a_method_of_a_module_is_that_method_with_its_fingerprint(counted: Growth) -> None:
    encoder = Encoder().requires_grad_(False).eval()
    ids = torch.arange(3)
    want = encoder.linear(X)
    assert torch.equal(encoder.encode(X, ids=ids), want)
    assert torch.equal(encoder.encode(X, 1, ids=ids), want)
    assert torch.equal(modcache.lookup_or_run(encoder, X, ids, method="encode"), want)
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 6}
    encoder.linear.weight.data.mul_(2)
    assert torch.equal(encoder.encode(X, ids=ids), encoder.linear(X))
    assert counted() == {"misses": 3, "stored": 3}


def test_decorating_a_method_changes_no_fingerprint() -> None:
    decorated, plain = Encoder(), PlainEncoder()
    plain.load_state_dict(decorated.state_dict())
    PlainEncoder.__qualname__ = PlainEncoder.__name__ = "Encoder"
    for name in ("__init__", "encode", "forward"):
        function = getattr(PlainEncoder, name)
        function.__qualname__ = f"Encoder.{name}"
    assert modcache.fingerprint(decorated) == modcache.fingerprint(plain)


class Doubled(Encoder):
    def encode(self, x: torch.Tensor, times: int = 1) -> torch.Tensor:  # type: ignore[override]
        return super().encode(x, times, ids=torch.arange(len(x))) * 2


def test_a_cached_method_of_a_base_class_has_entries_of_its_own() -> None:
    encoder = Doubled().requires_grad_(False).eval()
    want = encoder.linear(X)
    for _ in range(2):
        found = modcache.lookup_or_run(encoder, X, torch.arange(3), method="encode")
        assert torch.equal(found, want * 2)
        assert torch.equal(encoder.encode(X), want * 2)


def test_a_bound_method_can_be_cached(counted: Growth) -> None:
    class Counter:
        def __init__(self) -> None:
            self.step = 2

        def count(self, n: int) -> torch.Tensor:
            return torch.tensor(self.step * n)

    count = modcache.cached(Counter().count, key=lambda n: f"{n}")
    assert [int(count(3)), int(count(3))] == [6, 6]
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}


class Scaled:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    @modcache.cached(key="name")
    def load(this, name: str) -> torch.Tensor:  # noqa: N805
        return torch.tensor(len(name) * this.scale)

    @modcache.cached(key="name")
    def without_self(name: str, times: int = 1) -> torch.Tensor:  # type: ignore[misc] # noqa: N805
        return torch.tensor(len(name) * times)


def test_the_object_may_be_given_by_name(counted: Growth) -> None:
    found = [Loader.load(self=Loader(2.0), name="ab"), Loader(2.0).load("ab")]
    assert [one.tolist() for one in found] == [[4, 4], [4, 4]]
    assert [float(Scaled.load(this=Scaled(2.0), name="ab")), float(Scaled(2.0).load("ab"))] == [
        4,
        4,
    ]
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 2}
    with pytest.raises(TypeError, match="unexpected keyword argument 'self'"):
        Loader().load("ab", self=Loader())


class Tokens(nn.Module):
    @staticmethod
    def split(text: str) -> torch.Tensor:
        return torch.tensor([len(word) for word in text.split()])

    @classmethod
    def made(cls, text: str) -> torch.Tensor:
        return cls.split(text)

    def doubled(this, x: torch.Tensor) -> torch.Tensor:  # noqa: N805
        return x * 2


@pytest.mark.parametrize(("name", "kind"), [("split", "staticmethod"), ("made", "classmethod")])
def test_a_method_that_gets_no_object_is_decorated_in_its_class(name: str, kind: str) -> None:
    cure = rf"it is a {kind}.*@{kind} above @modcache\.cached"
    with pytest.raises(TypeError, match=rf"Tokens\.{name} cannot be cached as a method: {cure}"):
        modcache.cached(Tokens(), key="text", methods=(name,))


def test_the_object_may_have_another_name_than_self(counted: Growth) -> None:
    cached = modcache.cached(Tokens(), key="ids", methods=("doubled",))
    for expected in ({"misses": 3, "stored": 3}, {"hits_memory": 3}):
        assert torch.equal(cached.doubled(X, ids=[0, 1, 2]), X * 2)
        assert counted() == expected


def test_a_method_without_self_says_so() -> None:
    assert int(Scaled.without_self("ab", 2)) == 4
    with pytest.raises(TypeError, match=r"got a Scaled as name, .* needs self .*@staticmethod"):
        Scaled(1.0).without_self("ab")


def test_the_object_itself_is_no_key() -> None:
    with pytest.raises(TypeError, match=r"key of .*load is self, .* key=lambda self: self\.name"):

        class Named:
            @modcache.cached(key="self")
            def load(self) -> torch.Tensor:
                return X
