# SPDX-License-Identifier: Apache-2.0
"""What is known of the streams of other libraries: this is the only place that names them.

The attributes listed here decide which samples a pass yields, in which order and from which copy of
a file. Many differ from process to process: random seeds and generators, counters of passes, ranks,
folders for downloads. None of them changes what a sample is, so no scope contains them.
"""

from __future__ import annotations

import re
import weakref
from typing import Any

from modcache._code.names import is_packaged, top_package

KEY = "__key__"  # the field of a raw sample of WebDataset that names it within its shard
SHARD = "__url__"  # the field that names the shard

# The keys are names of packages, then of classes. A class also has the attributes of its bases.
_ORDER: dict[str, dict[str, frozenset[str]]] = {
    "webdataset": {
        "Cached": frozenset({"cached", "temp"}),
        "DataPipeline": frozenset({"length", "nsamples", "repetitions", "size"}),
        "FileCache": frozenset({"cache_dir", "cleaner", "verbose"}),
        "MultiShardSample": frozenset({"epoch", "rng"}),
        "RandomMix": frozenset({"longest", "probs"}),
        "ResampledShards": frozenset(
            {"deterministic", "epoch", "nshards", "rng", "seed", "worker_seed"}
        ),
        "RoundRobin": frozenset({"longest"}),
        "SimpleShardList": frozenset({"seed"}),
        "StreamingOpen": frozenset({"verbose"}),
        "WebDataset": frozenset({"seed"}),
        "detshuffle": frozenset({"bufsize", "epoch", "initial", "seed"}),
    },
    "datasets": {
        "BufferShuffledExamplesIterable": frozenset({"buffer_size", "generator"}),
        "DatasetBuilder": frozenset(
            {
                *("_cache_dir", "_cache_dir_root", "_cache_downloaded_dir", "_fs", "_output_dir"),
                "dl_manager",
            }
        ),
        "IterableDataset": frozenset(
            {
                *("_IterableDataset__hffs_cache", "_distributed", "_epoch"),
                *("_starting_state_dict", "_state_dict"),
            }
        ),
        "RandomlyCyclingMultiSourcesExamplesIterable": frozenset({"generator", "probabilities"}),
        "ShuffledDataSourcesExamplesIterable": frozenset({"generator"}),
        "_BaseExamplesIterable": frozenset({"_state_dict"}),
    },
    "fsspec": {
        "AbstractFileSystem": frozenset(
            {
                *("_cached", "_fs_token_", "_intrans", "_invalidated_caches_in_transaction"),
                *("_loop", "_pid", "_transaction", "dircache"),
            }
        ),
    },
    "torchdata": {
        "BaseNode": frozenset({"_BaseNode__initialized", "_it", "_num_yielded"}),
        "MultiNodeWeightedSampler": frozenset(
            {"_epoch", "_g", "_weighted_sampler", "rank", "seed", "weights", "world_size"}
        ),
        "Loader": frozenset(
            {"_it", "_iter_for_state_dict", "_next_iter_state_dict", "restart_on_stop_iteration"}
        ),
        "_ParallelMapperImpl": frozenset(
            {
                *("_mp_context", "in_order", "max_concurrent", "method"),
                *("multiprocessing_context", "num_workers", "snapshot_frequency"),
            }
        ),
        "SamplerWrapper": frozenset({"_started", "epoch"}),
    },
    "torch": {
        "DistributedSampler": frozenset(
            {
                *("drop_last", "epoch", "num_replicas", "num_samples", "rank"),
                *("seed", "shuffle", "total_size"),
            }
        ),
        "RandomSampler": frozenset({"_num_samples", "generator", "replacement"}),
        "SubsetRandomSampler": frozenset({"generator"}),
        "WeightedRandomSampler": frozenset({"generator", "num_samples", "replacement", "weights"}),
    },
}
# Steps of a pipeline that are functions with arguments, and those whose arguments set the order.
_STEP = ("webdataset", "FilterFunction")
_STEP_ATTRIBUTES = frozenset({"args", "kw"})
_ORDERING_STEPS = frozenset({"_rsample", "_shuffle", "_slice"})

_NOTHING: frozenset[str] = frozenset()
_RANDOM = re.compile(r"(^|_)(seed|rng)(_|$)")
_known: weakref.WeakKeyDictionary[type, frozenset[str]] = weakref.WeakKeyDictionary()


def order_attributes(value: Any) -> frozenset[str]:
    """Returns the names of those attributes of an object that only decide which samples come."""
    kind = type(value)
    known = _known.get(kind)
    if known is None:
        known = _known[kind] = _NOTHING.union(*map(_listed, kind.__mro__))
    if _name_of(kind) == _STEP and getattr(value.f, "__name__", "") in _ORDERING_STEPS:
        return known | _STEP_ATTRIBUTES
    return known


def why_undecided(value: Any, name: str, held: object) -> str:
    """Says why an attribute of a stream may or may not matter; "": it counts, like any other.

    A seed that an installed library chose may be another one in each process, which would make a
    new scope each time, or may be what random samples are made from. Code of the user's is not
    judged: there a seed counts.
    """
    kind = type(value)
    is_seed = type(held) is int and held != 0 and _RANDOM.search(name) is not None
    if not is_seed or not hasattr(kind, "__iter__") or not is_packaged(kind):
        return ""
    return "it may be another number in each process, or may change the samples"


def _listed(base: type) -> frozenset[str]:
    package, name = _name_of(base)
    return _ORDER.get(package, {}).get(name, _NOTHING)


def _name_of(kind: type) -> tuple[str, str]:
    return top_package(kind.__module__), kind.__name__
