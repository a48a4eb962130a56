# SPDX-License-Identifier: Apache-2.0
"""Keys in Lightning, whose callbacks see each batch before and after the step."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

from modcache._cached.keys import KeysGuard, keys
from modcache._loops.epoch import Epoch, say
from modcache._loops.keyed_dataset import column_in

_NAMES = ("lightning.pytorch", "pytorch_lightning")


def lightning_callback() -> Any:
    """Makes a callback that gives keys to what is cached inside of a LightningModule.

    Wrap the datasets, and pass the callback::

        train = DataLoader(modcache.KeyedDataset(train, "train"), batch_size=32, shuffle=True)
        validation = DataLoader(modcache.KeyedDataset(validation, "val"), batch_size=32)
        trainer = Trainer(callbacks=[modcache.lightning_callback()])

    Each step of training, validation, test and prediction runs inside ``modcache.keys``, with the
    keys of its batch: in a dict ``batch["modcache_keys"]``, in a tuple the last item, which the
    step ignores (``images, labels, _ = batch``). A batch without keys is an ordinary step. Each
    epoch ends with a line on standard error, of the first process, about training and validation:
    ``epoch 2: 100 % hits, 41 s saved``.

    Returns:
        A ``lightning.pytorch.Callback``, or one of ``pytorch_lightning`` where that is imported or
        the only one installed.

    Raises:
        ImportError: neither is installed.
    """
    return _callback_class(_imported().Callback)()


def _imported() -> Any:
    for name in sorted(_NAMES, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ImportError("modcache.lightning_callback needs Lightning: pip install lightning")


@functools.cache
def _callback_class(base: Any) -> Any:
    return type("KeysCallback", (_Events, base), {"__module__": __name__})


class _Events:
    """What the callback does."""

    _block: KeysGuard | None = None
    _epoch: Epoch | None = None

    def _enter(self, batch: Any) -> None:
        self._leave()
        column = column_in(batch)
        if column is not None:
            self._block = keys(column)
            self._block.__enter__()

    def _leave(self, *_: Any) -> None:
        block, self._block = self._block, None
        if block is not None:
            block.__exit__(None, None, None)

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, *_: Any) -> None:
        self._enter(batch)

    def on_validation_batch_start(
        self, trainer: Any, module: Any, batch: Any, *_: Any, **__: Any
    ) -> None:
        self._enter(batch)

    on_test_batch_start = on_predict_batch_start = on_validation_batch_start

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        self._leave()

    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = on_train_batch_end
    on_exception = on_train_batch_end

    def on_train_epoch_start(self, *_: Any) -> None:
        self._epoch = Epoch()

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        if self._epoch is not None and trainer.is_global_zero:
            say(self._epoch.line(trainer.current_epoch + 1))

    def __reduce__(self) -> Any:
        return lightning_callback, ()
