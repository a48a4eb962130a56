# SPDX-License-Identifier: Apache-2.0
"""Follows the code of installed packages to distributions, and to values in this process.

A distribution (``distributions.py``) identifies what its functions do. A process can still change
some things without touching a file: values of globals, members of classes, functions registered
from outside. So code is followed through the functions, classes and closures that it names, from
package to package. A class is followed through the methods whose names some code in reach mentions.
The digest says which object is where. Values become ``Read``s, which every look compares.

Two kinds of globals do not count: those that the package's own code in reach writes, which are
memories, and those that have another value in each process. Nor do numbers and texts of a class
that a class method in reach writes there.
"""

from __future__ import annotations

import hashlib
import sys
import types
from collections.abc import Iterable
from typing import Any

from modcache._code.libraries import APART, MEMORIES, is_serving
from modcache._code.names import (
    CLASS_NOISE,
    DESCRIPTORS,
    bases_that_count,
    file_behind,
    is_installed,
    is_packaged,
    is_packaged_file,
    is_trusted,
    parts_of_member,
    plain_name,
    top_package,
    trusted_name,
)
from modcache._code.objects import attribute_of, is_a
from modcache._code.operators import definitions_behind, parts_of
from modcache._code.process_values import is_of_this_process
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
from modcache._code.scan import mentions, resolved_import, scan_of
from modcache._code.tokenizer_backends import mentions_backend
from modcache._code.tokens import ATOMS, NumberingHasher, feed, tokens_of_atom
from modcache._code.traversal import code_alone
from modcache._code.wrapped import is_left_here, unwrapped
from modcache._installed.distributions import Distribution, distribution_of, distribution_of_import
from modcache._installed.first_use import in_order, load_all_parts
from modcache._installed.loaded import is_code_on_disk, may_have_changed_since_loaded
from modcache._installed.seeds import Seeds

_MOST_FUNCTIONS = 4096
_MOST_READS = 4096
# Methods that a forward does not run by itself.
_UNREACHED = frozenset(
    {
        "__init_subclass__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__",
        "__repr__", "__dir__", "__sizeof__", "__del__", "__copy__", "__deepcopy__",
        "from_pretrained", "save_pretrained", "push_to_hub", "save_to_hub",
    }
)  # fmt: skip
_MADE = frozenset({"__init__", "__new__", "__post_init__"})  # run where code calls the class


class PackageCode(Code):
    """The code that was found from some seeds. ``reads`` are those of packages."""

    def __init__(self) -> None:
        super().__init__()
        self.distributions: dict[str, Distribution] = {}
        self.files: dict[str, None] = {}  # one of each distribution
        self.imported: dict[str, None] = {}

    def distributions_now(self) -> dict[str, Distribution]:
        """Looks at the distributions again, by their names, in order."""
        found = [distribution_of(file) for file in self.files]
        found += [distribution_of_import(name) for name in self.imported]
        by_name = {each.name: each for each in found if each is not None}
        return dict(sorted(by_name.items()))


def _members_of(cls: type) -> list[tuple[str, Any]]:
    """The members of a class by name.

    Classes written in Rust have them in another order in each process, and so has one that gets
    members from a loop over a set, as SciPy's sparse arrays do.
    """
    return sorted(vars(cls).items(), key=lambda item: item[0])


