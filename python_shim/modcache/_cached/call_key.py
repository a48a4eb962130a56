# SPDX-License-Identifier: Apache-2.0
"""The key of a call, which ``key=`` of modcache.cached makes of its arguments."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.compiler import is_dynamo_compiling

from modcache._call import key_block
from modcache._call.arguments import Arguments, Bound, Parameters, PerRow, reads_open, tells_form
from modcache._call.carriers import is_array
from modcache._call.content import content_key, content_keys
from modcache._call.keys import checked_keys, key_of_one_id
from modcache._code.libraries import known_method
from modcache._library.tasks import active_entries, is_among_tasks
from modcache._library.text import is_one_key, text_of_tuple_key

WHAT_KEY_IS = (
    "key names the sample, so that the same key means the same output. It is the name of an "
    'argument (key="image_id"; one that the target lacks is added to it and not passed on), a '
    'function of the arguments (key=lambda images, names: names), or "content" (made from the '
    "bytes of the arguments; key=modcache.content_keys makes one per row)"
)


class _FromBlock(enum.Enum):
    """``key`` of what has its keys from a block; a class of its own, so that pickles keep it."""

    FROM_BLOCK = "modcache.keys"

    def __repr__(self) -> str:
        return "..."  # shown in signatures


FROM_BLOCK = _FromBlock.FROM_BLOCK

KEY_TYPES = (str, list, tuple, torch.Tensor)
FORWARD = ("forward",)


class Way(NamedTuple):
    """The arguments of ``modcache.cached``: they say how a target is cached."""

    key: Any
    scope: str
    freeze: bool
    methods: tuple[str, ...] = FORWARD
    ignore: tuple[str, ...] = ()
    ragged: str = "error"
    mask: str | int | None = None
    lengths: str | int | None = None
    pad_value: float = 0.0
    cache: Any = None  # the Cache that calls use; None: the one that is current then

    @property
    def rows(self) -> dict[str, Any]:
        """What ``lookup_or_run`` is to do with rows that do not fit together or are padded."""
        names = ("ragged", "mask", "lengths", "pad_value")
        return {
            name: getattr(self, name)
            for name in names
            if getattr(self, name) != self._field_defaults[name]
        }


class MissingKeyError(TypeError):
    """A call lacks the keyword that is its key."""


class CallKey:
    """Makes the key and the input of each call of one target.

    Args:
        key: as ``modcache.cached`` takes it.
        signature: the target's, without a filled first parameter.
        who: the target's name, for messages.
        filled: the name of the parameter that a bound method has filled ("self"), or "".
        target: the function itself, which says what it can tell of a call.
        ignore: names of arguments that the address leaves out.

    Raises:
        TypeError: a key of another type, a key function that asks for what the target lacks, or
            ``ignore`` with a name that it does not take.
        ValueError: an empty name.
    """

    def __init__(
        self,
        key: Any,
        signature: inspect.Signature,
        who: str,
        filled: str = "",
        *,
        target: Any,
        ignore: tuple[str, ...] = (),
    ) -> None:
        self._who = who
        self._filled = filled
        self._key = key
        self._target = target
        self._ignore = ignore
        self._read(signature)

    def _read(self, signature: inspect.Signature) -> None:
        """Finds out how the target, as it is now, is called."""
        key, who, target, ignore = self._key, self._who, self._target, self._ignore
        self._code = getattr(target, "__code__", None)  # None: it is no function
        self._defaults = getattr(target, "__defaults__", None)
        self._keyword_defaults = getattr(target, "__kwdefaults__", None)
        own = Parameters(signature, who)
        known = known_method(target)
        self.name = ""
        if isinstance(key, str) and key != "content":
            self.name = known.name_in(own.has, _checked_name(key))
        self.is_consumed = bool(self.name) and not own.has(self.name)
        consumed = self.name if self.is_consumed else ""
        self.parameters = Parameters(
            signature,
            who,
            consumed,
            tells_form=not known.passes_on and tells_form(target),
            ignored=_ignored(own, ignore, target, who),
            reads_open=reads_open(target),
            known=known,
        )
        self._has_arguments_of_losses = bool(known.of_losses)
        self._makes_content = content_function(key)
        self._function: Callable[..., Any] | None = None
        self.is_from_block = key is FROM_BLOCK
        if not self.name and self._makes_content is None and not self.is_from_block:
            if not callable(key):
                raise TypeError(f"cached: key is {key!r}; {WHAT_KEY_IS}.")
            self._function = key
            self._choose_arguments(key)

    def may_wait(self, count: int) -> bool:
        """Whether a call with this many arguments by place needs no key in mode ``off``.

        It counts as one whole call. Rows are counted, so their keys are made in each mode.
        """
        if is_dynamo_compiling() or count != self.parameters.least:
            return False
        if active_entries and is_among_tasks():
            return False
        is_from_content = self._makes_content is content_key
        return is_from_content or (self.is_from_block and key_block.is_outside())

    def of_call(
        self,
        owner: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        tells_form: bool | None = None,
    ) -> tuple[Any, Any]:
        """Returns the input and the key, as ``lookup_or_run`` takes them, or ``FROM_BLOCK``.

        Args:
            owner: the value of a bound method's first parameter, if there is one.
            args: the arguments by place, without ``owner``.
            kwargs: the arguments by name.
            tells_form: whether what runs in place of the target can tell the form of the call;
                None: the target itself runs.
        """
        target = self._target
        if self._code is not None and not (
            target.__code__ is self._code
            and target.__defaults__ is self._defaults
            and target.__kwdefaults__ is self._keyword_defaults
        ):
            self._read_anew()
        key: Any = FROM_BLOCK
        if self.is_consumed and not (self.name not in kwargs and key_block.decides()):
            if self.name not in kwargs:
                raise MissingKeyError(
                    f"{self._who}() needs the keyword {self.name}=..., its key: a str for the "
                    "whole result; for one key per row a list of str or int, or an int64 tensor."
                )
            key = self._checked(kwargs[self.name])
            if len(kwargs) == 1 and len(args) == self.parameters.least:  # the rest are defaults
                return args[0] if len(args) == 1 and not isinstance(args[0], tuple) else args, key
            kwargs = {name: value for name, value in kwargs.items() if name != self.name}
        bound = self.parameters.bind(args, kwargs)
        if self.name and not self.is_consumed:
            value = self.parameters.value_of(self.name, bound)
            key = self._checked(_texts_in(value))
            is_list = isinstance(key, (list, tuple)) or hasattr(value, "iloc")
            if is_list and not is_one_key(key):
                self.parameters.put(self.name, PerRow(value), bound)
            key = _named(key)
        elif self._function is not None:
            key = self._checked(self._key_of(owner, bound))
        is_rows = self._has_arguments_of_losses and _are_rows(key)
        sample = self.parameters.input_of(bound, tells_form=tells_form, is_rows=is_rows)
        if self._makes_content:
            shown = sample.shown() if isinstance(sample, Arguments) else sample
            key = self._makes_content(shown)
        return sample, key

    def _read_anew(self) -> None:
        """Reads a target that was changed in place, as IPython's autoreload changes functions."""
        signature = inspect.signature(self._target)
        if self._filled:
            _, *rest = signature.parameters.values()
            signature = signature.replace(parameters=rest)
        self._read(signature)

    def of_input(self, input: Any) -> Any:
        """Returns the input of a call by place as a cached call gives it, without what is ignored.

        An input that no call can have, or in which nothing is ignored, is returned as it is.
        """
        args = input if type(input) is tuple else (input,)
        try:
            told = self.parameters.input_of(self.parameters.bind(args, {}))
        except TypeError:
            return input
        return told if type(told) is Arguments and told.told is not None else input

    def _choose_arguments(self, function: Callable[..., Any]) -> None:
        """Decides which arguments the key function gets: by name, or else by place."""
        self._takes: list[str] | None = None  # None: by place
        self._count = -1  # how many it gets by place; -1: all
        try:
            given = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):  # some builtins have no signature
            self._count = 1
            return
        kinds = inspect.Parameter
        if any(p.kind is kinds.VAR_POSITIONAL for p in given):
            return
        known = [p.name for p in given if self.parameters.has(p.name) or p.name == self._filled]
        unknown = [
            p
            for p in given
            if p.name not in known and p.kind is not kinds.VAR_KEYWORD and p.default is p.empty
        ]
        by_place = all(
            p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD) for p in given
        )
        if not unknown and all(p.kind is not kinds.POSITIONAL_ONLY for p in given):
            self._takes = known
            return
        if known or not by_place or len(unknown) > len(self.parameters.names):
            names = ", ".join(p.name for p in unknown)
            raise TypeError(
                f"cached: the key function {_name_of(function)} takes {names}, which "
                f"{self._who}{self.parameters.signature} does not have. A key function names "
                "arguments of the target, as many as it needs, or none of them: then it gets the "
                "first ones by place."
            )
        self._count = len(unknown)

    def _key_of(self, owner: Any, bound: Bound) -> Any:
        assert self._function is not None
        try:
            if self._takes is not None:
                return self._function(
                    **{
                        name: owner
                        if name == self._filled
                        else self.parameters.value_of(name, bound)
                        for name in self._takes
                    }
                )
            count = len(bound.by_place) if self._count < 0 else self._count
            return self._function(*bound.by_place[:count])
        except Exception as error:
            if not torch.compiler.is_compiling():
                name = _name_of(self._function)
                error.add_note(
                    f"raised by {name}, the key function of {self._who} (modcache.cached)"
                )
            raise

    def _checked(self, key: Any) -> Any:
        """Returns a key that ``lookup_or_run`` takes: an int is the id of one whole value.

        ``lookup_or_run`` checks the usual types itself, and the fast path reads them as they are.
        """
        if isinstance(key, KEY_TYPES):
            return key
        if type(key) is int:
            return key_of_one_id(key)
        source = f"the argument {self.name}" if self.name else _name_of(self._function)
        try:
            return key_of_one_id(key) or checked_keys(key)
        except (TypeError, ValueError) as error:
            kind = type(key).__name__
            raise type(error)(f"{self._who}(): {source} gave {kind}: {error}") from None


