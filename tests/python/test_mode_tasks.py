# SPDX-License-Identifier: Apache-2.0
"""modcache.mode(...) in tasks of one thread, which take turns."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import modcache
import torch
from torch import nn

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def test_tasks_that_end_in_another_order_leave_nothing_behind() -> None:
    seen: list[tuple[str, str]] = []

    async def task(name: str, before_s: float, inside_s: float) -> None:
        await asyncio.sleep(before_s)
        with modcache.mode(name):
            seen.append((name, modcache.mode()))
            await asyncio.sleep(inside_s)
            seen.append((name, modcache.mode()))
        seen.append(("on", modcache.mode()))

    async def both() -> None:
        await asyncio.gather(task("off", 0, 0.02), task("read", 0.01, 0.03))
        seen.append(("on", modcache.mode()))

    asyncio.run(both())
    assert len(seen) == 7
    assert all(wanted == found for wanted, found in seen), seen
    assert torch.ops.cache.mode() == "on"


def test_a_task_obeys_its_own_guards_and_no_others(counted: Any) -> None:
    scripted, eager = torch.jit.script(nn.ReLU()), nn.ReLU()
    cached = modcache.cached(nn.Tanh(), key="key")
    dataset = modcache.CachedDataset([X], scope="samples@1")

    def call_all() -> None:
        modcache.lookup_or_run(scripted, X, "k")
        modcache.lookup_or_run(eager, X, "k")
        modcache.lookup_or_run_any(eager, X, "k")
        cached(X, key="k")
        assert torch.equal(dataset[0], X)

    async def restricted(is_inside: asyncio.Event, is_done: asyncio.Event) -> None:
        with modcache.mode("off"):
            is_inside.set()
            await is_done.wait()
            call_all()

    async def free(is_inside: asyncio.Event, is_done: asyncio.Event) -> None:
        await is_inside.wait()
        with modcache.mode("on"):
            call_all()
            call_all()
            assert modcache.contains(modcache.fingerprint(eager), "k")
            assert modcache.explain(eager, X, "k").status == "hit"
            # An operator that is called directly obeys all guards of the thread.
            assert torch.ops.cache.mode() == "off"
            assert modcache.clear(scope="samples@1") == 1
        is_done.set()

    async def both() -> None:
        events = asyncio.Event(), asyncio.Event()
        await asyncio.gather(restricted(*events), free(*events))

    asyncio.run(both())
    grown = counted()
    assert (grown["misses"], grown["stored"], grown["hits_memory"]) == (4, 4, 6)
    assert grown["bypassed_off"] == 5


def test_a_task_that_starts_inside_is_inside_until_the_guard_is_left() -> None:
    async def child(seen: list[str]) -> None:
        seen.append(modcache.mode())
        await asyncio.sleep(0.02)
        seen.append(modcache.mode())

    async def parent() -> list[str]:
        seen: list[str] = []
        with modcache.mode("read"):
            task = asyncio.create_task(child(seen))
            await asyncio.sleep(0.01)
        await task
        return seen

    assert asyncio.run(parent()) == ["read", "on"]


def test_a_context_that_another_thread_runs_in_is_obeyed() -> None:
    async def asked() -> tuple[str, str]:
        with modcache.mode("off"):
            inside = await asyncio.to_thread(modcache.mode)
        return inside, await asyncio.to_thread(modcache.mode)

    assert asyncio.run(asked()) == ("off", "on")


def test_guards_may_end_in_any_order() -> None:
    first, second = modcache.mode("off"), modcache.mode("read")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert modcache.mode() == "read"
    second.__exit__(None, None, None)
    assert modcache.mode() == "on"


def test_a_guard_may_be_left_in_another_context_of_its_thread() -> None:
    guard = modcache.mode("off")
    contextvars.copy_context().run(guard.__enter__)
    assert (modcache.mode(), torch.ops.cache.mode()) == ("on", "off")
    guard.__exit__(None, None, None)
    assert (modcache.mode(), torch.ops.cache.mode()) == ("on", "on")
