# SPDX-License-Identifier: Apache-2.0
"""``modcache.stats()``: a dict for programs, a table for people."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Mapping
from pathlib import Path

import modcache
import pytest
import torch
from modcache._library.stats import Stats

ALL = Stats(
    hits_memory=1000, hits_disk=200, hits_remote=0, misses=34, stored=34, bypassed_off=5,
    bypassed_grad=2, bypassed_impure=0, bypassed_type=0, key_conflicts=1, verify_differences=0,
    evicted=0, corrupt=0, errors=3, entries_memory=34, bytes_memory=5 << 20, entries_disk=34,
    bytes_disk=2048, run_us=1_000_000, saved_us=9_000_000,
)  # fmt: skip

TABLE = """\
keys looked up                1,234
  hits from memory            1,000   81.0 %
  hits from disk                200   16.2 %
  misses                         34    2.8 %
results stored                   34
run without the cache             7
  the mode was off                5
  the result requires grad        2
trouble                           4
  keys of another input           1
  failures of the cache           3
entries in memory                34   5.2 MB
entries on disk                  34   2.0 kB
time in modules that ran     1.00 s
time saved by hits           9.00 s   90.0 %"""


def test_a_table_of_what_is_not_zero() -> None:
    assert str(ALL) == TABLE
    assert repr(ALL) == TABLE


def test_nothing_counted_yet() -> None:
    assert str(Stats(hits_memory=0, misses=0)) == "no call so far"


def test_notebooks_get_the_same_as_html() -> None:
    shown = ALL._repr_html_()
    assert shown.startswith("<table><tr>")
    assert shown.count("<tr>") == len(TABLE.splitlines())
    assert "81.0 %" in shown


def test_for_programs_it_is_a_dict() -> None:
    plain = dict(ALL)
    assert isinstance(ALL, Mapping)
    assert plain == ALL
    assert ALL["hits_memory"] == 1000
    assert json.loads(json.dumps(ALL)) == plain


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, Stats.copy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_are_plain(copied: object) -> None:
    again = copied(ALL)  # type: ignore[operator]
    assert type(again) is dict
    assert again == ALL


def test_of_this_process(tmp_path: Path) -> None:
    modcache.configure(dir=tmp_path / "cache")
    encoder = torch.nn.Linear(4, 2).requires_grad_(False).eval()
    for _ in range(4):
        modcache.lookup_or_run(encoder, torch.ones(1, 4), "one")
    lines = str(modcache.stats()).splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["keys", "looked", "up", "4"],
        ["hits", "from", "memory", "3", "75.0", "%"],
        ["misses", "1", "25.0", "%"],
    ]
