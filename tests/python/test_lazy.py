# SPDX-License-Identifier: Apache-2.0
"""modcache.lazy: modules that are loaded when they have to run for the first time."""

from __future__ import annotations

import copy
import os
import random
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import numpy
import pytest
import torch
from file_opens import FileOpens
from lazy_models import KINDS, SCOPE, X, encoder, encoder_file, expected, lazy_encoder
from lowered_models import Named, Structured
from models import Encoder, frozen
from processes import ProcessRunner
from torch import nn
from torch.utils import _pytree as pytree


class Counted:
    """A factory that counts its calls."""

    def __init__(self, factory: Callable[[], nn.Module] = encoder) -> None:
        self.calls = 0
        self._factory = factory

    def __call__(self) -> nn.Module:
        self.calls += 1
        return self._factory()


def must_not_load() -> nn.Module:
    raise AssertionError("the module was loaded")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return encoder_file(tmp_path)


@pytest.fixture(params=KINDS)
def lazy(request: pytest.FixtureRequest, path: Path) -> modcache.Lazy:
    return lazy_encoder(request.param, path)


# ----- when it is loaded


def test_loading_does_not_repeat_that_torchscript_is_deprecated(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        modcache.lookup_or_run(modcache.lazy(path, scope=SCOPE), X, "k")


@pytest.mark.parametrize("key", ["k", ["a", "b"], [1, 2]])
def test_the_first_miss_loads_it_and_later_calls_do_not(
    lazy: modcache.Lazy, key: Any, counted: Any
) -> None:
    rows = 1 if isinstance(key, str) else 2
    assert not lazy.loaded
    assert torch.equal(modcache.lookup_or_run(lazy, X, key), expected())
    assert counted() == {"misses": rows, "stored": rows}
    assert lazy.loaded
    module = lazy.load()
    assert torch.equal(modcache.lookup_or_run(lazy, X, key), expected())
    assert counted() == {"hits_memory": rows}
    modcache.lookup_or_run(lazy, X * 2, "another")
    assert lazy.load() is module


@pytest.mark.parametrize("key", ["k", ["a", "b"], [1, 2]])
def test_over_a_warm_cache_the_factory_is_not_called(key: Any, counted: Any) -> None:
    first = modcache.lookup_or_run(modcache.lazy(encoder, scope=SCOPE), X, key)
    counted()
    lazy = modcache.lazy(must_not_load, scope=SCOPE)
    assert torch.equal(modcache.lookup_or_run(lazy, X, key), first)
    assert counted() == {"hits_memory": len(key) if isinstance(key, list) else 1}
    assert not lazy.loaded


def test_a_partly_missing_batch_runs_what_is_missing(counted: Any) -> None:
    modcache.lookup_or_run(modcache.lazy(encoder, scope=SCOPE), X, ["a", "b"])
    counted()
    factory = Counted()
    batch = torch.cat([X.flip(0), X * 3])
    value = modcache.lookup_or_run(modcache.lazy(factory, scope=SCOPE), batch, ["b", "a", "c", "d"])
    assert factory.calls == 1
    assert torch.equal(value[2:], expected(X * 3))
    assert counted() == {"hits_memory": 2, "misses": 2, "stored": 2}


def of_lazy_file(path: str, keys: list[str]) -> tuple[bool, list[float], dict[str, int]]:
    lazy = modcache.lazy(path)
    value = modcache.lookup_or_run(lazy, torch.ones(len(keys), 4), keys)
    modcache.flush()
    return lazy.loaded, value.tolist(), modcache.stats()


def test_a_file_is_not_opened_by_a_new_process_over_a_warm_cache(
    path: Path, processes: ProcessRunner
) -> None:
    is_loaded, first, _ = processes.run(of_lazy_file, str(path), ["a", "b"]).value
    assert is_loaded
    opens = FileOpens(path)
    is_loaded, again, stats = processes.run(of_lazy_file, str(path), ["a", "b"]).value
    assert (is_loaded, opens.any_so_far(), stats["hits_disk"]) == (False, False, 2)
    assert again == first
    assert processes.run(of_lazy_file, str(path), ["a", "c"]).value[0]
    assert opens.any_so_far()
    opens.close()


def test_a_file_shares_entries_with_the_module_loaded_ordinarily(path: Path, counted: Any) -> None:
    loaded = torch.jit.load(path)
    for parameter in loaded.parameters():
        parameter.requires_grad_(False)
    modcache.lookup_or_run(loaded, X, "a")
    modcache.lookup_or_run(modcache.lazy(path), X, "b")
    torch.ops.cache.lookup_or_run_file(str(path), X, "c")
    counted()
    for key in "abc":
        modcache.lookup_or_run(loaded, X, key)
        modcache.lookup_or_run(modcache.lazy(path), X, key)
        torch.ops.cache.lookup_or_run_file(str(path), X, key)
    assert counted() == {"hits_memory": 9}


def test_several_methods_and_a_scope_of_the_call(path: Path) -> None:
    lazy = modcache.lazy(must_not_load, scope=SCOPE)
    modcache.lookup_or_run(encoder().requires_grad_(False), X, "k", scope="of the call")
    assert torch.equal(modcache.lookup_or_run(lazy, X, "k", scope="of the call"), expected())
    with pytest.raises(AttributeError, match="no such method"):
        modcache.lookup_or_run(modcache.lazy(encoder, scope=SCOPE), X, "k", method="encode")


def test_calling_it_loads_and_runs_it(lazy: modcache.Lazy, counted: Any) -> None:
    assert torch.equal(lazy(X), expected())
    assert lazy.loaded
    assert counted() == {}


def test_a_failing_factory_is_asked_again(counted: Any) -> None:
    failures = [OSError("no network")]

    def factory() -> nn.Module:
        if failures:
            raise failures.pop()
        return encoder()

    lazy = modcache.lazy(factory, scope=SCOPE)
    for key in ("k", ["a", "b"]):
        failures.append(OSError("no network"))
        failures[:] = failures[:1]
        with pytest.raises(OSError, match="no network"):
            modcache.lookup_or_run(modcache.lazy(factory, scope=SCOPE), X, key)
    assert counted() == {}
    assert torch.equal(modcache.lookup_or_run(lazy, X, "k"), expected())
    assert counted() == {"misses": 1, "stored": 1}


def test_threads_load_it_once() -> None:
    started = threading.Barrier(4)

    def slow() -> nn.Module:
        threading.Event().wait(0.05)
        return encoder()

    factory = Counted(slow)
    lazy = modcache.lazy(factory, scope=SCOPE)
    values = []

    def ask(number: int) -> None:
        started.wait()
        values.append(modcache.lookup_or_run(lazy, X, f"{number % 2}"))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert factory.calls == 1
    assert all(torch.equal(value, expected()) for value in values)


def test_a_child_that_is_forked_during_a_load_loads_for_itself() -> None:
    is_loading, may_end = threading.Event(), threading.Event()

    def held_up() -> nn.Module:
        if os.getpid() == parent:
            is_loading.set()
            may_end.wait()
        return encoder()

    parent = os.getpid()
    lazy = modcache.lazy(held_up, scope=SCOPE)
    thread = threading.Thread(target=lazy.load)
    thread.start()
    is_loading.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if isinstance(lazy.load(), Encoder) else 1)
    assert os.waitpid(child, 0)[1] == 0
    may_end.set()
    thread.join()


