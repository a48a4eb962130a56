# SPDX-License-Identifier: Apache-2.0
"""Cached functions and methods.

A function is looked up as the ``forward`` of a module that holds it. So is the method of an object,
with a weak reference to the object. The eager walk then finds code, globals, closures and
attributes as it finds those of modules.
"""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from typing import Any

import torch

from modcache._cached.block_call import looked_up_in_block
from modcache._cached.call_key import (
    FORWARD,
    FROM_BLOCK,
    KEY_TYPES,
    CallKey,
    Way,
    key_of_method,
)
from modcache._call.arguments import Arguments
from modcache._call.holder import Holder
from modcache._code.wrapped import is_cached, mark_cached, unwrapped, unwrapped_method
from modcache._lazy.model import Lazy
from modcache._library.tasks import current_owner
from modcache._lookup.lookup import lookup_or_run


def cached_function(target: types.FunctionType, way: Way) -> types.FunctionType:
    """Returns the function, cached. A function that was defined in a class counts as its method."""
    wrapped: types.FunctionType = unwrapped(target)
    check_returns_at_once(wrapped)
    for option, is_given in (("freeze=True", way.freeze), ("methods=", way.methods != FORWARD)):
        if is_given:
            name = wrapped.__qualname__
            raise TypeError(f"cached: {option} is for modules, but {name} is none.")
    owner = wrapped.__qualname__.rpartition(".")[0]
    if not owner or owner.endswith("<locals>"):
        return finished(_Function(wrapped, way), wrapped)
    return finished(_Method(wrapped, way, owner), wrapped)


def check_returns_at_once(function: types.FunctionType) -> None:
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(
            f"cached: {function.__qualname__} is a generator or coroutine function, whose result "
            "cannot be stored; decorate the function that computes each item."
        )


class _InCache:
    """Calls ``called`` while its Cache is the current one."""

    def __init__(self, called: Any) -> None:
        self.called = called
        self._cache = called.cache

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if current_owner() is self._cache:
            return self.called(args, kwargs)
        with self._cache:
            return self.called(args, kwargs)


def finished(called: Any, wrapped: types.FunctionType) -> types.FunctionType:
    """Makes a function that looks like ``wrapped`` and passes all its arguments to ``called``.

    It has the globals of ``wrapped``, where torch.jit.script finds what annotations mention.
    """
    call = (called if called.cache is None else _InCache(called)).__call__
    operators = (torch.ops.cache.lookup_or_run, torch.ops.cache.lookup_or_run_any)
    pattern = _pattern(call, *operators)  # the method: an object takes longer to call
    made = types.FunctionType(
        pattern.__code__, wrapped.__globals__, wrapped.__name__, None, pattern.__closure__
    )
    functools.update_wrapper(made, wrapped)
    made.__signature__ = called.signature  # type: ignore[attr-defined]
    mark_cached(made, wrapped)
    called.function = made
    return made


def _pattern(called: Any, modcache_lookup: Any, modcache_lookup_any: Any) -> Any:
    def cached(*args, **kwargs):  # type: ignore[no-untyped-def]
        return called(args, kwargs)
        # This never runs: it puts both into the closure, where torch.jit.script finds them.
        return modcache_lookup, modcache_lookup_any

    return cached


def found_cached(function: Any) -> Any:
    """Returns what a cached function calls, with ``key``, ``scope`` and ``cache``.

    Returns None for any other function.
    """
    if not is_cached(function) or not function.__closure__:
        return None
    names = function.__code__.co_freevars
    if "called" not in names:
        return None
    found = function.__closure__[names.index("called")].cell_contents.__self__
    return found.called if type(found) is _InCache else found


def cache_of(module: Any, found: Any) -> Any:
    """Returns the Cache that calls of a method of ``module`` always use; None: the current one.

    Args:
        module: the object of the method; None: there is none.
        found: what ``found_cached`` returned for the method.
    """
    own = module._cache if isinstance(module, Lazy) else None
    return found.cache if own is None and found is not None else own


def call_key_of(called: Any, owner: Any) -> CallKey:
    """Returns how keys are made. ``owner``: the object of a method; None: there is none."""
    if owner is None and isinstance(called, _Method):
        called = called.as_static()
    key: CallKey = called.key
    return key


class _Function:
    """Calls of a function that belongs to no object."""

    def __init__(self, wrapped: types.FunctionType, way: Way) -> None:
        signature = inspect.signature(wrapped)
        self.key = CallKey(
            way.key, signature, wrapped.__qualname__, target=wrapped, ignore=way.ignore
        )
        self.scope = way.scope
        self.rows = way.rows
        self.cache = way.cache
        self._holder = holder_of(wrapped, name_of(wrapped))
        self.signature = self.key.parameters.of_callers

    def looked_up_as(self, owner: Any) -> tuple[torch.nn.Module, str]:
        return self._holder, ""

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        sample, key = self.key.of_call(None, args, kwargs)
        return looked_up_in(self._holder, sample, key, self.scope, self.rows)


