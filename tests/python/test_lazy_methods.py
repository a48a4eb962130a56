# SPDX-License-Identifier: Apache-2.0
"""Lazy modules by other methods than forward, in functions that are cached, and unloaded."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import modcache
import pytest
import torch
from processes import ProcessRunner
from torch import nn

SCOPE = "autoencoder@1"
IDS = torch.arange(3)


class Autoencoder(nn.Module):
    """Is called by its methods alone, as those of diffusers are."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(4, 2)

    def encode(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.down(x) * scale

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return z @ self.down.weight


class Factory:
    """Makes the same module each time, and counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> nn.Module:
        self.calls += 1
        torch.manual_seed(0)
        return Autoencoder().eval()


def must_not_load() -> nn.Module:
    raise AssertionError("the module was loaded")


def batch() -> torch.Tensor:
    return torch.linspace(-1, 1, 12).reshape(3, 4)


def cached(factory: Any, **options: Any) -> Any:
    lazy = modcache.lazy(factory, scope=SCOPE)
    return modcache.cached(lazy, **{"key": "ids", "methods": ("encode", "decode"), **options})


def test_a_method_of_what_is_not_loaded_is_cached(counted: Any) -> None:
    plain, factory = Factory()(), Factory()
    module = cached(factory)
    assert torch.equal(module.encode(batch(), ids=IDS), plain.encode(batch()))
    assert counted() == {"misses": 3, "stored": 3}
    assert (module.loaded, factory.calls) == (True, 1)
    warm = cached(must_not_load)
    assert torch.equal(warm.encode(batch(), ids=IDS), plain.encode(batch()))
    assert counted() == {"hits_memory": 3}
    assert not warm.loaded


def test_each_method_and_each_argument_has_entries_of_its_own(counted: Any) -> None:
    plain, module = Factory()(), cached(Factory())
    found = module.encode(batch(), ids=IDS)
    counted()
    for _ in range(2):
        assert torch.equal(module.encode(batch(), scale=2.0, ids=IDS), plain.encode(batch(), 2.0))
        assert torch.equal(module.decode(found, ids=IDS), plain.decode(found))
    assert counted() == {"misses": 6, "stored": 6, "hits_memory": 6}


def test_entries_are_those_of_the_module_under_the_same_name(counted: Any) -> None:
    plain = Factory()().requires_grad_(False)
    first = modcache.lookup_or_run(plain, batch(), IDS, scope=SCOPE, method="encode")
    counted()
    assert torch.equal(cached(must_not_load).encode(batch(), ids=IDS), first)
    assert counted() == {"hits_memory": 3}


def test_the_key_may_be_made_from_the_content(counted: Any) -> None:
    module = cached(Factory(), key=modcache.content_keys)
    first = module.encode(batch())
    edited = batch()
    edited[1, 2] += 0.001
    counted()
    again = module.encode(edited)
    assert counted() == {"hits_memory": 2, "misses": 1, "stored": 1}
    assert torch.equal(again[[0, 2]], first[[0, 2]])
    assert not torch.equal(again[1], first[1])


def test_a_fill_takes_the_method(counted: Any) -> None:
    factory = Factory()
    assert modcache.fill(cached(factory).encode, [(batch(), IDS)], progress=False).runs == 3
    assert modcache.fill(cached(must_not_load).encode, [(batch(), IDS)], progress=False).hits == 3


def test_under_the_keys_of_a_block(counted: Any) -> None:
    first = cached(Factory()).encode(batch(), ids=IDS)
    lazy = modcache.cached(modcache.lazy(must_not_load, scope=SCOPE), methods=("encode",))
    counted()
    with modcache.keys(IDS):
        assert torch.equal(lazy.encode(batch()), first)
    assert counted() == {"hits_memory": 3}


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_loads_for_itself(again: Any, counted: Any) -> None:
    module = cached(Factory())
    first = module.encode(batch(), ids=IDS)
    double = again(module)
    assert torch.equal(double.encode(batch(), ids=IDS), first)
    assert not double.loaded
    assert torch.equal(double.encode(batch() * 2, ids=IDS + 3), Factory()().encode(batch() * 2))
    assert double.loaded


def test_a_method_that_the_module_lacks_is_an_error_of_the_call() -> None:
    module = cached(Factory(), methods=("embed",))
    with pytest.raises(AttributeError, match="embed"):
        module.embed(batch(), ids=IDS)


def test_off_runs_the_method(counted: Any) -> None:
    module = cached(Factory())
    with modcache.mode("off"):
        assert torch.equal(module.encode(batch(), ids=IDS), Factory()().encode(batch()))
    assert counted() == {"bypassed_off": 3}


def in_another_process() -> tuple[bool, list[Any], dict[str, int]]:
    module = cached(Factory())
    found = module.encode(batch(), ids=IDS)
    modcache.flush()
    return module.loaded, found.tolist(), modcache.stats()


def test_a_later_process_does_not_load_it(processes: ProcessRunner) -> None:
    is_loaded, first, _ = processes.run(in_another_process).value
    assert is_loaded
    is_loaded, again, stats = processes.run(in_another_process).value
    assert (is_loaded, again, stats["misses"]) == (False, first, 0)


# ----- loaded inside of a run that is cached


class Held(nn.Module):
    """Has a lazy module as a part."""

    def __init__(self, inner: modcache.Lazy) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner.load().encode(x)  # type: ignore[operator, no-any-return]


def in_function(lazy: modcache.Lazy) -> Any:
    @modcache.cached(key="ids", scope="function@1")
    def encoded(x: torch.Tensor) -> Any:
        return lazy.load().encode(x)  # type: ignore[operator]

    return encoded


def in_module(lazy: modcache.Lazy) -> Any:
    return modcache.cached(Held(lazy), key="ids", scope="module@1")


@pytest.mark.parametrize("around", [in_function, in_module])
def test_the_run_that_loads_it_is_stored_as_others_are(around: Any, counted: Any) -> None:
    """Although the factory draws the module's first weights, and counts."""
    factory = Factory()
    encoded = around(modcache.lazy(factory, scope=SCOPE))
    state = torch.get_rng_state()
    first = encoded(batch(), ids=IDS)
    assert (factory.calls, counted()) == (1, {"misses": 3, "stored": 3})
    assert torch.equal(torch.get_rng_state(), state)
    warm = around(modcache.lazy(must_not_load, scope=SCOPE))
    assert torch.equal(warm(batch(), ids=IDS), first)
    assert counted() == {"hits_memory": 3}


@pytest.mark.parametrize("draws", ["before", "after"])
def test_a_run_that_draws_besides_is_not_stored(draws: str, counted: Any) -> None:
    inner = modcache.lazy(Factory(), scope="inner")
    lazy = modcache.lazy(lambda: nn.Sequential(inner.load(), nn.Linear(2, 2)).eval(), scope=SCOPE)

    @modcache.cached(key="ids", scope=f"draws {draws}")
    def noisy(x: torch.Tensor) -> Any:
        early = torch.rand(1) if draws == "before" else 0.0
        found = lazy.load()[0].encode(x) + early  # type: ignore[index, operator]
        return found + torch.rand(1) if draws == "after" else found

    noisy(batch(), ids=IDS)
    assert counted() == {"bypassed_impure": 3}


# ----- unloading


def test_an_unloaded_module_is_freed_and_hits_do_not_need_it(counted: Any) -> None:
    factory = Factory()
    module = cached(factory)
    first = module.encode(batch(), ids=IDS)
    held = weakref.ref(module._source.module)
    module.unload()
    gc.collect()
    assert (module.loaded, held()) == (False, None)
    assert torch.equal(module.encode(batch(), ids=IDS), first)
    assert (module.loaded, factory.calls) == (False, 1)
    counted()


def test_the_next_miss_loads_it_anew_as_it_was_asked_for(counted: Any) -> None:
    factory = Factory()
    module = cached(factory).half()
    module.encode(batch().half(), ids=IDS)
    module.unload()
    module.unload()
    found = module.encode(batch().half() * 2, ids=IDS + 3)
    assert torch.equal(found, Factory()().half().encode(batch().half() * 2))
    assert (factory.calls, found.dtype) == (2, torch.float16)
    assert counted() == {"misses": 6, "stored": 6}
