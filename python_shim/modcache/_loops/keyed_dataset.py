# SPDX-License-Identifier: Apache-2.0
"""A dataset whose samples say which they are."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import Dataset

from modcache._call.key_column import COLUMN, column_of, fits, is_column
from modcache._data.dataset import CachedDataset
from modcache._library.text import checked_text


class KeyedDataset(Dataset[Any]):
    """A map-style dataset whose samples carry their keys, through collators and to the device.

    The key of a sample is its index behind the name of the split, ``"train/17"``. So wrap the data
    set in its own order, and split or shuffle the wrapped one: ``Subset(KeyedDataset(...), rows)``.
    The key travels as a column of 64 bytes, so that whatever stacks, pads, splits or moves batches
    takes it along. A sample that is a dict gets it as ``sample["modcache_keys"]``, a tuple or list
    as its last item, and any other becomes a tuple of itself and the key. A named tuple becomes a
    plain one, without its names: ``x, label, keys = batch``. ``modcache.keys`` takes the column of
    a batch:

    >>> import modcache, torch
    >>> dataset = modcache.KeyedDataset([{"x": torch.ones(2)}, {"x": torch.zeros(2)}], "train")
    >>> batch = next(iter(torch.utils.data.DataLoader(dataset, batch_size=2)))
    >>> encoder = modcache.cached(torch.nn.Linear(2, 2), freeze=True)
    >>> with modcache.keys(batch["modcache_keys"]):
    ...     _ = encoder(batch["x"])
    ...     modcache.explain(encoder, batch["x"]).keys
    ['train/0', 'train/1']

    Samples of a ``CachedDataset`` have its names instead: of its key, the variant, and a digest of
    what makes them, ``"train/17 (variant 2)@0a1b2c3d4e5f6789"``. So samples that were augmented at
    random may be encoded once for each variant, and one that is made anew, since its file was
    edited or a transform is another one, is encoded anew. Of names over 63 bytes the key has a
    digest.

    Args:
        dataset: has ``__getitem__`` for int, and ``__len__``. Its samples must not be augmented at
            random before the cached module: augment after it, or in a ``CachedDataset``.
        split: names the data, since all splits and data sets of one encoder share its scope.

    Raises:
        TypeError: a dataset of another kind, or a split that is no str.
        ValueError: keys of more than 63 bytes; a part or mixture of ``CachedDataset`` with
            ``variants``, whose samples would change under their keys.
    """

    def __init__(self, dataset: Any, split: str) -> None:
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise TypeError(
                "KeyedDataset: the dataset must be map-style (__getitem__ and __len__), but got "
                f"{type(dataset).__name__}, whose samples have no index."
            )
        if not isinstance(dataset, CachedDataset) and _has_variants(dataset):
            raise ValueError(
                f"KeyedDataset: this {type(dataset).__name__} is made of a CachedDataset with "
                "variants, whose samples differ from epoch to epoch, but their keys would not. "
                "Wrap the CachedDataset, and take the part of that: "
                'Subset(KeyedDataset(CachedDataset(...), "train"), rows).'
            )
        self.dataset = dataset
        self.split = checked_text(split, "split", '"train"')
        is_named = isinstance(dataset, CachedDataset)
        column_of(self._in_split("0" * 32 if is_named else str(len(dataset))))

    def key_of(self, index: int) -> str:
        """Returns the key of a sample: ``"train/17"``.

        Of a ``CachedDataset`` with ``variants`` it is that of the epoch that was set last.
        """
        index = operator.index(index)  # of a tensor, too
        if isinstance(self.dataset, CachedDataset):
            return self._key_of_name(self.dataset.name_of(index))
        return self._in_split(str(index if index >= 0 else index + len(self)))

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        index = operator.index(index)
        if isinstance(self.dataset, CachedDataset):
            return self.__getitems__([index])[0]
        return self._keyed(self.dataset[index], index)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Returns the samples of a batch; a ``DataLoader`` asks once for each."""
        indices = [operator.index(index) for index in indices]
        if isinstance(self.dataset, CachedDataset):
            named = self.dataset.named_items(indices)
            return [_with_key(sample, self._key_of_name(name)) for sample, name in named]
        many = getattr(self.dataset, "__getitems__", None)
        samples = many(indices) if many else [self.dataset[index] for index in indices]
        return [self._keyed(*pair) for pair in zip(samples, indices, strict=True)]

    def _keyed(self, sample: Any, index: int) -> Any:
        return _with_key(sample, self.key_of(index))

    def _key_of_name(self, name: str) -> str:
        key = self._in_split(name)
        if fits(key):
            return key
        return self._in_split(hashlib.blake2b(name.encode(), digest_size=16).hexdigest())

    def _in_split(self, name: str) -> str:
        return f"{self.split}/{name}" if self.split else name


def _with_key(sample: Any, key: str) -> Any:
    column = column_of(key)
    if isinstance(sample, Mapping):
        return {**sample, COLUMN: column}
    if isinstance(sample, (tuple, list)):
        return (*sample, column)
    return sample, column


def _has_variants(dataset: Any) -> bool:
    """Whether it is made of a dataset whose samples differ from epoch to epoch."""
    if isinstance(dataset, CachedDataset):
        return dataset.variants > 1
    parts = (getattr(dataset, "dataset", None), *(getattr(dataset, "datasets", None) or ()))
    return any(_has_variants(part) for part in parts if isinstance(part, Dataset))


def column_in(batch: Any) -> torch.Tensor | None:
    """Returns the keys of a batch of a ``KeyedDataset``; None: it has none."""
    found = None
    if isinstance(batch, Mapping):
        found = batch.get(COLUMN)
    elif isinstance(batch, (tuple, list)) and batch:
        found = batch[-1]
    return found if is_column(found) else None
