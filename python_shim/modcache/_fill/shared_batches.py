# SPDX-License-Identifier: Apache-2.0
"""The batches that this process runs of a fill that machines share."""

from __future__ import annotations

import itertools
import random
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Self

import torch
from torch.utils.data import BatchSampler, DataLoader, Sampler, SequentialSampler

from modcache._fill.parts import DONE, MINE, NOBODYS, OTHERS, Parts, digest_of
from modcache._fill.share import loader_of

# So many parts are one question.
_BLOCK = 512
_PAUSE_S = 0.5
# Batches that the server did not take are tried again so often, each time after a pause: it may
# have been full, or away.
_REPEATS = 2
_PAUSE_BEFORE_REPEAT_S = 3.0
# A batch that ended so long before a look at the generation was written in it: looks are a second
# old.
_SURELY_SEEN_AFTER_S = 1.5
# A server that refuses so many in a row will refuse the others too.
_REFUSALS_IN_A_ROW = 16

# States of a batch.
_OPEN, _TAKEN, _REFUSED, _DONE = range(4)
_REOPENED = bytes.maketrans(bytes([_TAKEN, _REFUSED]), bytes([_OPEN, _OPEN]))


class Taken(NamedTuple):
    """A batch to run.

    Attributes:
        given: the input, as ``lookup_or_run`` takes it.
        keys: its keys, in the same way.
        is_repeat: it ran before, and the server did not take its results.
    """

    given: Any
    keys: Any
    is_repeat: bool = False


Read = Callable[[Any], tuple[Any, Any]]  # BatchReader.read


