# SPDX-License-Identifier: Apache-2.0
"""lookup_or_run and fingerprints, for scripted and eager modules alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_compiling, is_dynamo_compiling

from modcache._call import eager
from modcache._call.bypass import transform_in_force, way_of
from modcache._call.fast_path import Begun, fast_hit, finished, held_by_library
from modcache._call.function import call_name_of, fingerprint_of_eager, refresh_fingerprint_of_eager
from modcache._call.inputs import shown
from modcache._call.keys import Keys, checked_keys
from modcache._call.padding import RAGGED_ROWS, WHOLE_ROWS, Padding, padding_of, why_not_padded
from modcache._call.parts import has_shared
from modcache._call.rows import (
    checked_ragged,
    in_wanted_form,
    row_count,
    texts_and_ids,
    why_apart,
)
from modcache._export.recorded import recorded
from modcache._identity.module_state import GradPattern
from modcache._identity.scripted import native
from modcache._identity.wrappers import identified_as
from modcache._lazy.model import Lazy, to_record
from modcache._lazy.source import LazySource
from modcache._library import tasks
from modcache._library.tasks import active_entries
from modcache._library.text import checked_text
from modcache._library.tracing import is_traced

_scripted_rows: Any = torch.classes.cache.ScriptedModule.rows
_AS_FOUND = "as found"  # `ragged` of lookup_or_run_any: a batch, or else a list of rows
_WITHOUT_FORM = ("error", _AS_FOUND)


def lookup_or_run(
    module: torch.nn.Module,
    input: Any,
    key: Keys,
    *,
    scope: str = "",
    method: str = "forward",
    ragged: str = "error",
    mask: str | int | torch.Tensor | None = None,
    lengths: str | int | torch.Tensor | None = None,
    pad_value: float = 0.0,
) -> Any:
    """Returns the module's output for a sample or batch: from the cache, or by a run.

    >>> import modcache, torch
    >>> encoder = torch.nn.Linear(4, 2).requires_grad_(False).eval()
    >>> batch = torch.randn(3, 4)
    >>> first = modcache.lookup_or_run(encoder, batch, ["a", "b", "c"])  # runs, one entry per row
    >>> again = modcache.lookup_or_run(encoder, batch.flip(0), ["c", "b", "a"])  # does not
    >>> torch.equal(again, first.flip(0))
    True

    Args:
        module: an eager ``torch.nn.Module``, or a ScriptModule (scripted, traced or loaded).
        input: the module's input: a Tensor of any shape, or a tuple, whose items become the
            arguments of the method. A list, a dict or a UserDict (Hugging Face's BatchEncoding) is
            one argument. NumPy arrays, PIL images and torchvision's tv_tensors are data, as tensors
            are; so are the tensors in values of classes that ``modcache.register_value`` or the
            pytree registry knows. Other values (numbers, text, dtypes, enums, ...) are part of the
            address. An input with a value that has no unambiguous text passes through uncached.
        key: names the sample: non-empty text of any length, or the same as bytes in UTF-8. The same
            key with the same module means the same output. For a batch, one key per row: a list of
            B texts, or B ids as a list of int or an integer tensor [B] or [B, 1]; id 7 and key "7"
            are the same. NumPy arrays of text or integers and pandas Series are such lists, too.
            Ids are int64; larger numbers are keys as text. A tuple of text and
            integers, such as ``("video", 3)``, is a key as well, and so are those in a list; a
            tuple of text alone, or of integers alone, is a list of keys. With one key per row,
            every tensor in ``input`` and in the output has the first dimension B. Only the missing
            rows are run, each distinct key once, and other values than tensors belong to every
            row. So does a tensor of the first size 1 beside others of B (``position_ids``), which
            is then part of the address with all its values. A list of B images has one per row.
        scope: a name for the module that the caller answers for, for instance
            ``"clip-vit-b32@3"``; it replaces the fingerprint and its check. The default is the
            module's fingerprint, which changes with its code, attributes and weights.
        method: the method to run.
        ragged: what to do with rows whose shapes differ: "error": raise; "list": return all rows
            as a list; "pad": return a tensor [B, longest, ...] padded with zeros, and an int64
            tensor [B] of lengths.
        mask: for rows of their own length in a batch that was padded on one side: the argument
            that says which part of each row is true, by name (``"attention_mask"``, an item of a
            dict too) or place, or the tensor itself: [B, longest], of booleans or numbers. Each
            entry is then as long as its row, is found whatever its batch is padded to, and is
            handed out padded with ``pad_value`` to what this batch has. The dimensions of a result
            that are padded are found by one more run of one row at another length, which must give
            the same; other results are not cached, with a warning.
        lengths: the same as a tensor of integers [B], or the argument that has it.
        pad_value: the number beside the true part of each row of a result.

    Returns:
        The output: the module's values, dtypes and shapes, in the same tuples, lists, dicts, named
        tuples and classes: UserDicts, those of torch's pytree registry (Hugging Face's ModelOutput)
        and those that ``modcache.register_value`` names. NumPy arrays are stored, too, and with one
        key for all of it PIL images. A value from the cache never requires grad. Writing into it
        changes no later result.

    Raises:
        TypeError: an argument of a wrong type.
        ValueError: an empty key, text with lone surrogates, a number of keys that is not the
            number of rows, or rows that do not fit together.
        AttributeError, or RuntimeError for a scripted module: it has no such method.
        RuntimeError: an output without a first dimension of B.
        Any exception of the module, unchanged; nothing is stored then.

    Inside ``torch.jit.script`` a call of this function compiles into the operator
    ``cache::lookup_or_run``, which returns one Tensor.

    Under ``torch.export`` and ``torch.compile(fullgraph=True)`` the recorded program looks up when
    it runs, and runs the module on the whole batch if a row is missing. Its keys are ids; an export
    may also have one fixed text. A call whose result may not be cached is recorded as a call of the
    module alone, with a warning.
    """
    if not is_dynamo_compiling():
        if active_entries and tasks.is_among_tasks():
            with tasks.as_task():
                return lookup_or_run(
                    module, input, key, scope=scope, method=method, ragged=ragged, mask=mask,
                    lengths=lengths, pad_value=pad_value,
                )  # fmt: skip
        if mask is None and lengths is None and ragged in _WITHOUT_FORM:
            hit = fast_hit(module, input, key, scope, method)
            if hit is NotImplemented or type(hit) is Begun:
                is_apart, value = finished(hit, module, input, key, scope, method)
                if not is_apart or ragged == _AS_FOUND:
                    return value
                keys: Any = checked_keys(key)
                return eager.run_whole(module, input, keys, method, why_apart(value))
            if hit is not None:
                return hit
    if is_compiling():
        return recorded(
            lookup_or_run, to_record(module), input, key, scope, method,
            "error" if ragged == _AS_FOUND else ragged, mask, lengths, pad_value,
        )  # fmt: skip
    who = "lookup_or_run_any" if ragged == _AS_FOUND else "lookup_or_run"
    _check_module(module, who)
    keys = checked_keys(key)
    is_ragged = ragged not in _WITHOUT_FORM
    if is_ragged and checked_ragged(ragged) and (mask is not None or lengths is not None):
        raise ValueError("lookup_or_run: ragged is for rows without mask and lengths.")
    own_lengths = (mask, lengths, pad_value)
    is_apart, value = _looked_up(
        module, input, keys, scope, method, who, own_lengths, is_ragged=is_ragged
    )
    if isinstance(keys, str) or ragged == _AS_FOUND:
        return value
    if is_apart and ragged == "error":
        return eager.run_whole(module, input, keys, method, why_apart(value))
    return in_wanted_form(is_apart, value, ragged, call_name_of(module, method))


def lookup_or_run_any(
    module: torch.nn.Module,
    input: Any,
    key: Keys,
    *,
    scope: str = "",
    method: str = "forward",
) -> Any:
    """Does the same as ``lookup_or_run``, but may return a list of rows.

    It returns a list if the rows do not fit into one batch. ``lookup_or_run`` runs the module on
    the whole batch then, unless ``ragged`` says otherwise.

    Inside ``torch.jit.script`` a call compiles into the operator ``cache::lookup_or_run_any``,
    which returns ``Any``: structured values with the type that the method declares.
    """
    return lookup_or_run(module, input, key, scope=scope, method=method, ragged=_AS_FOUND)


def _looked_up(
    module: torch.nn.Module,
    input: Any,
    keys: str | list[str] | torch.Tensor,
    scope: str,
    method: str,
    function: str,
    own_lengths: tuple[Any, Any, float] = (None, None, 0.0),
    *,
    is_ragged: bool = False,
) -> tuple[bool, Any]:
    """Returns False and the value; or True, and a list of rows that do not fit together.

    ``own_lengths``: mask, lengths and pad_value, as ``lookup_or_run`` takes them. ``is_ragged``:
    results of two rows may differ in shape.
    """
    scope = checked_text(scope, "scope")
    method = checked_text(method, "method")
    is_padded = any(which is not None for which in own_lengths[:2])
    here = module._source.current() if is_padded and isinstance(module, Lazy) else module
    padding = RAGGED_ROWS if is_ragged else padding_of(here, method, input, *own_lengths)
    if padding.is_padded and (why := why_not_padded(input)):
        return False, eager.run_uncached(module, input, keys, method, why)
    if isinstance(keys, str) and padding.is_padded:
        raise ValueError(
            f"{function}: mask and lengths are for rows, but there is one key for the whole input; "
            "pass one key per row."
        )
    if isinstance(module, Lazy):
        if module._cache is not None and tasks.current_owner() is not module._cache:
            with module._cache:
                return _looked_up(
                    module, input, keys, scope, method, function, own_lengths, is_ragged=is_ragged
                )

        def ordinary(inner: torch.nn.Module, scope: str) -> tuple[bool, Any]:
            return _looked_up(
                inner, input, keys, scope, method, function, own_lengths, is_ragged=is_ragged
            )

        return lazily_looked_up(module, input, keys, scope, method, ordinary, padding)
    why, is_operators = way_of(module, input)
    if why:
        return False, eager.run_uncached(module, input, keys, method, why)
    if not is_operators or has_shared(input, row_count(keys)):
        return eager.lookup_or_run(module, input, keys, scope, method, padding)
    held = held_by_library(module)  # also so that the next call may be a plain hit
    if isinstance(keys, str):
        operator = torch.ops.cache.lookup_or_run_any
        return False, operator(native(module), input, keys, scope=scope, method=method)
    options = (*texts_and_ids(keys), scope, method, *padding)
    return _scripted_rows(held, input, *options)  # type: ignore[no-any-return]


@tasks.obeying_tasks
def fingerprint(module: torch.nn.Module, *, method: str = "forward") -> str:
    """Returns the module's identity: 32 hexadecimal digits, the default ``scope`` of its entries.

    It changes with the module's code, attributes and weights, and is the same in every process.

    Args:
        module: eager or scripted. A module inside DDP or torch.compile has the same fingerprint.
        method: the method that is to be run.

    Raises:
        TypeError: no module, or an eager one with an attribute that cannot be hashed.
        AttributeError: an eager module without such a method.
        RuntimeError: either of these for a scripted one.

    >>> import modcache, torch
    >>> module = torch.nn.Linear(2, 2)
    >>> before = modcache.fingerprint(module)
    >>> with torch.no_grad():
    ...     _ = module.bias.add_(1)
    >>> modcache.fingerprint(module) == before
    False
    """
    _check_module(module, "fingerprint")
    method = checked_text(method, "method")
    if isinstance(module, Lazy):
        noted = module._source.noted_fingerprint(method)
        if noted:
            return noted
        loaded = module._source.load()
        module._source.note_fingerprint(method)
        module = loaded
    inner = identified_as(module)
    if isinstance(inner, torch.jit.ScriptModule):
        return str(torch.ops.cache.fingerprint(native(inner), method=method))
    return fingerprint_of_eager(inner, method)


def refresh_fingerprint(module: torch.nn.Module) -> str:
    """Reads every weight again, and returns the fingerprint.

    Call it after changes that no check can see: single elements written through a NumPy view or a
    raw pointer, or in place under inference mode on an accelerator.

    Raises:
        The errors of ``fingerprint``.
    """
    _check_module(module, "refresh_fingerprint")
    inner = identified_as(module.load() if isinstance(module, Lazy) else module)
    if isinstance(inner, torch.jit.ScriptModule):
        torch.ops.cache.refresh_fingerprint(native(inner))
        return fingerprint(inner)
    return refresh_fingerprint_of_eager(inner)


def _check_module(module: object, function: str) -> None:
    if isinstance(module, torch.nn.Module):
        return
    if isinstance(module, torch.jit.ScriptFunction):
        cure = "Put it into a module: a scripted function has no attributes to identify it by."
    elif isinstance(module, type) and issubclass(module, torch.nn.Module):
        cure = f"Pass an instance: {module.__name__}(...)."
    else:
        cure = "Pass an eager torch.nn.Module or a scripted, traced or loaded one."
    given = module.__name__ if isinstance(module, type) else type(module).__name__
    raise TypeError(f"{function}: module must be a torch.nn.Module, but got {given}. {cure}")


# A function of (module, scope) that returns the same as lazily_looked_up.
_Ordinary = Callable[[torch.nn.Module, str], tuple[bool, Any]]


def lazily_looked_up(
    lazy: Lazy,
    input: Any,
    keys: str | list[str] | torch.Tensor,
    scope: str,
    method: str,
    ordinary: _Ordinary,
    padding: Padding = WHOLE_ROWS,
) -> tuple[bool, Any]:
    """Returns False and the value; or True, and a list of rows that do not fit together.

    ``ordinary`` makes the call of a module that is loaded.
    """
    source = lazy._source
    module = source.current()
    seen: Any = None
    address = ""
    if module is None and torch.ops.cache.mode() != "off":
        seen = shown(input, row_count(keys), padding.padded_to())
        if not (seen.refusal or transform_in_force(input) or is_traced()):
            address = scope or source.address(method)
    if not address:
        module = source.load(input)
    if module is not None:
        if not (scope or source.scope):
            source.note_fingerprint(method)
        return ordinary(module, scope or source.scope)
    call = _LazyCall(source, address, scope or source.scope, method)
    try:
        return eager.looked_up(call, seen, input, keys, method, padding)
    except _NotHereError as error:
        return ordinary(error.module, scope or source.scope)


class _NotHereError(Exception):
    """The library itself has to run this module."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module


