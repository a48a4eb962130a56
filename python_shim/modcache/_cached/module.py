# SPDX-License-Identifier: Apache-2.0
"""Cached modules: classes whose ``forward`` is replaced, and proxies of instances."""

from __future__ import annotations

import copyreg
import functools
import types
import weakref
from collections.abc import Hashable
from typing import Any

import torch

from modcache._cached.block_call import looked_up_in_block
from modcache._cached.call_key import FROM_BLOCK, Way, key_of_method
from modcache._cached.function import finished, holder_of, looked_up_in, name_of
from modcache._cached.script import make_scriptable
from modcache._call.arguments import Arguments
from modcache._code.wrapped import (
    PROXIED,
    WRAPPED_FORWARD,
    class_behind,
    mark_cached,
    unwrapped,
    unwrapped_forward,
    unwrapped_method,
)
from modcache._identity.records import slots_of
from modcache._identity.wrappers import identified_as
from modcache._lookup.lookup import lookup_or_run


def cached_class(cls: type[torch.nn.Module], way: Way) -> type[torch.nn.Module]:
    """Changes the class in place. Raises TypeError if it has no ``forward``."""
    for name, member in _members(cls, way).items():
        setattr(cls, name, member)
    if way.freeze:
        cls.__init__ = _freezing(cls)  # type: ignore[method-assign]
        cls.__init_subclass__ = _freezing_subclasses(cls)  # type: ignore[method-assign]
    return cls


def cached_instance(module: torch.nn.Module, way: Way) -> torch.nn.Module:
    """Makes another object that shares the module's state."""
    name = type(module).__qualname__
    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError(
            f"cached: {name} is scripted; cache the eager module and script that, or call "
            "modcache.lookup_or_run(module, sample, key)."
        )
    if identified_as(module) is not module:
        raise TypeError(f"cached: {name} wraps the module to be cached; cache that, then wrap it.")
    if "forward" in vars(module):
        raise TypeError(
            f"cached: the forward of this {name} was replaced on the instance, so that its class "
            "does not run; cache the module first, or call modcache.lookup_or_run."
        )
    cls = class_behind(type(module))
    if slots := slots_of(cls):
        raise TypeError(
            f"cached: {name} keeps {', '.join(slots)} in __slots__, which no other object can "
            "share; decorate the class, or call modcache.lookup_or_run."
        )
    if any(map(torch.nn.parameter.is_lazy, (*module.parameters(), *module.buffers()))):
        raise TypeError(
            f"cached: {name} has parameters without values, and becomes a module of another class "
            "when it gets them; run it once, then cache it."
        )
    proxy = new_face(cls, *way)
    proxy.__dict__ = module.__dict__
    if way.freeze:
        proxy.requires_grad_(False).eval()
    return proxy


def new_face(cls: type[torch.nn.Module], key: Any, scope: str, freeze: bool) -> torch.nn.Module:
    """Makes a proxy without state. Pickles of cached instances name this function."""
    proxy: torch.nn.Module = object.__new__(_proxy_class(cls, Way(key, scope, freeze)))
    return proxy


_proxy_classes: weakref.WeakValueDictionary[tuple[type, Way], type] = weakref.WeakValueDictionary()


def _proxy_class(cls: Any, way: Way) -> Any:
    """Returns the one proxy class of ``cls`` and ``way``, if the key can be compared."""
    if not isinstance(way.key, Hashable):
        return _new_proxy_class(cls, way)
    proxy = _proxy_classes.get((cls, way))
    return proxy or _proxy_classes.setdefault((cls, way), _new_proxy_class(cls, way))


def _new_proxy_class(cls: Any, way: Way) -> Any:
    names = ("__module__", "__qualname__", "__doc__")
    members = {**_members(cls, way), **{name: getattr(cls, name) for name in names}}
    members |= {PROXIED: cls, "_modcache_way": way}
    return type(cls)(cls.__name__, (Proxy, cls), members)