# ----- loading leaves no trace


def drawing() -> nn.Module:
    random.random()
    numpy.random.rand()
    return frozen(Encoder())  # its initial weights are drawn


def random_states() -> tuple[Any, ...]:
    return random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


@pytest.mark.parametrize("key", ["k", ["a", "b"]])
def test_a_factory_that_draws_random_numbers(key: Any, counted: Any) -> None:
    before = random_states()
    modcache.lookup_or_run(modcache.lazy(drawing, scope=SCOPE), X, key)
    assert random_states() == before
    assert "bypassed_impure" not in counted()


@pytest.mark.parametrize("around", [torch.inference_mode, torch.no_grad])
def test_it_is_made_as_outside_of_what_surrounds_the_call(around: Any) -> None:
    lazy = modcache.lazy(encoder, scope=SCOPE)
    with around():
        modcache.lookup_or_run(lazy, X, "k")
    assert not any(parameter.is_inference() for parameter in lazy.load().parameters())
    x = X.clone().requires_grad_()
    lazy(x).sum().backward()
    assert x.grad is not None


def test_the_time_it_takes_to_load_is_not_saved_by_a_hit() -> None:
    def slow() -> nn.Module:
        threading.Event().wait(0.2)
        return encoder()

    modcache.lookup_or_run(modcache.lazy(slow, scope=SCOPE), X, "k")
    modcache.lookup_or_run(modcache.lazy(slow, scope="other"), X, ["a", "b"])
    assert modcache.stats()["run_us"] < 150_000


# ----- grad


def test_what_is_loaded_does_not_require_grad(lazy: modcache.Lazy, counted: Any) -> None:
    assert not modcache.lookup_or_run(lazy, X, "k").requires_grad
    assert not lazy(X).requires_grad
    assert counted() == {"misses": 1, "stored": 1}


def test_an_input_that_requires_grad_runs_it(lazy: modcache.Lazy, counted: Any) -> None:
    modcache.lookup_or_run(lazy, X, "k")
    lazy = copy.copy(lazy)
    x = X.clone().requires_grad_()
    modcache.lookup_or_run(lazy, x, "k").sum().backward()
    assert x.grad is not None
    assert counted()["bypassed_grad"] == 1


def test_one_that_is_to_be_trained_is_loaded_and_not_cached(
    lazy: modcache.Lazy, counted: Any
) -> None:
    assert lazy.requires_grad_(False) is lazy
    assert not lazy.loaded
    lazy.requires_grad_()
    assert lazy.loaded
    assert modcache.lookup_or_run(lazy, X, "k").requires_grad
    assert counted() == {"bypassed_grad": 1}


# ----- a file that changes