class _LazyCall:
    """A call whose module is loaded once the library says that it has to run."""

    pattern = GradPattern(0, ())
    watch = None

    def __init__(self, source: LazySource, address: str, scope: str, method: str) -> None:
        self._source = source
        self.address = address
        self.class_name = source.name
        self._scope = scope
        self._method = method

    def load(self, input: Any) -> torch.nn.Module:
        return self._source.load(input)

    def to_run(self, input: Any, run: Any = None) -> eager.Call:
        module = self.load(input)
        if _returns_named_tuple(module, self._method):
            raise _NotHereError(module)
        call = eager.Call(module, input, self._scope, self._method)
        if call.address != self.address and not call.unidentified:
            call.unidentified = f"{self.class_name} was replaced while it was loaded"
        if run is not None:
            call.restart(run)
        return call.to_run(input)


def _returns_named_tuple(module: torch.nn.Module, method: str) -> bool:
    """Whether a scripted method's results lose the names of their classes on the way to Python.

    The library makes such a call itself, and counts its keys twice.
    """
    native: Any = getattr(module, "_c", None)
    if not isinstance(module, torch.jit.ScriptModule) or not native._has_method(method):
        return False
    returns = native._get_method(method).schema.returns
    return any("__torch__" in returned.type.annotation_str for returned in returns)
