# SPDX-License-Identifier: Apache-2.0
"""Cached modules: classes, whose ``forward`` is replaced, and faces of instances."""

from __future__ import annotations

import copyreg
import functools
import inspect
import types
import weakref
from collections.abc import Hashable
from typing import Any

import torch

from modcache._arguments import Arguments, tells_form
from modcache._cached_function import finished, holder_of, looked_up_in, name_of
from modcache._call_key import CallKey, Way
from modcache._lookup import lookup_or_run
from modcache._plain import (
    FACE,
    PLAIN_FORWARD,
    mark_cached,
    plain_forward_of,
    plain_method,
    plain_of,
)
from modcache._records import slots_of
from modcache._wrappers import identified_as


def cached_class(cls: type[torch.nn.Module], way: Way) -> type[torch.nn.Module]:
    """Changes the class in place. Raises TypeError when it has no ``forward``."""
    for name, member in _members(cls, way).items():
        setattr(cls, name, member)
    if way.freeze:
        cls.__init__ = _freezing(cls)  # type: ignore[method-assign]
        cls.__init_subclass__ = _freezing_subclasses(cls)  # type: ignore[method-assign]
    return cls


def cached_instance(module: torch.nn.Module, way: Way) -> torch.nn.Module:
    """Another object with the module's state."""
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
    cls: Any = vars(type(module)).get(FACE, type(module))
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
    face = new_face(cls, *way)
    face.__dict__ = module.__dict__
    if way.freeze:
        face.requires_grad_(False).eval()
    return face


def new_face(cls: type[torch.nn.Module], key: Any, scope: str, freeze: bool) -> torch.nn.Module:
    """An object without state. Pickled faces refer to this function."""
    face: torch.nn.Module = object.__new__(_face_class(cls, Way(key, scope, freeze)))
    return face


_faces: weakref.WeakValueDictionary[tuple[type, Way], type] = weakref.WeakValueDictionary()


def _face_class(cls: Any, way: Way) -> Any:
    """One class for faces of one kind, as far as the key can be compared."""
    if not isinstance(way.key, Hashable):
        return _new_face_class(cls, way)
    face = _faces.get((cls, way))
    return face or _faces.setdefault((cls, way), _new_face_class(cls, way))


def _new_face_class(cls: Any, way: Way) -> Any:
    names = ("__module__", "__qualname__", "__doc__")
    members = {**_members(cls, way), **{name: getattr(cls, name) for name in names}}
    members |= {FACE: cls, "_modcache_way": way}
    return type(cls)(cls.__name__, (Face, cls), members)


class Face:
    """What the classes of faces have besides a cached ``forward``."""

    _modcache_face: Any = None
    _modcache_way: Way

    def __init_subclass__(cls, **_: Any) -> None:
        """Nothing that a class registers of its subclasses is meant for faces."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        cls = type(self)
        reduced: Any = super().__reduce_ex__(max(int(protocol), 2))
        made, arguments, *state = reduced
        if made is not copyreg.__newobj__ or len(arguments) > 1:  # type: ignore[attr-defined]
            raise TypeError(
                f"a cached {cls.__qualname__} cannot be copied or pickled, as its class has a way "
                "of its own to be; copy the plain one and cache the copy."
            )
        return (new_face, (cls._modcache_face, *cls._modcache_way), *state)


def _members(cls: Any, way: Way) -> dict[str, Any]:
    """What a class gets: a cached ``forward``, and what goes with it."""
    plain = plain_of(cls.forward)
    if not isinstance(plain, types.FunctionType) or plain.__name__ == "_forward_unimplemented":
        raise TypeError(f"cached: {cls.__qualname__} has no forward that could be cached.")
    called = _Forward(plain, way)
    members: dict[str, Any] = {
        "forward": finished(called, plain),
        PLAIN_FORWARD: _copied(plain),
        "__prepare_scriptable__": _prepare_scriptable,
    }
    if way.freeze:
        members["train"] = _staying_in_evaluation(cls)
    return members


class _Forward:
    """Calls of a cached ``forward``."""

    def __init__(self, plain: types.FunctionType, way: Way) -> None:
        signature = inspect.signature(plain)
        first, *rest = signature.parameters.values()
        self._plain = plain
        self.scope = way.scope
        self.key = CallKey(
            way.key,
            signature.replace(parameters=rest),
            plain.__qualname__,
            first.name,
            tells_form=tells_form(plain),
        )
        taken = self.key.parameters.of_callers.parameters.values()
        self.signature = signature.replace(parameters=[first, *taken])

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module, *rest = args
        is_whole = plain_of(type(module).forward) is self._plain
        # What runs may have come to the class later; then nobody knows what it makes of a call.
        is_other = is_whole and plain_forward_of(type(module)) is not self._plain
        sample, key = self.key.of_call(
            module, tuple(rest), kwargs, tells_form=True if is_other else None
        )
        if torch.compiler.is_compiling() and isinstance(sample, Arguments) and sample.has_rows():
            return sample.passed_to(plain_method(module, "forward"))
        if is_whole:
            return lookup_or_run(module, sample, key, scope=self.scope)
        # A subclass runs this as a part of its own forward: another function of the same module.
        part = functools.partial(self._plain, module)
        return looked_up_in(holder_of(part, name_of(self._plain)), sample, key, self.scope)


def _copied(plain: types.FunctionType) -> types.FunctionType:
    """For torch.jit.script to compile; a mark on the original would be a change of it."""
    double = types.FunctionType(
        plain.__code__, plain.__globals__, PLAIN_FORWARD, plain.__defaults__, plain.__closure__
    )
    double.__kwdefaults__ = plain.__kwdefaults__
    double.__annotations__ = plain.__annotations__
    double.__module__ = plain.__module__
    torch.jit.export(double)
    return double


def _staying_in_evaluation(cls: Any) -> Any:
    """A ``train`` that runs the class's own one as ``eval`` does."""
    own = cls.train

    def train(self: Any, mode: bool = True) -> Any:
        return own(self, False)

    if "train" in vars(cls):  # it still counts in fingerprints
        mark_cached(train, plain_of(own))
    return train


_freezing_inits: weakref.WeakSet[Any] = weakref.WeakSet()


def _freezing(cls: Any) -> Any:
    """An ``__init__`` for the class, after which an object of it is frozen.

    One of a subclass does that when it is through itself, with what it has added.
    """
    own = cls.__init__

    @functools.wraps(own)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        own(self, *args, **kwargs)
        outermost = type(self).__init__
        if outermost is made or outermost not in _freezing_inits:
            self.requires_grad_(False).eval()

    if "__init__" in vars(cls):  # it still counts in fingerprints
        mark_cached(made, plain_of(own))
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
        mark_cached(note_subclass, plain_of(own.__func__))
    return classmethod(note_subclass)


def _prepare_scriptable(self: Any) -> Any:
    """torch.jit.script asks for this before it compiles the module."""
    from modcache._cached_script import make_scriptable

    make_scriptable(type(self))
    return self
