# SPDX-License-Identifier: Apache-2.0
"""Cached modules: classes whose methods are replaced, and proxies of instances."""

from __future__ import annotations

import copyreg
import functools
import inspect
import sys
import types
import weakref
from collections.abc import Hashable
from typing import Any

import torch

from modcache._cached.call_key import (
    MissingKeyError,
    Way,
    key_of_method,
)
from modcache._cached.function import (
    check_returns_at_once,
    finished,
    holder_of,
    looked_up_in,
    name_of,
)
from modcache._cached.script import make_scriptable
from modcache._call import fast_path
from modcache._code.wrapped import (
    OWN_FORWARD,
    PROXIED,
    WRAPPED_FORWARD,
    class_behind,
    has_own_method,
    mark_cached,
    unwrapped,
    unwrapped_in,
)
from modcache._identity.plain import slots_of
from modcache._identity.wrappers import identified_as
from modcache._lazy.model import Lazy, method_of_loaded
from modcache._library.explicit import make_with, options_for_pickle


def cached_class(cls: type[torch.nn.Module], way: Way) -> type[torch.nn.Module]:
    """Changes the class in place. Raises TypeError or AttributeError if it lacks a method."""
    for name, member in _members(cls, way).items():
        setattr(cls, name, member)
    if way.freeze:
        cls.__init__ = freezing(cls)  # type: ignore[method-assign]
        cls.__init_subclass__ = freezing_subclasses(cls)  # type: ignore[method-assign]
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
    has_own_forward = "forward" in way.methods and "forward" in vars(module)
    for method in way.methods:
        if method in vars(module) and not (has_own_forward and _wraps_forward(module, cls)):
            raise TypeError(
                f"cached: the {method} of this {name} was replaced on the instance, so that its "
                "class does not run; cache the module first, or call modcache.lookup_or_run."
            )
    proxy: torch.nn.Module = object.__new__(_proxy_class(cls, way, has_own_forward))
    proxy.__dict__ = module.__dict__
    if way.freeze:
        proxy.requires_grad_(False).eval()
    return proxy


def _wraps_forward(module: torch.nn.Module, cls: Any) -> bool:
    """Whether the module's own ``forward`` wraps that of its class, as accelerate's hooks do."""
    function: Any = inspect.unwrap(vars(module)["forward"])
    while isinstance(function, types.MethodType):
        function = inspect.unwrap(function.__func__)
    return function is inspect.unwrap(unwrapped(cls.forward))


def new_face(cls: type[torch.nn.Module], *way: Any) -> torch.nn.Module:
    """Makes a proxy without state. Pickles of cached instances name this function."""
    proxy: torch.nn.Module = object.__new__(_proxy_class(cls, Way(*way), False))
    return proxy


_proxy_classes: weakref.WeakValueDictionary[tuple[type, Way, bool], type]
_proxy_classes = weakref.WeakValueDictionary()


def _proxy_class(cls: Any, way: Way, has_own_forward: bool) -> Any:
    """Returns the one proxy class of these, if the key can be compared."""
    made = functools.partial(_new_proxy_class, cls, way, has_own_forward)
    if not isinstance(way.key, Hashable):
        return made()
    kind = (cls, way, has_own_forward)
    return _proxy_classes.get(kind) or _proxy_classes.setdefault(kind, made())


def _new_proxy_class(cls: Any, way: Way, has_own_forward: bool) -> Any:
    names = ("__module__", "__qualname__", "__doc__")
    members = {**_members(cls, way), **{name: getattr(cls, name) for name in names}}
    members |= {PROXIED: cls, "_modcache_way": way}
    if has_own_forward:
        members["forward"] = _OverOwnForward(members["forward"])
        members[OWN_FORWARD] = True
    return type(cls)(cls.__name__, (Proxy, cls), members)


class _CompiledCall:
    """``_compiled_call_impl``, which ``Module.compile`` sets and ``Module.__call__`` runs.

    It runs the given instance, which knows nothing of the cache. So a proxy has none, and a miss
    runs it (``_call/function.py``).
    """

    def __get__(self, owner: Any, cls: Any = None) -> None:
        return None

    def __set__(self, owner: Any, value: Any) -> None:
        vars(owner)["_compiled_call_impl"] = value


