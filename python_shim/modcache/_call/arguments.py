# SPDX-License-Identifier: Apache-2.0
"""The arguments of a call: what the function gets of them, and what the address has.

A function that is not decorated cannot tell ``f(x, k=2)``, ``f(x, 2)`` and, where 2 is the default,
``f(x)`` apart. So these calls share the *bound form*: each argument that has a place is given by
place, without defaults at the end, as in ``lookup_or_run(module, x, key)``. A decorated function
can tell them apart, since a decorator may read ``kwargs``. It gets each call as the caller made it,
and a call in another form than the bound one has an address of its own.
"""

from __future__ import annotations

import dis
import inspect
import operator
import types
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from modcache._call.carriers import is_array
from modcache._code.libraries import UNKNOWN, KnownMethod
from modcache._code.tokens import ATOMS, tokens_of_atom

_REQUIRED = inspect.Parameter.empty


class PerRow:
    """An argument that is a list with one item per row, such as the keys themselves."""

    def __init__(self, items: Any) -> None:
        self.items = items  # a list, a tuple, or another sequence of text

    def selected(self, rows: list[int]) -> PerRow:
        if is_array(self.items):
            return PerRow(self.items[rows])
        if hasattr(self.items, "iloc"):  # a pandas Series, whose own index has labels
            return PerRow(self.items.iloc[rows])
        kind = tuple if isinstance(self.items, tuple) else list
        return PerRow(kind(self.items[row] for row in rows))


class _Shown(NamedTuple):
    """The part of an address for arguments that no tuple can express."""

    by_place: tuple[Any, ...]
    by_name: dict[str, Any]


class _ShownAsCalled(NamedTuple):
    """The part of an address for a call whose form the function can tell."""

    by_place: tuple[Any, ...]
    names: tuple[str, ...]
    by_name: tuple[Any, ...]


class Arguments(tuple[Any, ...]):
    """An input that no plain tuple can express: some arguments have names, or are ``PerRow``.

    The tuple has all arguments, the named ones last.
    """

    names: tuple[str, ...]  # names of the last arguments, in the order the function gets them
    is_as_called: bool  # another form than the bound one, and the function can tell
    told: Any  # the call without ignored arguments, as the address has it; None: this call
    joined: str  # an argument with which the rows of the result are no rows; "": there is none

    @classmethod
    def of(
        cls, values: Iterable[Any], names: tuple[str, ...], is_as_called: bool = False
    ) -> Arguments:
        made = tuple.__new__(cls, values)
        made.names = names
        made.is_as_called = is_as_called
        made.told = None
        made.joined = ""
        return made

    @classmethod
    def told_as(cls, sample: Any, told: Any, joined: str = "") -> Arguments:
        """The call ``sample``, whose address is that of the call ``told``."""
        if type(sample) is cls:
            made = sample.with_values(sample)
        else:
            made = cls.of(sample if isinstance(sample, tuple) else (sample,), ())
        made.told = told
        made.joined = joined
        return made

    def with_values(self, values: Iterable[Any]) -> Arguments:
        """The same call with other values."""
        return Arguments.of(values, self.names, self.is_as_called)

    def has_rows(self) -> bool:
        """Whether a list among them goes row by row."""
        return any(isinstance(value, PerRow) for value in self)

    def shown(self) -> Any:
        """Returns what the address has: in place of a list of keys, their number."""
        if self.told is not None:
            return self.told.shown() if type(self.told) is Arguments else self.told
        values = tuple(
            torch.zeros(len(value.items), dtype=torch.int64) if isinstance(value, PerRow) else value
            for value in self
        )
        by_place, by_name = parted(values, self.names)
        if self.is_as_called:
            return _ShownAsCalled(by_place, self.names, tuple(by_name.values()))
        return _Shown(by_place, by_name) if self.names else values

    def passed_to(self, function: Any) -> Any:
        values = tuple(value.items if isinstance(value, PerRow) else value for value in self)
        by_place, by_name = parted(values, self.names)
        return function(*by_place, **by_name)


