# SPDX-License-Identifier: Apache-2.0
"""A digest of what a Python class or function does: its compiled code, and what that reaches.

The digest is made of compiled code, not source text. Compiled code is what runs, even if a file was
edited after its import. It also exists without source (exec, notebooks), and it does not change
with comments and formatting. Another minor version of Python compiles differently, which costs a
miss.

The user's own code is followed. Functions that it names are followed in turn. Names
identify what torch, NumPy, tqdm and the standard library hold. Everything else (globals, attributes
read through modules, closures, defaults, attributes of functions and classes) is a ``Read``, which
every check compares. Code that is none of these is ``unknown``, and cannot be identified.

``Code.packaged`` notes where the code enters an installed package, and ``_installed/traversal.py``
follows it from there. Classes of torch and the standard library are identified by name.
"""

from __future__ import annotations

import builtins
import types
import weakref
from collections.abc import Mapping
from typing import Any

from modcache._code.dynamic import beyond_names, unbounded_attribute
from modcache._code.names import (
    CLASS_NOISE,
    STANDARD,
    TRUSTED,
    bases_that_count,
    is_installed,
    is_installed_import,
    is_installed_module,
    is_packaged,
    is_trusted,
    parts_of_member,
    plain_name,
    top_package,
    trusted_name,
)
from modcache._code.objects import is_a, shown_error
from modcache._code.reads import (
    MISSING,
    Code,
    Place,
    Read,
    read_of_attribute,
    read_of_cell,
    read_of_global,
    read_of_member,
)
from modcache._code.scan import names_in, with_inner
from modcache._code.tokenizer_backends import BACKEND_NAMES
from modcache._code.tokens import ATOMS, NumberingHasher, as_bytes, tokens_of_atom
from modcache._code.wrapped import is_left_here, unwrapped

_MOST_FUNCTIONS = 4096
_UNFOLLOWED = frozenset({"torch", "numpy"})
_UNFORESEEABLE = frozenset({"globals", "eval", "exec", "__import__"})
_CO_NOISE = 0x01000000 | 0x02000000  # flags that only tell compilers apart


def code_of_class(cls: type) -> Code:
    """Reads ``cls`` and its bases, up to torch.nn.Module and the standard library."""
    walk = _Walk()
    for base in bases_that_count(cls):
        walk.visit_class(base)
    return walk.finish()


def code_of_function(function: types.FunctionType) -> Code:
    walk = _Walk()
    walk.visit_function(function)
    return walk.finish()


def code_alone(function: types.FunctionType) -> bytes:
    """Digests the function itself, without anything that it reaches."""
    walk = _Walk()
    walk.visit_code(function.__code__)
    return walk.finish().digest


