# SPDX-License-Identifier: Apache-2.0
"""A dataset whose samples say which they are."""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping
from typing import Any

import torch

from modcache._call.graphs import are_graphs, is_graph
from modcache._call.key_column import COLUMN, column_of, is_column
from modcache._library.text import checked_text


class KeyedDataset(torch.utils.data.Dataset[Any]):
    """A map-style dataset whose samples carry their keys, through collators and to the device.

    The key of a sample is its index behind the name of the split, ``"train/17"``. So wrap the data
    set in its own order, and split or shuffle the wrapped one: ``Subset(KeyedDataset(...), rows)``.
    The key travels as a column of 64 bytes, so that whatever stacks, pads, splits or moves batches
    takes it along. A sample that is a dict gets it as ``sample["modcache_keys"]``, a tuple or list
    as its last item, a graph of PyTorch Geometric as its attribute ``modcache_keys``, and any other
    becomes a tuple of itself and the key. A named tuple becomes a plain one, without its names:
    ``x, label, keys = batch``. ``modcache.keys`` takes the column of a batch:

    >>> import modcache, torch
    >>> dataset = modcache.KeyedDataset([{"x": torch.ones(2)}, {"x": torch.zeros(2)}], "train")
    >>> batch = next(iter(torch.utils.data.DataLoader(dataset, batch_size=2)))
    >>> encoder = modcache.cached(torch.nn.Linear(2, 2), freeze=True)
    >>> with modcache.keys(batch["modcache_keys"]):
    ...     _ = encoder(batch["x"])
    ...     modcache.explain(encoder, batch["x"]).keys
    ['train/0', 'train/1']

    Args:
        dataset: has ``__getitem__`` for int, and ``__len__``. Its samples must not be augmented at
            random before the cached module: augment after it.
        split: names the data, since all splits and data sets of one encoder share its scope.

    Raises:
        TypeError: a dataset of another kind, or a split that is no str.
        ValueError: keys of more than 63 bytes.
    """

    def __init__(self, dataset: Any, split: str) -> None:
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise TypeError(
                "KeyedDataset: the dataset must be map-style (__getitem__ and __len__), but got "
                f"{type(dataset).__name__}, whose samples have no index."
            )
        self.dataset = dataset
        self.split = checked_text(split, "split", '"train"')
        column_of(self.key_of(len(dataset)))

    def key_of(self, index: int) -> str:
        """Returns the key of a sample: ``"train/17"``."""
        return f"{self.split}/{index}" if self.split else str(index)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        index = operator.index(index)
        return self._keyed(self.dataset[index], index)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Returns the samples of a batch; a ``DataLoader`` asks once for each."""
        many = getattr(self.dataset, "__getitems__", None)
        samples = many(indices) if many else [self.dataset[index] for index in indices]
        return [self._keyed(*pair) for pair in zip(samples, indices, strict=True)]

    def _keyed(self, sample: Any, index: int) -> Any:
        column = column_of(self.key_of(index if index >= 0 else index + len(self)))
        if isinstance(sample, Mapping):
            return {**sample, COLUMN: column}
        if isinstance(sample, (tuple, list)):
            return (*sample, column)
        if is_graph(sample):
            graph = copy.copy(sample)
            setattr(graph, COLUMN, torch.from_numpy(column).unsqueeze(0))
            return graph
        return sample, column


def column_in(batch: Any) -> torch.Tensor | None:
    """Returns the keys of a batch of a ``KeyedDataset``; None: it has none."""
    found = None
    if isinstance(batch, Mapping):
        found = batch.get(COLUMN)
    elif isinstance(batch, (tuple, list)) and batch:
        found = batch[-1]
    elif are_graphs(batch):
        found = getattr(batch, COLUMN, None)
    return found if is_column(found) else None