def parted(
    values: tuple[Any, ...], names: tuple[str, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Splits arguments: those by place, and the last ones, which have names."""
    places = len(values) - len(names)
    return values[:places], dict(zip(names, values[places:], strict=True))


class Bound(NamedTuple):
    """The arguments of one call. Those by place have defaults filled in."""

    by_place: list[Any]
    by_name: dict[str, Any]
    args: list[Any]  # args and kwargs are as the caller gave them
    kwargs: dict[str, Any]


class Parameters:
    """The parameters of a function, as calls are bound to them.

    Args:
        signature: without the parameter that a bound method has filled.
        who: the function's name, for messages.
        consumed: the name of a keyword that callers give and the function does not have.
        tells_form: whether the function can tell in which form it was called.
        ignored: names of arguments that the address leaves out, since they change no result.
        reads_open: whether the function reads what comes as ``**kwargs``. What it does not read is
            ignored, unless something else runs that can tell.
        known: what is known of the function, if a library has it.
    """

    def __init__(
        self,
        signature: inspect.Signature,
        who: str,
        consumed: str = "",
        *,
        tells_form: bool = False,
        ignored: frozenset[str] = frozenset(),
        reads_open: bool = True,
        known: KnownMethod = UNKNOWN,
    ) -> None:
        self._who = who
        self.tells_form = tells_form
        self._ignored = ignored
        self._reads_open = reads_open
        self._known = known
        self.signature = signature
        self.of_callers = _with_keyword(signature, consumed) if consumed else signature
        kinds = inspect.Parameter
        given = list(signature.parameters.values())
        placed = [
            p for p in given if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
        ]
        self.names = [p.name for p in placed]
        self._hidden = [p.name for p in placed if p.kind is kinds.POSITIONAL_ONLY]
        self._defaults = [p.default for p in placed]
        self._required = sum(p.default is _REQUIRED for p in placed)
        self._named = {p.name: p.default for p in given if p.kind is kinds.KEYWORD_ONLY}
        needs_names = any(default is _REQUIRED for default in self._named.values())
        # How many arguments are a call, all others being defaults; -1: there is no such call, or
        # one of them is ignored.
        is_in_short = not (needs_names or ignored & set(self.names[: self._required]))
        self.least = self._required if is_in_short else -1
        self._takes_more = any(p.kind is kinds.VAR_POSITIONAL for p in given)
        self._takes_any_name = any(p.kind is kinds.VAR_KEYWORD for p in given)

    def has(self, name: str) -> bool:
        """Whether the function has a parameter of this name."""
        return name in self.names or name in self._named

    def takes(self, name: str) -> bool:
        """Whether a call may give an argument of this name."""
        return self._takes_any_name or self.has(name)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound:
        """Raises TypeError where the function itself would."""
        if self._known.renamed:
            kwargs = {self._known.name_in(self.has, name): kwargs[name] for name in kwargs}
        count = len(self.names)
        if not kwargs and len(args) == count and not self._named:
            return Bound(list(args), {}, list(args), {})
        if len(args) > count and not self._takes_more:
            self._refuse(args, kwargs)
        rest = dict(kwargs)
        by_place = list(args)
        for place in range(len(args), count):
            name = self.names[place]
            value = self._defaults[place]
            if name in rest and name not in self._hidden:
                value = rest.pop(name)
            if value is _REQUIRED:
                self._refuse(args, kwargs)
            by_place.append(value)
        by_name = {}
        for name, default in self._named.items():
            by_name[name] = rest.pop(name) if name in rest else default
            if by_name[name] is _REQUIRED:
                self._refuse(args, kwargs)
        is_given_twice = any(name in self.names and name not in self._hidden for name in rest)
        if is_given_twice or (rest and not self._takes_any_name):
            self._refuse(args, kwargs)
        by_name.update(rest)
        return Bound(by_place, by_name, list(args), dict(kwargs))

    def _refuse(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._who}(): {error}; it takes {self.of_callers}") from None
        raise TypeError(f"{self._who}() takes {self.of_callers}")

    def value_of(self, name: str, bound: Bound) -> Any:
        """REQUIRES: ``has(name)``."""
        if name in bound.by_name:
            return bound.by_name[name]
        return bound.by_place[self.names.index(name)]

    def put(self, name: str, value: Any, bound: Bound) -> None:
        """Replaces an argument. REQUIRES: ``has(name)``."""
        if name in bound.by_name:
            bound.by_name[name] = value
        else:
            bound.by_place[self.names.index(name)] = value
        if name in self.names[: len(bound.args)]:
            bound.args[self.names.index(name)] = value
        else:  # a default, too: the function is to get this in its place
            bound.kwargs[name] = value

    def input_of(
        self, bound: Bound, *, tells_form: bool | None = None, is_rows: bool = False
    ) -> Any:
        """Makes the input for ``lookup_or_run``.

        ``tells_form``: whether what runs can tell the form, if another function runs than this one.
        ``is_rows``: there is a key for each row.
        """
        is_told = self.tells_form if tells_form is None else tells_form
        sample = self._form_of(bound, is_told)
        ignored = self._ignored
        if not (self._reads_open or is_told):
            ignored = ignored | (bound.by_name.keys() - self._named.keys())
        if is_rows:
            ignored = ignored.union(filter(self.takes, self._known.of_losses))
        joined = self._joined(bound)
        if not joined:
            ignored = ignored.union(filter(self.has, self._known.batching))
        if not ignored or ignored.isdisjoint((*self.names[: len(bound.args)], *bound.kwargs)):
            return Arguments.told_as(sample, sample, joined) if joined else sample
        told = self._form_of(self._without(ignored, bound), is_told)
        return Arguments.told_as(sample, told, joined)

    def _joined(self, bound: Bound) -> str:
        """Names an argument with which the result has no rows of its own; "" for none."""
        for name, apart in self._known.apart.items():
            if self.has(name):
                value = self.value_of(name, bound)
                if type(value) not in (str, type(None)) or value not in apart:
                    return f"{name}={value!r}, with which a row depends on the rows beside it"
        for group in self._known.listing:
            names = list(filter(self.has, group))
            if names and all(self.value_of(name, bound) == group[name] for name in names):
                return f"{names[0]}={group[names[0]]!r}, with which it returns a list"
        return ""

    def _form_of(self, bound: Bound, is_told: bool) -> Any:
        sample = self._bound_form(bound)
        return _as_called(sample, bound) if is_told else sample

    def _without(self, ignored: frozenset[str], bound: Bound) -> Bound:
        """The call with the defaults of ignored arguments; None for one that has no default."""
        defaults = {**dict(zip(self.names, self._defaults, strict=True)), **self._named}
        told = {
            name: None if defaults[name] is _REQUIRED else defaults[name]
            for name in ignored & defaults.keys()
        }
        places = zip(self.names, bound.by_place, strict=False)
        by_place = [told.get(name, value) for name, value in places]
        by_place += bound.by_place[len(by_place) :]
        open_names = ignored - defaults.keys()
        by_name = {
            name: told.get(name, value)
            for name, value in bound.by_name.items()
            if name not in open_names
        }
        kwargs = {name: value for name, value in bound.kwargs.items() if name not in ignored}
        return Bound(by_place, by_name, by_place[: len(bound.args)], kwargs)

    def _bound_form(self, bound: Bound) -> Any:
        values = bound.by_place
        end = len(values)
        if end == len(self.names):
            while end > self._required and is_same(values[end - 1], self._defaults[end - 1]):
                end -= 1
        by_name = {
            name: value
            for name, value in bound.by_name.items()
            if name not in self._named or not is_same(value, self._named[name])
        }
        by_place = values[:end]
        if by_name or any(isinstance(value, PerRow) for value in by_place):
            names = tuple(sorted(by_name))
            # Any function can tell the order of the keywords in its **kwargs.
            is_in_order = self._is_open_in_order(names, bound)
            names = names if is_in_order else tuple(by_name)
            values = [*by_place, *[by_name[name] for name in names]]
            return Arguments.of(values, names, not is_in_order)
        if end == 1 and not isinstance(by_place[0], tuple):
            return by_place[0]
        return tuple(by_place)

    def _is_open_in_order(self, names: tuple[str, ...], bound: Bound) -> bool:
        if not self._takes_any_name:
            return True
        is_open = bound.by_name.keys() - self._named.keys()
        given = [name for name in bound.by_name if name in is_open]
        return given == [name for name in names if name in is_open]


def _as_called(sample: Any, bound: Bound) -> Any:
    """Returns the call as it was made; ``sample``, its bound form, where both are the same."""
    values = [*bound.args, *bound.kwargs.values()]
    names = tuple(bound.kwargs)
    same = list(sample) if isinstance(sample, tuple) else [sample]
    known = sample.names if type(sample) is Arguments else ()
    if names == known and len(values) == len(same) and all(map(operator.is_, values, same)):
        return sample
    return Arguments.of(values, names, is_as_called=True)


def is_same(value: object, default: object) -> bool:
    """Whether an argument is the default. A value that can change equals only itself."""
    if value is default:
        return True
    kind = type(value)
    if torch.compiler.is_compiling() and isinstance(default, float):
        # A number may be a symbol there, which has no bytes. 0.0 is also -0.0, so it is passed on.
        return kind is float and default != 0 and value == default
    return (
        kind is type(default) and kind in ATOMS and tokens_of_atom(value) == tokens_of_atom(default)
    )


def _with_keyword(signature: inspect.Signature, name: str) -> inspect.Signature:
    parameters = list(signature.parameters.values())
    is_last_open = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
    place = len(parameters) - 1 if is_last_open else len(parameters)
    parameters.insert(place, inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY))
    return signature.replace(parameters=parameters)


def tells_form(function: Any) -> bool:
    """Whether a function can do other things for ``f(x, k=2)`` than for ``f(x, 2)``.

    A function whose signature is that of its own code cannot. torch's own decorators (``no_grad``
    and similar ones) pass on what they get, so they do not count.
    """
    while is_of_torch(function):
        function = function.__wrapped__
    return (
        type(function) is not types.FunctionType
        or hasattr(function, "__wrapped__")
        or hasattr(function, "__signature__")
    )


def is_of_torch(function: Any) -> bool:
    """Whether torch's own decorator made this function, one that passes on what it gets."""
    if type(function) is not types.FunctionType or not hasattr(function, "__wrapped__"):
        return False
    module = function.__globals__.get("__name__")
    # Since torch 2.15 the code of this module's wrapper has the name of its context manager.
    return module == "torch.utils._contextlib" or (
        module == "torch.amp.autocast_mode" and function.__code__.co_name == "decorate_autocast"
    )


def reads_open(function: Any) -> bool:
    """Whether the code of a function may read what came as its ``**kwargs``."""
    while is_of_torch(function):
        function = function.__wrapped__
    if type(function) is not types.FunctionType:
        return True
    code = function.__code__
    if not code.co_flags & inspect.CO_VARKEYWORDS or not _FINDS_LOCALS.isdisjoint(code.co_names):
        return True
    place = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    name = code.co_varnames[place]
    return name in code.co_cellvars or any(
        step.argval == name or (isinstance(step.argval, tuple) and name in step.argval)
        for step in dis.get_instructions(code)
    )


# Functions by which code can read its variables without naming them.
_FINDS_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"})
