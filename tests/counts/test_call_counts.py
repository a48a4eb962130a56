# SPDX-License-Identifier: Apache-2.0
"""Calls of a C++ host: how much each does, by path. Counted, since time depends on the machine."""

from __future__ import annotations

import pytest
from counting import Counts, counts_by_path, system_calls_in

# One call of a round, as a mean. The rows are what tests/counts/counting.py prints: after a change
# that lowers them replace them, so that nothing raises them again unseen.
#
# - A hit copies a small value, and shares a large one until somebody writes into it. Rows are
#   copied into one tensor.
# - A hit on disk asks for the file's size (fstat): touching a mapped file that was cut short would
#   kill the process.
# - A miss keeps a copy of the value. Torch makes that of a large one, which is among the allocated
#   bytes alone.
# - Two of the locks are torch's wherever a module runs: in a miss and in mode off.
# - What other threads do is not counted; writing is done by one.
AT_MOST = {
    # instructions, allocations, their bytes, locks, system calls, waits, copied bytes
    "memory_hit": Counts(9_700, 7, 436, 5, 0, 0, 2_048),
    "memory_hit_fingerprint": Counts(10_900, 8, 458, 6, 0, 0, 2_048),
    "memory_hit_151_kb": Counts(10_400, 7, 440, 6, 0, 0, 0),
    "memory_hit_1_row": Counts(11_500, 13, 842, 5, 0, 0, 2_048),
    "memory_hit_256_rows": Counts(553_900, 32, 55_090, 7, 0, 0, 528_384),
    "disk_hit": Counts(19_600, 21, 1_192, 10, 1, 0, 2_048),
    "disk_hit_151_kb": Counts(170_900, 24, 1_248, 12, 1, 0, 151_296),
    "disk_hit_256_rows": Counts(745_800, 52, 88_330, 11, 1, 0, 533_504),
    "miss": Counts(53_700, 66, 9_358, 27, 2, 1, 2_048),
    "miss_151_kb": Counts(99_400, 73, 308_458, 28, 2, 1, 0),
    "miss_1_row": Counts(54_600, 67, 9_545, 29, 2, 1, 2_048),
    "miss_256_rows": Counts(2_447_000, 2_716, 1_509_573, 29, 2, 1, 548_864),
    "mode_off": Counts(12_200, 11, 2_931, 2, 0, 0, 0),
    "module_alone": Counts(10_400, 11, 2_859, 2, 0, 0, 0),
}
# Compilers and libraries differ in the first three. Whether a miss has to wait for a lock, or to
# wake the thread that writes, is chance. All else is exact, and so is a bound of 0.
SLACK = {"instructions": 1.1, "allocations": 1.1, "allocated_bytes": 1.1, "waits": 4}


@pytest.fixture(scope="module")
def counted() -> dict[str, Counts]:
    return counts_by_path()


def excesses(counts: Counts, at_most: Counts) -> list[str]:
    """One line for each count that is above its bound."""
    rows = zip(Counts._fields, counts, at_most, strict=True)
    allowed = [(what, count, bound * SLACK.get(what, 1)) for what, count, bound in rows]
    return [
        f"{what}: {count:_.10g} in a call, allowed are {bound:_.10g}"
        for what, count, bound in allowed
        if count > bound
    ]


@pytest.mark.parametrize("path", AT_MOST)
def test_a_call_does_no_more_than_it_did(path: str, counted: dict[str, Counts]) -> None:
    found = excesses(counted[path], AT_MOST[path])
    assert not found, f"{path}: " + "; ".join(found)


def test_every_path_has_a_bound(counted: dict[str, Counts]) -> None:
    assert list(counted) == list(AT_MOST)


def test_what_is_more_than_allowed_is_told() -> None:
    bounds = Counts(1000, 10, 500, 5, 0, 0, 2048)
    assert excesses(bounds, bounds) == []
    assert excesses(bounds._replace(instructions=1099, allocations=10.9), bounds) == []
    assert excesses(bounds._replace(locks=5.0625, instructions=1200), bounds) == [
        "instructions: 1_200 in a call, allowed are 1_100",
        "locks: 5.0625 in a call, allowed are 5",
    ]


def test_system_calls_are_those_of_the_thread_that_calls() -> None:
    trace = [
        "7 gettid() = 7",
        '7 write(-1, "begin hit", 9) = -1 EBADF (Bad file descriptor)',
        "7 fstat(14, <unfinished ...>",
        "8 fdatasync(3) = 0",
        "7 <... fstat resumed>{st_mode=S_IFREG|0600, st_size=4096, ...}) = 0",
        "7 futex(0x55, FUTEX_WAKE_PRIVATE, 1) = 1",
        '7 write(-1, "end hit", 7 <unfinished ...>',
        "7 geteuid() = 0",
    ]
    assert list(system_calls_in(trace)) == [("hit", "waits", 1), ("hit", "system_calls", 1)]
