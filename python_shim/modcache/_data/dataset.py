# SPDX-License-Identifier: Apache-2.0
"""CachedDataset: preprocessing of a map-style dataset that runs once per sample."""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any, Protocol, TypeVar

from torch.utils.data import Dataset, IterableDataset

from modcache._data.lookup import SampleCache, SampleName, sample_key
from modcache._data.scope import CachedSamples
from modcache._data.variants import Variants
from modcache._library.text import TupleKey

_T_co = TypeVar("_T_co", covariant=True)


class _MapStyle(Protocol[_T_co]):
    def __getitem__(self, index: Any, /) -> _T_co: ...


class CachedDataset(Dataset[_T_co], CachedSamples):
    """A map-style dataset whose samples are made once, and come from the cache afterwards.

    >>> import modcache, torch
    >>> class Squares(torch.utils.data.Dataset):
    ...     def __len__(self):
    ...         return 3
    ...     def __getitem__(self, index):
    ...         print("made", index)
    ...         return torch.tensor(float(index)) ** 2, {"label": index}
    >>> squares = modcache.CachedDataset(Squares())
    >>> squares[2]
    made 2
    (tensor(4.), {'label': 2})
    >>> squares[2]
    (tensor(4.), {'label': 2})

    Put random steps after it: decode once, augment later::

        class Augmented(torch.utils.data.Dataset):
            def __init__(self, decoded):
                self.decoded = modcache.CachedDataset(decoded)
            def __len__(self):
                return len(self.decoded)
            def __getitems__(self, indices):
                return [(crop_and_flip(image), label)
                        for image, label in self.decoded.__getitems__(indices)]

    A DataLoader calls it once per batch, and only missing samples are made. A hit does not touch
    the wrapped dataset, which is the attribute ``dataset``.

    **Values**: tensors (on the CPU), NumPy arrays and scalars, PIL images, torchvision's
    tv_tensors, numbers, text, bytes, None, lists, tuples, named tuples, dicts and UserDicts of
    them (Hugging Face's BatchEncoding, without its tokenizer's ``encodings``), and classes that
    ``modcache.register_value`` names. An image comes back as a PIL.Image.Image with its pixels,
    palette, and the plain values of its ``info``. The caller may write into the samples.

    **Random numbers**: while a sample is made, the global generators of torch, NumPy and Python are
    in a state made from its key, ``seed`` and variant, so it does not matter when or in which
    worker that happens. Afterwards their states are restored, so a warm run augments like a cold
    one.

    **Autocast** is off while a sample is made, so samples made with and without workers are the
    same.

    **Workers**: forked, spawned and forkserver workers use the settings that their parent has when
    the DataLoader starts them, and their main threads are inside the same ``modcache.mode`` guards.
    Persistent workers that start inside ``with mode("off"):`` stay off after it. A worker has no
    memory tier: samples come from the page cache, which all workers of a machine share. The
    worker's own code may enable it: ``worker_init_fn=lambda _: modcache.configure(memory="64MB")``.
    With ``disk=0`` memory is the only tier, and workers keep theirs.

    Args:
        dataset: an object with ``__getitem__``. It must pickle if workers are spawned.
        key: a function of the index that gives the sample's key, a str, bytes, an int or a
            tuple of text and integers: the same key means the same sample. Default: the index
            itself, where ``3``, ``-1`` of 4, ``numpy.int64(3)`` and ``torch.tensor(3)`` are one.
        scope: a name for what makes the samples, which the caller answers for. The default is made
            from the dataset's class (its code and all that this calls) and its attributes, such as
            transforms and lists of paths, and is checked before every look-up. Files are not read:
            if they may change, put a time or version into the key
            (``key=lambda i: f"{paths[i]}@{os.path.getmtime(paths[i])}"``) or into ``scope``. A
            write to an item of a list of more than 512, or of a large array, may go unnoticed.
        variants: how many versions of a sample to keep, for a dataset that augments. In as many
            epochs each sample gives each version once, in an order made from (seed, key), with any
            number of workers. Without ``set_epoch`` the n-th request for an index counts as epoch
            n, over all workers of this object.
        seed: another number gives other random draws, and other entries.

    Raises:
        TypeError: no scope can be made of the dataset, and none was given; the message says why.
            Later: a sample that holds another type of value; the message names it and its place.
        ValueError: an empty key or scope, ``variants`` below 1.

    One thread at a time may use it.
    """

    def __init__(
        self,
        dataset: _MapStyle[_T_co],
        *,
        key: Callable[[Any], str | bytes | int | TupleKey] | None = None,
        scope: str | None = None,
        variants: int = 1,
        seed: int = 0,
    ) -> None:
        self._check(dataset, key)
        self.dataset = dataset
        self._key = key
        size = len(dataset) if variants != 1 and isinstance(dataset, Sized) else 0
        self._variants = Variants("CachedDataset", variants, seed, size)
        owner = f"CachedDataset({type(dataset).__qualname__})"
        self._cache = SampleCache(owner, (dataset,), scope, self._variants.seed)

    @staticmethod
    def _check(dataset: object, key: object) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(type(dataset), "__getitem__"):
            raise TypeError(
                f"CachedDataset: dataset must have __getitem__, but {type(dataset).__name__} has "
                "none. For a stream there is modcache.CachedIterableDataset."
            )
        if key is not None and not callable(key):
            raise TypeError(
                f"CachedDataset: key must be a function of the index, but got "
                f"{type(key).__name__}. Of a list of keys that is paths.__getitem__."
            )

    def __getitem__(self, index: Any) -> _T_co:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[Any]) -> list[_T_co]:
        """Returns the samples of a batch, in the order of ``indices``, by one call of the cache."""
        return self._items(indices)[0]

    def named_items(self, indices: Sequence[Any]) -> list[tuple[_T_co, str]]:
        """Returns the samples of a batch, and for each a text that only equal ones have.

        The text is made of the key, the seed, the variant and the scope, so that what is computed
        from a sample can be cached under it, as ``KeyedDataset`` does.
        """
        scope = self.scope
        samples, names = self._items(indices)
        texts = [name.text(self._variants.seed, scope) for name in names]
        return list(zip(samples, texts, strict=True))

    def name_of(self, index: Any) -> str:
        """Returns the text of ``named_items`` for an index, in the epoch that was set last."""
        place = self._place(index)
        name = self._name(place, self._variants.told_epoch())
        return name.text(self._variants.seed, self.scope)

    @property
    def variants(self) -> int:
        """How many versions of each sample there are."""
        return self._variants.count

    def __iter__(self) -> Iterator[_T_co]:
        """Yields all samples in order. The dataset says how many: the cache may have more."""
        if isinstance(self.dataset, Sized):
            for index in range(len(self)):
                yield self[index]
        else:
            with contextlib.suppress(IndexError):
                for index in itertools.count():
                    yield self[index]

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"CachedDataset({self.dataset!r})"

    def _items(self, indices: Sequence[Any]) -> tuple[list[_T_co], list[SampleName]]:
        places = [self._place(index) for index in indices]
        names = []
        for place in places:
            turn = place if isinstance(place, int) else -1
            names.append(self._name(place, self._variants.next_epoch(turn)))
        return self._cache.get(names, lambda i: self.dataset[places[i]]), names

    def _name(self, place: Any, epoch: int) -> SampleName:
        key = sample_key(place if self._key is None else self._key(place), "CachedDataset")
        return SampleName(key, self._variants.number(key, epoch))

    def _place(self, index: Any) -> Any:
        """Returns the index that the wrapped dataset gets."""
        try:
            place = operator.index(index)
        except TypeError:
            if isinstance(index, str) or self._key is not None:
                return index
            raise TypeError(
                f"CachedDataset: an index is an int or a str, but got {type(index).__name__}. "
                "For others give key=, a function of the index."
            ) from None
        if place >= 0:
            return place
        size = len(self)
        if place < -size:
            raise IndexError(f"index {place} is out of range for a dataset of {size}")
        return place + size
