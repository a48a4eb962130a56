# SPDX-License-Identifier: Apache-2.0
"""Explains what a call would find, without making the call."""

from __future__ import annotations

import contextlib
import datetime
from typing import Any

import torch

from modcache._cached.function import cache_of, found_cached
from modcache._call.bypass import way_of
from modcache._call.facts import count_requiring_grad, grad_pattern
from modcache._call.function import address_of, function_of
from modcache._call.inputs import shown
from modcache._call.key_block import keys_of_block
from modcache._call.keys import Keys, checked_keys
from modcache._call.padding import Padding, padding_of, why_not_padded
from modcache._call.parts import has_shared
from modcache._call.rows import row_count
from modcache._explain.explanation import MOST_SHOWN, Explanation
from modcache._identity.kinds import UnidentifiedError
from modcache._identity.manifest import (
    Changes,
    Manifest,
    Scope,
    changes_between,
    class_name,
    described,
    manifest_of,
    manifests_of_class,
)
from modcache._identity.module_state import Refusal, SeenState, state_of
from modcache._identity.scripted import native
from modcache._identity.wrappers import identified_as
from modcache._lazy.model import Lazy
from modcache._library.mode import where_set
from modcache._library.stats import shown_bytes, shown_time
from modcache._library.tasks import obeying_tasks
from modcache._library.text import checked_text
from modcache._lookup.lookup import _check_module


@obeying_tasks
def explain(
    module: torch.nn.Module,
    input: Any,
    key: Keys | None = None,
    *,
    scope: str = "",
    method: str = "forward",
    mask: str | int | torch.Tensor | None = None,
    lengths: str | int | torch.Tensor | None = None,
) -> Explanation:
    """Whether ``lookup_or_run`` with these arguments would hit or miss, and why.

    It runs no module, loads no lazy one, counts nothing and stores nothing. If the scope is new, it
    compares the module with the most similar scope of its class, which another process may have
    stored days ago: ``Explanation.changed``. What ``cached`` or ``lazy`` of a ``Cache`` made is
    looked up in that cache.

    It cannot know whether a key that is missing from a known scope was never stored, evicted or
    cleared, nor what a module does that has not run yet. After everything was cleared, there is
    nothing to compare with.

    Args:
        module: as for ``lookup_or_run``, like the other arguments. A lazy one is not loaded.
        input: the input that the module would run on; a tuple holds arguments by place. What
            ``modcache.cached`` was told to ignore does not count.
        key: one, or one per row; None: the keys, with their parts, of the block around,
            ``with modcache.keys(ids):``.
        scope: a name for the module, in place of its fingerprint; by default that which
            ``modcache.cached`` was given for the method, if it was.
        method: the method that would be run.
        mask: as for ``lookup_or_run``, like ``lengths``; by default the cached method's own.
        lengths: see ``mask``.

    Raises:
        The errors that ``lookup_or_run`` raises before it runs the module.

    >>> import modcache, torch
    >>> encoder = torch.nn.Linear(3, 2).requires_grad_(False).eval()
    >>> modcache.explain(encoder, torch.ones(1, 3), "a").status
    'miss'
    >>> _ = modcache.lookup_or_run(encoder, torch.ones(1, 3), "a")
    >>> modcache.explain(encoder, torch.ones(1, 3), "a").status
    'hit'
    >>> with torch.no_grad():
    ...     _ = encoder.bias.add_(1)
    >>> modcache.explain(encoder, torch.ones(1, 3), "a").changed
    ['bias']
    """
    _check_module(module, "explain")
    given = identified_as(module)
    if isinstance(module, Lazy) and (loaded := module._source.current()) is not None:
        scope = scope or module._source.scope
        module = loaded
    keys = checked_keys(keys_of_block("explain") if key is None else key)
    scope = checked_text(scope, "scope")
    method = checked_text(method, "method")
    target = identified_as(module)
    if not isinstance(target, Lazy):
        function_of(target, method)
    pad_value, sample = 0.0, input
    if (found := found_cached(getattr(type(target), method, None))) is not None:
        scope = scope or found.scope
        sample = found.key.of_input(input)
        if mask is None and lengths is None:
            mask, lengths = (found.rows.get(name) for name in ("mask", "lengths"))
            pad_value = found.rows.get("pad_value", 0.0)
    here = None if isinstance(target, Lazy) else target
    padding = padding_of(here, method, input, mask, lengths, pad_value)
    cache = cache_of(given, found_cached(getattr(type(given), method, None)))
    with contextlib.nullcontext() if cache is None else cache:
        return _Question(target, sample, keys, scope, method, padding).answer()


_TIERS = ("", "memory", "disk", "remote")  # the library gives their numbers
_SWITCHED_OFF = (
    "verify_share has switched this scope off in this process, as what is stored was not what the "
    "module returns; modcache.clear(scope) switches it on again"
)