def _are_rows(key: Any) -> bool:
    if key is FROM_BLOCK:
        key = None if torch.compiler.is_compiling() else key_block.keys_of_call()
    return key is not None and not isinstance(key, str) and not is_one_key(key)


def _texts_in(value: Any) -> Any:
    """Returns the texts of an array or another sequence of them, as a list; else the value."""
    if is_array(value) and value.ndim == 1 and value.dtype.kind in "UO":
        return value.tolist()
    is_other = isinstance(value, Sequence) and not isinstance(value, (*KEY_TYPES, bytes, bytearray))
    return list(value) if is_other else value


def _named(key: Any) -> Any:
    """Gives names to what a target encodes and no key can be: an empty text, a list for a pair."""
    if isinstance(key, str):
        return key or text_of_tuple_key(("",), "key")
    if not isinstance(key, (list, tuple)) or is_one_key(key) or set(map(type, key)) <= {int}:
        return key
    return [_named_row(each) for each in key]


def _named_row(key: Any) -> Any:
    if isinstance(key, str):
        return key or ("",)
    return tuple(key) if isinstance(key, list) else key


def key_of_method(function: Any, way: Way) -> tuple[CallKey, inspect.Signature]:
    """The key of a function whose first parameter is filled, and the signature for its callers."""
    signature = inspect.signature(function)
    first, *rest = signature.parameters.values()
    key = CallKey(
        way.key,
        signature.replace(parameters=rest),
        function.__qualname__,
        first.name,
        target=function,
        ignore=way.ignore,
    )
    taken = key.parameters.of_callers.parameters.values()
    return key, signature.replace(parameters=[first, *taken])