class SharedBatches(ABC):
    """Iterates over the batches that this process takes, until all are done, by whomever.

    A batch has been run once the next one is asked for. As a context manager it holds the parts.

    Attributes:
        done_elsewhere: the number of batches that others were found to have done.
        was_cleared: the server lost what it had of the scope meanwhile, or somebody cleared it.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._is_repeat = False
        self._leaves_open = False
        self._refusals_in_a_row = 0
        self._just_ended: deque[tuple[float, Any]] = deque()  # when, and which batch
        self.done_elsewhere = 0
        self.was_cleared = False

    def __enter__(self) -> Self:
        self._parts.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._parts.__exit__()

    def __iter__(self) -> Iterator[Taken]:
        yield from self._pass()
        for _ in range(_REPEATS):
            if self.refused == 0:
                return
            time.sleep(_PAUSE_BEFORE_REPEAT_S)
            if self._parts.can_be_asked:
                self._is_repeat = True
                self._refusals_in_a_row = 0
                self._parts.give_all_back()
                self._reopen()
                yield from self._pass()

    def leave_open(self) -> None:
        """Not all results of the batch that is being run were stored, so it will not be done."""
        self._leaves_open = True

    @property
    @abstractmethod
    def refused(self) -> int:
        """The number of batches whose results the server did not take, after a pass."""

    @abstractmethod
    def _pass(self) -> Iterator[Taken]:
        """Yields what this process gets, until nothing is open."""

    @abstractmethod
    def _close(self, batch: Any, is_done: bool) -> None:
        """Notes that nothing is to be done about it in this pass, and whether anything is left."""

    @abstractmethod
    def _reopen(self) -> None:
        """Makes what was refused open again."""

    def _end(self, batch: Any, part: str) -> None:
        """Notes that a batch was run."""
        is_done = self._parts.end(part, is_complete=not self._leaves_open)
        self._leaves_open = False
        self._refusals_in_a_row = 0 if is_done else self._refusals_in_a_row + 1
        self._close(batch, is_done)
        now_s = time.monotonic()
        self._just_ended.append((now_s, batch))
        if self._parts.move_on():
            # Results may have been written in the generation that had just been cleared.
            self.was_cleared = True
            for _, ended in self._just_ended:
                self._close(ended, is_done=False)
            self._just_ended.clear()
        while self._just_ended and self._just_ended[0][0] < now_s - _SURELY_SEEN_AFTER_S:
            self._just_ended.popleft()

    @property
    def _gives_up(self) -> bool:
        return self._is_repeat and self._refusals_in_a_row >= _REFUSALS_IN_A_ROW

    def _note_elsewhere(self) -> None:
        if not self._is_repeat:
            self.done_elsewhere += 1


class BatchList:
    """The batches of a DataLoader over a map-style dataset: the indices of each.

    Those of the default samplers are ranges, which take no memory.
    """

    def __init__(self, sampler: Iterable[Any]) -> None:
        self._ranges: tuple[int, int] | None = None  # rows of all, rows of a batch
        self._listed: list[list[Any]] = []
        if type(sampler) is BatchSampler and type(sampler.sampler) is SequentialSampler:
            self._ranges = (len(sampler.sampler), sampler.batch_size)
            self._length = len(sampler)
        else:
            self._listed = [list(indices) for indices in sampler]
            self._length = len(self._listed)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> list[Any]:
        if self._ranges is None:
            return self._listed[number]
        rows, size = self._ranges
        return list(range(number * size, min((number + 1) * size, rows)))

    def part(self, number: int) -> str:
        """The part that a batch is: the same on all machines, whatever order they have."""
        if self._ranges is None:
            return digest_of(self._listed[number])
        return f"batch {number}"


class MapStyleBatches(SharedBatches):
    """Loads the batches of a map-style dataset that this process took, and no others."""

    def __init__(
        self, loader: DataLoader[Any], batches: BatchList, parts: Parts, read: Read
    ) -> None:
        super().__init__(parts)
        self._loader = loader
        self._batches = batches
        self._read = read
        self._states = bytearray(len(batches))
        # Each begins in another place, so that machines seldom ask for one part at once.
        self._start = random.SystemRandom().randrange(len(batches)) if len(batches) else 0

    @property
    def refused(self) -> int:
        return len(self._states) - self._states.count(_DONE)

    def _close(self, batch: int, is_done: bool) -> None:
        self._states[batch] = _DONE if is_done else _REFUSED

    def _reopen(self) -> None:
        self._states = self._states.translate(_REOPENED)

    def _pass(self) -> Iterator[Taken]:
        while _OPEN in self._states:
            taking = self._taking()
            first = next(taking, None)
            if first is None:
                if _OPEN in self._states:
                    time.sleep(_PAUSE_S)
                continue
            # A loader may start processes, so there is none before it has something to load.
            yield from self._loaded(itertools.chain([first], taking))
            if self._gives_up:
                return

    def _loaded(self, taking: Iterator[int]) -> Iterator[Taken]:
        sampler = _Numbered(taking, self._batches)
        for batch in loader_of(self._loader, sampler):
            number = sampler.numbers.popleft()
            yield Taken(*self._read(batch), self._is_repeat)
            self._end(number, self._batches.part(number))
            if self._gives_up:
                return

    def _taking(self) -> Iterator[int]:
        """Takes one batch after the other, until a whole round finds none that is nobody's."""
        has_taken = True
        while has_taken:
            has_taken = False
            open_batches = itertools.chain(
                self._open_from(self._start, len(self._states)), self._open_from(0, self._start)
            )
            while block := list(itertools.islice(open_batches, _BLOCK)):
                for number in self._taken_of(block):
                    has_taken = True
                    yield number

    def _open_from(self, first: int, end: int) -> Iterator[int]:
        while (number := self._states.find(_OPEN, first, end)) >= 0:
            yield number
            first = number + 1

    def _taken_of(self, block: list[int]) -> Iterator[int]:
        holders = self._parts.look([self._batches.part(number) for number in block])
        for number, seen in zip(block, holders, strict=True):
            holder = self._parts.take(self._batches.part(number)) if seen == NOBODYS else seen
            if holder == MINE:
                self._states[number] = _TAKEN
                yield number
            elif holder == DONE:
                self._close(number, is_done=True)
                self._note_elsewhere()