class _Question:
    """One call that is not made. Its checks have the order of those of a real call."""

    def __init__(
        self,
        module: torch.nn.Module,
        input: Any,
        keys: str | list[str] | torch.Tensor,
        scope: str,
        method: str,
        padding: Padding,
    ) -> None:
        self._module = module
        self._padding = padding
        self._input = input
        self._keys = keys
        self._given_scope = scope
        self._scope = ""
        self._method = method
        self._name = module._source.name if isinstance(module, Lazy) else class_name(module)
        self._seen_state: SeenState | None = None
        self._seen: Any = None
        self._texts = _texts_of(keys)
        self._state = state_of(module)
        self._refusal = Refusal("", "", "")
        self._pattern = 0
        self._requiring_grad = 0

    def answer(self) -> Explanation:
        why = self._why_bypassed()
        if why:
            return self._explanation("bypassed", why)
        if not self._scope:
            return self._explanation("miss", f"{self._name} is loaded once, to learn who it is")
        if torch.classes.cache.Explain.is_switched_off(self._scope):
            return self._explanation("bypassed", _SWITCHED_OFF)
        found = torch.classes.cache.Explain.dry_run(
            self._scope, self._method, self._seen, self._keys, self._pattern, *self._padding
        )
        refusal, grad_is_unknown, asked, places, stored, facts = found
        if refusal:
            return self._explanation(
                "bypassed", f"the input holds a tensor or value that is {refusal}"
            )
        hits = [index for index, place in enumerate(places) if place > 0]
        mode = torch.ops.cache.mode()
        if mode in ("refresh", "verify"):
            return self._explanation("miss", f"{where_set(mode)}: the module is always run")
        if grad_is_unknown:
            reason = (
                "the module is run once, to learn whether its result requires grad; one that does "
                f"is not cached: {self._requires_grad()}"
            )
            return self._explanation("miss", reason, places=places)
        if not places:
            return self._explanation("bypassed", "the batch is empty")
        if len(hits) == len(places):
            return self._hit(hits[0], places, facts)
        clash = next((i for i, place in enumerate(places) if place < 0), None)
        if clash is not None:
            key = f"key '{self._texts[clash]}' was stored for"
            reason = (
                f"{key} an input of this shape with other values: the module would be run, and the "
                "entry replaced (key_conflicts)"
                if stored[clash] == asked[clash]
                else f"{key} an input {stored[clash]}, and this one is {asked[clash]}: the entry "
                "would be replaced (key_conflicts)"
            )
            return self._explanation(
                "partial" if hits else "miss", reason, places=places, facts=facts
            )
        return self._missing(places, facts)

    def _why_bypassed(self) -> str:
        """Says why the call would bypass the cache; "": it would be looked up."""
        if self._padding.is_padded and (why := why_not_padded(self._input)):
            return f"nothing is cached: {why}"
        why, is_operators = way_of(self._module, self._input)
        count = row_count(self._keys)
        is_operators = is_operators and not has_shared(self._input, count)
        if why:
            return f"nothing is cached {why}"
        if torch.ops.cache.mode() == "off":
            return f"{where_set('off')}: the module is run, and no entry is looked for"
        self._seen, refusal = self._input, ""
        if not is_operators:
            self._seen, refusal, *_ = shown(self._input, count, self._padding.padded_to())
        if refusal:
            return str(refusal)
        gave_grad = self._gave_grad_scripted() if is_operators else self._gave_grad()
        if gave_grad:
            return f"the result requires grad: {self._requires_grad()}"
        try:
            self._identify()
        except UnidentifiedError as reason:
            return f"{self._name} has no fingerprint: {reason}; pass scope=... to name it yourself"
        refused = self._refusal
        # A module that its own run changes has another scope each time.
        is_for_ever = refused.cause == "impure" and " changed" in refused.message
        is_kept_from = refused.cause in ("impure", "type", "padding")
        if is_kept_from and (refused.scope == self._scope or is_for_ever):
            return f"the last result was not kept: {refused.message}"
        return ""

    def _gave_grad(self) -> bool:
        self._refusal = self._state.refusal
        pattern = grad_pattern(self._module, self._state, self._input)
        self._pattern = pattern.module
        if torch.is_grad_enabled():
            self._requiring_grad = count_requiring_grad(self._module)
        return pattern in self._state.graph_patterns

    def _gave_grad_scripted(self) -> bool:
        held = torch.classes.cache.ScriptedModule(native(self._module))
        pattern, count, gave_grad, *refusal = held.dry_run(
            self._method, self._seen, not isinstance(self._keys, str)
        )
        self._pattern, self._requiring_grad = pattern, count
        self._refusal = Refusal(*refusal)
        return bool(gave_grad)

    def _identify(self) -> None:
        if isinstance(self._module, Lazy):
            self._scope = self._given_scope or self._module._source.address(self._method)
        else:
            self._scope, self._seen_state = address_of(
                self._module, self._given_scope, self._method
            )

    def _requires_grad(self) -> str:
        count = self._requiring_grad
        cure = "m.requires_grad_(False).eval(), or call it under torch.no_grad()"
        if isinstance(self._module, torch.jit.ScriptModule):
            cure = "for p in m.parameters(): p.requires_grad_(False), then m.eval()"
        return (
            f"{count} parameters of {self._name} require grad. If it is frozen, say so: {cure}"
            if count
            else "the input requires grad, and no result that depends on it is cached"
        )

    def _hit(self, first: int, places: list[int], facts: list[int]) -> Explanation:
        entry = _entry_of(first, places, facts)
        when = f", stored {entry['stored_at']}" if entry["stored_at"] else ""
        saved = f", saves a run of {shown_time(entry['run_us'])}" if entry["run_us"] else ""
        reason = f"in {entry['tier']}, {shown_bytes(entry['size_bytes'])}{when}{saved}"
        return self._explanation("hit", reason, places=places, facts=facts)

    def _missing(self, places: list[int], facts: list[int]) -> Explanation:
        status = "partial" if any(place > 0 for place in places) else "miss"
        manifest = manifest_of(self._scope)
        if status == "partial" or manifest is not None:
            since = f" (since {_time(manifest['created_us'])})" if manifest else ""
            reason = (
                f"this scope has entries{since}, and none under "
                f"{'this key' if len(self._texts) == 1 else 'the missing keys'}, for this kind of "
                f"call: {_why_absent()}"
            )
            return self._explanation(status, reason, places=places, facts=facts)
        before, changes = self._closest()
        if before is None:
            reason = (
                f"not in memory: {_why_absent()}"
                if torch.ops.cache.settings()["disk"] == "0"
                else f"nothing is known of {self._name}.{self._method} in this directory: nothing "
                "was stored yet, or everything was cleared"
            )
            return self._explanation(status, reason, places=places)
        since = f"compared with the scope of {_time(int(before.get('created_us', 0)))}"
        reason = f"a new scope: {self._difference(changes)} ({since})"
        return self._explanation(
            status, reason, places=places, changes=changes, compared_with=str(before.get("scope"))
        )

    def _closest(self) -> tuple[Manifest | None, Changes]:
        """Finds the manifest of this class that differs least from the module as it is now."""
        scope = Scope(self._scope, bool(self._given_scope))
        now = described(self._module, scope, self._method, self._seen_state)
        found = [
            (before, changes_between(before, now))
            for before in manifests_of_class(self._name, self._method)
            if before.get("scope") != self._scope
        ]

        def distance(pair: tuple[Manifest, Changes]) -> tuple[bool, bool, int]:
            before, changes = pair
            says_little = "code" not in before and "code" in now  # the manifest of a named scope
            return before.get("face") != now["face"], says_little, len(changes.all())

        return min(found, key=distance, default=(None, Changes()))

    def _difference(self, changes: Changes) -> str:
        if self._given_scope:
            return f"nothing was stored under the name '{self._given_scope}' yet"
        counts = {
            "weights": changes.weights,
            "pieces of code": changes.code,
            "attributes": changes.attributes,
            "other things": changes.others,
        }
        parts = [f"{len(names)} {kind}" for kind, names in counts.items() if names]
        if not parts:
            return f"{self._name} differs in a way that its manifest does not name"
        return f"{' and '.join(parts)} of {self._name} differ"

    def _explanation(
        self,
        status: str,
        reason: str,
        *,
        places: list[int] | None = None,
        facts: list[int] | None = None,
        changes: Changes | None = None,
        compared_with: str = "",
    ) -> Explanation:
        changes = changes or Changes()
        places = places or []
        missing = [text for text, place in zip(self._texts, places, strict=False) if place <= 0]
        first = next((i for i, place in enumerate(places) if place > 0), None)
        entry = _entry_of(first, places, facts) if first is not None and facts else {}
        return Explanation(
            status, reason, self._method, self._scope, self._texts,
            hits=sum(place > 0 for place in places),
            first_missing=missing[:MOST_SHOWN],
            changed=changes.all(),
            compared_with=compared_with,
            **vars(changes),
            **entry,
        )  # fmt: skip