def check_no_content_of_padding(function: str, key: Any, mask: Any, lengths: Any) -> None:
    """Raises ValueError if the key would be made of rows with their padding."""
    if (mask is not None or lengths is not None) and content_function(key) is not None:
        name = repr(key) if isinstance(key, str) else key.__name__
        raise ValueError(
            f"{function}: mask and lengths are for keys of rows; with key={name} padding would be "
            "a part of the key. Give each row a key, such as its index."
        )


def content_function(key: Any) -> Callable[[Any], Any] | None:
    """Returns the function that makes such keys of an input; None: ``key`` says something else."""
    if key in ("content", content_key):
        return content_key
    return content_keys if key is content_keys else None


def _ignored(own: Parameters, ignore: tuple[str, ...], target: Any, who: str) -> frozenset[str]:
    """The names that the caller ignores, and those that are known to change no result."""
    unknown = [name for name in ignore if not own.takes(name)]
    if unknown:
        raise TypeError(
            f"cached: ignore names {', '.join(unknown)}, which {who}{own.signature} does not "
            "take. It names arguments of the target that change how it runs, never its result."
        )
    return frozenset((*ignore, *filter(own.has, known_method(target).ignored)))


def checked_ignore(ignore: Any) -> tuple[str, ...]:
    """Returns the names in ``ignore=`` of modcache.cached. Raises TypeError for anything else."""
    names = (ignore,) if isinstance(ignore, str) else ignore
    is_group = isinstance(names, (tuple, list, set, frozenset))
    if is_group and all(isinstance(name, str) and name.isidentifier() for name in names):
        return tuple(sorted(set(names)))
    raise TypeError(
        f"cached: ignore is {ignore!r}, but must be names of arguments: "
        'ignore=("batch_size", "show_progress_bar").'
    )


def _checked_name(name: str) -> str:
    if name.isidentifier():
        return str(name)
    raise ValueError(f"cached: key={name!r} is no name of an argument; {WHAT_KEY_IS}.")


def _name_of(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)
