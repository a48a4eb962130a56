# SPDX-License-Identifier: Apache-2.0
"""``modcache.cached``: the cache in one line.

The decorator replaces a function (of a module, its ``forward``) by a cached function, which makes
key and input of the call's arguments and gives them to ``lookup_or_run``. A decorated class stays
the same object, so pickling, copying, ``super(Name, self)`` and subclasses work as before. A cached
instance is an object of a *proxy class*, which is derived from the instance's own class, and shares
its ``__dict__``: both have the same parameters, hooks and attributes, and the given instance runs
as before. A wrapper module would change the names in the ``state_dict``; a forward that is put into
the instance would be copied along, still bound to the original. Code that identifies modules looks
through cached functions and proxy classes (``_code/wrapped.py``), so a cached module has the
fingerprint of the module that it was made of.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypedDict, TypeVar, Unpack, overload

import torch

from modcache._cached.call_key import (
    FORWARD,
    FROM_BLOCK,
    Way,
    check_no_content_of_padding,
    checked_ignore,
)
from modcache._cached.function import cached_function
from modcache._cached.module import cached_class, cached_instance
from modcache._call.rows import checked_ragged
from modcache._library.tasks import maker
from modcache._library.text import checked_text

_Target = TypeVar("_Target", bound=Callable[..., Any])


class _Options(TypedDict, total=False):
    key: Any
    scope: str
    freeze: bool
    methods: Sequence[str]
    ignore: str | Collection[str]
    ragged: str
    mask: str | int | None
    lengths: str | int | None
    pad_value: float


@overload
def cached(target: None = None, **options: Unpack[_Options]) -> Callable[[_Target], _Target]: ...
@overload
def cached(target: _Target, **options: Unpack[_Options]) -> _Target: ...
def cached(
    target: Any = None,
    *,
    key: Any = FROM_BLOCK,
    scope: str = "",
    freeze: bool = False,
    methods: Sequence[str] = FORWARD,
    ignore: str | Collection[str] = (),
    ragged: str = "error",
    mask: str | int | None = None,
    lengths: str | int | None = None,
    pad_value: float = 0.0,
) -> Any:
    """Runs the target once per key: a decorator, and a call on what exists already.

    >>> import modcache, torch
    >>> encoder = modcache.cached(torch.nn.Linear(4, 2), key="ids", freeze=True)
    >>> images, ids = torch.randn(3, 4), torch.arange(3)
    >>> features = encoder(images, ids=ids)  # runs, one entry per row
    >>> torch.equal(encoder(images, ids=ids), features)  # does not
    True
    >>> @modcache.cached(key="name")
    ... def length(name: str, unit: float = 1.0) -> torch.Tensor:
    ...     return torch.tensor(len(name) * unit)
    >>> length("left"), length(name="left", unit=1.0)
    (tensor(4.), tensor(4.))

    Args:
        target: a function, a method (decorate it in its class), a class of modules, or a module.
            A class is changed in place and returned; its subclasses inherit the cached
            ``forward``. A module is left uncached, and another object of its type is returned,
            which shares all its state.
        key: names the sample of a call, so that the same key means the same output. Without it the
            keys are those of the block around the call, ``with modcache.keys(ids):``. Else it is

            - the name of an argument. If the target has this parameter, the argument is read and
              passed on. If not, it becomes a keyword that only the cache gets:
              ``encoder(images, ids=ids)``;
            - a function of the arguments. Its parameters are names of the target's parameters, as
              many as it needs (for a method, ``self`` too). If it has other names altogether, it
              gets the first arguments by place. Defaults are filled in;
            - ``"content"``: one key for the whole call, made from the bytes of all arguments.
              ``modcache.content_keys`` makes one per row.

            The key decides what is stored: a str (or an int, an id; or a tuple of text and
            integers, ``("video", 3)``) one whole result; a list of str, int or such tuples, or an
            int64 tensor of ids, one row per key, where the first dimension
            of every tensor among the arguments is the number of keys. A list that is an argument
            of the target itself goes there row by row.
        scope: a name that the caller answers for, in place of the fingerprint. The default
            identifies a module by its fingerprint, weights included; a function by its qualified
            name and code, with what that reads and calls; a method by its object's attributes too.
        freeze: for modules: calls ``requires_grad_(False)`` and ``eval()``, and keeps evaluation
            mode when a parent calls ``train()``: the module's own ``train`` is then called with
            False. Once one of its parameters requires grad again, ``train()`` does what it says. An
            object of a class is frozen when its ``__init__``, also that of a subclass, has
            returned. The given instance is not protected: ``train()`` on it, or on a parent of
            it, changes the state that both share.
        methods: for modules: the names of all methods that are cached,
            ``methods=("encode_image", "encode_text")``; others, ``forward`` too if it is not among
            them, run as before. Each has entries of its own, so one key may name an image and its
            text. ``key`` must suit each of them. Where a method of the module itself calls another
            one without its key, as ``forward`` does in many, that call is a part of the first. A
            lazy module has the methods of what it loads.
        ignore: names of arguments that change how the target runs, never what it returns
            (``ignore=("batch_size", "show_progress_bar")``), or one name. They are left out of the
            address, and of what ``match`` compares, never of the call. What comes as ``**kwargs``
            to a target whose code does not read them is left out, too; so are ``batch_size`` and
            ``show_progress_bar`` of sentence-transformers' ``encode`` and ``predict``, but where a
            row depends on the rows beside it (``precision="int8"``).
        ragged: as for ``lookup_or_run``: what to do with rows whose shapes differ.
        mask: as for ``lookup_or_run``: for rows of their own length in a padded batch, the name or
            place of the argument that says which part of each row is true.
        lengths: the same for an argument that has the lengths.
        pad_value: as for ``lookup_or_run``.

    Returns:
        The same kind of thing, with its name, docstring and signature. The target gets each call
        as it was made. ``f(x, k=2)``, ``f(x, 2)`` and, where 2 is the default, ``f(x)`` share one
        entry. If the target is decorated, each form has an entry of its own, because a decorator
        may read its ``kwargs`` (``torch.no_grad`` and similar ones pass on what they get, and do
        not count). Keywords that go to ``**kwargs`` in another order than the alphabet's have an
        entry of their own, too.

    Raises:
        TypeError: a key of a wrong type, a key function or ``ignore`` with arguments which the
            target does not have, or a target that cannot be cached. When called, also: an argument
            or the key is missing, the key is of a wrong type, or a function or an object with a
            cached method cannot be identified; the message names what cannot be hashed, and
            ``scope`` is the cure.
        ValueError: ``key`` or ``scope`` is no valid name; and as ``lookup_or_run``.
        AttributeError: the module has no method of a name in ``methods``.
        Any exception of the target or of the key function.

    Forward hooks of the module itself run at each call, hit or miss, and are not part of the cached
    value. Forward hooks of its submodules run on a miss only, and are part of its fingerprint.
    ``torch.jit.script`` compiles a cached module whose key is the name of an argument into the
    operator; in scripted code cached functions and other cached methods run uncached.
    """
    check_no_content_of_padding("cached", key, mask, lengths)
    way = Way(
        key,
        checked_text(scope, "scope"),
        bool(freeze),
        _checked_names(methods),
        checked_ignore(ignore),
        checked_ragged(ragged),
        *_checked_padding(mask, lengths),
        float(pad_value),
        maker.get(),
    )
    if target is None:
        return lambda given: _cached(given, way)
    return _cached(target, way)


def _checked_names(methods: Any) -> tuple[str, ...]:
    is_list = isinstance(methods, (tuple, list)) and len(methods) > 0
    if not is_list or not all(isinstance(name, str) for name in methods):
        raise TypeError(
            'cached: methods must be a tuple of names of methods, such as ("encode",), but got '
            f"{methods!r}."
        )
    return tuple(dict.fromkeys(methods))


def _checked_padding(mask: Any, lengths: Any) -> tuple[Any, Any]:
    for name, which in (("mask", mask), ("lengths", lengths)):
        if which is not None and (isinstance(which, bool) or not isinstance(which, (str, int))):
            raise TypeError(
                f"cached: {name} must be the name or the place of an argument, but is a "
                f"{type(which).__name__}."
            )
    if mask is not None and lengths is not None:
        raise ValueError("cached: mask and lengths say the same; give one of them.")
    return mask, lengths


def _cached(target: Any, way: Way) -> Any:
    if isinstance(target, torch.nn.Module):
        return cached_instance(target, way)
    if isinstance(target, type) and issubclass(target, torch.nn.Module):
        return cached_class(target, way)
    if isinstance(target, (staticmethod, classmethod)):
        return type(target)(_cached(target.__func__, way))
    if isinstance(target, types.MethodType):
        function = _cached(target.__func__, way)
        return types.MethodType(function, target.__self__)
    if isinstance(target, types.FunctionType):
        return cached_function(target, way)
    kind = f"the class {target.__qualname__}" if isinstance(target, type) else type(target).__name__
    raise TypeError(
        f"cached: the target must be a function, a method, a class of torch.nn.Module or a module, "
        f"but got {kind}. Put the call into a function (def) and decorate that."
    )
