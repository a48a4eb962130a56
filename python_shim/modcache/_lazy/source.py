# SPDX-License-Identifier: Apache-2.0
"""The source of a lazy module, and the module once it is loaded."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.jit._recursive import wrap_cpp_module
from torch.utils._python_dispatch import _disable_current_modes

from modcache._library.explicit import adopt_pickled, directory_in_use, options_for_pickle
from modcache._library.global_random import global_states_kept
from modcache._library.text import first_line, with_article
from modcache._library.tracing import is_traced

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_MOST_TRIES = 3
_WRITING = ("on", "refresh")  # modes
# A digest of the file, a method, and what was changed in the module.
_Place = tuple[str, str, str]
_digest_of_file: Any = torch.classes.cache.ModelFile.digest


class LazySource:
    """A file or a factory, the remembered changes, and the module once it is loaded.

    ``module`` is None before that. Copies start without it.
    """

    def __init__(
        self, path: str, factory: Callable[[], torch.nn.Module] | None, scope: str
    ) -> None:
        self.path = path
        self.scope = scope
        self._factory = factory
        self._training: bool | None = None  # None: as it is loaded
        self._device: torch.device | None = None  # None: where it is loaded
        self._casts: list[dict[torch.dtype, torch.dtype]] = []  # applied in order
        self._requires_grad = False
        self._begin()

    def _begin(self) -> None:
        self.module: torch.nn.Module | None = None
        self._digest = ""  # the file's digest when the module was loaded
        self._as_loaded: Any = None  # the library's facts about a file's module as loaded
        self._changes_at_load = ""
        self._is_handed_out = False  # whether others may write to the module
        self._fingerprints: dict[_Place, str] = {}
        self._noted_in: set[tuple[str, _Place]] = set()  # with the directories that have them
        self.renew_lock()
        _sources.add(self)

    def renew_lock(self) -> None:
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        runtime = {
            *("module", "_digest", "_fingerprints", "_lock"),
            *("_as_loaded", "_changes_at_load", "_is_handed_out", "_noted_in"),
        }
        state = {name: value for name, value in vars(self).items() if name not in runtime}
        return {**state, "settings": options_for_pickle()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        adopt_pickled(state.pop("settings"))
        vars(self).update(state)
        self._begin()

    def __repr__(self) -> str:
        made = repr(self.path) if self.path else _name_of(self._factory)
        return f"{made}, scope={self.scope!r}" if self.scope else made

    @property
    def name(self) -> str:
        """Names the module in messages while it is not loaded."""
        return Path(self.path).name if self.path else self.scope

    def current(self) -> torch.nn.Module | None:
        """Returns the module if it is loaded and its file was not replaced since."""
        module = self.module
        if module is None or not self._digest:
            return module
        try:
            is_current = self._digest_now() == self._digest
        except OSError:  # the file was removed: this is its last module
            is_current = True
        if is_current:
            return module
        with self._lock:
            if self.module is module:
                self.module = None
            return self.module

    def address(self, method: str) -> str:
        """Returns the scope of its entries; "" if only the module can give it.

        Raises:
            FileNotFoundError: there is no such file, and no scope.
        """
        if self.scope or not self.path:
            return self.scope
        return self.noted_fingerprint(method)

    def noted_fingerprint(self, method: str) -> str:
        """Returns the noted fingerprint of a file's module that is not loaded; "" if there is none.

        Raises:
            FileNotFoundError: there is no such file.
        """
        if not self.path or self.current() is not None:
            return ""
        return self._noted(self._digest_now(), method)

    def note_fingerprint(self, method: str) -> None:
        """Notes the fingerprint of a file's module for other processes, if the mode allows.

        It does so once for each directory. It does nothing if the module is not loaded, or was
        changed since it was loaded.
        """
        if self._as_loaded is None:
            return
        directory = directory_in_use()
        place = (self._digest, method, self._changes_at_load)
        if (directory, place) in self._noted_in or is_traced():
            return
        mode = torch.ops.cache.mode()
        with self._lock:
            if mode != "off" and self._as_loaded is not None:
                self._note(directory, method, may_keep=mode in _WRITING)

    def hand_out(self) -> torch.nn.Module:
        """Returns the module to a caller that may write to it."""
        with self._lock:
            module = self.load()
            self._is_handed_out = True
            return module

    def unload(self) -> None:
        """Lets go of the module, if it is loaded."""
        with self._lock:
            self.module = self._as_loaded = None

    def load(self, input: Any = None) -> torch.nn.Module:
        """Returns the module, and loads it if it is not loaded yet.

        A file is loaded on the device of ``input``, unless ``apply`` set another one.
        """
        with self._lock:
            module = self.current()
            if module is None:
                with _ordinary_conditions():
                    if self.path:
                        module = self._from_file(self._device or _device_of(input))
                    else:
                        module = self._from_factory()
                self.module = module
            return module

    def train(self, mode: bool) -> None:
        with self._lock:
            self._training = mode
            if self.module is not None:
                self.module.train(mode)

    def require_grad(self, requires_grad: bool) -> None:
        with self._lock:
            self._requires_grad = requires_grad
            if requires_grad or self.module is not None:
                _set_requires_grad(self.hand_out(), requires_grad)

    def requires_grad(self) -> bool:
        """Returns whether a parameter requires grad, or will once the module is loaded."""
        loaded = () if self.module is None else self.module.parameters()
        return self._requires_grad or any(parameter.requires_grad for parameter in loaded)

    def apply(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Applies ``function`` like ``Module._apply``, or remembers it.

        Empty tensors show what the function does. Only their device and the order of casts of
        floats are remembered, since half().float() rounds.
        """
        with self._lock:
            if self.module is not None:
                self.module._apply(function)  # type: ignore[no-untyped-call]
            here = self._device or torch.device("cpu")
            empty = [torch.empty(0, dtype=dtype, device=here) for dtype in _FLOATS]
            probes = dict(zip(_FLOATS, map(function, empty), strict=True))
            if probes[torch.float32].device != here:
                self._device = probes[torch.float32].device
            casts = {dtype: probe.dtype for dtype, probe in probes.items() if probe.dtype != dtype}
            if casts and casts != (self._casts or [{}])[-1]:  # half() once more changes nothing
                self._casts.append(casts)

    def _from_factory(self) -> torch.nn.Module:
        assert self._factory is not None
        module = self._factory()
        if not isinstance(module, torch.nn.Module):
            raise TypeError(
                f"lazy: the factory {_name_of(self._factory)} returned "
                f"{with_article(type(module).__name__)}, but must return a torch.nn.Module."
            )
        return self._changed(module)

    def _from_file(self, device: torch.device) -> torch.nn.Module:
        for _ in range(_MOST_TRIES):
            digest = self._digest_now()
            try:
                found = _loaded(self.path, device)
            except (RuntimeError, ValueError) as error:
                raise RuntimeError(
                    f"lazy: {self.path!r} cannot be loaded ({first_line(error)}). It must be a "
                    "TorchScript file, as torch.jit.script(module).save(path) writes it; for "
                    "anything else pass a factory."
                ) from None
            if self._digest_now() == digest:
                break
        else:
            raise RuntimeError(f"lazy: {self.path!r} is being written while it is loaded.")
        module = self._changed(found)
        self._digest = digest
        self._as_loaded = None if is_traced() else torch.classes.cache.AsLoaded(found._c)
        self._changes_at_load = self._changes()
        self._is_handed_out = self._requires_grad
        self._noted_in.clear()
        return module

    def _changed(self, module: torch.nn.Module) -> torch.nn.Module:
        if self._device is not None or self._casts:
            module._apply(self._moved)  # type: ignore[no-untyped-call]
        if self._training is not None:
            module.train(self._training)
        _set_requires_grad(module, self._requires_grad)
        return module

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        moved = tensor.to(self._device) if self._device is not None else tensor
        for casts in self._casts:
            moved = moved.to(casts.get(moved.dtype, moved.dtype))
        return moved

    def _changes(self) -> str:
        """Describes how the module differs from the one in its file."""
        changes = [
            f"{dtype}:{other}"
            for casts in self._casts
            for dtype, other in sorted(casts.items(), key=str)
        ]
        if self._training is not None:
            changes.append("train" if self._training else "eval")
        return " ".join(changes)

    def _digest_now(self) -> str:
        try:
            return str(_digest_of_file(self.path))
        except (RuntimeError, ValueError) as error:
            raise FileNotFoundError(
                f"lazy: {first_line(error)}. The path must name a TorchScript file that can be "
                "read; with a scope, what is stored is found without it."
            ) from None

    def _noted(self, digest: str, method: str) -> str:
        place = (digest, method, self._changes())
        noted = (directory_in_use(), place)
        known = self._fingerprints.get(place)
        if known is None:
            known = str(torch.classes.cache.ModelFile.noted_fingerprint(*place))
            if known:
                self._fingerprints[place] = known
                self._noted_in.add(noted)
        elif noted not in self._noted_in and torch.ops.cache.mode() in _WRITING:
            torch.classes.cache.ModelFile.note_fingerprint(*place, known)
            self._noted_in.add(noted)
        return known

    def _note(self, directory: str, method: str, may_keep: bool) -> None:
        place = (self._digest, method, self._changes_at_load)
        if place in self._fingerprints and not may_keep:
            return
        fingerprint = self._fingerprints.get(place) or self._fingerprint_as_loaded(method)
        if fingerprint:
            self._fingerprints[place] = fingerprint
            torch.classes.cache.ModelFile.note_fingerprint(*place, fingerprint)
        if may_keep or not fingerprint:
            self._noted_in.add((directory, place))

    def _fingerprint_as_loaded(self, method: str) -> str:
        module: Any = self.module
        if module is None or self._is_handed_out or self._changes() != self._changes_at_load:
            return ""
        with _ordinary_conditions():
            return str(self._as_loaded.fingerprint(module._c, method))


