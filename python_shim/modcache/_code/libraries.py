# SPDX-License-Identifier: Apache-2.0
"""What is known of methods of installed libraries that no look at their code could prove."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from modcache._code.names import top_package
from modcache._code.objects import attribute_of, is_a


class KnownMethod(NamedTuple):
    """A method of a library.

    ``ignored``: arguments that change how it runs, never what it returns. ``of_losses``: arguments
    that change a loss alone, which is no result with rows. ``batching``: the same,
    where each row comes by itself. It does where each argument in ``apart`` has one of the values
    there; with others a row depends on the rows beside it. ``listing``: groups of arguments with
    which it returns a list, where all of a group have such a value. ``renamed``: names of one
    argument, of which each version of the library has one. ``passes_on``: its decorators do other
    things by no form of a call. ``infers``: it puts its module into
    evaluation mode before it computes anything, and computes without gradients. ``settled``:
    properties of its object that keep a default when they are first read, by whatever method; a
    module has one identity before and after that if they are read first.
    """

    ignored: tuple[str, ...] = ()
    of_losses: tuple[str, ...] = ()
    batching: tuple[str, ...] = ()
    apart: Mapping[str, tuple[str | None, ...]] = MappingProxyType({})
    listing: tuple[Mapping[str, object], ...] = ()
    renamed: tuple[str, ...] = ()
    passes_on: bool = False
    infers: bool = False
    settled: tuple[str, ...] = ()

    def name_in(self, has: Callable[[str], bool], name: str) -> str:
        """Returns the name that a function has for this argument; ``has`` says which it has."""
        if has(name) or name not in self.renamed:
            return name
        return next(filter(has, self.renamed), name)


# Packages that fetch, lock, count, start processes or adapt data frames. Whatever they hold in a
# process, no result depends on it, and some of it grows with use, as joblib's tables do. So they
# count by version and files alone.
_SERVING = frozenset(
    {
        "aiohttp", "anyio", "certifi", "cloudpickle", "datasets", "filelock", "fsspec", "h11",
        "h2", "hf_xet", "hpack", "httpcore", "httpcore2", "httpx", "httpx2", "huggingface_hub",
        "idna", "joblib", "narwhals", "packaging", "psutil", "requests", "sniffio", "truststore",
        "urllib3",
    }
)  # fmt: skip
# Packages that other packages use for things beside their results. They are followed where code of
# the user's enters them.
_SERVING_OTHERS = frozenset({"PIL"})
# Modules of other packages that do so: accelerate notes there which device and process this is.
_SERVING_MODULES = frozenset({"accelerate.state"})
# Globals in which a package notes what it made, by module and name: the classes of all models of
# this process, which tell nothing of one among them.
MEMORIES = frozenset({("transformers.utils.output_capturing", "_CAN_RECORD_REGISTRY")})
# Methods of a package's models that train, judge or save, by the package. No other method of these
# classes calls one.
APART = {"sentence_transformers": frozenset({"evaluate", "fit", "old_fit", "save"})}

_BATCHED = KnownMethod(
    ignored=("show_progress_bar",),
    batching=("batch_size",),
    apart={
        "output_value": ("sentence_embedding", "token_embeddings"),  # all else is padded
        "precision": ("float32", "binary", "ubinary", None),  # int8 has the range of all rows
    },
    listing=(
        {"output_value": "token_embeddings"},
        {"convert_to_numpy": False, "convert_to_tensor": False},
    ),
    renamed=("inputs", "sentences"),
    passes_on=True,
    infers=True,
    settled=("similarity_fn_name",),
)
UNKNOWN = KnownMethod()
# The keys are names of methods.
_KNOWN: dict[str, dict[str, KnownMethod]] = {
    "sentence_transformers": {
        "encode": _BATCHED,
        "encode_query": _BATCHED,
        "encode_document": _BATCHED,
        "predict": _BATCHED,
    },
    "transformers": {
        "forward": KnownMethod(of_losses=("num_items_in_batch",)),  # which the Trainer counts
    },
}


def is_serving(value: Any, entered: Collection[str]) -> bool:
    """Whether a function, class or module is of a package whose state no result depends on.

    ``entered``: the packages that code of the user's enters.
    """
    is_module = is_a(value, types.ModuleType)
    module = str(attribute_of(value, "__name__" if is_module else "__module__"))
    package = top_package(module)
    is_beside = package in _SERVING_OTHERS and package not in entered
    return is_beside or package in _SERVING or module in _SERVING_MODULES


def known_method(function: Any) -> KnownMethod:
    """Returns what is known of a function that an installed library defines in a class."""
    library = top_package(getattr(function, "__module__", ""))
    methods, name = _KNOWN.get(library), str(getattr(function, "__qualname__", ""))
    if methods is None or "." not in name or not _is_all_of(library, function):
        return UNKNOWN
    return methods.get(name.rpartition(".")[2], UNKNOWN)


def _is_all_of(library: str, function: Any) -> bool:
    """Whether a function and what it wraps come from the library or torch.

    functools.wraps gives any function the name of what it wraps.
    """
    while isinstance(function, types.FunctionType):
        if top_package(function.__globals__.get("__name__")) not in (library, "torch"):
            return False
        if "__wrapped__" not in vars(function):
            return True
        function = vars(function)["__wrapped__"]
    return False
