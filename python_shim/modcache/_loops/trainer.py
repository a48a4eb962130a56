# SPDX-License-Identifier: Apache-2.0
"""Keys in the Hugging Face Trainer.

A callback of the Trainer sees no batches, but the model does: its ``forward`` gets the column of
keys as an argument, and opens the block. The Trainer drops columns that ``forward`` does not name,
so its signature names it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import types
from typing import Any

import torch

from modcache._cached.keys import keys
from modcache._call.key_column import COLUMN
from modcache._loops.epoch import Epoch, say


def trainer_callback() -> Any:
    """Makes a callback that gives keys to what is cached inside of a Hugging Face model.

    Wrap the datasets, and pass the callback when the Trainer is made::

        model.vision_model = modcache.cached(model.vision_model, freeze=True)
        trainer = Trainer(
            model,
            args,
            train_dataset=modcache.KeyedDataset(train, "train"),
            eval_dataset=modcache.KeyedDataset(validation, "eval"),
            callbacks=[modcache.trainer_callback()],
        )

    The model is called inside ``modcache.keys``, with the keys of its batch, whatever the sampler,
    the collator and the number of processes are. A batch without keys is an ordinary call. Each
    epoch of training ends with a line on standard error, of the first process:
    ``epoch 2: 100 % hits, 41 s saved``.

    From then on the model's ``forward`` takes one more argument, ``modcache_keys``, and so survives
    ``remove_unused_columns``. Of a PEFT model the Trainer reads the signature of the model inside:
    set ``remove_unused_columns=False`` there.

    Returns:
        A ``transformers.TrainerCallback``.

    Raises:
        ImportError: transformers is not installed.
    """
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError(
            "modcache.trainer_callback needs transformers: pip install transformers accelerate"
        ) from error
    return _callback_class(transformers.TrainerCallback)()


@functools.cache
def _callback_class(base: Any) -> Any:
    return type("KeysCallback", (_Events, base), {"__module__": __name__})


class _Events:
    """What the callback does. The Trainer passes much more by name."""

    _epoch: Epoch | None = None

    def on_init_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if given.get("model") is not None:
            take_keys(given["model"])

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.on_init_end(args, state, control, **given)  # model_init= makes it only now

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._number = int(state.epoch or 0) + 1
        self._epoch = Epoch()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._epoch is not None and state.is_world_process_zero:
            say(self._epoch.line(self._number))

    def __reduce__(self) -> Any:
        return trainer_callback, ()


def take_keys(model: torch.nn.Module) -> None:
    """Has the model's ``forward`` take the column of keys, and open a block with it.

    It stays a bound method, so a copy of the model has its own. So have the replicas that
    ``DataParallel`` makes for each device. A ``forward`` whose signature names the column is left
    as it is: accelerate wraps it for mixed precision, and then this is called again.
    """
    signature = inspect.signature(model.forward)
    if COLUMN in signature.parameters:
        return
    replaced = model.__dict__.get("forward")

    def forward(self: Any, *args: Any, modcache_keys: Any = None, **kwargs: Any) -> Any:
        plain = _bound_to(self, replaced, model) or functools.partial(type(self).forward, self)
        if modcache_keys is None:
            return plain(*args, **kwargs)
        with keys(modcache_keys):
            return plain(*args, **kwargs)

    forward.__signature__ = _with_column(signature)  # type: ignore[attr-defined]
    forward.__doc__ = model.forward.__doc__
    model.forward = types.MethodType(forward, model)
    model._replicate_for_data_parallel = types.MethodType(  # type: ignore[method-assign]
        _replicate_for_data_parallel, model
    )


def _replicate_for_data_parallel(self: Any) -> Any:
    """Makes a replica, whose ``forward`` has its weights and not those of the first device."""
    replica = type(self)._replicate_for_data_parallel(self)
    if "forward" in vars(self):
        vars(replica)["forward"] = _bound_to(replica, vars(self)["forward"], self)
    return replica


def _bound_to(copy: Any, function: Any, model: torch.nn.Module) -> Any:
    """Returns a method of ``model`` as one of its copy, and any other function itself."""
    is_own = isinstance(function, types.MethodType) and function.__self__ is model
    return types.MethodType(function.__func__, copy) if is_own else function


def _with_column(signature: inspect.Signature) -> inspect.Signature:
    """Returns the signature with the column, and with the parameter that binding fills."""
    kinds = inspect.Parameter
    given = [kinds("self", kinds.POSITIONAL_ONLY), *signature.parameters.values()]
    is_open = given[-1].kind is kinds.VAR_KEYWORD
    given.insert(len(given) - is_open, kinds(COLUMN, kinds.KEYWORD_ONLY, default=None))
    return signature.replace(parameters=given)
