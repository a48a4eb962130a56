#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a small model for the server: a frozen encoder, whose calls are cached, and a head.

python make_model.py model.pt                  scripted, forward(x, key: str)
python make_model.py model.pt2 --form exported   a package of AOTInductor, forward(x, ids)
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import modcache
import torch

INPUTS, TOKENS, WIDTH, CLASSES = 32, 256, 256, 4


class Encoder(torch.nn.Module):
    """Works on tokens as a small vision transformer does, and takes as long as it is told to."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.first = torch.nn.Linear(INPUTS, WIDTH)
        self.positions = torch.nn.Parameter(torch.randn(TOKENS, WIDTH))
        self.layer = torch.nn.Linear(WIDTH, WIDTH)
        self.layers = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x).unsqueeze(-2) + self.positions
        x = first
        for _ in range(self.layers):
            x = first + 0.5 * torch.tanh(self.layer(x))  # a chain of tanh alone forgets its input
        return x.mean(-2)


class KeyOfInput(torch.nn.Module):
    """One key for all of the input."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor, key: str) -> torch.Tensor:
        return self.head(torch.ops.cache.lookup_or_run(self.encoder, x, key))


class KeysOfRows(KeyOfInput):
    """One key for each row."""

    def forward(self, x: torch.Tensor, keys: list[str]) -> torch.Tensor:  # type: ignore[override]
        return self.head(torch.ops.cache.lookup_or_run(self.encoder, x, keys))


class IdsOfRows(KeyOfInput):
    """An int64 id for each row, which an exported program takes."""

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return self.head(modcache.lookup_or_run(self.encoder, x, ids, scope="demo-encoder@1"))


class Plain(KeyOfInput):
    """A model that knows nothing of a cache: the server keeps what it returns."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return self.head(self.encoder(x))


def layers_that_take(run_ms: float) -> int:
    """How many make a run that long here: of the fastest of several, so that none is shorter."""
    layers = 12
    probe = torch.jit.script(Encoder(layers).eval())
    row = torch.zeros(1, INPUTS)
    fastest_s = float("inf")
    with torch.inference_mode():
        for _ in range(20):
            started = time.perf_counter()
            probe(row)
            fastest_s = min(fastest_s, time.perf_counter() - started)
    return max(1, round(layers * run_ms / 1e3 / fastest_s))


def save(path: Path, form: str, run_ms: float) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    encoder = Encoder(layers_that_take(run_ms))
    forms = {"scripted": KeyOfInput, "frozen": KeyOfInput, "rows": KeysOfRows, "plain": Plain}
    model = forms.get(form, IdsOfRows)(encoder).requires_grad_(False).eval()
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name("unfinished-" + path.name)  # of the same ending
    if form == "exported":
        rows = torch.export.Dim("rows")
        program = torch.export.export(
            model,
            (torch.zeros(2, INPUTS), torch.arange(2)),
            dynamic_shapes=({0: rows}, {0: rows}),
        )
        torch._inductor.aoti_compile_and_package(program, package_path=str(unfinished))
    else:
        scripted = torch.jit.script(model)
        (modcache.freeze(scripted) if form == "frozen" else scripted).save(str(unfinished))
    unfinished.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("path", type=Path)
    parser.add_argument(
        "--form",
        choices=("scripted", "frozen", "rows", "plain", "exported"),
        default="scripted",
        help="what is saved, and who makes the keys",
    )
    parser.add_argument("--run-ms", type=float, default=12, help="how long a run takes here")
    options = parser.parse_args()
    save(options.path, options.form, options.run_ms)


if __name__ == "__main__":
    main()