def _entry_of(index: int, places: list[int], facts: list[int]) -> dict[str, Any]:
    """Returns the fields of an Explanation about the entry under one of the keys."""
    size_bytes, run_us, stored_at_us = facts[3 * index : 3 * index + 3]
    return {
        "tier": _TIERS[abs(places[index])],
        "size_bytes": size_bytes,
        "stored_at": _time(stored_at_us) if stored_at_us else "",
        "run_us": run_us,
    }


def _texts_of(keys: str | list[str] | torch.Tensor) -> list[str]:
    """Returns the distinct keys in the order of their first mention, like the library."""
    if isinstance(keys, str):
        return [keys]
    return list(dict.fromkeys(map(str, keys.tolist() if isinstance(keys, torch.Tensor) else keys)))


def _time(microseconds: int) -> str:
    at = datetime.datetime.fromtimestamp(microseconds / 1e6).astimezone()
    return at.isoformat(" ", "seconds")


def _why_absent() -> str:
    evicted = int(torch.ops.cache.stats()["evicted"])
    if evicted and torch.ops.cache.settings()["disk"] == "0":
        return (
            f"never stored, or evicted: this process has evicted {evicted} from memory, and "
            "there is no disk tier (disk=0)"
        )
    admission = torch.ops.cache.settings()["admission"]
    refused = "" if admission == "all" else f"not stored yet under admission={admission!r}, "
    return f"{refused}never stored, or removed since, and removals are not recorded"
