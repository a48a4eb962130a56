# SPDX-License-Identifier: Apache-2.0
"""The program that fills a server by docs/recipes/ray-data.md, and what the recipe takes.

python -c "import ray_driver; ray_driver.main()" ADDRESS FOLDER

Ray's processes import this too: it is on PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
from torch import nn

ROWS, BATCH, BLOCK, WORKERS = 2000, 50, 250, 2
RUN_S = 0.25
LOG = "MODCACHE_TEST_RUNS"  # a variable of the environment, which Ray hands on to its processes


def note(_: nn.Module, given: tuple[torch.Tensor]) -> None:
    """Logs each row that is about to run, and the process."""
    lines = "".join(f"{int(row)} {os.getpid()}\n" for row in given[0][:, 0])
    log = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND)
    os.write(log, lines.encode())
    os.close(log)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 16)
        self.linear.register_forward_pre_hook(note)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.linear(images)
        time.sleep(RUN_S)
        return features


def load_encoder() -> Encoder:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return Encoder()


def images_of(ids: torch.Tensor) -> torch.Tensor:
    """An image for each id, which it begins with."""
    return ids.float().reshape(-1, 1).expand(-1, 8).contiguous()


def with_images(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"], "image": images_of(torch.tensor(batch["id"])).numpy()}


def main() -> None:
    import ray
    import recipe

    address, folder = sys.argv[1:]
    ray.init(
        num_cpus=WORKERS,
        include_dashboard=False,
        object_store_memory=80 << 20,
        _temp_dir=folder,
    )
    rows = ray.data.range(ROWS, override_num_blocks=ROWS // BLOCK).map_batches(with_images)
    # A worker takes a whole CPU where nothing is said, and then none is left for what reads.
    needs = {"num_cpus": 0.5}
    names: Any = recipe.run(
        "ray-data",
        rows=rows,
        load_encoder=load_encoder,
        server=address,
        workers=WORKERS,
        batch_size=BATCH,
        needs=needs,
    )
    ray.shutdown()
    print(json.dumps(names["total"]))