class _Walk:
    """Follows classes and functions to all that they reach."""

    def __init__(self) -> None:
        self._hasher = NumberingHasher()
        self._feed, self._index_of = self._hasher.feed, self._hasher.index_of
        self._found = Code()
        self._visited: set[int] = set()
        self._waiting: list[types.FunctionType] = []
        self._count = 0

    def finish(self) -> Code:
        while self._waiting and self._count < _MOST_FUNCTIONS:
            self._count += 1
            self._function(self._waiting.pop())
        if any(not is_installed(function) for function in self._waiting):
            self._found.unknown = f"its code is made of more than {_MOST_FUNCTIONS} functions"
        self._found.digest = self._hasher.digest()
        return self._found

    def visit_class(self, cls: type) -> None:
        """Reads a class. Each is visited once."""
        self._feed("class", cls.__qualname__, self._index_of(cls))
        if is_packaged(cls):
            self._packaged(cls)
            return
        is_own = not is_installed(cls)
        for name, member in sorted(vars(cls).items(), key=lambda item: item[0]):
            if name in CLASS_NOISE or is_left_here(member):
                continue
            self._feed(name)
            if is_own:
                self._member(cls, (name,), member)
            else:
                self._member_by_name(member)

    def visit_function(self, function: types.FunctionType) -> None:
        function = unwrapped(function)
        self._feed("function", function.__qualname__, self._index_of(function))
        if is_packaged(function):
            self._packaged(function)
        elif id(function) not in self._visited:
            self._visited.add(id(function))
            self._waiting.append(function)

    def _packaged(self, value: Any) -> None:
        """Notes that the code enters an installed package here, without following it."""
        self._feed("packaged", plain_name(value))
        self._found.packaged.append(weakref.ref(value))

    def _member(self, cls: type, path: tuple[str, ...], value: Any) -> None:
        """Reads an attribute of the user's own class. Its identity is checked with the class."""
        if is_a(value, types.FunctionType):
            self.visit_function(value)
        elif parts := parts_of_member(value):
            if is_a(value, (staticmethod, classmethod)):
                self._feed(type(value).__name__)
            for name in parts:
                self._member(cls, (*path, name), getattr(value, name))
        elif type(value) in ATOMS:
            self._feed(*tokens_of_atom(value))
        else:
            self._read(read_of_member(cls, path))

    def _read(self, read: Read) -> None:
        self._feed("read")
        self._found.reads.append(read)

    def _member_by_name(self, value: Any) -> None:
        """Reads a member of a class of torch or the standard library, which its name identifies.

        Functions that somebody put there are followed.
        """
        for part in parts_of_member(value):
            self._member_by_name(getattr(value, part))
        value = unwrapped(value)
        while is_a(value, types.FunctionType):
            if is_packaged(value) or not is_installed(value):
                self.visit_function(value)
                return
            self.visit_code(value.__code__)
            value = vars(value).get("__wrapped__")
        if type(value) in ATOMS:
            self._feed(*tokens_of_atom(value))

    def _function(self, function: types.FunctionType) -> None:
        code = function.__code__
        self._feed("body", self._index_of(function))
        self.visit_code(code)
        self._held(function)
        if not is_installed(function):
            for each in with_inner(code):
                self._found.names.update(dict.fromkeys(each.co_names))
            if top_package(function.__globals__.get("__name__")) not in _UNFOLLOWED:
                self._globals(Place(function), code)

    def _held(self, function: types.FunctionType) -> None:
        self._found.hold_function(function)
        for name in ("__defaults__", "__kwdefaults__", "__dict__"):
            if getattr(function, name):
                self._feed(name)
                self._read(read_of_attribute(function, name))
        for index, name in enumerate(function.__code__.co_freevars):
            if name != "__class__":  # only super() reads it
                self._feed("cell", name)
                self._read(read_of_cell(function, index))

    def visit_code(self, code: types.CodeType) -> None:
        self._feed("code", code.co_code, code.co_exceptiontable)
        self._feed(
            *code.co_names, "|", *code.co_varnames, "|", *code.co_freevars, "|", *code.co_cellvars
        )
        self._feed(str((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)))
        self._feed(str(code.co_flags & ~_CO_NOISE))
        if "training" in code.co_names:
            self._found.mentions_training = True
        if not BACKEND_NAMES.isdisjoint(code.co_names):
            self._found.mentions_backend = True
        for constant in code.co_consts:
            self._constant(constant)

    def _constant(self, constant: object) -> None:
        if is_a(constant, types.CodeType):
            self.visit_code(constant)
        elif is_a(constant, tuple):
            self._feed("tuple", str(len(constant)))
            for item in constant:
                self._constant(item)
        elif is_a(constant, frozenset):
            self._feed("set", *sorted(map(_bytes_of, constant)))
        else:
            if constant == "training":  # getattr(self, "training")
                self._found.mentions_training = True
            if constant in BACKEND_NAMES:
                self._found.mentions_backend = True
            self._feed(*tokens_of_atom(constant))

    def _globals(self, place: Place, code: types.CodeType) -> None:
        """Follows the names that own ``code``, and the code inside it, loads."""
        names = names_in(code)
        for name in names.imports:
            if not is_installed_import(name):
                self._unknown(f"its code imports {name or 'a sibling module'} when it runs")
            elif top_package(name) not in TRUSTED and top_package(name) not in STANDARD:
                self._imports(name, names.attributes, code)
        if attribute := unbounded_attribute(code):
            self._unknown(f"its code reads {attribute}")
        for name, *attributes in names.globals:
            try:
                self._named(place, code, name, attributes)
            except Exception as error:  # the code of an object of the user's
                self._unknown(f"its code reads {name}, which raised {shown_error(error)}", error)
        for constant in code.co_consts:
            if is_a(constant, types.CodeType):
                self._globals(place, constant)

    def _named(self, place: Place, code: types.CodeType, name: str, attributes: list[str]) -> None:
        reads, reason = beyond_names(place, code, name, attributes)
        for read in reads:
            self._read(read)
        if reason:
            self._unknown(reason)
        self._global(place, name, attributes)

    def _imports(self, name: str, attributes: Mapping[str, None], code: types.CodeType) -> None:
        """Notes what the code reads of an installed package that it imports when it runs."""
        self._feed("imports", name)
        for attribute in ("", *attributes, *code.co_names):
            self._found.imports[(name, attribute)] = None

    def _unknown(self, reason: str, cause: Exception | None = None) -> None:
        if not self._found.unknown:
            self._found.unknown = reason
            # Its traceback would keep the modules alive that its frames refer to.
            self._found.cause = cause.with_traceback(None) if cause is not None else None

    def _global(self, place: Place, name: str, attributes: list[str]) -> None:
        value = place.names().get(name, MISSING)
        self._feed("global", name)
        if value is MISSING:
            if name in _UNFORESEEABLE and hasattr(builtins, name):
                self._unknown(f"its code calls {name}()")
        elif is_a(value, types.ModuleType):
            self._feed("module", value.__name__)
            self._module(value, attributes)
        elif known := trusted_name(value):
            self._feed("trusted", known)
        elif is_a(value, types.FunctionType):
            self.visit_function(value)
        else:
            self._read(read_of_global(place, name))
            return
        self._found.hold(place, name, value)

    def _module(self, module: types.ModuleType, attributes: list[str]) -> None:
        if is_trusted(module):
            return
        if attributes and attributes[0] in vars(module):
            self._global(Place(module), attributes[0], attributes[1:])
        elif is_installed_module(module):
            self._packaged(module)
        else:
            what = f"reads {attributes[0]} from" if attributes else "uses as a value"
            self._unknown(f"its code {what} the module {module.__name__}")


def _bytes_of(atom: object) -> bytes:
    return b"".join(map(as_bytes, tokens_of_atom(atom)))
