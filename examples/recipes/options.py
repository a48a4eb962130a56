# SPDX-License-Identifier: Apache-2.0
"""The command line that the recipes share."""

from __future__ import annotations

import argparse
from pathlib import Path

_DEFAULT = Path(__file__).resolve().parents[1] / "output" / "recipes"


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """A parser with --dir, which describes itself by a recipe's docstring."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, default=_DEFAULT, help="the cache's directory")
    return parser


def folder_of(description: str | None) -> Path:
    """What --dir says."""
    folder: Path = parser_of(description).parse_args().dir
    return folder
