# SPDX-License-Identifier: Apache-2.0
"""tests/bench/compare: which rows count, and which are worse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pages
import pytest

sys.path.insert(0, str(pages.ROOT / "tests" / "bench"))

from suite.compare import Row, as_table, spread

COMPARE = pages.ROOT / "tests" / "bench" / "compare"


@pytest.mark.parametrize(
    ("base", "new", "verdict"),
    [
        ([100, 101, 102], [100, 101, 102], "same"),
        ([100, 101, 102], [104, 105, 106], "same"),
        ([100, 101, 102], [106, 107, 108], "worse"),
        ([100, 101, 102], [90, 91, 92], "better"),
        ([100, 101, 106], [150, 151, 152], "does not count"),
        ([100, 101, 102], [150, 155, 165], "does not count"),
    ],
)
def test_verdict(base: list[float], new: list[float], verdict: str) -> None:
    assert Row("row", base, new).verdict(max_spread=0.05, max_worse=0.05) == verdict


def test_spread_is_a_share_of_the_median() -> None:
    assert spread([90, 100, 110]) == pytest.approx(0.2)


def test_table_has_aligned_columns() -> None:
    text = as_table(("row", "us", "verdict"), [("a", "1.00", "same"), ("long name", "10.00", "")])
    assert text == "row           us  verdict\na           1.00  same\nlong name  10.00"


def test_folder_that_is_not_a_checkout_is_misuse(tmp_path: Path) -> None:
    done = subprocess.run([COMPARE, tmp_path, tmp_path], capture_output=True, text=True)
    assert done.returncode == 2
    assert "is not a checkout" in done.stderr
