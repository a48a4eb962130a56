# SPDX-License-Identifier: Apache-2.0
"""Identifies installed distributions by their versions and files.

A distribution is identified by its name, its version and the hashes in its RECORD. Scripts,
bytecode and files of installers are left out, since they differ between equal environments. An edit
in place does not change RECORD, so each file that this process has loaded is hashed as well. A
package that no RECORD lists is identified by the hashes of all its code files.

torch, NumPy, tqdm, the standard library and this package are no distributions here. They are
identified by name, since the RECORDs of their builds differ. A file that was changed after the
process loaded it (``loaded.py``) is not the code that runs. The distribution then gets a number
that no other process has.
"""

from __future__ import annotations

import base64
import csv
import functools
import hashlib
import os
import re
import secrets
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from modcache._code.names import place_of, top_package
from modcache._code.objects import attribute_of
from modcache._installed.loaded import is_as_on_disk, may_have_changed_since_loaded

_CODE_SUFFIXES = (".py", ".so", ".pyd", ".dll", ".dylib", ".cpp", ".cu", ".cuh", ".h")
_NO_PART = (".pyc", ".pyo", ".pth")
_LARGE_BYTES = 8 << 20  # such a library is not read where its times say that nobody touched it


@dataclass(eq=False)
class Distribution:
    """A distribution as one look found it: a leaf of a walk. Another look makes another object."""

    name: str
    version: str
    digest: str

    def tokens(self) -> tuple[str, ...]:
        return ("distribution", self.name, self.version, self.digest)


def distribution_of(filename: str) -> Distribution | None:
    """Identifies the distribution that has this file, as it is now; None if none has it."""
    place = place_of(filename)
    if place is None:
        return None
    with _lock:
        return _known_of(*place).now()


def is_news() -> bool:
    """Whether Python modules came or went since the last call; then all are looked at again."""
    count = len(sys.modules)
    with _lock:
        is_new = _modules_seen[0] != count
        _modules_seen[0] = count
        if is_new:
            look_again()
    return is_new


def look_again() -> None:
    """Has the next look at each distribution also find files that were loaded since."""
    with _lock:
        for known in _by_key.values():
            known.is_due = True


class _Known:
    """A distribution, or a package without one, in this process."""

    def __init__(self, root: str, top: str, folder: str) -> None:
        self._root = root
        self._top = top  # the folder of a package that no RECORD lists
        self._folder = folder  # the name of its .dist-info
        self._found: Distribution | None = None
        self.is_due = True
        self._loaded: dict[str, tuple[int, int]] = {}  # files: ids of their module and its spec

    def now(self) -> Distribution | None:
        if self._found is None or self.is_due:
            self.is_due = False
            loaded = {
                path: (id(module), id(attribute_of(module, "__spec__")))
                for path, module in self._loaded_modules()
            }
            if self._found is None or loaded != self._loaded:
                self._loaded = loaded
                found = self._look()
                old = self._found
                if old is None or found.tokens() != old.tokens():
                    self._found = found
        return self._found

    def _loaded_modules(self) -> Iterator[tuple[str, types.ModuleType]]:
        """Finds the modules of the distribution that are loaded, and their paths below the root."""
        own = _record_of(self._root, self._folder) if self._folder else None
        for module in list(sys.modules.values()):
            file = attribute_of(module, "__file__")
            place = place_of(file) if isinstance(file, str) else None
            if place is None or place[0] != self._root:
                continue
            if place[1] in own if own is not None else _top_of(place[1]) == self._top:
                yield place[1], module

    def _look(self) -> Distribution:
        name, version = _name_and_version(self._folder) if self._folder else (self._top, "")
        if self._folder:
            _records.pop((self._root, self._folder), None)
            hashes = dict(_record_of(self._root, self._folder))
        else:
            hashes = dict(_hashes_below(self._root, self._top))
        is_certain = True
        for path, module in self._loaded_modules():
            file = f"{self._root}/{path}"
            if self._folder:
                hashes[path] = self._hash_of_loaded(file, hashes.get(path, ""))
            if may_have_changed_since_loaded(file) and not is_as_on_disk(module):
                is_certain = False
        hasher = hashlib.blake2b(digest_size=16)
        for path in sorted(hashes):
            hasher.update(f"{path}\0{hashes[path]}\0".encode("utf-8", "surrogatepass"))
        digest = hasher.hexdigest() if is_certain else f"of this process: {_NONCE}"
        return Distribution(name, version, digest)

    def _hash_of_loaded(self, file: str, recorded: str) -> str:
        """Hashes a loaded file; a large one that nobody touched has the hash in RECORD."""
        try:
            state = Path(file).stat()
            if state.st_size > _LARGE_BYTES and recorded:
                written = Path(self._root, self._folder, "RECORD").stat().st_ctime_ns
                if max(state.st_ctime_ns, state.st_mtime_ns) < written:
                    return recorded
            digest = hashlib.sha256(Path(file).read_bytes()).digest()
        except OSError:  # removed, or inside of an archive
            return recorded or "unread"
        return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


