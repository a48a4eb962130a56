# SPDX-License-Identifier: Apache-2.0
"""Writes a golden model: python make_model.py DIR (a directory that is not there yet).

python make_model.py MODEL FROZEN writes a golden model once more, frozen by modcache.freeze: what a
version of modcache lowers stays readable, too, and hits what MODEL's directory has.

Run once for each version of modcache whose models users have, with the library of that version;
what it wrote is committed and never made again, since it stands for files that users keep:

    DIR/model.pt   a scripted model that caches its encoder through every public schema; it holds
                   its input and, as `expected`, what its encoder computed
    DIR/cache      the directory that this version filled from it

Every method of the model but `calls` makes one call of the cache and hands out what it got.
"""

# No `from __future__ import annotations`: TorchScript reads the annotations of attributes.

import sys
import zipfile
from pathlib import Path
from typing import Dict, List, Tuple  # noqa: UP035  (TorchScript reads these)

import modcache
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 6)
        self.norm = nn.LayerNorm(6)
        self.gain = 1.5
        self.register_buffer("shift", torch.linspace(-1, 1, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.project(x))) * self.gain + self.shift

    @torch.jit.export
    def parts(self, x: torch.Tensor) -> Dict[str, torch.Tensor]:  # noqa: UP006
        features = self.forward(x)
        return {"features": features, "sum": features.sum(-1)}

    @torch.jit.export
    def pair(self, x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:  # noqa: UP006
        features = self.forward(x)
        return features, features > 0


class Classifier(nn.Module):
    expected: Dict[str, torch.Tensor]  # noqa: UP006
    keys: List[str]  # noqa: UP006

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Linear(6, 2)
        self.x = torch.linspace(-2, 2, 12).reshape(3, 4)
        self.ids = torch.tensor([7, -1, 1 << 40])
        self.keys = ["train/000017.jpg", "ключ", "x"]
        self.expected = {}

    def forward(self, x: torch.Tensor, key: str) -> torch.Tensor:
        return self.head(torch.ops.cache.lookup_or_run(self.encoder, x, key))

    @torch.jit.export
    def one_key(self) -> torch.Tensor:
        return torch.ops.cache.lookup_or_run(self.encoder, self.x, "batch")

    @torch.jit.export
    def text_keys(self) -> torch.Tensor:
        return torch.ops.cache.lookup_or_run(self.encoder, self.x, self.keys)

    @torch.jit.export
    def id_keys(self) -> torch.Tensor:
        return torch.ops.cache.lookup_or_run(self.encoder, self.x, self.ids)

    @torch.jit.export
    def one_key_of_scope(self) -> torch.Tensor:
        return torch.ops.cache.lookup_or_run(self.encoder, self.x, "batch", scope="golden@1")

    @torch.jit.export
    def text_keys_of_scope(self) -> torch.Tensor:
        return torch.ops.cache.lookup_or_run(self.encoder, self.x, self.keys, scope="golden@1")

    @torch.jit.export
    def parts(self) -> Dict[str, torch.Tensor]:  # noqa: UP006
        result = torch.ops.cache.lookup_or_run_any(self.encoder, self.x, "batch", method="parts")
        assert isinstance(result, Dict[str, torch.Tensor])  # noqa: UP006
        return result

    @torch.jit.export
    def pair_of_rows(self) -> Tuple[torch.Tensor, torch.Tensor]:  # noqa: UP006
        result = torch.ops.cache.lookup_or_run_any(
            self.encoder, self.x, self.ids, scope="golden@1", method="pair"
        )
        assert isinstance(result, Tuple[torch.Tensor, torch.Tensor])  # noqa: UP006
        return result

    @torch.jit.export
    def calls(self) -> Dict[str, torch.Tensor]:  # noqa: UP006
        """Makes every call; its result has the names of `expected`."""
        parts = self.parts()
        first, second = self.pair_of_rows()
        return {
            "one_key": self.one_key(),
            "text_keys": self.text_keys(),
            "id_keys": self.id_keys(),
            "one_key_of_scope": self.one_key_of_scope(),
            "text_keys_of_scope": self.text_keys_of_scope(),
            "parts.features": parts["features"],
            "parts.sum": parts["sum"],
            "pair_of_rows.0": first,
            "pair_of_rows.1": second,
        }


def save(model: torch.jit.ScriptModule, file: Path) -> None:
    """Without debug information, which names paths of the machine that this runs on."""
    whole = file.with_suffix(".whole")
    model.save(str(whole))
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(file, "w") as target:
        for item in source.infolist():
            if not item.filename.endswith(".debug_pkl"):
                target.writestr(item, source.read(item))
    whole.unlink()


def make(directory: Path) -> None:
    directory.mkdir()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Classifier().requires_grad_(False).eval()
    scripted = torch.jit.script(model)
    modcache.configure(dir=directory / "cache", disk="4MB")
    scripted.expected = scripted.calls()
    modcache.flush()
    save(scripted, directory / "model.pt")


def make_frozen(model: Path, frozen: Path) -> None:
    save(modcache.freeze(torch.jit.load(str(model)).eval()), frozen)


if __name__ == "__main__":
    if len(sys.argv) == 3 and not Path(sys.argv[2]).exists():
        make_frozen(Path(sys.argv[1]), Path(sys.argv[2]))
        sys.exit()
    if len(sys.argv) != 2 or Path(sys.argv[1]).exists():
        sys.exit("usage: make_model.py DIR, or MODEL FROZEN (what is written is not there yet)")
    make(Path(sys.argv[1]))
    # Empty by now, and only of use to running processes.
    modcache.configure(dir=Path(sys.argv[1]).parent / "elsewhere")
    for name in ("index.sqlite-wal", "index.sqlite-shm"):
        (Path(sys.argv[1]) / "cache" / name).unlink(missing_ok=True)
