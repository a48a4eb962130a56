# SPDX-License-Identifier: Apache-2.0
"""What docs/recipes/pytorch-geometric.md takes from the reader."""

from __future__ import annotations

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GIN

FEATURES, WIDTH, CLASSES = 8, 16, 3


def graph(number: int, most: int) -> Data:
    """A ring with 0, 1 or 2 chords for each node, whose label is that number."""
    generator = torch.Generator().manual_seed(number)
    label = number % CLASSES
    nodes = int(torch.randint(3, most, (1,), generator=generator))
    ring = torch.arange(nodes)
    chords = torch.randint(nodes, (2, label * nodes), generator=generator)
    edges = torch.cat([torch.stack([ring, ring.roll(1)]), chords], 1)
    features = torch.randn(nodes, FEATURES, generator=generator)
    return Data(x=features, edge_index=torch.cat([edges, edges.flip(0)], 1), y=label)


def given(large: bool = False) -> dict[str, object]:
    """Random graphs, and a graph network that was not trained."""
    torch.manual_seed(0)
    count, most, width = (1024, 60, 128) if large else (14, 9, WIDTH)
    gnn = GIN(FEATURES, width, 5 if large else 2, norm="BatchNorm", dropout=0.5)
    return {
        "gnn": gnn,
        "width": width,
        "train": [graph(number, most) for number in range(count)],
        "val": [graph(-1 - number, most) for number in range(count // 2)],
        "classes": CLASSES,
        "epochs": 3,
    }