class Proxy:
    """The base of all proxy classes."""

    _modcache_proxied: Any = None
    _modcache_way: Way
    _compiled_call_impl = _CompiledCall()

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles the module without the cache, as ``compile`` of the given instance does."""
        cls: Any = type(self)._modcache_proxied
        plain: torch.nn.Module = object.__new__(cls)
        plain.__dict__ = self.__dict__
        plain.compile(*args, **kwargs)

    def __init_subclass__(cls, **_: Any) -> None:
        """Does nothing: a class that registers its subclasses does not mean proxy classes."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        cls = type(self)
        if OWN_FORWARD in vars(cls):
            raise TypeError(_REPLACED.format(cls.__qualname__, "copied or pickled"))
        reduced: Any = super().__reduce_ex__(max(int(protocol), 2))
        made, arguments, *state = reduced
        if made is not copyreg.__newobj__ or len(arguments) > 1:  # type: ignore[attr-defined]
            raise TypeError(
                f"a cached {cls.__qualname__} cannot be copied or pickled, as its class has a way "
                "of its own to be; copy the plain one and cache the copy."
            )
        face = new_face, cls._modcache_proxied, *cls._modcache_way
        return (make_with, (options_for_pickle(), *face), *state)


_REPLACED = (
    "a cached {} whose forward was replaced on the instance, as accelerate's hooks do, cannot be "
    "{}, since the replacement calls the instance that it was made for: take the hooks off first."
)


class _OverOwnForward:
    """A cached ``forward`` that Python finds before the one in an object's ``__dict__``."""

    def __init__(self, function: types.FunctionType) -> None:
        self._function = function

    def __get__(self, owner: Any, cls: Any = None) -> Any:
        return self._function if owner is None else types.MethodType(self._function, owner)

    def __set__(self, owner: Any, value: Any) -> None:
        vars(owner)["forward"] = value

    def __delete__(self, owner: Any) -> None:
        if vars(owner).pop("forward", None) is None:
            raise AttributeError("forward")


def _members(cls: Any, way: Way) -> dict[str, Any]:
    """Makes the members that a class gets: the cached methods, and what goes with them."""
    members: dict[str, Any] = {}
    for method in way.methods:
        wrapped = _checked_method(cls, method)
        members[method] = finished(_Called(wrapped, way, method), wrapped)
        if method == "forward":
            members |= {
                WRAPPED_FORWARD: _copied(wrapped),
                "__prepare_scriptable__": _prepare_scriptable,
            }
    if way.freeze:
        members["train"] = staying_in_evaluation(cls)
    return members


def _checked_method(cls: Any, method: str) -> types.FunctionType:
    """Returns the method without the cache.

    Raises:
        AttributeError: there is none of this name.
        TypeError: it cannot be cached.
    """
    who = f"cached: {cls.__qualname__}"
    found = inspect.getattr_static(cls, method, None)
    if found is None and issubclass(cls, Lazy) and not method.startswith("__"):
        found = method_of_loaded(method)
    wrapped = unwrapped(found)
    if wrapped is vars(torch.nn.Module)["forward"] or (method == "forward" and found is None):
        raise TypeError(f"{who} has no forward that could be cached.")
    if found is None:
        raise AttributeError(
            f"{who} has no method {method!r}; methods=(...) names methods of the module, "
            'and "forward" only if that is to be cached too.'
        )
    is_own = method not in vars(torch.nn.Module) or method == "forward"
    if not isinstance(wrapped, types.FunctionType) or not is_own or method.startswith("__"):
        is_of_torch = not is_own or method.startswith("__")
        reason = "torch.nn.Module itself defines it." if is_of_torch else _why_no_method(found)
        raise TypeError(f"{who}.{method} cannot be cached as a method: {reason}")
    check_returns_at_once(wrapped)
    return wrapped


