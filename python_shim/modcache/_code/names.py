# SPDX-License-Identifier: Apache-2.0
"""Names: which package code comes from, and what is identified by its name alone."""

from __future__ import annotations

import functools
import importlib.util
import sys
import sysconfig
import types
from collections.abc import Iterator
from typing import Any

import torch

from modcache._code.objects import attribute_of, is_a
from modcache._code.wrapped import class_behind, is_left_here, is_proxy_class, unwrapped

# Packages that are identified by their name. tqdm keeps locks and bars, and passes on what it gets.
TRUSTED = frozenset({"torch", "functorch", "torchgen", "numpy", "modcache", "tqdm"})
TRUSTED_MODULES = frozenset({"torch", "numpy", "modcache", "tqdm"})
STANDARD = sys.stdlib_module_names
# Attributes of a class that do not change what its objects do.
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
# The types of members that C adds to classes.
DESCRIPTORS = (
    types.MethodDescriptorType, types.WrapperDescriptorType, types.MemberDescriptorType,
    types.GetSetDescriptorType, types.ClassMethodDescriptorType,
)  # fmt: skip
_MOST_DECORATORS = 16  # on one function
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
    """Finds the classes in the MRO whose code is part of what an object of ``cls`` does."""
    for base in cls.__mro__:
        if base is not torch.nn.Module and not _is_standard(base) and not is_proxy_class(base):
            yield base


def is_plain_metaclass(cls: type) -> bool:
    """Whether the class of ``cls`` is ``type`` or one of the standard library."""
    return type(cls) is type or _is_standard(type(cls))


def _is_standard(cls: type) -> bool:
    module = cls.__module__
    return module in ("builtins", "abc", "typing", "collections", "enum", "types", "contextlib")


def parts_of_member(member: object) -> tuple[str, ...]:
    """Names the attributes in which a class's member keeps the functions that it was made of."""
    if is_a(member, (staticmethod, classmethod)):
        return ("__func__",)
    if is_a(member, property):
        return ("fget", "fset", "fdel")
    return ("func",) if is_a(member, functools.cached_property) else ()


def top_package(module_name: object) -> str:
    return str(module_name).split(".", 1)[0]


def is_installed(value: Any) -> bool:
    """Whether a function or class comes from an installed package or the standard library."""
    return is_installed_file(file_behind(value))


def is_packaged(value: Any) -> bool:
    """Whether it comes from an installed distribution, other than those identified by name."""
    return is_packaged_file(file_behind(value))


@functools.lru_cache(maxsize=8192)
def place_of(filename: str) -> tuple[str, str] | None:
    """Finds the folder that a file is installed in, and the path from there.

    None: it is the user's own, or of a package that is identified by its name.
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
    """Finds the file that a function or class comes from; "" if that is not known."""
    value = unwrapped(value)
    if is_a(value, types.FunctionType):
        return value.__code__.co_filename
    members = vars(class_behind(value)) if is_a(value, type) else {}
    for member in map(unwrapped, tuple(members.values())):  # other threads add to it
        if is_left_here(member):
            continue
        member = _undecorated(member)
        if is_a(member, types.FunctionType) and member.__module__ == value.__module__:
            filename = member.__code__.co_filename
            if not filename.startswith("<"):  # a dataclass's __init__, for instance
                return filename
    module = sys.modules.get(str(attribute_of(value, "__module__", "")))
    return str(attribute_of(module, "__file__") or "")


def _undecorated(member: Any) -> Any:
    """Finds the decorated function. A decorator, as on a dataclass's repr, has another file."""
    for _ in range(_MOST_DECORATORS):
        if not is_a(member, types.FunctionType) or "__wrapped__" not in vars(member):
            break
        member = vars(member)["__wrapped__"]
    return member


def _module_of(value: object) -> str:
    return str(attribute_of(value, "__module__") or "")


def plain_name(value: Any) -> str:
    """Names a value that is identified by its name alone."""
    module = _module_of(value)
    name = attribute_of(value, "__qualname__") or attribute_of(value, "__name__")
    return f"{module}.{name or type(value).__qualname__}"


def short_name(kind: type) -> str:
    """Names a class in messages: a builtin one without its module."""
    return plain_name(kind).removeprefix("builtins.")


def is_trusted(module: types.ModuleType) -> bool:
    """Whether names identify what the module holds: torch, NumPy, tqdm, the standard library."""
    top = top_package(module.__name__)
    if top in TRUSTED_MODULES:
        return True
    file = attribute_of(module, "__file__")
    return top in sys.stdlib_module_names and (file is None or is_installed_file(file))


def trusted_name(value: Any) -> str:
    """Finds the name under which a trusted module holds exactly this value; "" for none."""
    module = attribute_of(value, "__module__")
    name = attribute_of(value, "__qualname__") or attribute_of(value, "__name__")
    place = sys.modules.get(module) if is_a(module, str) else None
    if place is None or not is_a(name, str) or not is_trusted(place):
        return ""
    found: Any = place
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{_module_of(value)}.{name}" if found is value else ""


def is_installed_module(module: types.ModuleType) -> bool:
    return is_trusted(module) or is_installed_file(attribute_of(module, "__file__") or "")


def is_installed_import(name: str) -> bool:
    """Whether ``import name`` leads to an installed package or the standard library."""
    top = top_package(name)
    if top in TRUSTED_MODULES or top in sys.stdlib_module_names:
        return True
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    return spec is not None and is_installed_file(spec.origin or "")
