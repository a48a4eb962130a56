# SPDX-License-Identifier: Apache-2.0
"""Modules that are frozen when they are cached, and stay so until a parameter requires grad."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch

from modcache._code.wrapped import mark_cached, unwrapped
from modcache._lazy.model import Lazy


def staying_in_evaluation(cls: Any) -> Any:
    """Makes a ``train`` that calls the class's own ``train`` with False while nothing is trained.

    Once a parameter requires grad again, it passes the mode on.
    """
    own = cls.train

    def train(self: Any, mode: bool = True) -> Any:
        return own(self, mode and _has_trainable(self))

    if "train" in vars(cls):  # it still counts in fingerprints
        mark_cached(train, unwrapped(own))
    return train


def _has_trainable(module: torch.nn.Module) -> bool:
    if isinstance(module, Lazy):
        return module._source.requires_grad()
    return any(parameter.requires_grad for parameter in module.parameters())


_freezing_inits: weakref.WeakSet[Any] = weakref.WeakSet()


def freezing(cls: Any) -> Any:
    """Makes an ``__init__`` for the class that freezes the object when it is done.

    If a subclass has such an ``__init__`` too, only the outermost one freezes, and so it also
    freezes what the subclass has added.
    """
    own = cls.__init__

    @functools.wraps(own)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        own(self, *args, **kwargs)
        outermost = type(self).__init__
        if outermost is made or outermost not in _freezing_inits:
            self.requires_grad_(False).eval()

    if "__init__" in vars(cls):  # it still counts in fingerprints
        mark_cached(made, unwrapped(own))
    _freezing_inits.add(made)
    return made


def freezing_subclasses(cls: Any) -> Any:
    own = vars(cls).get("__init_subclass__")

    def note_subclass(sub: Any, /, **options: Any) -> None:
        if own is not None:
            own.__get__(None, sub)(**options)
        else:
            super(cls, sub).__init_subclass__(**options)
        if "__init__" in vars(sub):
            sub.__init__ = freezing(sub)

    if own is not None:
        mark_cached(note_subclass, unwrapped(own.__func__))
    return classmethod(note_subclass)