def _why_no_method(found: object) -> str:
    reason = f"it is a {type(found).__name__}, and not a function that gets self"
    if isinstance(found, (staticmethod, classmethod)):
        name = type(found).__name__
        return f"{reason}; decorate it in its class, @{name} above @modcache.cached(...)."
    return f"{reason}."


class _Called:
    """Calls of one cached method of modules."""

    def __init__(self, wrapped: types.FunctionType, way: Way, method: str) -> None:
        self._wrapped = wrapped
        self._method = method
        self.scope = way.scope
        self.rows = way.rows
        self.cache = way.cache
        self.key, self.signature = key_of_method(wrapped, way)
        self.function: Any = None  # that calls this: see finished()

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module, method = args[0], self._method
        is_whole = self.is_whole(module)
        if is_whole and not kwargs and self.key.may_wait(len(args) - 1):
            rest = args[1:]
            hit = fast_path.fast_hit(module, rest, None, self.scope, method)  # in mode `off`
            if hit is NotImplemented or type(hit) is fast_path.Begun:
                return fast_path.finished(hit, module, rest, None, self.scope, method)[1]
            if hit is not None:
                return hit
        try:
            sample, key = self.key.of_call(
                module, args[1:], kwargs, tells_form=self._may_tell_form(module, is_whole)
            )
        except MissingKeyError:
            if torch.compiler.is_compiling() or not _is_in_own_method(module):
                raise
            return self._wrapped(*args, **kwargs)
        if is_whole:
            return looked_up_in(module, sample, key, self.scope, self.rows, method)
        # A subclass runs this as a part of its own method: another function of the same module.
        part = functools.partial(self._wrapped, module)
        holder = holder_of(part, name_of(self._wrapped))
        return looked_up_in(holder, sample, key, self.scope, self.rows)

    def is_whole(self, module: Any) -> bool:
        """Whether this is what the method's name stands for in ``module``."""
        cls, method = type(module), self._method
        found = getattr(cls, method, None)
        if found is not self.function and unwrapped(found) is not self._wrapped:
            return False
        return method not in module.__dict__ or has_own_method(cls, method)

    def _may_tell_form(self, module: Any, is_whole: bool) -> bool | None:
        """Whether another function runs in this one's place, which may tell forms of calls apart.

        None: this one runs.
        """
        cls, method = type(module), self._method
        if method in module.__dict__:
            return True
        if method == "forward" and module._forward_pre_hooks_with_kwargs:
            return True
        behind = getattr(cls, PROXIED, None)
        if not is_whole or getattr(behind, method, None) is self._wrapped:
            return None
        return True if unwrapped_in(cls, method) is not self._wrapped else None

    def looked_up_as(self, owner: Any) -> tuple[torch.nn.Module, str]:
        """Returns the module and the method that a call on ``owner`` is looked up with.

        Raises:
            TypeError: the method is not bound to a module.
        """
        if isinstance(owner, torch.nn.Module) and self.is_whole(owner):
            return owner, self._method
        raise TypeError(
            f"{self._wrapped.__qualname__} is a method of a cached class: pass that of an object."
        )


def _is_in_own_method(module: torch.nn.Module) -> bool:
    """Whether a method of the module itself is running, which calls its other methods plainly.

    torch's own frames do not count: a plain call of the module has some.
    """
    frame: Any = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        is_of_torch = code.co_filename == torch.nn.modules.module.__file__
        if code.co_argcount and not is_of_torch:
            first = code.co_varnames[0]
            is_method = first == "self" or _is_code_of(type(module), code)
            if is_method and frame.f_locals.get(first) is module:
                return True
        frame = frame.f_back
    return False


def _is_code_of(cls: type, code: types.CodeType) -> bool:
    """Whether it is the code of a method that the class has under the code's own name."""
    members = (vars(base).get(code.co_name) for base in cls.__mro__)
    return any(getattr(unwrapped(member), "__code__", None) is code for member in members)


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


def _prepare_scriptable(self: Any) -> Any:
    """torch.jit.script calls this before it compiles the module."""
    if OWN_FORWARD in vars(type(self)):
        raise TypeError(_REPLACED.format(type(self).__qualname__, "scripted"))
    make_scriptable(type(self))
    return self


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
