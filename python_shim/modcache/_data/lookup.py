# SPDX-License-Identifier: Apache-2.0
"""Looks samples up by name, all in one call, and makes the missing ones one by one.

While a sample is made, the states of the global random generators of torch, NumPy and Python are
made from its name alone. Afterwards they are restored, so that the next draw gives the same whether
samples were cached or not.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from modcache._call.tagged import UnknownClassError
from modcache._data.scope import SampleMaker, StreamMaker
from modcache._data.values import packed, unpacked
from modcache._feed.batches_ahead import caller_paused
from modcache._identity.kinds import UnidentifiedError
from modcache._library.explicit import adopt_pickled, options_for_pickle
from modcache._library.global_random import global_states_kept, numpy_random, torch_generators
from modcache._library.tasks import obeying_tasks
from modcache._library.text import checked_text, key_text
from modcache._library.workers import prepare_dataset_worker

_look_up: Any = torch.classes.cache.Samples.look_up
_keep: Any = torch.classes.cache.Samples.keep
_VARIANT = re.compile(r" \((seed \d+, )?variant \d+\)$")


class SampleName(NamedTuple):
    """A sample's key and the number of a variant."""

    key: str
    variant: int

    def entry_key(self, seed: int) -> str:
        """Returns the key of the entry, which no other name has; of the first variant, ``key``."""
        if not self.variant and not seed and not _VARIANT.search(self.key):
            return self.key
        of_seed = f"seed {seed}, " if seed else ""
        return f"{self.key} ({of_seed}variant {self.variant})"

    def text(self, seed: int, scope: str) -> str:
        """Returns the entry's key with a digest of the scope, which the same values alone have."""
        digest = hashlib.blake2b(scope.encode(), digest_size=8).hexdigest()
        return f"{self.entry_key(seed)}@{digest}"


