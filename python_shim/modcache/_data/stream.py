# SPDX-License-Identifier: Apache-2.0
"""CachedIterableDataset: a stream whose samples are decoded once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

from torch.utils.data import IterableDataset, get_worker_info

from modcache._data.lookup import SampleCache, SampleName, sample_key
from modcache._data.repeated_keys import RepeatedKeys
from modcache._data.scope import CachedSamples
from modcache._data.stream_libraries import KEY, SHARD
from modcache._data.variants import Variants, checked_int
from modcache._library.text import TupleKey

_T_co = TypeVar("_T_co", covariant=True)
_MOST_WORKERS = 1024


class CachedIterableDataset(IterableDataset[_T_co], CachedSamples):
    """A stream of raw samples, such as a WebDataset, that decodes each sample once.

    It still reads the raw samples one after the other. ``transform``, which decodes them, runs only
    for those that are not in the cache. The order stays the same.

    >>> import modcache, torch
    >>> raw = [{"__key__": "a", "txt": b"1"}, {"__key__": "b", "txt": b"2"}]
    >>> def decoded(sample):
    ...     return torch.tensor(int(sample["txt"]))
    >>> stream = modcache.CachedIterableDataset(raw, decoded, scope="digits@1")
    >>> list(stream)
    [tensor(1), tensor(2)]
    >>> modcache.reset_stats()
    >>> list(stream) and modcache.stats()["misses"]
    0

    For values, random numbers and workers see ``modcache.CachedDataset``. The stream itself decides
    which worker reads what, by ``torch.utils.data.get_worker_info()``.

    Args:
        dataset: an iterable of raw samples. It must pickle if workers are spawned.
        transform: a function of a raw sample. Its whole result is cached, labels included.
        key: the name of the field of a raw sample (a dict) that holds its key, or a function of
            the raw sample. A str, bytes, an int, or a tuple of text and integers. A ``__key__``
            names a sample within its shard: where a raw sample also has ``__url__``, the key is
            ``(sample["__url__"], sample["__key__"])``. The first pass is checked for a key that
            comes twice with different samples, which one warning names. Each worker checks what it
            reads; of a pass over more than 65,536 samples, a random part of the keys is checked.
        scope: a name for stream and transform, which the caller answers for. The default is made
            from the code and attributes of both, since two streams may have the same keys. Seeds,
            counters and other attributes of the streams of webdataset, torchdata and datasets that
            only decide which samples come are left out. If no scope can be made (generators,
            random states, seeds that other libraries chose), an error asks for one.
        variants: as for ``CachedDataset``. Without ``set_epoch`` the n-th pass of a worker over
            the stream counts as epoch n.
        seed: another number gives other random draws, and other entries.
        look_ahead: how many raw samples are read, held in memory, and looked up at once.

    Raises:
        TypeError: no scope can be made, and none was given. In a pass: a raw sample has no key, or
            a decoded one cannot be cached.
        ValueError: an empty key or scope, ``variants`` or ``look_ahead`` below 1.
    """

    def __init__(
        self,
        dataset: Iterable[Any],
        transform: Callable[[Any], _T_co],
        *,
        key: str | Callable[[Any], str | bytes | int | TupleKey] = "__key__",
        scope: str | None = None,
        variants: int = 1,
        seed: int = 0,
        look_ahead: int = 16,
    ) -> None:
        if not callable(transform):
            raise TypeError(
                "CachedIterableDataset: transform must be a function of a raw sample, but got "
                f"{type(transform).__name__}."
            )
        if not any(hasattr(type(dataset), name) for name in ("__iter__", "__getitem__")):
            raise TypeError(
                "CachedIterableDataset: dataset must be an iterable of raw samples, but got "
                f"{type(dataset).__name__}."
            )
        self.dataset = dataset
        self._transform = transform
        self._key = key
        self._look_ahead = checked_int("CachedIterableDataset: look_ahead", look_ahead, 1)
        self._variants = Variants("CachedIterableDataset", variants, seed, _MOST_WORKERS)
        owner = f"CachedIterableDataset({type(dataset).__qualname__})"
        self._cache = SampleCache(owner, (transform,), scope, self._variants.seed, stream=dataset)
        self._repeated = RepeatedKeys(owner)

    def __iter__(self) -> Iterator[_T_co]:
        worker = get_worker_info()
        epoch = self._variants.next_epoch(0 if worker is None else worker.id)
        with self._cache.in_pass():
            stream, seen = iter(self.dataset), self._repeated.new_pass()
            while raw := [_as_it_is_now(sample) for sample in islice(stream, self._look_ahead)]:
                keys = [self._key_of(sample) for sample in raw]
                if seen is not None:
                    seen.note(keys, raw)
                names = [SampleName(key, self._variants.number(key, epoch)) for key in keys]
                yield from self._cache.get(names, lambda i, raw=raw: self._transform(raw[i]))  # type: ignore[misc]
            self._repeated.end()

    def _key_of(self, sample: Any) -> str:
        if callable(self._key):
            return sample_key(self._key(sample), "CachedIterableDataset")
        try:
            key = sample[self._key]
            if self._key == KEY and isinstance(sample, Mapping) and SHARD in sample:
                key = (sample[SHARD], key)
            return sample_key(key, "CachedIterableDataset")
        except (KeyError, TypeError, IndexError):
            has = f"fields {sorted(sample)}" if isinstance(sample, dict) else type(sample).__name__
            raise TypeError(
                f"CachedIterableDataset: a raw sample has no key {self._key!r} of type str or int, "
                f"but {has}. Pass key=, the name of a field or a function of the raw sample."
            ) from None


def _as_it_is_now(sample: Any) -> Any:
    """Copies a raw sample, since a stream may fill one dict again and again."""
    return sample.copy() if type(sample) is dict else sample
