# SPDX-License-Identifier: Apache-2.0
"""The order of copies and uses of batches on an accelerator, by a stream that writes it down.

Whoever uses a batch has waited for a mark that was set after the batch's last copy, and has told
the allocator of every tensor. test_accelerator_feed.py has the same with a device.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from modcache._feed.batches_ahead import BatchesAhead
from modcache._feed.side_stream import SideStream, copied, tensors_in
from torch.nn.utils.rnn import pack_sequence


class WrittenDown:
    """A SideStream of the device "meta", where a tensor shows by itself that it was copied."""

    device = torch.device("meta")

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.threads_at_work: set[str] = set()
        self.handed_over: list[list[torch.Tensor]] = []

    def follow_current(self) -> None:
        self.events.append(("follow",))

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        thread = threading.current_thread().name
        self.threads_at_work.add(thread)
        try:
            yield
        finally:
            self.threads_at_work.discard(thread)

    def copied(self, tensor: torch.Tensor) -> torch.Tensor:
        assert threading.current_thread().name in self.threads_at_work
        self.events.append(("copy", int(tensor.flatten()[0])))
        return tensor.to("meta")

    def mark(self) -> int:
        assert threading.current_thread().name in self.threads_at_work
        self.events.append(("mark",))
        return sum(event == ("mark",) for event in self.events)

    def hand_over(self, mark: Any, tensors: list[torch.Tensor]) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.events.append(("wait", mark))
        self.handed_over.append(tensors)


def made_of(batches: list[Any], stream: SideStream) -> Any:
    source = iter(batches)
    return lambda: copied(next(source), stream)


def numbered(count: int) -> list[dict[str, torch.Tensor]]:
    return [{"x": torch.tensor([i]), "y": torch.tensor([100 + i])} for i in range(count)]


@pytest.mark.parametrize("depth", [1, 3])
def test_a_batch_is_used_after_the_mark_that_follows_its_copies(depth: int) -> None:
    stream = WrittenDown()
    ahead: BatchesAhead[Any] = BatchesAhead(made_of(numbered(6), stream), depth, stream)
    used = 0
    with contextlib.suppress(StopIteration):
        while True:
            batch = ahead.take()
            assert batch["x"].is_meta
            assert batch["y"].is_meta
            used += 1
    ahead.close()
    assert used == 6
    assert stream.events[0] == ("follow",)
    marks = [i for i, event in enumerate(stream.events) if event == ("mark",)]
    for i in range(6):
        wait = stream.events.index(("wait", i + 1))
        last_copy = stream.events.index(("copy", 100 + i))
        assert last_copy < marks[i] < wait


def test_every_tensor_is_handed_over_with_its_batch() -> None:
    stream = WrittenDown()
    ahead: BatchesAhead[Any] = BatchesAhead(made_of(numbered(3), stream), 2, stream)
    for i in range(3):
        batch = ahead.take()
        (x, y) = stream.handed_over[i]
        assert x is batch["x"]
        assert y is batch["y"]
    ahead.close()


def test_batches_made_by_the_caller_follow_the_same_rule() -> None:
    stream = WrittenDown()
    ahead: BatchesAhead[Any] = BatchesAhead(made_of(numbered(1), stream), 2, stream)
    ahead.make_here()
    assert stream.events == [("follow",), ("copy", 0), ("copy", 100), ("mark",), ("wait", 1)]
    ahead.close()


def test_a_batch_that_failed_is_not_waited_for() -> None:
    stream = WrittenDown()

    def failing() -> Iterator[torch.Tensor]:
        yield torch.tensor([0])
        raise OSError("gone")

    source = failing()
    ahead: BatchesAhead[Any] = BatchesAhead(lambda: copied(next(source), stream), 2, stream)
    assert ahead.take().is_meta
    with pytest.raises(OSError, match="gone"):
        ahead.take()
    ahead.close()
    assert [event for event in stream.events if event[0] == "wait"] == [("wait", 1)]


def test_a_thread_that_cannot_have_the_state_of_its_caller_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("no autocast here")

    monkeypatch.setattr("modcache._feed.batches_ahead._CallerState.run", refuse)
    ahead: BatchesAhead[Any] = BatchesAhead(lambda: 1, 2, None)
    with pytest.raises(AssertionError, match="no autocast here"):
        ahead.take()
    ahead.close()


class Encoding(collections.UserDict[str, torch.Tensor]):
    """As a tokenizer gives it."""

    def to(self, device: torch.device) -> Encoding:
        return Encoding({name: tensor.to(device) for name, tensor in self.data.items()})


class Quantity:
    """Has a ``to`` that means something else."""

    def to(self, unit: str) -> None:
        raise AssertionError(unit)


def test_tensors_are_copied_in_any_nesting() -> None:
    Point = collections.namedtuple("Point", "x y")
    batch = {
        "list": [torch.zeros(1), "text", 3],
        "point": Point(torch.ones(1), None),
        "dict": collections.OrderedDict(a=(torch.ones(2),)),
    }
    stream = WrittenDown()
    with stream.working():
        there = copied(batch, stream)
    assert [tensor.is_meta for tensor in tensors_in(there)] == [True, True, True]
    assert there["list"][1:] == ["text", 3]
    assert type(there["point"]) is Point
    assert type(there["dict"]) is collections.OrderedDict


def test_objects_that_move_themselves_do_so() -> None:
    stream = WrittenDown()
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    quantity = Quantity()
    batch = (Encoding({"ids": torch.ones(1)}), packed, quantity)
    with stream.working():
        encoding, moved, same = copied(batch, stream)
    assert type(encoding) is Encoding
    assert encoding["ids"].is_meta
    assert moved.data.is_meta
    assert not moved.batch_sizes.is_meta  # it stays on the CPU by torch's own rule
    assert same is quantity
    assert sum(tensor.is_meta for tensor in tensors_in((encoding, moved, same))) == 2
