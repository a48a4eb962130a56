# SPDX-License-Identifier: Apache-2.0
"""What was measured, as a table, a picture and JSON, and the claims that it has to bear out."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

MIN_ENCODER_SPEED_UP = 300.0
MAX_EPOCH_RATIO = 3.0


@dataclass(frozen=True)
class Measured:
    """The numbers of one start. Seconds are per epoch, milliseconds per text."""

    texts: int
    train_texts: int
    found_at_start: int
    uncached_epoch_s: list[float]
    uncached_from_earlier_start: bool
    first_epoch_s: float
    first_epoch_hits: int
    warm_epoch_s: list[float]
    warm_epoch_hits: int
    tensor_epoch_s: list[float]
    uncached_encoder_ms: float
    warm_encoder_ms: float
    # After as many epochs as were trained without the cache, and after all of them.
    uncached_accuracy: float
    cached_accuracy_early: float
    cached_accuracy: float
    tensor_accuracy: float
    uncached_bits_equal: bool
    tensor_bits_equal: bool

    @property
    def encoder_speed_up(self) -> float:
        return self.uncached_encoder_ms / self.warm_encoder_ms

    @property
    def epoch_ratio(self) -> float:
        return statistics.median(self.warm_epoch_s) / statistics.median(self.tensor_epoch_s)


@dataclass(frozen=True)
class Claim:
    text: str
    holds: bool
    is_speed: bool = False

    def __str__(self) -> str:
        return f"  [{'ok' if self.holds else 'FAILED'}] {self.text}"


def claims_of(measured: Measured) -> list[Claim]:
    """What the example promises; the numbers stand in each claim's text."""
    early = len(measured.uncached_epoch_s)
    warm_ms = statistics.median(measured.warm_epoch_s) * 1e3
    tensor_ms = statistics.median(measured.tensor_epoch_s) * 1e3
    return [
        Claim(
            f"every text of a warm epoch is a hit: {measured.warm_epoch_hits} of "
            f"{measured.train_texts}",
            measured.warm_epoch_hits == measured.train_texts,
        ),
        Claim(
            f"the encoder's part of a warm epoch is {measured.encoder_speed_up:.0f} x faster than "
            f"without the cache ({measured.uncached_encoder_ms:.2f} ms and "
            f"{measured.warm_encoder_ms:.4f} ms per text; at least {MIN_ENCODER_SPEED_UP:.0f} x)",
            measured.encoder_speed_up >= MIN_ENCODER_SPEED_UP,
            is_speed=True,
        ),
        Claim(
            f"a whole warm epoch takes {measured.epoch_ratio:.2f} x one over features held in one "
            f"tensor ({warm_ms:.0f} ms and {tensor_ms:.0f} ms; at most {MAX_EPOCH_RATIO:.0f} x)",
            measured.epoch_ratio <= MAX_EPOCH_RATIO,
            is_speed=True,
        ),
        Claim(
            f"{early} epochs with and without the cache end with the same head, bit for bit",
            measured.uncached_bits_equal,
        ),
        Claim(
            f"{len(measured.tensor_epoch_s)} epochs with the cache and over features held in one "
            "tensor end with the same head, bit for bit",
            measured.tensor_bits_equal,
        ),
    ]


def table_of(measured: Measured) -> str:
    early, late = len(measured.uncached_epoch_s), len(measured.tensor_epoch_s)
    uncached_s = statistics.median(measured.uncached_epoch_s)
    warm_s = statistics.median(measured.warm_epoch_s)
    tensor_s = statistics.median(measured.tensor_epoch_s)
    total = measured.train_texts

    def row(name: str, seconds: float, encoder: str, hits: str, *accuracies: str) -> list[str]:
        return [name, f"{seconds:.3f}", encoder, hits, f"{uncached_s / seconds:.0f} x", *accuracies]

    mark = " *" if measured.uncached_from_earlier_start else ""
    rows = [
        ["", "s per epoch", "encoder, ms per text", "hits", "speed-up"]
        + [f"accuracy, {epochs} epochs" for epochs in (early, late)],
        row(
            f"without the cache{mark}",
            uncached_s,
            f"{measured.uncached_encoder_ms:.2f}",
            f"0 of {total}",
            f"{measured.uncached_accuracy:.1%}",
            "",
        ),
        row(
            "with the cache, first epoch",
            measured.first_epoch_s,
            "",
            f"{measured.first_epoch_hits} of {total}",
            "",
            "",
        ),
        row(
            "with the cache, later epochs",
            warm_s,
            f"{measured.warm_encoder_ms:.4f}",
            f"{measured.warm_epoch_hits} of {total}",
            f"{measured.cached_accuracy_early:.1%}",
            f"{measured.cached_accuracy:.1%}",
        ),
        row("features held in one tensor", tensor_s, "", "", "", f"{measured.tensor_accuracy:.1%}"),
    ]
    note = "\n* trained by an earlier start of this command" if mark else ""
    return _aligned(rows) + note


def write_json(measured: Measured, claims: Sequence[Claim], path: Path) -> None:
    content = {
        **asdict(measured),
        "encoder_speed_up": measured.encoder_speed_up,
        "epoch_ratio": measured.epoch_ratio,
        "claims": [{"text": claim.text, "holds": claim.holds} for claim in claims],
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def draw(measured: Measured, path: Path) -> None:
    """A PNG: what an epoch takes (logarithmic), and how training time adds up."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    uncached_s = statistics.median(measured.uncached_epoch_s)
    epochs = range(1, len(measured.tensor_epoch_s) + 1)
    series = [
        ("without the cache", "#c0504d", [uncached_s] * len(epochs)),
        ("with the cache", "#1f77b4", [measured.first_epoch_s, *measured.warm_epoch_s]),
        ("features held in one tensor", "#7f7f7f", measured.tensor_epoch_s),
    ]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    bars = [
        ("without\nthe cache", series[0][1], uncached_s),
        ("with the cache,\nfirst epoch", series[1][1], measured.first_epoch_s),
        ("with the cache,\nlater epochs", series[1][1], statistics.median(measured.warm_epoch_s)),
        ("features held\nin one tensor", series[2][1], statistics.median(measured.tensor_epoch_s)),
    ]
    names, colours, heights = zip(*bars, strict=True)
    drawn = left.bar(names, heights, color=colours)
    left.bar_label(drawn, [f"{height:.3g} s" for height in heights])
    left.set_yscale("log")
    left.margins(y=0.15)
    left.set_ylabel("seconds per epoch")
    left.set_title(
        f"{measured.train_texts} texts; the encoder's part is "
        f"{measured.encoder_speed_up:.0f} x faster when warm",
        fontsize=10,
    )
    for name, colour, seconds in series:
        total = [sum(seconds[:epoch]) for epoch in epochs]
        measured_epochs = (
            len(measured.uncached_epoch_s) if name == "without the cache" else len(epochs)
        )
        right.plot(epochs[:measured_epochs], total[:measured_epochs], "o-", color=colour, ms=4)
        right.plot(epochs, total, "--" if measured_epochs < len(epochs) else "-", color=colour)
        right.plot([], [], "o-", color=colour, ms=4, label=name)
    right.xaxis.get_major_locator().set_params(integer=True)
    right.set_xlabel("epochs (dashed: not run)")
    right.set_ylabel("seconds since the start of training")
    right.set_title("training time", fontsize=10)
    right.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for cells in rows:
        first = cells[0].ljust(widths[0])
        rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        lines.append("  ".join([first, *rest]).rstrip())
    lines.insert(1, "-" * max(len(line) for line in lines))
    return "\n".join(lines)
