# SPDX-License-Identifier: Apache-2.0
"""Whether a server is worth asking: the rule of csrc/cache/remote_worth.cpp, for one scope."""

from __future__ import annotations

EXPLORING_SHARE = 0.02
SMALL_QUESTION = 4
TOLERANCE_S = 200e-6
MOST_ALLOWANCE_S = 1.0


def _following(before: float, seen: float) -> float:
    return seen if before == 0 else before + (seen - before) / 4


class Worth:
    def __init__(self) -> None:
        self.run_s = 0.0  # of one row; 0: not known
        self.question_s = 0.0  # of a small one
        self.row_s = 0.0
        self.missing = 0.0  # share of keys
        self.allowance_s = 0.0

    def is_worth_asking(self, rows: int, round_trip_s: float) -> bool:
        if self.run_s == 0:
            return True
        base_s = round_trip_s or self.question_s
        cost_s = max(base_s + rows * self.row_s - TOLERANCE_S, 0.0)
        most_s = rows * self.run_s
        if base_s - TOLERANCE_S >= most_s:
            return False
        if cost_s <= most_s * (1 - self.missing):
            return True
        if self.allowance_s < cost_s:
            return False
        self.allowance_s -= cost_s
        return True

    def note_question(self, rows: int, found: int, took_s: float) -> None:
        if rows <= SMALL_QUESTION:
            is_less = self.question_s != 0 and took_s < self.question_s
            self.question_s = took_s if is_less else _following(self.question_s, took_s)
        else:
            seen_s = max(took_s - self.question_s, 0.0) / rows
            is_less = self.row_s != 0 and seen_s < self.row_s
            self.row_s = seen_s if is_less else _following(self.row_s, seen_s)
        self.missing += ((rows - found) / rows - self.missing) / 4

    def note_runs(self, run_s: float, rows: int) -> None:
        """``rows`` is 0 where the run was not ours but that of an entry that was found."""
        self.run_s = _following(self.run_s, run_s)
        earned_s = run_s * rows * EXPLORING_SHARE
        self.allowance_s = min(self.allowance_s + earned_s, MOST_ALLOWANCE_S)
