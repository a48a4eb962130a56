# SPDX-License-Identifier: Apache-2.0
"""Names: what code loads, whose code it is, and what is told by its name alone."""

from __future__ import annotations

import dis
import functools
import importlib.util
import sys
import sysconfig
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from modcache._plain import FACE, is_face, is_left_here, plain_of

# Packages that are told by their name.
TRUSTED = frozenset({"torch", "functorch", "torchgen", "numpy", "modcache"})
_TRUSTED = frozenset({"torch", "numpy", "modcache"})
STANDARD = sys.stdlib_module_names
# Attributes of a class that say nothing about what its objects do.
CLASS_NOISE = frozenset(
    {
        "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__",
        "__annotate__", "__annotations_cache__", "__annotate_func__", "__conditional_annotations__",
        "__firstlineno__", "__static_attributes__", "__parameters__", "__orig_bases__",
        "__abstractmethods__", "_abc_impl", "__match_args__", "__dataclass_fields__",
        "__dataclass_params__", "__slotnames__", "_value2member_map_", "_autograd_function_id",
        "_backward_cls",
    }
)  # fmt: skip
_MOST_DECORATORS = 16  # of one function
_LIBRARY_PREFIXES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


@functools.lru_cache(maxsize=4096)
def is_installed_file(filename: str) -> bool:
    parts = filename.replace("\\", "/").split("/")
    return (
        "site-packages" in parts
        or "dist-packages" in parts
        or filename.startswith(("<frozen", *_LIBRARY_PREFIXES))
    )


def bases_that_count(cls: type) -> Iterator[type]:
    """The classes of the MRO whose code is part of what an object of ``cls`` does."""
    for base in cls.__mro__:
        if base is not torch.nn.Module and not _is_standard(base) and not is_face(base):
            yield base


def is_plain_metaclass(cls: type) -> bool:
    """Whether the class of ``cls`` adds nothing of anybody's own to it."""
    return type(cls) is type or _is_standard(type(cls))


def _is_standard(cls: type) -> bool:
    module = cls.__module__
    return module in ("builtins", "abc", "typing", "collections", "enum", "types", "contextlib")


def top_package(module_name: object) -> str:
    return str(module_name).split(".", 1)[0]


def is_installed(value: Any) -> bool:
    """Whether a function or class comes from an installed package or the standard library."""
    return is_installed_file(file_behind(value))


def is_packaged(value: Any) -> bool:
    """Whether a function or class comes from an installed distribution that is not told by name."""
    file = file_behind(value)
    return is_installed_file(file) and is_packaged_file(file)


@functools.lru_cache(maxsize=8192)
def place_of(filename: str) -> tuple[str, str] | None:
    """The folder that a file is installed in, and its path from there.

    None: it is the user's own, or of what is told by name.
    """
    parts = filename.replace("\\", "/").split("/")
    for index in range(len(parts) - 2, -1, -1):
        if parts[index] in ("site-packages", "dist-packages"):
            if parts[index + 1].split(".", 1)[0] in TRUSTED:
                return None
            return "/".join(parts[: index + 1]), "/".join(parts[index + 1 :])
    return None


def is_packaged_file(filename: str) -> bool:
    return place_of(filename) is not None


def file_behind(value: Any) -> str:
    """The file that a function or class comes from; "" where that is not known."""
    value = plain_of(value)
    if isinstance(value, types.FunctionType):
        return value.__code__.co_filename
    members = vars(vars(value).get(FACE) or value) if isinstance(value, type) else {}
    for member in map(plain_of, members.values()):
        if is_left_here(member):
            continue
        member = _undecorated(member)
        if isinstance(member, types.FunctionType) and member.__module__ == value.__module__:
            filename = member.__code__.co_filename
            if not filename.startswith("<"):  # a dataclass's __init__, for instance
                return filename
    module = sys.modules.get(str(getattr(value, "__module__", "")))
    return str(getattr(module, "__file__", None) or "")


def _undecorated(member: Any) -> Any:
    """What was decorated: a decorator has a file of its own, as that of a dataclass's repr has."""
    for _ in range(_MOST_DECORATORS):
        if not isinstance(member, types.FunctionType) or not hasattr(member, "__wrapped__"):
            break
        member = member.__wrapped__
    return member


def plain_name(value: Any) -> str:
    """The name of something that is not looked into."""
    module = getattr(value, "__module__", None) or ""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    return f"{module}.{name or type(value).__qualname__}"


def is_trusted(module: types.ModuleType) -> bool:
    """Whether what the module holds is told by name: torch, NumPy, the standard library."""
    top = top_package(module.__name__)
    if top in _TRUSTED:
        return True
    file = getattr(module, "__file__", None)
    return top in sys.stdlib_module_names and (file is None or is_installed_file(file))


def trusted_name(value: Any) -> str:
    """The name under which a trusted module holds exactly this value; "" where none does."""
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    place = sys.modules.get(module) if isinstance(module, str) else None
    if place is None or not isinstance(name, str) or not is_trusted(place):
        return ""
    found: Any = place
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}.{name}" if found is value else ""


def is_installed_module(module: types.ModuleType) -> bool:
    return is_trusted(module) or is_installed_file(getattr(module, "__file__", None) or "")


def is_installed_import(name: str) -> bool:
    """Whether ``import name`` leads to an installed package or the standard library."""
    top = top_package(name)
    if top in _TRUSTED or top in sys.stdlib_module_names:
        return True
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    return spec is not None and is_installed_file(spec.origin or "")


@dataclass
class NamesLoaded:
    """What one code object loads: globals with the attributes read through each, and imports."""

    globals: dict[tuple[str, ...], None] = field(default_factory=dict)
    attributes: dict[str, None] = field(default_factory=dict)
    imports: dict[str, None] = field(default_factory=dict)


def names_in(code: types.CodeType) -> NamesLoaded:
    names = NamesLoaded()
    chain: list[str] = []
    for instruction in dis.get_instructions(code):
        name = str(instruction.argval)
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            names.attributes[name] = None
            if chain:
                chain.append(name)
            continue
        if chain:
            names.globals[tuple(chain)] = None
            chain = []
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            # By names that begin so an assert that pytest rewrote reports its failure. They lead to
            # whatever pytest has loaded, and no result depends on them.
            chain = [] if name.startswith("@") else [name]
        elif instruction.opname == "IMPORT_NAME":
            names.imports[name] = None
    return names
