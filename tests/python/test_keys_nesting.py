# SPDX-License-Identifier: Apache-2.0
"""Where a block of modcache.keys holds: nested, in threads, tasks and processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import modcache
import pytest
from keyed_modules import held
from torch.utils.data import DataLoader, Dataset


def test_the_inner_block_counts_and_the_outer_one_after_it() -> None:
    assert held() is None
    with modcache.keys(["a"]):
        with modcache.keys(["b"]):
            assert held() == ["b"]
        assert held() == ["a"]
        with contextlib.suppress(ZeroDivisionError), modcache.keys(["c"]):
            assert held() == ["c"]
            1 / 0  # noqa: B018
        assert held() == ["a"]
    assert held() is None


def test_a_block_is_entered_again_while_it_is_active() -> None:
    block = modcache.keys(["a"])
    with block:
        with modcache.keys(["b"]), block:
            assert held() == ["a"]
        assert held() == ["a"]
    assert held() is None
    with pytest.raises(RuntimeError, match="not entered"):
        block.__exit__(None, None, None)


def test_a_generator_holds_its_block_between_its_items() -> None:
    def batches() -> Iterator[int]:
        for number in range(2):
            with modcache.keys([number]):
                yield number

    for number in batches():
        assert held() == [str(number)]
    for number in batches():
        assert held() == [str(number)]
        break
    assert held() is None


def test_blocks_that_end_in_another_order() -> None:
    one, other = modcache.keys(["a"]), modcache.keys(["b"])
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert held() == ["b"]
    other.__exit__(None, None, None)
    assert held() is None


def test_a_block_holds_for_its_thread() -> None:
    seen: list[Any] = []

    def look() -> None:
        seen.append(held())
        with modcache.keys(["t"]):
            seen.append(held())

    with modcache.keys(["a"]):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert held() == ["a"]
        asyncio.run(asyncio.to_thread(look))  # takes the context along
    assert seen == [None, ["t"], None, ["t"]]


def test_a_block_holds_for_its_task() -> None:
    seen = []

    async def task(name: str, before_s: float, inside_s: float) -> None:
        await asyncio.sleep(before_s)
        seen.append((held(), None))
        with modcache.keys([name]):
            seen.append((held(), [name]))
            await asyncio.sleep(inside_s)
            seen.append((held(), [name]))
        seen.append((held(), None))

    async def child(is_left: asyncio.Event) -> None:
        seen.append((held(), ["parent"]))
        await is_left.wait()
        seen.append((held(), None))

    async def all_of_them() -> None:
        await asyncio.gather(task("a", 0, 0.02), task("b", 0.01, 0.03))
        is_left = asyncio.Event()
        with modcache.keys(["parent"]):
            started = asyncio.create_task(child(is_left))
            await asyncio.sleep(0)
        is_left.set()
        await started

    asyncio.run(all_of_them())
    assert len(seen) == 10
    assert all(found == wanted for found, wanted in seen), seen


class Keys(Dataset[str]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> str:
        return str(held())


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_are_outside(start: str) -> None:
    with modcache.keys(["a"]):
        loader = DataLoader(Keys(), batch_size=1, num_workers=1, multiprocessing_context=start)
        assert [batch[0] for batch in loader] == ["None", "None"]
        assert held() == ["a"]


def test_a_forked_child_is_outside_and_may_enter_blocks() -> None:
    with modcache.keys(["a"]):
        child = os.fork()
        if not child:
            with modcache.keys(["b"]):
                inside = held()
            os._exit(0 if (held(), inside) == (None, ["b"]) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
