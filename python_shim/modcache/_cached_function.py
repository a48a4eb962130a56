# SPDX-License-Identifier: Apache-2.0
"""Cached functions and methods.

A function is looked up as the ``forward`` of a module that holds it, and so is the method of an
object, with a weak reference to that: then the eager walk finds code, globals, closures and
attributes as it finds those of modules.
"""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from typing import Any

import torch

from modcache._arguments import Arguments, tells_form
from modcache._call_key import KEY_TYPES, CallKey, Way
from modcache._holder import Holder
from modcache._lookup import lookup_or_run
from modcache._plain import is_cached, mark_cached, plain_of


def cached_function(target: types.FunctionType, way: Way) -> types.FunctionType:
    """The function, cached. One that was defined in a class is taken for a method of it."""
    plain: types.FunctionType = plain_of(target)
    if inspect.iscoroutinefunction(plain) or inspect.isgeneratorfunction(plain):
        raise TypeError(
            f"cached: {plain.__qualname__} is a generator or coroutine function, whose result "
            "cannot be stored; decorate the function that computes each item."
        )
    if way.freeze:
        raise TypeError(f"cached: freeze=True is for modules, but {plain.__qualname__} is none.")
    owner = plain.__qualname__.rpartition(".")[0]
    if not owner or owner.endswith("<locals>"):
        return finished(_Function(plain, way), plain)
    return finished(_Method(plain, way, owner), plain)


def finished(called: Any, plain: types.FunctionType) -> types.FunctionType:
    """A function that calls ``called`` with all it is given; to the eye it is ``plain``.

    It has the globals of ``plain``, where torch.jit.script finds what annotations mention.
    """
    pattern = _pattern(called, torch.ops.cache.lookup_or_run, torch.ops.cache.lookup_or_run_any)
    made = types.FunctionType(
        pattern.__code__, plain.__globals__, plain.__name__, None, pattern.__closure__
    )
    functools.update_wrapper(made, plain)
    made.__signature__ = called.signature  # type: ignore[attr-defined]
    mark_cached(made, plain)
    return made


def _pattern(called: Any, modcache_lookup: Any, modcache_lookup_any: Any) -> Any:
    def cached(*args, **kwargs):  # type: ignore[no-untyped-def]
        return called(args, kwargs)
        # Never run: so they are in the closure, for what torch.jit.script compiles in its place.
        return modcache_lookup, modcache_lookup_any

    return cached


def found_cached(function: Any) -> Any:
    """What calls of a cached function go to; None for any other. It has ``key`` and ``scope``."""
    if not is_cached(function) or not function.__closure__:
        return None
    names = function.__code__.co_freevars
    return function.__closure__[names.index("called")].cell_contents if "called" in names else None


def call_key_of(called: Any, owner: Any) -> CallKey:
    """``owner`` None: no method of an object."""
    if owner is None and isinstance(called, _Method):
        called.holder_for(None)
        called = called.static
    key: CallKey = called.key
    return key


class _Function:
    """Calls of a function that belongs to no object."""

    def __init__(self, plain: types.FunctionType, way: Way) -> None:
        signature = inspect.signature(plain)
        self.key = CallKey(way.key, signature, plain.__qualname__, tells_form=tells_form(plain))
        self.scope = way.scope
        self.static: _Function | None = None
        self._holder = holder_of(plain, name_of(plain))
        self.signature = self.key.parameters.of_callers

    def holder_for(self, owner: Any) -> torch.nn.Module:
        return self._holder

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        sample, key = self.key.of_call(None, args, kwargs)
        return looked_up_in(self._holder, sample, key, self.scope)


class _Method:
    """Calls of a function that was defined in a class."""

    def __init__(self, plain: types.FunctionType, way: Way, owner: str) -> None:
        signature = inspect.signature(plain)
        self._plain = plain
        self._owner = owner
        self.scope = way.scope
        self._way = way
        self._first = next(iter(signature.parameters), "")
        self._holders: dict[int, tuple[weakref.ref[Any], torch.nn.Module]] = {}
        self.static: _Function | None = None
        self._is_key_first = bool(self._first) and self._first == way.key
        if self._is_key_first and self._first in ("self", "cls"):
            raise TypeError(
                f"cached: the key of {plain.__qualname__} is {self._first}, the object itself; say "
                f"what of it tells samples apart: key=lambda {self._first}: {self._first}.name."
            )
        if self._first and not self._is_key_first:
            rest = list(signature.parameters.values())[1:]
            filled = signature.replace(parameters=rest)
            self.key = CallKey(
                way.key, filled, plain.__qualname__, self._first, tells_form=tells_form(plain)
            )
            taken = self.key.parameters.of_callers.parameters.values()
            first = signature.parameters[self._first]
            self.signature = signature.replace(parameters=[first, *taken])
        else:
            self.static = _Function(plain, way)
            self.signature = self.static.signature

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not args and self._is_owner(kwargs.get(self._first)):  # Name.method(self=...)
            kwargs = dict(kwargs)
            args = (kwargs.pop(self._first),)
        if not self._first or not args or not self._is_owner(args[0]):  # a static method
            return self._as_static()(args, kwargs)
        owner = args[0]
        if self._is_key_first:
            self._check_static(owner)
            return self._as_static()(args, kwargs)
        sample, key = self.key.of_call(owner, args[1:], kwargs)
        if isinstance(owner, torch.nn.Module):
            method = self._plain.__name__
            found = inspect.getattr_static(type(owner), method, None)
            if method not in vars(owner) and plain_of(found) is self._plain:
                return lookup_or_run(owner, sample, key, scope=self.scope, method=method)
        return looked_up_in(self.holder_for(owner), sample, key, self.scope)

    def _as_static(self) -> _Function:
        if self.static is None:
            self.static = _Function(self._plain, self._way)
        return self.static

    def _check_static(self, first: object) -> None:
        """No object is a key: where the first parameter is it, an object has no parameter."""
        if not isinstance(first, KEY_TYPES):
            name = self._plain.__qualname__
            raise TypeError(
                f"{name}() got a {type(first).__qualname__} as {self._first}, which is its key: it "
                "was called on the object. A method needs self (or cls) as its first parameter, a "
                "static method @staticmethod above modcache.cached."
            )

    def _is_owner(self, value: object) -> bool:
        kind = value if isinstance(value, type) else type(value)
        return any(
            base.__qualname__ == self._owner and base.__module__ == self._plain.__module__
            for base in kind.__mro__
        )

    def holder_for(self, owner: Any) -> torch.nn.Module:
        """What a call on ``owner`` is looked up with; None: the function is a static method."""
        if owner is None:
            return self._as_static().holder_for(None)
        known = self._holders.get(id(owner))
        if known is not None and known[0]() is owner:
            return known[1]
        name, number = name_of(self._plain), id(owner)
        try:
            reference = weakref.ref(owner, lambda _: self._holders.pop(number, None))
        except TypeError:  # of a class with slots: one holder for each call
            return holder_of(functools.partial(self._plain, owner), name)
        holder = holder_of(functools.partial(_run_method, reference, self._plain), name)
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
    """A script's functions are the same ones in the processes that it spawns."""
    module = function.__module__
    is_script = module in ("__main__", "__mp_main__")
    return function.__qualname__ if is_script else f"{module}.{function.__qualname__}"


def looked_up_in(holder: torch.nn.Module, input: Any, key: Any, scope: str) -> Any:
    if torch.compiler.is_compiling() and isinstance(input, Arguments) and input.has_rows():
        return input.passed_to(holder)
    return lookup_or_run(holder, input, key, scope=scope)
