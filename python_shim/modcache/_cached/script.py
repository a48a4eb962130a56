# SPDX-License-Identifier: Apache-2.0
"""The ``forward`` that torch.jit.script compiles for a cached module. It calls the operator.

The text of that ``forward`` has the parameters of the wrapped one, and the key. The wrapped one is
compiled beside it (``wrapped.WRAPPED_FORWARD``), and the operator runs it on a miss. Like an eager
call, the text leaves out defaults at the end of the arguments, so that both share entries.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import linecache
import textwrap
from typing import Any

from modcache._cached.function import found_cached
from modcache._code.wrapped import WRAPPED_FORWARD, is_cached, unwrapped
from modcache._library.text import checked_text

_ANY_KEY = "Union[str, List[str], Tensor]"
_OPERATOR = "modcache_lookup"  # the name in the closure of a cached function
_RESULT = "modcache_result"  # unlike any argument
_PLAIN_DEFAULTS = (bool, int, float, str, type(None))
_OF_A_CACHE = (
    "torch.jit.script: {} was cached by a modcache.Cache, and scripted code cannot name a cache: "
    "it uses the one that is current when it runs. Make it with modcache.cached(...), and run the "
    "scripted model inside `with cache:`."
)
_numbers = itertools.count()


def make_scriptable(cls: Any) -> None:
    """Puts the text where torch.jit.script looks for the source of ``forward``.

    Raises:
        TypeError: TorchScript cannot make the key, pass the arguments or use the Cache.
    """
    function = cls.forward
    if not is_cached(function) or hasattr(function, "_modcache_scripted"):
        return
    wrapped = unwrapped(function)
    called = found_cached(function)
    if called.cache is not None:
        raise TypeError(_OF_A_CACHE.format(cls.__qualname__))
    text = _text_of(cls.__qualname__, wrapped, called.key, called.scope)
    name = f"<modcache.cached {next(_numbers)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    made: dict[str, Any] = {}
    # Annotations and defaults are read from the text, never evaluated.
    exec(compile(f"from __future__ import annotations\n{text}", name, "exec"), {}, made)
    function.__wrapped__ = function._modcache_scripted = made["forward"]


def _text_of(who: str, wrapped: Any, key: Any, scope: str) -> str:
    if not key.name:
        raise TypeError(
            f"torch.jit.script: {who} is cached under a key that Python makes, or that a block of "
            "modcache.keys gives, which code of TorchScript cannot see; TorchScript needs "
            f'one that is an argument: modcache.cached(..., key="ids"), or script {who} uncached '
            "and call modcache.lookup_or_run in its parent."
        )
    definition: Any = ast.parse(textwrap.dedent(inspect.getsource(wrapped))).body[0]
    given = definition.args
    if given.vararg or given.kwarg or given.kwonlyargs or given.posonlyargs:
        raise TypeError(
            f"torch.jit.script: the forward of {who}, which is cached, takes *args, **kwargs or "
            "keyword-only arguments, which the operator cannot pass on."
        )
    result = ast.unparse(definition.returns) if definition.returns else "Tensor"
    annotation = _annotation_of(given.args, key.name)
    names = [argument.arg for argument in given.args][1:]
    if key.is_consumed:
        # Saving forgets what is keyword-only: then no parameter without a default may come last.
        place = len(given.args) - len(given.defaults)
        given.args.insert(place, ast.arg(key.name, ast.parse(_ANY_KEY, mode="eval").body))
        annotation = _ANY_KEY
    lines = [f"def forward({_without_defaults(given)}) -> {result}:"]
    for condition, passed in _cases(inspect.signature(wrapped), names):
        sample = passed[0] if len(passed) == 1 and not _is_tuple(given.args, passed[0]) else ""
        call = f"({given.args[0].arg}, {sample or _tuple_of(passed)}, {key.name}, "
        call += f"scope={checked_text(scope, 'scope')!r}, method={WRAPPED_FORWARD!r})"
        lines += _returned(call, key.name, annotation, result, f"    if {condition}:")
    return "\n".join(lines) + "\n"


def _without_defaults(given: Any) -> str:
    """Writes parameters without defaults, which torch takes from the signature."""
    given.defaults = []
    return ast.unparse(given)


def _annotation_of(arguments: Any, name: str) -> str:
    found = next((a.annotation for a in arguments if a.arg == name), None)
    return ast.unparse(found) if found else "Tensor"


def _is_tuple(arguments: Any, name: str) -> bool:
    return "Tuple" in _annotation_of(arguments, name).title()


def _tuple_of(names: list[str]) -> str:
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"


def _cases(signature: inspect.Signature, names: list[str]) -> list[tuple[str, list[str]]]:
    """Pairs of a condition and the arguments to pass; the first condition that holds counts."""
    cases = []
    end = len(names)
    while end:
        default = signature.parameters[names[end - 1]].default
        if default is inspect.Parameter.empty or type(default) not in _PLAIN_DEFAULTS:
            break
        name = names[end - 1]
        differs = f"{name} is not None" if default is None else f"{name} != {default!r}"
        cases.append((differs, names[:end]))
        end -= 1
    return [*cases, ("True", names[:end])]


def _returned(call: str, key: str, annotation: str, result: str, condition: str) -> list[str]:
    kinds = ["str", "List[str]", "Tensor"] if annotation == _ANY_KEY else [annotation]
    lines = [condition]
    is_tensor = result in ("Tensor", "torch.Tensor")
    operator = _OPERATOR if is_tensor else f"{_OPERATOR}_any"
    for kind in kinds:
        indent = " " * 8
        if len(kinds) > 1:
            lines.append(f"{indent}if isinstance({key}, {kind}):")
            indent += " " * 4
        lines.append(f"{indent}{_RESULT} = {operator}{call}")
        if not is_tensor:
            lines.append(f"{indent}assert isinstance({_RESULT}, {result})")
        lines.append(f"{indent}return {_RESULT}")
    if len(kinds) > 1:
        lines.append(f"{' ' * 8}raise RuntimeError('no key')")
    return lines
