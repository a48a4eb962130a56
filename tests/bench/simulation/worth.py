# SPDX-License-Identifier: Apache-2.0
"""Whether a server is worth asking: the rule of csrc/cache/remote_worth.cpp, for one scope."""

from __future__ import annotations

EXPLORING_SHARE = 0.02
SMALL_QUESTION = 4
TOLERANCE_S = 200e-6
MOST_ALLOWANCE_S = 1.0


def _following(before: float, seen: float) -> float:
    return seen if before == 0 else before + (seen - before) / 4


def _following_down(before: float, seen: float) -> float:
    return seen if before != 0 and seen < before else _following(before, seen)


class Worth:
    def __init__(self) -> None:
        self.run_s = 0.0  # of one row; 0: not known
        self.question_s = 0.0  # of a small one
        self.values_s = 0.0  # that a small one takes beyond a round trip
        self.row_s = 0.0
        self.missing = 0.0  # share of keys
        self.allowance_s = 0.0

    def is_worth_asking(self, rows: int, round_trip_s: float) -> bool:
        if self.run_s == 0:
            return True
        base_s = round_trip_s or self.question_s
        values_s = self.values_s if rows <= SMALL_QUESTION else rows * self.row_s
        cost_s = max(base_s + values_s - TOLERANCE_S, 0.0)
        most_s = rows * self.run_s
        if base_s - TOLERANCE_S >= most_s:
            return False
        if cost_s <= most_s * (1 - self.missing):
            return True
        if self.allowance_s < cost_s:
            return False
        self.allowance_s -= cost_s
        return True

    def note_question(self, rows: int, found: int, took_s: float, round_trip_s: float) -> None:
        base_s = round_trip_s or self.question_s
        if rows <= SMALL_QUESTION:
            self.question_s = _following_down(self.question_s, took_s)
            if round_trip_s:
                self.values_s = _following_down(self.values_s, max(took_s - base_s, 1e-6))
        else:
            self.row_s = _following_down(self.row_s, max(took_s - base_s, 0.0) / rows)
        self.missing += ((rows - found) / rows - self.missing) / 4

    def note_runs(self, run_s: float, rows: int) -> None:
        """``rows`` is 0 where the run was not ours but that of an entry that was found."""
        self.run_s = _following(self.run_s, run_s)
        earned_s = run_s * rows * EXPLORING_SHARE
        self.allowance_s = min(self.allowance_s + earned_s, MOST_ALLOWANCE_S)
