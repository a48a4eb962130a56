# SPDX-License-Identifier: Apache-2.0
"""What a run found, as JSON: machine, figures of every round, and the table of bounds."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from suite.measurement import Comparison, Measurement
from suite.rounds import MATCHES, Plan, Samples

FORMAT = 1
PACKAGES = (
    "torch",
    "numpy",
    "torch-module-cache",
    "lmdb",
    "diskcache",
    "joblib",
    "safetensors",
)
Results = dict[str, Any]


def collect(plan: Plan, found: Mapping[str, Samples]) -> Results:
    return {
        "format": FORMAT,
        "machine": machine(),
        "versions": versions(),
        "rounds": max(map(_rounds_of, found.values()), default=0),
        "quick": plan.quick,
        "measurements": {one.name: _figures(one, found[one.name]) for one in plan.measurements},
        "table": [
            _row(one, comparison, found[one.name])
            for one in plan.measurements
            for comparison in one.comparisons()
        ],
    }


def _rounds_of(samples: Samples) -> int:
    return max(map(len, samples.rounds.values()), default=0)


def machine() -> dict[str, Any]:
    processor = platform.processor() or platform.machine()
    with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else processor,
        "cores": os.cpu_count(),
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        "load": os.getloadavg()[2],  # of the last quarter of an hour
    }


def versions() -> dict[str, str]:
    import modcache

    found = {"modcache": modcache.__version__}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _figures(one: Measurement, samples: Samples) -> dict[str, Any]:
    return {
        "title": one.title,
        "failure": samples.failure,
        "rounds": samples.rounds,
        "medians": {match: medians(rounds) for match, rounds in samples.rounds.items()},
    }


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Median, least and largest by subject, in microseconds."""
    return {subject: spread([figures[subject] for figures in rounds]) for subject in rounds[0]}


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def _row(one: Measurement, comparison: Comparison, samples: Samples) -> dict[str, Any]:
    found: dict[str, Any] = {
        "path": comparison.path,
        "measurement": one.name,
        "of": comparison.of,
        "over": comparison.over or comparison.less,
        "bound": comparison.words(),
        "unit": comparison.unit,
    }
    for match in MATCHES:
        found[match] = _in_column(one, comparison, samples, match)
    return found


def _in_column(
    one: Measurement, comparison: Comparison, samples: Samples, match: str
) -> dict[str, Any]:
    values = [comparison.value(figures, match) for figures in samples.rounds.get(match, [])]
    kept = [value for value in values if value is not None]
    if not kept:
        return {"verdict": _why_not(one, comparison, samples, match)}
    share = statistics.median(of_round for _, of_round in kept)
    return {
        **spread([value for value, _ in kept]),
        "share_of_bound": share,
        "verdict": "ok" if share <= 1 else "falls short",
    }


def _why_not(one: Measurement, comparison: Comparison, samples: Samples, match: str) -> str:
    if samples.failure:
        return f"not measured: {samples.failure}"
    if match not in one.matches:
        return "the same"
    figures = next(iter(samples.rounds.values()), [{}])[0]
    lacking = [name for name in comparison.needed() if name not in figures]
    return f"not measured: no {', '.join(lacking)} here" if lacking else "not measured"


def write(results: Results, file: Path) -> None:
    file.write_text(json.dumps(_rounded(results), indent=1) + "\n", encoding="utf-8")


def read(file: Path) -> Results:
    results: Results = json.loads(file.read_text(encoding="utf-8"))
    if results.get("format") != FORMAT:
        raise ValueError(f"{file}: not the figures of this suite, or of another version of it")
    return results


def _rounded(value: Any) -> Any:
    """Four digits: more would be noise, and no two runs would look alike."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