def test_a_replaced_file_is_loaded_anew(path: Path) -> None:
    lazy = modcache.lazy(path)
    assert torch.equal(modcache.lookup_or_run(lazy, X, "k"), expected())
    os.utime(path)
    module = lazy.load()
    other = nn.Linear(4, 4).eval().requires_grad_(False)
    torch.jit.script(other).save(str(path))
    assert torch.equal(modcache.lookup_or_run(lazy, X, "k"), other(X))
    assert lazy.load() is not module
    assert torch.equal(modcache.lookup_or_run(modcache.lazy(path), X, "k"), other(X))


def test_a_touched_file_is_not_loaded_anew(path: Path) -> None:
    lazy = modcache.lazy(path)
    module = lazy.load()
    os.utime(path)
    assert lazy.load() is module


def test_a_file_that_is_gone(path: Path) -> None:
    loaded, named = modcache.lazy(path), modcache.lazy(path, scope=SCOPE)
    modcache.lookup_or_run(loaded, X, "k")
    modcache.lookup_or_run(named, X, "k")
    path.unlink()
    assert torch.equal(modcache.lookup_or_run(loaded, X * 2, "l"), expected(X * 2))
    fresh = modcache.lazy(path, scope=SCOPE)
    assert torch.equal(modcache.lookup_or_run(fresh, X, "k"), expected())
    for lazy, key in ((fresh, "l"), (modcache.lazy(path), "k")):
        with pytest.raises(FileNotFoundError, match=r"encoder.pt.*TorchScript file"):
            modcache.lookup_or_run(lazy, X, key)


# ----- results and modes


@pytest.mark.parametrize("kind", ["factory", "path"])
@pytest.mark.parametrize(
    ("module", "key"), [(Structured, "k"), (Structured, ["a", "b"]), (Named, "k")]
)
def test_structured_results(kind: str, module: type[nn.Module], key: Any, tmp_path: Path) -> None:
    source: Any = module
    if kind == "path":
        source = tmp_path / "structured.pt"
        torch.jit.script(module().eval()).save(str(source))
    first = modcache.lookup_or_run(modcache.lazy(source, scope=SCOPE), X, key)
    lazy = modcache.lazy(must_not_load, scope=SCOPE)
    again = modcache.lookup_or_run(lazy, X, key)
    assert pytree.tree_flatten(again)[1] == pytree.tree_flatten(first)[1] or module is Named
    for one, other, run in zip(*map(pytree.tree_leaves, (first, again, module()(X))), strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(run))
    if module is Named:
        assert again._fields == first._fields == ("mean", "length")


def test_off_loads_and_runs(lazy: modcache.Lazy, cache_dir: Path, counted: Any) -> None:
    with modcache.mode("off"):
        assert torch.equal(modcache.lookup_or_run(lazy, X, "k"), expected())
    assert counted() == {"bypassed_off": 1}
    assert not cache_dir.exists()


@pytest.mark.parametrize("mode", ["refresh", "verify", "read"])
def test_other_modes(lazy: modcache.Lazy, mode: str, counted: Any) -> None:
    with modcache.mode(mode):
        for _ in range(2):
            assert torch.equal(modcache.lookup_or_run(lazy, X, "k"), expected())
    assert counted() == {"misses": 2, **({"stored": 2} if mode == "refresh" else {})}


def test_a_module_that_changes_when_it_runs_is_not_cached(counted: Any) -> None:
    lazy = modcache.lazy(lambda: nn.BatchNorm1d(4).train(), scope=SCOPE)
    modcache.lookup_or_run(lazy, X, "k")
    assert counted() == {"bypassed_impure": 1}


def test_under_a_transform_it_runs_uncached(lazy: modcache.Lazy, counted: Any) -> None:
    value = torch.vmap(lambda x: modcache.lookup_or_run(lazy, x, "k"))(X)
    assert torch.allclose(value, expected())
    assert counted() == {"bypassed_type": 1}


# ----- callers' mistakes


def test_mistakes_say_what_is_valid(path: Path) -> None:
    with pytest.raises(ValueError, match=r"a factory needs a scope.*scope=\"name@version\""):
        modcache.lazy(encoder)
    with pytest.raises(ValueError, match=r"archive of torch\.export"):
        modcache.lazy("encoder.pt2")
    with pytest.raises(TypeError, match=r"lazy: an Encoder is there already"):
        modcache.lazy(encoder(), scope=SCOPE)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="lazy: got an int, but"):
        modcache.lazy(3, scope=SCOPE)  # type: ignore[arg-type]
    for wrong in (None, 3, b"encoder.pt", ""):
        with pytest.raises(TypeError, match="lazy: "):
            modcache.lazy(wrong, scope=SCOPE)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"returned a dict, but must return a torch\.nn.Module"):
        modcache.lookup_or_run(modcache.lazy(dict, scope=SCOPE), X, "k")  # type: ignore[arg-type]
    torch.save({}, path)
    with pytest.raises(RuntimeError, match=r"must be a TorchScript file.*pass a factory"):
        modcache.lookup_or_run(modcache.lazy(path), X, "k")