class _Method:
    """Calls of a function that was defined in a class."""

    def __init__(self, wrapped: types.FunctionType, way: Way, owner: str) -> None:
        self._wrapped = wrapped
        self._owner = owner
        self.scope = way.scope
        self.rows = way.rows
        self.cache = way.cache
        self._way = way
        self._first = next(iter(inspect.signature(wrapped).parameters), "")
        self._holders: dict[int, tuple[weakref.ref[Any], torch.nn.Module]] = {}
        self._static: _Function | None = None
        self._is_key_first = bool(self._first) and self._first == way.key
        if self._is_key_first and self._first in ("self", "cls"):
            raise TypeError(
                f"cached: the key of {wrapped.__qualname__} is {self._first}, the object itself; "
                f"say what of it tells samples apart: key=lambda {self._first}: {self._first}.name."
            )
        if self._first and not self._is_key_first:
            self.key, self.signature = key_of_method(wrapped, way)
        else:
            self.signature = self.as_static().signature

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not args and self._is_owner(kwargs.get(self._first)):  # Name.method(self=...)
            kwargs = dict(kwargs)
            args = (kwargs.pop(self._first),)
        if not self._first or not args or not self._is_owner(args[0]):  # a static method
            return self.as_static()(args, kwargs)
        owner = args[0]
        if self._is_key_first:
            self._check_static(owner)
            return self.as_static()(args, kwargs)
        sample, key = self.key.of_call(owner, args[1:], kwargs)
        if method := self._method_of_module(owner):
            return looked_up_in(owner, sample, key, self.scope, self.rows, method)
        return looked_up_in(self._holder_for(owner), sample, key, self.scope, self.rows)

    def _method_of_module(self, owner: Any) -> str:
        """Returns the name, if ``owner`` is a module in which it stands for this; else ""."""
        method = self._wrapped.__name__
        if not isinstance(owner, torch.nn.Module) or method in vars(owner):
            return ""
        found = inspect.getattr_static(type(owner), method, None)
        return method if unwrapped(found) is self._wrapped else ""

    def as_static(self) -> _Function:
        """Returns the same function without an owner."""
        if self._static is None:
            self._static = _Function(self._wrapped, self._way)
        return self._static

    def _check_static(self, first: object) -> None:
        """Refuses an object as the first argument, where that argument is the key."""
        if not isinstance(first, KEY_TYPES):
            name = self._wrapped.__qualname__
            raise TypeError(
                f"{name}() got a {type(first).__qualname__} as {self._first}, which is its key: it "
                "was called on the object. A method needs self (or cls) as its first parameter, a "
                "static method @staticmethod above modcache.cached."
            )

    def _is_owner(self, value: object) -> bool:
        kind = value if isinstance(value, type) else type(value)
        return any(
            base.__qualname__ == self._owner and base.__module__ == self._wrapped.__module__
            for base in kind.__mro__
        )

    def looked_up_as(self, owner: Any) -> tuple[torch.nn.Module, str]:
        """Returns the module and method that calls on ``owner`` are looked up with.

        ``owner`` None: it is a static method. The method "": the module only holds the function.
        """
        if owner is None:
            return self.as_static().looked_up_as(None)
        if method := self._method_of_module(owner):
            return owner, method
        return self._holder_for(owner), ""

    def _holder_for(self, owner: Any) -> torch.nn.Module:
        known = self._holders.get(id(owner))
        if known is not None and known[0]() is owner:
            return known[1]
        name, number = name_of(self._wrapped), id(owner)
        try:
            reference = weakref.ref(owner, lambda _: self._holders.pop(number, None))
        except TypeError:  # an object with slots: one holder for each call
            return holder_of(functools.partial(self._wrapped, owner), name)
        holder = holder_of(functools.partial(_run_method, reference, self._wrapped), name)
        self._holders[number] = (reference, holder)
        return holder


def _run_method(owner: weakref.ref[Any], function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(owner(), *args, **kwargs)


def holder_of(function: Any, name: str) -> torch.nn.Module:
    holder: Any = Holder()
    holder.forward = function
    holder.original_name = name
    return holder  # type: ignore[no-any-return]


def name_of(function: types.FunctionType) -> str:
    """Names a function. A script's functions have the same name in processes that it spawns."""
    module = function.__module__
    is_script = module in ("__main__", "__mp_main__")
    return function.__qualname__ if is_script else f"{module}.{function.__qualname__}"


def looked_up_in(
    module: torch.nn.Module,
    input: Any,
    key: Any,
    scope: str,
    rows: dict[str, Any],
    method: str = "forward",
) -> Any:
    """Looks up a call of a module, or of a function that one holds. ``rows``: see ``Way.rows``."""
    if key is FROM_BLOCK:
        return looked_up_in_block(module, input, scope, method, rows)
    if type(input) is Arguments and torch.compiler.is_compiling() and input.has_rows():
        return input.passed_to(unwrapped_method(module, method) or module)
    if not rows:
        return lookup_or_run(module, input, key, scope=scope, method=method)
    return lookup_or_run(module, input, key, scope=scope, method=method, **rows)
