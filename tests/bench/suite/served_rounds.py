# SPDX-License-Identifier: Apache-2.0
"""Rounds on request, for compare.py: a process that measures with the modcache it can import.

Reads one JSON object per line: {"step": "prepare" or "measure", "name": ..., "round": ...,
"quick": ..., "folder": ...}. Answers each with one: {"figures": {...}} or {"failure": "..."}.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from suite import stores, worker
from suite.measurement import Place

MATCH = "input"  # the default of modcache


def prepare(name: str, place: Place) -> dict[str, float]:
    stores.hide_rivals()
    worker.prepare(name, place)
    return {}


def measure(name: str, place: Place) -> dict[str, float]:
    stores.hide_rivals()
    return worker.measure(name, place)


def missing(name: str, _: Place) -> dict[str, float]:
    from suite import catalogue

    if reason := catalogue.named(name).missing():
        raise FileNotFoundError(reason)
    return {}


STEPS = {"missing": missing, "prepare": prepare, "measure": measure}


def answer_to(request: Mapping[str, Any]) -> dict[str, Any]:
    folder = Path(request["folder"])
    shared = folder / "shared"
    shared.mkdir(parents=True, exist_ok=True)
    place = Place(folder, MATCH, shared, bool(request["quick"]), int(request["round"]))
    try:
        return {"figures": worker.run(STEPS[request["step"]], request["name"], place)}
    except worker.RoundFailedError as failure:
        return {"failure": str(failure)}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is measured may print
    for line in sys.stdin:
        print(json.dumps(answer_to(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