class PackageTraversal:
    """Follows the code of packages from the seeds that are added."""

    def __init__(self) -> None:
        self._found = PackageCode()
        self._hasher = NumberingHasher()
        self._feed = self._hasher.feed
        self._met: set[int] = set()  # ids of what the hasher has numbered
        self._names = dict.fromkeys(["forward"])
        self._news = list(self._names)  # names that no class was searched for yet
        self._members: dict[str, list[tuple[type, Any]]] = {}  # by names not mentioned so far
        self._waiting: list[types.FunctionType] = []
        self._written: set[tuple[int, str]] = set()
        self._reads: list[tuple[tuple[int, str] | None, Read]] = []
        self._written_in_classes: set[str] = set()
        self._plain_members: list[tuple[str, tuple[str | bytes, ...]]] = []  # by name
        self._seen_globals: set[tuple[int, tuple[str, ...]]] = set()
        self._files: set[str] = set()
        self._classes: dict[int, bool] = {}  # by id: whether code in reach may call the class
        self._members_seen: set[tuple[int, str]] = set()
        self._count = 0
        self._entered: dict[int, bool] = {}
        self._entered_packages: set[str] = set()

    def add(self, seeds: Seeds) -> None:
        self._mention(seeds.names)
        self._entered_packages |= {
            top_package(str(attribute_of(value, "__module__", "")))
            for value, _ in seeds.values.values()
        } | {top_package(name) for name, _ in seeds.imports}
        for value, is_made in seeds.values.values():
            if self._entered.get(id(value), -1) < is_made:
                self._entered[id(value)] = is_made
                self._value(value, None, is_made=is_made)
        for name, attribute in seeds.imports:
            self._import(name, attribute)

    def finish(self) -> PackageCode:
        """Returns what was found so far: the same object at every call."""
        while self._count < _MOST_FUNCTIONS:
            if self._waiting:
                self._count += 1
                self._body(self._waiting.pop())
            elif self._news:
                for cls, member in self._members.pop(name := self._news.pop(), ()):
                    self._member(cls, (name,), member)
            else:
                break
        found = self._found
        kept = [read for key, read in self._reads if key not in self._written]
        found.reads = kept[:_MOST_READS]
        found.digest = self._digest()
        found.distributions = found.distributions_now()
        return found

    def _digest(self) -> bytes:
        hasher = hashlib.blake2b(self._hasher.digest(), digest_size=16)
        for name, tokens in self._plain_members:
            if name not in self._written_in_classes:
                feed(hasher, tokens)
        return hasher.digest()

    def _is_first_visit(self, value: object) -> bool:
        """Hashes which object this is; False if it was met before."""
        self._feed(plain_name(value), self._hasher.index_of(value))
        is_first = id(value) not in self._met
        self._met.add(id(value))
        return is_first

    def _note_file(self, file: str) -> None:
        if file not in self._files:
            self._files.add(file)
            self._note_distribution(distribution_of(file), self._found.files, file)

    def _note_distribution(
        self, found: Distribution | None, places: dict[str, None], place: str
    ) -> None:
        if found is not None and found.name not in self._found.distributions:
            load_all_parts(found.name)
            self._found.distributions[found.name] = found
            places[place] = None

    def _mention(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._names:
                self._names[name] = None
                self._news.append(name)

    def _value(self, value: Any, read: Read | None, *, is_made: bool = True) -> bool:
        """Follows something that code holds. True: its identity is in the digest.

        False: it is a value, which ``read`` finds again.
        """
        value = unwrapped(value)
        if known := trusted_name(value):
            self._feed("trusted", known)
        elif is_a(value, types.ModuleType):
            self._feed("module", value.__name__)
            self._note_file(attribute_of(value, "__file__") or "")
        elif is_a(value, types.FunctionType):
            return self._function(value, read)
        elif is_a(value, type) and is_installed(value):
            self._class(value, is_made=is_made)
        elif is_a(attribute_of(value, "__wrapped__"), types.FunctionType) and callable(value):
            self._feed("wrapper", plain_name(type(value)))  # functools.lru_cache
            return self._value(value.__wrapped__, read)
        elif operator := parts_of(value):
            self._feed("operator", operator[0])
            for function in operator[1]:
                self._value(function, None)
        elif read is not None:
            return self._plain_value(value, read)
        return True

    def _plain_value(self, value: Any, read: Read) -> bool:
        if is_a(value, (types.BuiltinFunctionType, *DESCRIPTORS)):
            self._feed("builtin", plain_name(value))
            self._note_file(file_behind(value))
            return True
        self._reads.append((None, read))
        return False

    def _function(self, function: types.FunctionType, read: Read | None) -> bool:
        is_own = not is_installed(function) and not _is_made_by_package(function)
        if is_own and read is not None:
            self._feed("own")
            self._reads.append((None, read))
            return False
        if self._is_first_visit(function):
            if is_serving(function, self._entered_packages):
                self._note_file(file_behind(function))
            else:
                self._waiting.append(function)
        return True

    def _class(self, cls: type, *, is_made: bool) -> None:
        self._is_first_visit(cls)
        if is_serving(cls, self._entered_packages):
            self._note_file(file_behind(cls))
            return
        if self._classes.get(id(cls), -1) >= is_made:
            return
        self._classes[id(cls)] = is_made
        for base in bases_that_count(cls):
            if not is_packaged(base):
                self._feed("base", plain_name(base))
                continue
            self._note_file(file_behind(base))
            self._found.hold_class(base)
            unreached = _UNREACHED | APART.get(top_package(base.__module__), frozenset())
            for name, member in _members_of(base):
                if name in CLASS_NOISE or name in unreached or is_left_here(member):
                    continue
                if name in _MADE:
                    if is_made:
                        self._member(base, (name,), member)
                elif name in self._names or (name.startswith("__") and name.endswith("__")):
                    self._member(base, (name,), member)
                else:
                    self._note_training(member)
                    self._members.setdefault(name, []).append((base, member))

    def _member(self, cls: type, path: tuple[str, ...], value: Any) -> None:
        if len(path) == 1:
            if (id(cls), path[0]) in self._members_seen:
                return
            self._members_seen.add((id(cls), path[0]))
            self._found.hold_member(cls, path[0], value)
            member = ("member", plain_name(cls), path[0])
            if type(value) in ATOMS:
                tokens = (*member, self._hasher.index_of(cls), *tokens_of_atom(value))
                self._plain_members.append((path[0], tokens))
                return
            self._feed(*member)
        if parts := parts_of_member(value):
            for name in parts:
                self._member(cls, (*path, name), getattr(value, name))
        elif type(value) in ATOMS:
            self._feed(*tokens_of_atom(value))
        else:
            self._value(value, read_of_member(cls, path))

    def _body(self, function: types.FunctionType) -> None:
        code = function.__code__
        self._note_training(function)
        self._found.hold_function(function)
        self._found.mentions_backend |= mentions_backend(function)
        if is_packaged_file(code.co_filename):
            self._feed("body", str(code.co_firstlineno))
            self._note_file(code.co_filename)
            late = may_have_changed_since_loaded(code.co_filename)
            if late and not is_code_on_disk(code):
                self._feed("another than its file has", code_alone(function))
        else:
            self._feed("body", code_alone(function))
        self._held_by(function)
        if is_packaged_file(code.co_filename) or _is_made_by_package(function):
            self._globals_of(function)

    def _note_training(self, member: object) -> None:
        function = attribute_of(member, "__func__", attribute_of(member, "fget", member))
        code = attribute_of(function, "__code__")
        if is_a(code, types.CodeType) and not self._found.mentions_training:
            self._found.mentions_training = mentions(code, {"training"})

    def _held_by(self, function: types.FunctionType) -> None:
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        if all(type(each) in ATOMS for each in defaults):
            for each in defaults:
                self._feed(*tokens_of_atom(each))
        else:
            for name in ("__defaults__", "__kwdefaults__"):
                self._reads.append((None, read_of_attribute(function, name)))
        for name in function.__dict__:
            # torch's compiler leaves marks there, among them numbers of this process.
            if name != "__wrapped__" and not name.startswith("_torchdynamo"):
                self._reads.append((None, read_of_attribute(function, name)))
        for index, name in enumerate(function.__code__.co_freevars):
            if name == "__class__":
                continue
            self._feed("cell", name)
            read = read_of_cell(function, index)
            self._value(read.value(), read)
        wrapped = getattr(function, "__wrapped__", None)
        if is_a(wrapped, types.FunctionType):
            self._value(wrapped, read_of_attribute(function, "__wrapped__"))

    def _globals_of(self, function: types.FunctionType) -> None:
        scan = scan_of(function.__code__)
        self._mention(scan.names)
        place = Place(function)
        number = id(function.__globals__)
        self._written.update((number, name) for name in scan.written)
        self._written_in_classes |= scan.written_in_class
        for chain in scan.globals:
            self._global(place, number, chain)
        package = str(function.__globals__.get("__package__") or "")
        for name, attributes in scan.imports:
            resolved = resolved_import(name, package)
            for attribute in attributes or scan.attributes:
                self._import(resolved, attribute)
            self._import(resolved, "")

    def _global(self, place: Place, number: int, chain: tuple[str, ...]) -> None:
        if (number, chain) in self._seen_globals:
            return
        self._seen_globals.add((number, chain))
        name = chain[0]
        value = place.names().get(name, MISSING)
        module = str(place.names().get("__name__"))
        if value is MISSING or (module, name) in MEMORIES:
            return
        self._feed("global", module, name)
        if is_a(value, types.ModuleType):
            self._found.hold(place, name, value)
            self._through_module(value, chain[1:])
            return
        read = read_of_global(place, name)
        before = len(self._reads)
        if self._value(value, read):
            self._found.hold(place, name, value)
        elif len(self._reads) > before:
            self._reads.pop()
            if type(value) not in ATOMS or not is_of_this_process(module, name):
                self._reads.append(((number, name), in_order(read, module)))

    def _through_module(self, module: types.ModuleType, chain: tuple[str, ...]) -> None:
        self._feed("module", module.__name__)
        if is_trusted(module):
            for definition in definitions_behind(module, chain):
                self._value(definition, None)
            return
        self._note_file(attribute_of(module, "__file__") or "")
        if chain and chain[0] in vars(module) and not is_serving(module, self._entered_packages):
            self._global(Place(module), id(vars(module)), chain)

    def _import(self, name: str, attribute: str) -> None:
        """Follows an import inside of a function, if the module is loaded."""
        module = sys.modules.get(name)
        if module is None or attribute == "" or is_serving(module, self._entered_packages):
            self._note_distribution(distribution_of_import(name), self._found.imported, name)
        elif not is_trusted(module) and attribute in vars(module):
            self._through_module(module, (attribute,))


def _is_made_by_package(function: types.FunctionType) -> bool:
    """Whether a package made this function at run time, as dataclasses do."""
    if not function.__code__.co_filename.startswith("<"):
        return False
    return is_packaged_file(str(function.__globals__.get("__file__") or ""))
