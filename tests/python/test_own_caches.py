# SPDX-License-Identifier: Apache-2.0
"""modcache.Cache: caches beside the default one, each sentence of the contract about them."""

from __future__ import annotations

import asyncio
import gc
import inspect
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from lazy_models import ask_lazy, encoder_file
from modcache import Cache
from processes import ProcessRunner
from recorded_models import exported
from torch import nn

X = torch.linspace(-1, 1, 8).reshape(2, 4)
IDS = torch.arange(2)


class Doubled(nn.Module):
    """Counts its runs where they happen in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.jit.is_scripting():
            self.runs.append(1)
        return 2 * x


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 2).requires_grad_(False)

    def forward(self, x: torch.Tensor, key: str) -> torch.Tensor:
        return torch.ops.cache.lookup_or_run(self.encoder, x, key, scope="scripted")


class Forked(nn.Module):
    """Makes its call in a thread of torch.jit.fork."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Scripted()

    def forward(self, x: torch.Tensor, key: str) -> torch.Tensor:
        future = torch.jit.fork(self.inner, x, key)
        return torch.jit.wait(future)


class Exported(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 2).requires_grad_(False)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return modcache.lookup_or_run(self.encoder, x, ids, scope="exported")


class Holding(nn.Module):
    """Has a part that was cached under the argument ``ids``."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.part(x, ids=ids)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Cache]:
    """Makes caches, each in a directory of its own where none is named."""
    names = iter(range(100))

    def made(**options: Any) -> Cache:
        return Cache(**{"dir": tmp_path / f"own{next(names)}", **options})

    return made


def counts(cache: Any) -> tuple[int, int]:
    """Misses and hits."""
    stats = cache.stats()
    hits = stats["hits_memory"] + stats["hits_disk"] + stats["hits_remote"]
    return stats["misses"], hits


def lookup(key: str = "k", value: torch.Tensor = X) -> torch.Tensor:
    return modcache.lookup_or_run(nn.ReLU(), value, key, scope="relu")


def call_next_to(cache: Cache, function: Callable[[], Any]) -> Any:
    """Calls the function in one task, while another task is inside ``with cache:``."""

    async def inside(is_entered: asyncio.Event, is_done: asyncio.Event) -> None:
        with cache:
            is_entered.set()
            await is_done.wait()

    async def both() -> Any:
        is_entered, is_done = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(inside(is_entered, is_done))
        await is_entered.wait()
        try:
            return function()
        finally:
            is_done.set()
            await task

    return asyncio.run(both())


def memory_settings(directory: str) -> tuple[str, str]:
    own = Cache(dir=directory)
    return modcache.settings()["memory"], own.settings()["memory"]


def unpickled(data: bytes) -> tuple[bool, str, str, str]:
    first, second = pickle.loads(data), pickle.loads(data)
    seen = first.settings()
    return first is second, seen["dir"], seen["memory"], seen["match"]


def unpickled_inside(directory: str, data: bytes) -> tuple[tuple[str, str], str]:
    """The sizes of memory of the default cache and of an own one, and the mode of the process."""
    own = Cache(dir=directory, memory="2MB")
    with own:
        pickle.loads(data)
    return (modcache.settings()["memory"], own.settings()["memory"]), modcache.settings()["mode"]


def ask_lazy_in(directory: str, path: str) -> bool:
    with Cache(dir=directory):
        return ask_lazy(path, "forward")


def called(data: bytes) -> tuple[tuple[int, int], tuple[int, int]]:
    module, cache = pickle.loads(data)
    module(X)
    return counts(cache), counts(modcache)


# What a Cache is.


def test_it_is_a_cache_of_its_own(make: Callable[..., Cache]) -> None:
    own, other = make(), make()
    for cache in (own, other):
        assert torch.equal(cache.lookup_or_run(nn.ReLU(), X, "k", scope="relu"), X.relu())
    own.lookup_or_run(nn.ReLU(), X, "k", scope="relu")
    assert [counts(own), counts(other), counts(modcache)] == [(1, 1), (1, 0), (0, 0)]
    own.clear()
    assert not own.contains("relu", "k")
    assert other.contains("relu", "k")


def test_it_has_the_functions_of_the_package_as_methods() -> None:
    same = ["clear", "configure", "contains", "explain", "fill", "flush", "lookup_or_run"]
    more = ["metrics", "place", "prefetch", "reset_stats", "settings"]
    for name in [*same, *more, "cached", "lazy", "stats"]:
        method, function = getattr(Cache, name), getattr(modcache, name)
        assert method.__doc__, name
        if name not in ("cached", "lazy", "stats"):
            assert inspect.unwrap(method) is inspect.unwrap(function), name


def test_methods_are_about_this_cache(make: Callable[..., Cache]) -> None:
    own = make(memory="1MB")
    assert own.settings()["memory"] == "1000000"
    own.configure(memory="2MB")
    assert own.settings()["memory"] == "2000000"
    assert modcache.settings()["memory"] != "2000000"
    own.lookup_or_run(nn.ReLU(), X, "k", scope="relu")
    own.flush()
    assert "modcache_misses_total" in own.metrics()
    assert own.explain(nn.ReLU(), X, "k", scope="relu")
    own.reset_stats()
    assert counts(own) == (0, 0)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"memroy": "1GB"}, ValueError, "memroy"),
        ({"memory": "much"}, ValueError, "memory"),
        ({"memory": [1]}, TypeError, "memory"),
    ],
)
def test_wrong_options_are_named(
    make: Callable[..., Cache], options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        make(**options)


def test_the_environment_sets_the_default_alone(processes: ProcessRunner, tmp_path: Path) -> None:
    default = processes.run(memory_settings, str(tmp_path / "a")).value
    env = {"MODCACHE_MEMORY": "7MB"}
    changed = processes.run(memory_settings, str(tmp_path / "b"), env=env).value
    assert changed == ("7000000", default[1])


# The current cache.


def test_with_makes_it_the_current_one(make: Callable[..., Cache]) -> None:
    outer, inner = make(), make()
    wrapped = modcache.cached(nn.Tanh(), key="content")
    scripted = torch.jit.script(Scripted())
    with outer:
        lookup()
        with inner:
            lookup()
            wrapped(X)
            scripted(X, "k")
        scripted(X, "k")
    assert [counts(outer), counts(inner), counts(modcache)] == [(2, 0), (3, 0), (0, 0)]
    lookup()
    assert counts(modcache) == (1, 0)


def test_entering_twice_and_leaving_after_an_error(make: Callable[..., Cache]) -> None:
    own = make()
    with pytest.raises(KeyError), own, own:
        raise KeyError
    lookup()
    assert [counts(own), counts(modcache)] == [(0, 0), (1, 0)]
    with pytest.raises(RuntimeError, match="has not entered it"):
        own.__exit__()


def test_threads_do_not_inherit_it(make: Callable[..., Cache]) -> None:
    own, of_thread = make(), make()

    def call() -> None:
        lookup()
        with of_thread:
            lookup()

    with own:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        lookup()
    assert [counts(own), counts(of_thread), counts(modcache)] == [(1, 0), (1, 0), (1, 0)]


def test_threads_of_fork_inherit_it(make: Callable[..., Cache]) -> None:
    own = make()
    model = torch.jit.script(Forked())
    with own:
        model(X, "k")
        model(X, "k")
    assert [counts(own), counts(modcache)] == [(1, 1), (0, 0)]


def test_a_task_and_the_tasks_that_it_starts_have_it(make: Callable[..., Cache]) -> None:
    caches = [make(), make()]
    wrapped = modcache.cached(nn.Tanh(), key="content")

    async def call(key: str) -> None:
        await asyncio.sleep(0)
        lookup(key)
        wrapped(X)

    async def block(cache: Cache, turns: int) -> None:
        with cache:
            for turn in range(turns):
                await call(f"own{turn}")
                await asyncio.create_task(call(f"started{turn}"))

    async def all_of_them() -> None:
        await asyncio.gather(block(caches[0], 3), block(caches[1], 5), call("outside"))

    asyncio.run(all_of_them())
    assert [counts(cache) for cache in caches] == [(7, 5), (11, 9)]
    assert counts(modcache) == (2, 0)
    lookup()
    assert counts(modcache) == (3, 0)


def test_asyncio_takes_it_to_its_threads(make: Callable[..., Cache]) -> None:
    own = make()

    async def block() -> None:
        with own:
            await asyncio.to_thread(lookup)

    asyncio.run(block())
    assert [counts(own), counts(modcache)] == [(1, 0), (0, 0)]


def test_a_prefetcher_encodes_in_the_cache_in_which_it_is_begun(
    make: Callable[..., Cache],
) -> None:
    own = make()
    scripted = torch.jit.script(Scripted())
    with own:
        batches = iter(modcache.Prefetcher([X] * 5, encode=lambda x: (lookup(), scripted(x, "k"))))
        for _ in range(3):  # the first ones are made here, to see what the loader draws
            next(batches)
    assert len(list(batches)) == 2
    assert [counts(own), counts(modcache)] == [(2, 8), (0, 0)]


def test_operators_cannot_know_the_task_and_say_so(make: Callable[..., Cache]) -> None:
    caches = [make(), make()]
    scripted = torch.jit.script(Scripted())

    async def block(cache: Cache) -> None:
        with cache:
            await asyncio.sleep(0.01)
            with pytest.raises(ValueError, match=r"cache\.lookup_or_run"):
                torch.ops.cache.lookup_or_run(scripted.encoder, X, "k", scope="s")
            cache.lookup_or_run(scripted.encoder, X, "k", scope="s")
            await asyncio.sleep(0.01)

    async def both() -> None:
        await asyncio.gather(*(block(cache) for cache in caches))

    asyncio.run(both())
    assert [counts(cache) for cache in caches] == [(1, 0), (1, 0)]
    scripted(X, "k")  # afterwards the thread is as before
    assert counts(modcache) == (1, 0)


def test_tasks_that_have_the_same_cache_do_not_overlap(make: Callable[..., Cache]) -> None:
    own = make()
    scripted = torch.jit.script(Scripted())

    async def block(key: str) -> None:
        with own:
            await asyncio.sleep(0.01)
            scripted(X, key)
            await asyncio.sleep(0.01)

    async def both() -> None:
        await asyncio.gather(block("a"), block("b"))

    asyncio.run(both())
    assert counts(own) == (2, 0)


def test_tasks_that_end_up_in_the_same_cache_do_not_overlap(make: Callable[..., Cache]) -> None:
    outer, own = make(), make()
    scripted = torch.jit.script(Scripted())

    async def nested() -> None:
        with outer, own:
            await asyncio.sleep(0.01)
            scripted(X, "k")

    async def plain() -> None:
        with own:
            scripted(X, "k")
            await asyncio.sleep(0.02)

    async def both() -> None:
        await asyncio.gather(nested(), plain())

    asyncio.run(both())
    assert [counts(outer), counts(own)] == [(0, 0), (1, 1)]


def test_tasks_overlap_where_a_cache_of_one_is_around_that_of_the_other(
    make: Callable[..., Cache],
) -> None:
    first, second = make(), make()
    scripted = torch.jit.script(Scripted())

    async def of_first() -> None:
        with first:
            await asyncio.sleep(0.01)
            with pytest.raises(ValueError, match=r"cache\.lookup_or_run"):
                torch.ops.cache.lookup_or_run(scripted.encoder, X, "k", scope="s")

    async def of_second() -> None:
        with first, second:
            await asyncio.sleep(0.02)

    async def both() -> None:
        await asyncio.gather(of_first(), of_second())

    asyncio.run(both())
    assert [counts(first), counts(second)] == [(0, 0), (0, 0)]


def test_a_cache_is_made_shown_and_pickled_next_to_a_task_in_another(
    make: Callable[..., Cache],
) -> None:
    def shown() -> str:
        own = make(memory="3MB")
        assert pickle.loads(pickle.dumps(own)) is own
        pickle.dumps(own.cached(nn.Tanh(), key="content"))
        return repr(own)

    assert "memory='3000000'" in call_next_to(make(), shown)


def test_modules_are_identified_and_placed_next_to_a_task_in_another(
    make: Callable[..., Cache], tmp_path: Path
) -> None:
    own, path = make(), encoder_file(tmp_path)

    def ask() -> None:
        with own:
            lazy = modcache.lazy(path)
            assert modcache.fingerprint(lazy) == modcache.fingerprint(torch.jit.load(path))
            assert modcache.place(lazy, "host") == "host"

    call_next_to(make(), ask)


@pytest.mark.parametrize("is_default", [True, False])
def test_fill_next_to_a_task_in_another(make: Callable[..., Cache], is_default: bool) -> None:
    other, cache = make(), modcache if is_default else make()
    encoder = nn.Tanh()
    batches = [(X, IDS)]

    done = call_next_to(other, lambda: cache.fill(encoder, batches, key=1, progress=False))
    assert (done.rows, done.runs, done.stored) == (2, 2, 2)
    assert [counts(cache), counts(other)] == [(2, 0), (0, 0)]
    with modcache.mode("read"):
        done = call_next_to(other, lambda: cache.fill(encoder, batches, key=1, progress=False))
    assert "read" in done.skipped


def test_what_it_made_always_uses_it(make: Callable[..., Cache], tmp_path: Path) -> None:
    own, other = make(), make()
    path = tmp_path / "model.pt"
    torch.jit.save(torch.jit.script(nn.Sequential(nn.Linear(4, 2))), path)

    @own.cached(key="content")
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    module = own.cached(nn.Tanh(), key="content")
    lazy = own.lazy(path)
    with other:
        function(X)
        module(X)
        modcache.lookup_or_run(lazy, X, "k")
    assert counts(own) == (3, 0)
    other.lookup_or_run(lazy, X, "k")
    assert [counts(own), counts(other), counts(modcache)] == [(3, 1), (0, 0), (0, 0)]


@pytest.mark.parametrize("kind", ["module", "lazy module", "function", "static method"])
def test_fill_and_explain_use_the_cache_of_what_it_made(
    make: Callable[..., Cache], kind: str
) -> None:
    own = make()

    class Holder:
        @staticmethod
        @own.cached(key="ids")
        def doubled(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return x * 2

    @own.cached(key="ids")
    def doubled(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return x * 2

    made = {
        "module": own.cached(nn.Tanh(), key="ids"),
        "lazy module": own.lazy(nn.Tanh, scope="tanh@1"),
        "function": doubled,
        "static method": Holder.doubled,
    }[kind]
    key = 1 if kind == "lazy module" else None

    def batches() -> Any:
        lookup()  # of the loader, in the current cache
        yield X, IDS

    for runs in (2, 0):
        done = modcache.fill(made, batches(), key=key, progress=False)
        assert (done.rows, done.runs, done.stored) == (2, runs, runs)
    assert [counts(own), counts(modcache)] == [(2, 2), (1, 1)]
    if "module" in kind:
        assert modcache.explain(made, X, IDS).status == "hit"
        with make():
            assert modcache.explain(made, X, IDS).status == "hit"


def test_a_module_that_it_made_cannot_be_scripted(make: Callable[..., Cache]) -> None:
    own = make()
    part = nn.Linear(4, 2).requires_grad_(False)
    with pytest.raises(TypeError, match=r"Linear was cached by a .*modcache\.cached.*with cache:"):
        torch.jit.script(Holding(own.cached(part, key="ids")))
    scripted = torch.jit.script(Holding(modcache.cached(part, key="ids")))
    with own:
        scripted(X, IDS)
    assert [counts(own), counts(modcache)] == [(2, 0), (0, 0)]


def test_a_lazy_file_is_known_in_each_directory(
    make: Callable[..., Cache], processes: ProcessRunner, tmp_path: Path
) -> None:
    path, unloaded_path = encoder_file(tmp_path), tmp_path / "unloaded.pt"
    torch.jit.script(nn.Sequential(nn.Tanh())).save(str(unloaded_path))
    lazy, unloaded = modcache.lazy(path), modcache.lazy(unloaded_path)
    own = make()
    for module in (lazy, unloaded):
        for _ in range(2):
            modcache.lookup_or_run(module, X, "k")
    unloaded.unload()
    with own:
        modcache.lookup_or_run(lazy, X, "k")
        modcache.lookup_or_run(unloaded, X, "k")
    modcache.configure(dir=tmp_path / "later")
    modcache.lookup_or_run(lazy, X, "k")
    own.flush()
    modcache.flush()

    directory, later = own.settings()["dir"], {"MODCACHE_DIR": str(tmp_path / "later")}
    assert not processes.run(ask_lazy_in, directory, str(path)).value
    assert not processes.run(ask_lazy_in, directory, str(unloaded_path)).value
    assert not processes.run(ask_lazy, str(path), "forward", env=later).value


def test_an_exported_program_keeps_the_cache_of_its_first_operator(
    make: Callable[..., Cache],
) -> None:
    own = make()
    with torch.no_grad():
        program = exported(Exported(), X, IDS).module()
    with own:
        first = program(X, IDS)
        assert torch.equal(program(X, IDS), first)
    assert [counts(own), counts(modcache)] == [(2, 2), (0, 0)]


def test_it_keeps_it_though_the_module_enters_another(make: Callable[..., Cache]) -> None:
    own, other = make(), make()

    @torch.library.custom_op("modcache_test::enters_another", mutates_args=())
    def enters_another(x: torch.Tensor) -> torch.Tensor:
        other.__enter__()
        return x.clone()

    @enters_another.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    class Entering(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.modcache_test.enters_another(x)

    model = Exported()
    model.encoder = Entering()
    with torch.no_grad():
        program = torch.export.export(model, (X, IDS)).module()
    with own:
        program(X, IDS)
    while torch.ops.cache.settings()["dir"] == other.settings()["dir"]:
        other.__exit__()
    assert [counts(own), counts(other), counts(modcache)] == [(2, 0), (0, 0), (0, 0)]
    assert own.stats()["stored"] == 2


@pytest.mark.parametrize("level", ["process", "thread"])
def test_modes_act_on_all_caches(make: Callable[..., Cache], level: str) -> None:
    own = make()
    if level == "process":
        modcache.set_mode("off")
        own.lookup_or_run(nn.ReLU(), X, "k", scope="relu")
    else:
        with modcache.mode("off"):
            own.lookup_or_run(nn.ReLU(), X, "k", scope="relu")
    assert counts(own) == (0, 0)
    assert own.stats()["bypassed_off"] == 1


# Lifetime, and other processes.


def test_a_wrapper_keeps_it_alive(make: Callable[..., Cache]) -> None:
    own = make()
    directory = Path(own.settings()["dir"])
    wrapped = own.cached(nn.Tanh(), key="content")
    del own
    gc.collect()
    wrapped(X)
    wrapped(X)
    del wrapped
    gc.collect()
    again = Cache(dir=directory)
    again.cached(nn.Tanh(), key="content")(X)
    assert counts(again) == (0, 1)


def test_what_it_stored_is_written_when_it_ends(make: Callable[..., Cache]) -> None:
    own = make()
    directory = own.settings()["dir"]
    own.lookup_or_run(nn.ReLU(), X, "k", scope="relu")
    del own
    gc.collect()
    again = Cache(dir=directory)
    again.lookup_or_run(nn.ReLU(), X, "k", scope="relu")
    assert counts(again) == (0, 1)


def test_two_on_one_directory_share_its_store_and_nothing_else(
    make: Callable[..., Cache], tmp_path: Path
) -> None:
    directory = tmp_path / "shared"
    first, second = make(dir=directory, memory="1MB"), make(dir=directory, memory="2MB")
    first.lookup_or_run(nn.ReLU(), X, "k", scope="relu")
    second.lookup_or_run(nn.ReLU(), X, "k", scope="relu")  # from the queue, unflushed
    assert first.stats()["hits_disk"] == 0
    assert second.stats()["hits_disk"] == 1
    assert (first.settings()["memory"], second.settings()["memory"]) == ("1000000", "2000000")
    second.clear()
    first.lookup_or_run(nn.ReLU(), X, "k", scope="relu")
    assert first.stats()["misses"] == 2


def test_two_on_one_directory_have_an_age_limit_of_their_own(
    make: Callable[..., Cache], tmp_path: Path
) -> None:
    options = {"dir": tmp_path / "shared", "memory": 0}
    forgetful, lasting = make(max_age=1, **options), make(**options)
    lasting.lookup_or_run(nn.ReLU(), X, "k", scope="relu")
    time.sleep(1.1)
    for _ in range(2):
        lasting.lookup_or_run(nn.ReLU(), X, "k", scope="relu")
    assert counts(lasting) == (1, 2)
    forgetful.lookup_or_run(nn.ReLU(), X, "k", scope="relu")
    assert counts(forgetful) == (1, 0)


@pytest.mark.parametrize(
    "options", [{"disk": "1MB"}, {"durability": "strict"}, {"io": "pread"}], ids=str
)
def test_two_on_one_directory_agree_about_it(
    make: Callable[..., Cache], tmp_path: Path, options: dict[str, Any]
) -> None:
    first = make(dir=tmp_path / "shared")
    (name,) = options
    with pytest.raises(ValueError, match=name):
        make(dir=tmp_path / "shared", **options)
    with pytest.raises(ValueError, match=name):
        make().configure(dir=tmp_path / "shared", **options)
    del first
    gc.collect()
    assert make(dir=tmp_path / "shared", **options)


def test_a_pickle_is_its_settings(make: Callable[..., Cache], processes: ProcessRunner) -> None:
    own = make(memory="3MB")
    own.configure(match="none")
    assert pickle.loads(pickle.dumps(own)) is own

    child = processes.run(unpickled, pickle.dumps(own)).value
    assert child == (True, own.settings()["dir"], "3000000", "none")


def test_a_pickle_keeps_the_settings_that_it_was_made_with(make: Callable[..., Cache]) -> None:
    own = make(memory="3MB")
    before = pickle.dumps(own)
    own.configure(memory="4MB")
    assert pickle.loads(pickle.dumps(own)) is own
    restored = pickle.loads(before)
    assert (own.settings()["memory"], restored.settings()["memory"]) == ("4000000", "3000000")
    assert restored.settings()["dir"] == own.settings()["dir"]
    assert pickle.loads(before) is restored
    own.configure(memory="3MB")  # two Caches with equal settings: pickles are the first one
    assert pickle.loads(pickle.dumps(own)) is restored


def test_options_of_pickles_are_about_the_default_cache(
    make: Callable[..., Cache], processes: ProcessRunner, tmp_path: Path
) -> None:
    wrapped = modcache.cached(nn.Tanh(), key="content")
    modcache.configure(memory="5MB", remote="redis://127.0.0.1:1/0")
    with make(mode="off"):
        modcache.set_mode("read")
        data = pickle.dumps(wrapped)
    assert b"redis://127.0.0.1:1/0" in data
    child = processes.run(unpickled_inside, str(tmp_path / "child"), data).value
    assert child == (("5000000", "2000000"), "read")


def test_neither_a_pickle_nor_its_text_has_the_password(make: Callable[..., Cache]) -> None:
    own = make(remote="redis://user:secret@127.0.0.1:1/0")
    assert "secret" not in repr(own)
    assert b"secret" not in pickle.dumps(own)


def test_a_wrapped_module_takes_its_cache_to_other_processes(
    make: Callable[..., Cache], processes: ProcessRunner
) -> None:
    own = make()
    wrapped = own.cached(nn.Tanh(), key="content")
    wrapped(X)
    own.flush()

    assert processes.run(called, pickle.dumps((wrapped, own))).value == ((0, 1), (0, 0))


def test_a_forked_child_has_the_same_caches(make: Callable[..., Cache]) -> None:
    own = make()
    own.lookup_or_run(nn.ReLU(), X, "k", scope="relu")
    own.flush()

    def child(pipe: Any) -> None:
        own.reset_stats()
        with own:
            lookup()
            lookup("other")
        own.flush()
        pipe.send(counts(own))

    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=child, args=(theirs,))
    process.start()
    assert ours.poll(60)
    assert ours.recv() == (1, 1)
    process.join(60)
    assert process.exitcode == os.EX_OK
    own.lookup_or_run(nn.ReLU(), X, "other", scope="relu")
    assert counts(own) == (1, 1)