class Proxy:
    """The base of all proxy classes."""

    _modcache_proxied: Any = None
    _modcache_way: Way

    def __init_subclass__(cls, **_: Any) -> None:
        """Does nothing: a class that registers its subclasses does not mean proxy classes."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        cls = type(self)
        reduced: Any = super().__reduce_ex__(max(int(protocol), 2))
        made, arguments, *state = reduced
        if made is not copyreg.__newobj__ or len(arguments) > 1:  # type: ignore[attr-defined]
            raise TypeError(
                f"a cached {cls.__qualname__} cannot be copied or pickled, as its class has a way "
                "of its own to be; copy the plain one and cache the copy."
            )
        return (new_face, (cls._modcache_proxied, *cls._modcache_way), *state)


def _members(cls: Any, way: Way) -> dict[str, Any]:
    """Makes the members that a class gets: a cached ``forward``, and what goes with it."""
    wrapped = unwrapped(cls.forward)
    if not isinstance(wrapped, types.FunctionType) or wrapped.__name__ == "_forward_unimplemented":
        raise TypeError(f"cached: {cls.__qualname__} has no forward that could be cached.")
    called = _Forward(wrapped, way)
    members: dict[str, Any] = {
        "forward": finished(called, wrapped),
        WRAPPED_FORWARD: _copied(wrapped),
        "__prepare_scriptable__": _prepare_scriptable,
    }
    if way.freeze:
        members["train"] = _staying_in_evaluation(cls)
    return members


class _Forward:
    """Calls of a cached ``forward``."""

    def __init__(self, wrapped: types.FunctionType, way: Way) -> None:
        self._wrapped = wrapped
        self.scope = way.scope
        self.key, self.signature = key_of_method(wrapped, way)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module, *rest = args
        is_whole = unwrapped(type(module).forward) is self._wrapped
        # The class may have got another forward since, which may tell forms of calls apart.
        is_other = is_whole and unwrapped_forward(type(module)) is not self._wrapped
        sample, key = self.key.of_call(
            module, tuple(rest), kwargs, tells_form=True if is_other else None
        )
        if torch.compiler.is_compiling() and isinstance(sample, Arguments) and sample.has_rows():
            return sample.passed_to(unwrapped_method(module, "forward"))
        if is_whole and key is FROM_BLOCK:
            return looked_up_in_block(module, sample, self.scope)
        if is_whole:
            return lookup_or_run(module, sample, key, scope=self.scope)
        # A subclass runs this as a part of its own forward: another function of the same module.
        part = functools.partial(self._wrapped, module)
        return looked_up_in(holder_of(part, name_of(self._wrapped)), sample, key, self.scope)


def _copied(wrapped: types.FunctionType) -> types.FunctionType:
    """Copies the forward for torch.jit.script, whose mark would change the original."""
    double = types.FunctionType(
        wrapped.__code__,
        wrapped.__globals__,
        WRAPPED_FORWARD,
        wrapped.__defaults__,
        wrapped.__closure__,
    )
    double.__kwdefaults__ = wrapped.__kwdefaults__
    double.__annotations__ = wrapped.__annotations__
    double.__module__ = wrapped.__module__
    torch.jit.export(double)
    return double


def _staying_in_evaluation(cls: Any) -> Any:
    """Makes a ``train`` that always calls the class's own ``train`` with False."""
    own = cls.train

    def train(self: Any, mode: bool = True) -> Any:
        return own(self, False)

    if "train" in vars(cls):  # it still counts in fingerprints
        mark_cached(train, unwrapped(own))
    return train


_freezing_inits: weakref.WeakSet[Any] = weakref.WeakSet()


def _freezing(cls: Any) -> Any:
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


def _freezing_subclasses(cls: Any) -> Any:
    own = vars(cls).get("__init_subclass__")

    def note_subclass(sub: Any, /, **options: Any) -> None:
        if own is not None:
            own.__get__(None, sub)(**options)
        else:
            super(cls, sub).__init_subclass__(**options)
        if "__init__" in vars(sub):
            sub.__init__ = _freezing(sub)

    if own is not None:
        mark_cached(note_subclass, unwrapped(own.__func__))
    return classmethod(note_subclass)


def _prepare_scriptable(self: Any) -> Any:
    """torch.jit.script calls this before it compiles the module."""
    make_scriptable(type(self))
    return self