_NONCE = secrets.token_hex(16)
_lock = threading.RLock()
_modules_seen = [0]
_by_key: dict[tuple[str, str, str], _Known] = {}
_by_file: dict[tuple[str, str], _Known] = {}
_records: dict[tuple[str, str], dict[str, str]] = {}


def _known_of(root: str, path: str) -> _Known:
    known = _by_file.get((root, path))
    if known is None:
        folder = _folder_that_lists(root, path)
        top = "" if folder else _top_of(path)
        known = _by_key.setdefault((root, top, folder), _Known(root, top, folder))
        _by_file[(root, path)] = known
    return known


def _top_of(path: str) -> str:
    return path.split("/", 1)[0]


def _name_and_version(folder: str) -> tuple[str, str]:
    name, _, version = folder.removesuffix(".dist-info").partition("-")
    return _plain(name), version


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _folder_that_lists(root: str, path: str) -> str:
    """Finds the .dist-info whose RECORD has this file; "" for none."""
    try:
        folders = sorted(path.name for path in Path(root).glob("*.dist-info"))
    except OSError:
        return ""
    wanted = _plain(_top_of(path).split(".", 1)[0])
    # Most packages have the name of their distribution, so other RECORDs are read last.
    folders.sort(key=lambda folder: _name_and_version(folder)[0] != wanted)
    return next((folder for folder in folders if path in _record_of(root, folder)), "")


def _record_of(root: str, folder: str) -> dict[str, str]:
    """Returns the hashes in RECORD, by the files' paths below the root."""
    known = _records.get((root, folder))
    if known is None:
        known = _records[(root, folder)] = dict(_lines_of_record(root, folder))
    return known


def _lines_of_record(root: str, folder: str) -> Iterator[tuple[str, str]]:
    try:
        with Path(root, folder, "RECORD").open(encoding="utf-8", newline="") as stream:
            for row in csv.reader(stream):
                path = row[0] if row else ""
                is_left_out = path.startswith(("../", "/")) or ".dist-info/" in path
                if path and not is_left_out and not path.endswith(_NO_PART):
                    yield path, row[1] if len(row) > 1 else ""
    except (OSError, UnicodeDecodeError, csv.Error):
        return


def _hashes_below(root: str, top: str) -> Iterator[tuple[str, str]]:
    """Hashes every code file of a package that no RECORD lists."""
    start = Path(root, top)
    files = [start] if start.is_file() else sorted(_code_files(start))
    for file in files:
        try:
            digest = hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
        except OSError:
            digest = "unread"
        yield str(file.relative_to(root)), digest


def _code_files(start: Path) -> Iterator[Path]:
    for folder, below, names in os.walk(start):
        below[:] = [name for name in below if name != "__pycache__"]
        for name in names:
            if name.endswith(_CODE_SUFFIXES) or ".so." in name:
                yield Path(folder, name)


def distribution_of_import(name: str) -> Distribution | None:
    """Identifies the distribution that ``import name`` leads to, without importing it."""
    module = sys.modules.get(name) or sys.modules.get(top_package(name))
    file = attribute_of(module, "__file__")
    if file is None and module is None:
        file = _file_of_import(top_package(name))
    return distribution_of(file) if file else None


@functools.lru_cache(maxsize=1024)
def _file_of_import(top: str) -> str | None:
    import importlib.util

    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    return getattr(spec, "origin", None)


def _renew_lock_in_child() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock_in_child)