class _Numbered(Sampler[list[Any]]):
    """Batches by their numbers, which it keeps for whoever gets the loaded batches."""

    def __init__(self, taking: Iterator[int], batches: BatchList) -> None:
        self._taking = taking
        self._batches = batches
        self.numbers: deque[int] = deque()

    def __iter__(self) -> Iterator[list[Any]]:
        for number in self._taking:
            self.numbers.append(number)
            yield self._batches[number]


class IteratedBatches(SharedBatches):
    """Goes through all that a loader yields, and runs what this process takes of it.

    A part is what has the same keys.
    """

    def __init__(self, loader: Iterable[Any], parts: Parts, read: Read) -> None:
        super().__init__(parts)
        self._loader = loader
        self._read = read
        self._closed: set[str] = set()
        self._refused: set[str] = set()

    @property
    def refused(self) -> int:
        return len(self._refused)

    def _close(self, batch: str, is_done: bool) -> None:
        self._closed.add(batch)
        if is_done:
            self._refused.discard(batch)
        else:
            self._refused.add(batch)

    def _reopen(self) -> None:
        self._closed -= self._refused

    def _pass(self) -> Iterator[Taken]:
        is_due = True
        while is_due:
            held_by_others: set[str] = set()
            for batch in self._loader:
                given, keys = self._read(batch)
                part = part_of_keys(keys)
                holder = DONE if part in self._closed else self._parts.take(part)
                if holder == MINE:
                    yield Taken(given, keys, part in self._refused)
                    self._end(part, part)
                    if self._gives_up:
                        return
                elif holder == OTHERS:
                    held_by_others.add(part)
                elif part not in self._closed:
                    self._close(part, is_done=True)
                    self._note_elsewhere()
            is_due = self._wait_for(held_by_others)

    def _wait_for(self, held_by_others: set[str]) -> bool:
        """Waits until these are done, or somebody leaves one undone: then it returns True."""
        while held_by_others:
            parts = iter(tuple(held_by_others))
            while block := list(itertools.islice(parts, _BLOCK)):
                for part, holder in zip(block, self._parts.look(block), strict=True):
                    if holder == NOBODYS:
                        return True
                    if holder == DONE:
                        held_by_others.discard(part)
                        self._close(part, is_done=True)
                        self._note_elsewhere()
            if held_by_others:
                time.sleep(_PAUSE_S)
        return False


def shared_batches(
    loader: Iterable[Any], read: Read, parts_of: Callable[[str], Parts]
) -> SharedBatches:
    """Makes the batches that this process is to run.

    Args:
        loader: what yields batches, and does not shuffle.
        read: takes the input and the keys from a batch that was loaded.
        parts_of: makes the parts, from text that says what is filled. Map-style datasets with
            other keys have another one, although the indices of their batches are the same.

    Raises:
        ValueError: the loader can be iterated only once.
        Any exception of the loader and of ``read``.
    """
    if type(loader) is DataLoader and loader.batch_sampler is not None:
        batches = BatchList(loader.batch_sampler)
        parts = parts_of(_content_of(loader, batches, read))
        return MapStyleBatches(loader, batches, parts, read)
    if isinstance(loader, Iterator):
        raise ValueError(
            "fill: share=True goes through the loader again for what others leave undone, so it "
            "needs a DataLoader or a list of batches and not an iterator "
            f"({type(loader).__name__})."
        )
    return IteratedBatches(loader, parts_of(""), read)


def _content_of(loader: DataLoader[Any], batches: BatchList, read: Read) -> str:
    """Text of the number of batches, and of the keys of the first, the middle and the last one.

    Keys are addresses of entries: where they are the same, the entries are.
    """
    if len(batches) == 0:
        return "0"
    chosen = sorted({0, len(batches) // 2, len(batches) - 1})
    few = loader_of(loader, [batches[number] for number in chosen])
    return f"{len(batches)} {digest_of([part_of_keys(read(batch)[1]) for batch in few])}"


def part_of_keys(keys: Any) -> str:
    """The part that a batch with these keys is."""
    return digest_of(keys.tolist() if isinstance(keys, torch.Tensor) else keys)
