# SPDX-License-Identifier: Apache-2.0
"""Modules that are loaded when they run for the first time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from modcache._lazy.source import LazySource
from modcache._library.tasks import maker
from modcache._library.text import checked_text, with_article


class Lazy(torch.nn.Module):
    """A stand-in for a frozen module that is not loaded yet. ``modcache.lazy`` makes it.

    It may be used like a module. ``modcache.lookup_or_run(lazy, x, key)`` loads the module at the
    first miss; a call, ``lazy(x)``, loads and runs it. Any thread may use it. A forked child loads
    a module of its own, unless the parent loaded it before the fork.

    * It has no parameters and buffers, and an empty state_dict, loaded or not: the weights are
      those of the file or factory, and belong in no checkpoint or optimizer. ``load()`` returns the
      module itself.
    * ``to()``, ``half()``, ``cuda()``, ``train()`` and ``eval()``, on it or on a module that it is
      part of, load nothing. They are remembered, and applied to the module once it is loaded.
    * The loaded module does not require grad, since no hit could. ``requires_grad_()`` undoes that,
      and loads it.
    * A copy, also one that was pickled, loads for itself.
    """

    def __init__(self, source: LazySource) -> None:
        super().__init__()
        self._source = source
        self._cache = maker.get()  # that its calls use; None: the one that is current then

    @property
    def loaded(self) -> bool:
        """Whether the module is loaded."""
        return self._source.module is not None

    def load(self) -> torch.nn.Module:
        """Returns the module itself, and loads it if it is not loaded yet.

        Raises:
            FileNotFoundError: there is no such file.
            RuntimeError: the file is no TorchScript file.
            TypeError: the factory returned no module.
            Any exception of the factory; the next call tries again.
        """
        return self._source.hand_out()

    def unload(self) -> None:
        """Frees the module, which the next miss, or call, loads anew: after a fill, for instance.

        It is as the file or factory makes it then: hooks, and what was written to its weights, are
        lost. A module that somebody else holds, such as a caller of ``load()``, is not freed.
        """
        self._source.unload()

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Runs the module, without the cache."""
        return self._source.load()(*arguments, **named)

    def train(self, mode: bool = True) -> Lazy:
        """Sets the mode of the module, which is remembered until it is loaded."""
        super().train(mode)
        self._source.train(mode)
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Lazy:
        """Sets requires_grad; True loads the module. Results that require grad are not cached."""
        self._source.require_grad(requires_grad)
        return self

    def _apply(self, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        self._source.apply(function)
        return self

    def register_forward_hook(self, *arguments: Any, **named: Any) -> Any:
        """Registers the hook on the module itself, and loads it."""
        return self.load().register_forward_hook(*arguments, **named)

    def register_forward_pre_hook(self, *arguments: Any, **named: Any) -> Any:
        """Registers the hook on the module itself, and loads it."""
        return self.load().register_forward_pre_hook(*arguments, **named)

    def __prepare_scriptable__(self) -> torch.nn.Module:
        """Returns the module that torch.jit.script puts in its place."""
        return self.load()

    def extra_repr(self) -> str:
        """Returns its source, and whether it is loaded."""
        return f"{self._source!r}, {'loaded' if self.loaded else 'not loaded'}"


def method_of_loaded(name: str) -> Any:
    """Makes a method of lazy modules that loads the module and calls its method of this name."""

    def method(self: Lazy, *arguments: Any, **named: Any) -> Any:
        return getattr(self._source.load(), name)(*arguments, **named)

    method.__name__, method.__qualname__ = name, f"{Lazy.__qualname__}.{name}"
    return method


def to_record(module: torch.nn.Module) -> torch.nn.Module:
    """Returns what torch.export and torch.compile record: the loaded module of a lazy one.

    Raises:
        RuntimeError: it is not loaded.
    """
    if not isinstance(module, Lazy):
        return module
    inner = module._source.module
    if inner is None:
        raise RuntimeError(
            "lookup_or_run: what torch.export and torch.compile record has its weights, and this "
            "lazy module has none yet. Put the module itself in its place: model.encoder = "
            "model.encoder.load()."
        )
    return inner


def lazy(
    path_or_factory: str | os.PathLike[str] | Callable[[], torch.nn.Module], *, scope: str = ""
) -> Lazy:
    """Makes a module that is loaded at its first miss, and never if everything hits.

    Args:
        path_or_factory: the path of a TorchScript file, which is resolved now; or a function
            without arguments that makes the module, eager or scripted.
        scope: the name of the module in the cache, which the caller answers for. A factory needs
            one. The default for a file is the fingerprint that the module has when
            ``torch.jit.load`` loads it, found by the file's own hash. The cache directory keeps
            both. A file that was replaced is hashed again and, at a miss, loaded again.

    Returns:
        An ``nn.Module`` for ``modcache.lookup_or_run`` and other functions that take modules; see
        ``Lazy``. Loading does not change the global random state.

    Raises:
        TypeError: neither a path nor a function, or a module, which is loaded already.
        ValueError: a factory without a scope; a ``.pt2`` archive.

    >>> import modcache, torch
    >>> encoder = modcache.lazy(lambda: torch.nn.Linear(4, 2), scope="readme-encoder@1")
    >>> modcache.lookup_or_run(encoder, torch.ones(4), "sample 1").shape
    torch.Size([2])
    >>> encoder.loaded
    True
    """
    scope = checked_text(scope, "scope")
    if isinstance(path_or_factory, (str, os.PathLike)):
        path = os.fspath(path_or_factory)
        if not isinstance(path, str) or not path:
            raise TypeError(f"lazy: the path is {path!r}, but must be non-empty text.")
        if path.endswith(".pt2"):
            raise ValueError(
                f"lazy: {path!r} is an archive of torch.export, which has no module to load. Save "
                "a TorchScript file, torch.jit.script(module).save(path), or pass a factory."
            )
        return Lazy(LazySource(str(Path(path).absolute()), None, scope))
    given = with_article(type(path_or_factory).__name__)
    if isinstance(path_or_factory, torch.nn.Module):
        raise TypeError(
            f"lazy: {given} is there already, and needs no loading. "
            "Pass it to modcache.lookup_or_run itself, or pass a function that makes it."
        )
    if not callable(path_or_factory):
        raise TypeError(
            f"lazy: got {given}, but it must be the path of a TorchScript "
            "file or a function that makes the module, for instance "
            "lambda: torch.hub.load(...)."
        )
    if not scope:
        raise ValueError(
            "lazy: a factory needs a scope, since nothing but a name tells what it would make "
            'without making it. Pass scope="name@version", and another one for other weights.'
        )
    return Lazy(LazySource("", path_or_factory, scope))