def _set_requires_grad(module: torch.nn.Module, requires_grad: bool) -> None:
    for parameter in module.parameters():  # ScriptModules have no requires_grad_
        if not requires_grad or parameter.is_floating_point() or parameter.is_complex():
            parameter.requires_grad_(requires_grad)


def _loaded(path: str, device: torch.device) -> Any:
    """Does what ``torch.jit.load`` does, without its warning that TorchScript is deprecated.

    The author of the file has seen that warning. A filter for it would apply to the whole process.
    """
    unit = torch._C.CompilationUnit()
    return wrap_cpp_module(torch._C.import_ir_module(unit, path, device, {}, False))  # type: ignore[call-arg, no-untyped-call]


def _device_of(input: Any) -> torch.device:
    """Returns the device of the first tensor of an input."""
    leaves = torch.utils._pytree.tree_leaves(input)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return tensors[0].device if tensors else torch.device("cpu")


def _name_of(factory: object) -> str:
    return str(getattr(factory, "__qualname__", None) or repr(factory))


@contextlib.contextmanager
def _ordinary_conditions() -> Iterator[None]:
    """Loads the module as if outside of the call, whose modes do not apply, and leaves no trace.

    A warm run loads nothing, and must draw the same random numbers as a cold one.
    """
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        _disable_current_modes(),
        temporarily_clear_interpreter_stack(),  # of torch.func
        global_states_kept(),
        _unobserved(),
    ):
        yield


@contextlib.contextmanager
def _unobserved() -> Iterator[None]:
    """Hides the operators of a load from what observes this thread, such as a run around it.

    A module draws its first weights. The run that loads it is no other than one that found it
    loaded, since the random state is kept.
    """
    is_inner = getattr(_loading, "is_active", False)
    _loading.is_active = True
    torch._C._autograd._enable_record_function(False)
    try:
        yield
    finally:
        _loading.is_active = is_inner
        torch._C._autograd._enable_record_function(not is_inner)


_loading = threading.local()
_sources: weakref.WeakSet[LazySource] = weakref.WeakSet()


def _renew_locks_in_child() -> None:
    for source in list(_sources):
        source.renew_lock()


os.register_at_fork(after_in_child=_renew_locks_in_child)