class SampleCache:
    """The cache of a dataset.

    Args:
        owner: the caller's name, for messages.
        makers: objects to make the scope of, if none is given.
        scope: a name for them, or None.
        seed: part of the key of each entry.
        stream: yields the raw samples, which ``makers`` turn into samples; None: there is none.
    """

    def __init__(
        self,
        owner: str,
        makers: tuple[object, ...],
        scope: str | None,
        seed: int,
        stream: object = None,
    ) -> None:
        self._owner = owner
        self._seed = seed
        self._given_scope = "" if scope is None else _checked_scope(scope, owner)
        self._maker = SampleMaker(makers, stream) if scope is None else None
        self._stream = StreamMaker((stream,)) if scope is None and stream is not None else None
        self.scope()  # raises here, not in a worker, if something cannot be hashed

    def scope(self) -> str:
        """Returns the present scope of the entries.

        Raises:
            TypeError: it cannot be made; the text says why, and how to name one.
        """
        if self._maker is None:
            return self._given_scope
        try:
            scope = self._maker.scope()
            if self._stream is not None:
                both = f"stream/{self._stream.scope()}/{scope}"
                scope = hashlib.blake2b(both.encode(), digest_size=16).hexdigest()
            return scope
        except UnidentifiedError as reason:
            raise TypeError(
                f"{self._owner}: no scope can be made, since {reason}. Name what makes the "
                'samples, for instance scope="imagenet-224@1", and change the name whenever they '
                "change."
            ) from None

    def in_pass(self) -> contextlib.AbstractContextManager[None]:
        """Encloses a pass over the stream, which may change what the stream holds."""
        return contextlib.nullcontext() if self._stream is None else self._stream.in_pass()

    def get(self, names: Sequence[SampleName], make: Callable[[int], Any]) -> list[Any]:
        """Returns a sample for each name; calls ``make(i)`` for those that are missing.

        Autocast is off meanwhile, since a worker does not have that of the training thread.

        Raises:
            TypeError: a sample that cannot be cached.
            Any exception of ``make``.
        """
        prepare_dataset_worker()
        with contextlib.ExitStack() as stack:
            if torch._C._is_any_autocast_enabled():
                for device in _devices_with_autocast():
                    stack.enter_context(torch.autocast(device, enabled=False))
            return self._get(names, make)

    @obeying_tasks
    def _get(self, names: Sequence[SampleName], make: Callable[[int], Any]) -> list[Any]:
        first: dict[str, int] = {}
        for i, name in enumerate(names):
            first.setdefault(name.entry_key(self._seed), i)
        keys = list(first)
        scope = self.scope()
        is_off, missing, found, begun = _look_up(scope, self._owner, keys)
        samples: dict[str, Any] = {}
        missing = set(missing)
        for place, key in enumerate(keys):
            if place not in missing:
                try:
                    samples[key] = unpacked(found[place])
                except UnknownClassError:
                    missing.add(place)
        if missing:
            wanted = {keys[place]: first[keys[place]] for place in sorted(missing)}
            self._make(wanted, make, samples, "" if is_off else scope, begun)
        return self._in_order(names, first, samples)

    def _make(
        self,
        wanted: dict[str, int],
        make: Callable[[int], Any],
        samples: dict[str, Any],
        scope: str,
        begun: Any,
    ) -> None:
        """Makes the wanted samples, and keeps them under ``scope``; "": does not keep them."""
        kept: list[tuple[str, Any, int]] = []
        with _random_states_kept():
            try:
                for key, i in wanted.items():
                    _seed_generators(key)
                    started_ns = time.perf_counter_ns()
                    sample = make(i)
                    run_us = (time.perf_counter_ns() - started_ns) // 1000
                    if scope:
                        value = self._packed(sample)
                        kept.append((key, value, run_us))
                        sample = _as_a_hit(value, sample)
                    samples[key] = sample
            finally:
                if kept:
                    keys, values, times = zip(*kept, strict=True)
                    _keep(begun, scope, self._owner, list(keys), values, list(times))
                if self._maker is not None:
                    self._maker.note_run()

    def _packed(self, sample: Any) -> Any:
        try:
            return packed(sample)
        except TypeError as error:
            raise TypeError(f"{self._owner}: {error}") from None

    def _in_order(
        self, names: Sequence[SampleName], first: dict[str, int], samples: dict[str, Any]
    ) -> list[Any]:
        if len(first) == len(names):
            return [samples[key] for key in first]
        # A caller that asks twice for one sample gets two, and may write into each.
        keys = [name.entry_key(self._seed) for name in names]
        return [
            samples[key] if first[key] == i else copy.deepcopy(samples[key])
            for i, key in enumerate(keys)
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "settings": options_for_pickle()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        adopt_pickled(state.pop("settings"))
        vars(self).update(state)


def _as_a_hit(value: Any, sample: Any) -> Any:
    """Returns what a hit would: a sample in memory of its own, with a hit's strides."""
    try:
        return unpacked(value)
    except UnknownClassError:
        return sample


def sample_key(key: object, owner: str) -> str:
    """Returns the key of a sample as text.

    ``owner``: the caller's name, for the message.

    Raises:
        TypeError: neither text nor an integer, nor a tuple of these.
        ValueError: an empty key, or text that is not valid Unicode.
    """
    text = key_text(key, f"{owner}: a key")
    if not text:
        raise ValueError(f"{owner}: a key is an empty str; give each sample a key of its own")
    return text


def _devices_with_autocast() -> list[str]:
    """Returns the kinds of devices that this thread has autocast on for."""
    kinds = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "maia", "ipu", "xla")
    all_kinds = (*kinds, torch._C._get_privateuse1_backend_name())
    return [kind for kind in all_kinds if torch.is_autocast_enabled(kind)]


def _checked_scope(scope: object, owner: str) -> str:
    text = checked_text(scope, f"{owner}: scope", '"imagenet-224@1"')
    if not text:
        raise ValueError(
            f"{owner}: scope is an empty str; leave it out to have one made from the code"
        )
    return text


@contextlib.contextmanager
def _random_states_kept() -> Iterator[None]:
    """Restores the states at the end, whatever was drawn or seeded inside.

    In the thread of a Prefetcher, it waits until the caller's thread draws nothing.
    """
    with caller_paused(), global_states_kept():
        yield


def _seed_generators(name: str) -> None:
    """Puts the generators into the state that belongs to ``name``, the same in every process."""
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    number = int.from_bytes(digest[:8], "little") >> 1  # torch's seeds are signed
    for generator in torch_generators():
        generator.manual_seed(number)
    random.seed(digest)
    numpy = numpy_random()
    if numpy is not None:
        numpy.seed([int.from_bytes(digest[i : i + 4], "little") for i in range(0, 16, 4)])
