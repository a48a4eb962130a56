# SPDX-License-Identifier: Apache-2.0
"""modcache.mode(...): the thread's own level, as a context manager and a decorator."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import modcache
import pytest
import torch
from processes import ProcessRunner
from torch import nn

MODES = ("off", "read", "on", "refresh", "verify")
PERMISSIONS = {
    "off": (False, False, False),  # may read, may write, always runs
    "read": (True, False, False),
    "on": (True, True, False),
    "refresh": (False, True, True),
    "verify": (True, False, True),
}
X = torch.linspace(-1, 1, 8).reshape(2, 4)


def what_is_left(*levels: str) -> str:
    """The rule: what is missing anywhere is missing, always-run anywhere wins, nothing is off."""
    reads, writes, always = zip(*(PERMISSIONS[level] for level in levels), strict=True)
    left = (all(reads), all(writes), any(always))
    if not (left[0] or left[1]):
        return "off"
    return next(name for name, permissions in PERMISSIONS.items() if permissions == left)


@pytest.mark.parametrize(("process", "thread"), [*itertools.product(MODES, MODES)])
def test_process_and_thread_combine(process: str, thread: str) -> None:
    modcache.set_mode(process)
    with modcache.mode(thread):
        assert modcache.mode() == what_is_left(process, thread)
    with modcache.mode("read"), modcache.mode(thread):
        assert modcache.mode() == what_is_left(process, "read", thread)
    assert modcache.mode() == process


def test_some_combinations_by_name() -> None:
    for levels, left in [
        (("read", "verify"), "verify"),
        (("refresh", "on"), "refresh"),
        (("refresh", "verify"), "off"),
        (("refresh", "read"), "off"),
        (("off", "on"), "off"),
    ]:
        with modcache.mode(levels[0]), modcache.mode(levels[1]):
            assert modcache.mode() == left


def test_a_call_inside_obeys_it(counted: Any) -> None:
    module = torch.jit.script(nn.ReLU())
    with modcache.mode("off"):
        modcache.lookup_or_run(module, X, "k")
        modcache.lookup_or_run(nn.ReLU(), X, "k")
    assert counted() == {"bypassed_off": 2}
    with modcache.mode("read"):
        modcache.lookup_or_run(module, X, "k")
    assert counted() == {"misses": 1}
    modcache.lookup_or_run(module, X, "k")
    assert counted() == {"misses": 1, "stored": 1}


def test_a_process_mode_that_changes_inside_is_seen() -> None:
    with modcache.mode("read"):
        modcache.set_mode("off")
        assert modcache.mode() == "off"
        modcache.set_mode("on")
        assert modcache.mode() == "read"
    assert modcache.mode() == "on"


def test_the_setting_is_the_process_level() -> None:
    with modcache.mode("off"):
        assert modcache.settings()["mode"] == "on"
        modcache.configure(**modcache.settings())
    assert modcache.mode() == "on"


def test_an_exception_ends_it() -> None:
    with pytest.raises(KeyError), modcache.mode("off"), modcache.mode("verify"):
        raise KeyError
    assert modcache.mode() == "on"


def test_threads_are_independent() -> None:
    seen: dict[str, str] = {}
    both_inside = threading.Barrier(3)

    def inside(name: str) -> None:
        with modcache.mode(name):
            both_inside.wait(timeout=20)
            seen[name] = modcache.mode()
            both_inside.wait(timeout=20)

    threads = [threading.Thread(target=inside, args=(name,)) for name in ("off", "verify")]
    for thread in threads:
        thread.start()
    both_inside.wait(timeout=20)
    assert modcache.mode() == "on"
    both_inside.wait(timeout=20)
    for thread in threads:
        thread.join()
    assert seen == {"off": "off", "verify": "verify"}
    assert modcache.mode() == "on"


def test_a_thread_that_starts_inside_begins_without_it() -> None:
    with modcache.mode("off"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(modcache.mode).result() == "on"


def mode_in_a_fork() -> list[str]:
    import os

    reader, writer = os.pipe()
    with modcache.mode("verify"):
        if os.fork() == 0:
            os.write(writer, modcache.mode().encode())
            os._exit(0)
        os.wait()
    return [os.read(reader, 100).decode(), modcache.mode()]


def test_a_forked_child_keeps_that_of_its_thread(processes: ProcessRunner) -> None:
    assert processes.run(mode_in_a_fork).value == ["verify", "on"]


def test_one_guard_may_be_entered_again_and_by_many_threads() -> None:
    guard = modcache.mode("read")
    with guard, guard:
        assert modcache.mode() == "read"
        with ThreadPoolExecutor(1) as pool:
            pool.submit(with_guard, guard).result()
    assert modcache.mode() == "on"
    with guard:
        assert modcache.mode() == "read"
    assert modcache.mode() == "on"


def with_guard(guard: Any) -> None:
    assert modcache.mode() == "on"
    with guard:
        assert modcache.mode() == "read"
    assert modcache.mode() == "on"


def test_leaving_in_a_thread_that_has_not_entered_is_explained() -> None:
    guard = modcache.mode("off")
    with (
        guard,
        ThreadPoolExecutor(1) as pool,
        pytest.raises(RuntimeError, match="thread that entered"),
    ):
        pool.submit(guard.__exit__, None, None, None).result()
    assert modcache.mode() == "on"


# ----- the decorator


@modcache.mode("off")
def decorated(text: str, *, times: int = 1) -> str:
    """Its documentation."""
    return modcache.mode() + text * times


class Holder:
    name = "holder"

    @modcache.mode("read")
    def method(self) -> str:
        return modcache.mode() + self.name

    @staticmethod
    @modcache.mode("verify")
    def static() -> str:
        return modcache.mode()

    @classmethod
    @modcache.mode("refresh")
    def of_class(cls) -> str:
        return modcache.mode() + cls.name


def test_it_decorates_functions_and_methods() -> None:
    assert decorated("!", times=2) == "off!!"
    assert (decorated.__name__, decorated.__doc__) == ("decorated", "Its documentation.")
    assert Holder().method() == "readholder"
    assert Holder.static() == "verify"
    assert Holder.of_class() == "refreshholder"
    assert modcache.mode("off")(functools.partial(decorated, times=0))("!") == "off"
    assert modcache.mode() == "on"


def test_a_decorated_function_may_raise_and_call_itself() -> None:
    @modcache.mode("read")
    def countdown(n: int) -> None:
        assert modcache.mode() == "read"
        if n == 0:
            raise KeyError
        countdown(n - 1)

    with pytest.raises(KeyError):
        countdown(3)
    assert modcache.mode() == "on"


def generator() -> Iterator[int]:
    yield 1


async def coroutine() -> int:
    return 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("target", "part"),
    [
        (generator, "generator"),
        (functools.partial(generator), "generator"),
        (coroutine, "coroutine"),
        (async_generator, "coroutine"),
        (staticmethod(decorated), "below @staticmethod"),
        (classmethod(decorated), "below @classmethod"),
        (Holder, "class Holder"),
        (nn.ReLU(), "type ReLU"),
        (None, "NoneType"),
    ],
)
def test_what_it_cannot_decorate_is_an_error_that_says_why(
    target: Callable[..., Any], part: str
) -> None:
    with pytest.raises(TypeError, match=part):
        modcache.mode("off")(target)


@pytest.mark.parametrize("bad", ["", "ON", "refreshing", "verify ", None, 1, "\udcff"])
def test_a_name_that_is_none_is_an_error_before_anything_is_entered(bad: Any) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        modcache.mode(bad)
    assert "off" in str(caught.value) or "surrogate" in str(caught.value)
    assert modcache.mode() == "on"


def test_the_error_lists_the_modes() -> None:
    with pytest.raises(ValueError, match=r"'never'.*off, read, on, refresh, verify"):
        modcache.mode("never")


def test_a_number_that_no_guard_returned_is_refused() -> None:
    for number in (-1, 2, 4, 7, 256):
        with pytest.raises((RuntimeError, ValueError), match="_enter_mode"):
            torch.ops.cache._leave_mode(number)
    assert modcache.mode() == "on"


# ----- lookup, store, contains and clear


@pytest.mark.parametrize("mode", MODES)
def test_entries_that_a_caller_reads_and_writes_itself(mode: str, counted: Any) -> None:
    torch.ops.cache.store("s", "there", X)
    counted()
    reads, writes, always = PERMISSIONS[mode]
    with modcache.mode(mode):
        found, value = torch.ops.cache.lookup("s", "there")
        assert found == (reads and not always)
        assert torch.equal(value, X) == found
        assert counted() == ({"hits_memory": 1} if found else {})
        assert not torch.ops.cache.lookup("s", "absent")[0]
        assert counted() == ({"misses": 1} if reads and not always else {})
        assert modcache.contains("s", "there") == reads
        assert torch.equal(torch.ops.cache.store("s", "there", X + 1), X + 1)
        assert counted() == ({"stored": 1} if writes else {})
    _, value = torch.ops.cache.lookup("s", "there")
    assert torch.equal(value, X + 1 if writes else X)
    with modcache.mode(mode):
        modcache.clear(tier="disk")
    modcache.clear(tier="memory")
    assert modcache.contains("s", "there") != writes


@pytest.mark.parametrize("level", ["process", "thread"])
@pytest.mark.parametrize("tier", ["all", "disk"])
@pytest.mark.parametrize("mode", MODES)
def test_a_clear_removes_what_it_says(mode: str, tier: str, level: str) -> None:
    for key in ("a", "b"):
        torch.ops.cache.store("s", key, X)
    modcache.flush()
    before = modcache.stats()
    if level == "process":
        modcache.set_mode(mode)
        removed = modcache.clear("s", tier=tier)
        modcache.set_mode("on")
    else:
        with modcache.mode(mode):
            removed = modcache.clear("s", tier=tier)
    may_write = PERMISSIONS[mode][1]
    assert removed == (2 if may_write else 0)
    after = modcache.stats()
    assert after["entries_disk"] == before["entries_disk"] - removed
    if not may_write:
        assert after["entries_memory"] == before["entries_memory"]
