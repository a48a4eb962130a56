# SPDX-License-Identifier: Apache-2.0
"""A cluster of real nodes on loopback that fails over and moves slots while tests use it.

A shard is a primary with its replicas. It keeps its index when a replica becomes the primary.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from redis_servers import RedisServer, free_port, wait_until
from redis_wire import Reply, text_of

SLOTS = 16384
SETTLE_S = 30.0
MIGRATE_MS = 5000


@dataclass(frozen=True)
class NodeView:
    """What one node says about another, or about itself: a line of CLUSTER NODES."""

    identity: str
    port: int
    flags: frozenset[str]
    primary: str
    linked: bool
    slots: frozenset[int]

    @classmethod
    def of(cls, line: str) -> NodeView:
        identity, place, flags, primary, _, _, _, link, *slots = line.split()
        port = int(place.partition("@")[0].rpartition(":")[2])
        owned: set[int] = set()
        for part in slots:
            if not part.startswith("["):  # that would be a slot on its way
                first, _, last = part.partition("-")
                owned.update(range(int(first), int(last or first) + 1))
        known = frozenset(flags.split(","))
        return cls(identity, port, known, primary, link == "connected", frozenset(owned))

    @property
    def is_well(self) -> bool:
        ill = {"handshake", "fail?", "fail", "noaddr"}
        return not (self.flags & ill) and (self.linked or "myself" in self.flags)


class ClusterNode(RedisServer):
    """One node; its port for other nodes is chosen as well, since the usual one can be none."""

    bus_port = 0

    def _choose_ports(self) -> None:
        super()._choose_ports()
        self.bus_port = free_port()

    def _lines(self) -> list[str]:
        own = super()._lines()
        if self._password:
            own.append(f"masterauth {self._password}")
        return [
            f"cluster-port {self.bus_port}",
            "cluster-enabled yes",
            "cluster-config-file nodes.conf",
            "cluster-require-full-coverage no",
            # A replica takes over however old its data is, and stays with its shard.
            "cluster-replica-validity-factor 0",
            "cluster-allow-replica-migration no",
            *own,
        ]

    def identity(self) -> str:
        return self.cli("CLUSTER", "MYID")

    def cluster_info(self) -> dict[str, str]:
        lines = self.cli("CLUSTER", "INFO").splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def knows(self, ports: set[int]) -> bool:
        return {view.port for view in self.views() if view.is_well} == ports

    def views(self) -> list[NodeView]:
        return [NodeView.of(line) for line in self.cli("CLUSTER", "NODES").splitlines() if line]

    def view(self) -> NodeView:
        """Its own."""
        return next(view for view in self.views() if "myself" in view.flags)


class RedisCluster:
    """A cluster that ``with`` starts and kills. Replicas go to the primaries in turn."""

    def __init__(
        self,
        folder: Path,
        primaries: int = 3,
        replicas: int = 3,
        *,
        config: Mapping[str, str | int] | None = None,
        binary: str = "redis-server",
        password: str = "",
        persistent: bool = False,
        node_timeout_ms: int = 1000,
    ) -> None:
        settings = {"cluster-node-timeout": node_timeout_ms, **(config or {})}
        self._shards = primaries
        self.nodes = [
            ClusterNode(
                folder / f"node-{i}",
                config=settings,
                binary=binary,
                password=password,
                persistent=persistent,
            )
            for i in range(primaries + replicas)
        ]
        self._password = password

    @property
    def address(self) -> str:
        """It names the nodes that were primaries at the start."""
        ports = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[: self._shards])
        return f"redis+cluster://{self.nodes[0]._credentials()}{ports}"

    # --- Start and end ---

    def __enter__(self) -> RedisCluster:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def start(self) -> None:
        for node in self.nodes:
            node.spawn()
        for node in self.nodes:
            node.wait_until_ready()
        self._make_primaries()
        self._introduce()
        self._make_replicas()
        self.wait_until_settled()

    def _make_primaries(self) -> None:
        for i, node in enumerate(self.nodes):
            # Two nodes of one epoch would argue about slots for a while.
            node.cli("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        for i, node in enumerate(self.nodes[: self._shards]):
            first, end = (SLOTS * edge // self._shards for edge in (i, i + 1))
            node.cli("CLUSTER", "ADDSLOTSRANGE", first, end - 1)

    def _introduce(self) -> None:
        """Every node to every other, since hearsay of nodes takes seconds."""
        for i, node in enumerate(self.nodes):
            others = self.nodes[i + 1 :]
            node.ask_all(*(("CLUSTER", "MEET", "127.0.0.1", to.port, to.bus_port) for to in others))
        ports = {node.port for node in self.nodes}
        for node in self.nodes:
            wait_until(functools.partial(node.knows, ports), f"{node.log} knows all nodes")

    def _make_replicas(self) -> None:
        primaries = [node.identity() for node in self.nodes[: self._shards]]
        for i, node in enumerate(self.nodes[self._shards :]):
            node.cli("CLUSTER", "REPLICATE", primaries[i % self._shards])

    # --- Who is what ---

    def shard(self, index: int) -> list[ClusterNode]:
        """Its nodes, with those that are down."""
        return self.nodes[index :: self._shards] if index < self._shards else []

    def primary(self, index: int) -> ClusterNode:
        """The one that answers and has the shard's slots by its own account."""
        found = [n for n in self.shard(index) if n.answering and "master" in n.view().flags]
        assert found, f"no primary of shard {index} answers"
        return max(found, key=lambda node: len(node.view().slots))

    def keys(self) -> int:
        """How many all primaries have."""
        nodes = (self.primary(i) for i in range(self._shards))
        return sum(int(node.cli("DBSIZE")) for node in nodes)

    def is_settled(self) -> bool:
        """All that answer agree who has which slot and who follows whom, no slot is missing, and
        the replicas among them have their primary's data."""
        answering = [node for node in self.nodes if node.answering]
        ports = {node.port for node in answering}
        accounts: set[frozenset[tuple[int, str, frozenset[int]]]] = set()
        for node in answering:
            views = [view for view in node.views() if view.port in ports]
            if {view.port for view in views if view.is_well} != ports:
                return False
            if node.cluster_info()["cluster_state"] != "ok":
                return False
            if sum(len(view.slots) for view in views) != SLOTS:
                return False
            if not (node.is_primary() or node.is_linked()):
                return False
            accounts.add(frozenset((v.port, v.primary, v.slots) for v in views))
        return len(accounts) == 1

    def wait_until_settled(self, timeout_s: float = SETTLE_S) -> None:
        wait_until(self.is_settled, "the cluster agrees", timeout_s)

    # --- Failing over ---

    def kill_primary(self, index: int) -> ClusterNode:
        """The killed node, whose ``restart`` brings it back as a replica."""
        node = self.primary(index)
        node.kill()
        return node

    def wait_until_failed_over(self, timeout_s: float = SETTLE_S) -> None:
        """Until nodes that answer have all slots again, and agree about them."""
        wait_until(self.is_settled, "replicas took over", timeout_s)

    def fail_over(self, index: int = 0) -> ClusterNode:
        """The shard's replica and its primary change places without a loss. The new primary."""
        old = self.primary(index)
        replica = next(node for node in self.shard(index) if node.answering and node is not old)
        replica.cli("CLUSTER", "FAILOVER")
        wait_until(lambda: replica.is_primary() and not old.is_primary(), "the two changed places")
        self.wait_until_settled()
        return replica

    # --- Moving slots ---

    def migrate_slots(
        self, from_index: int, to_index: int, count: int, pause: float = 0.01, group: int = 10
    ) -> int:
        """Moves the ``count`` slots that have most keys. How many keys moved.

        ``pause``: seconds after each ``group`` of keys, in which clients get ASK for those that
        went and the value of those that did not; after the last group they get MOVED.
        """
        source, target = self.primary(from_index), self.primary(to_index)
        slots = sorted(source.view().slots)
        counted = source.ask_all(*(("CLUSTER", "COUNTKEYSINSLOT", slot) for slot in slots))
        keys = dict(zip(slots, (int(text_of(number)) for number in counted), strict=True))
        fullest = sorted(slots, key=lambda slot: -keys[slot])[:count]
        moved = sum(self._migrate_slot(slot, source, target, pause, group) for slot in fullest)
        self.wait_until_settled()
        return moved

    def _migrate_slot(
        self, slot: int, source: ClusterNode, target: ClusterNode, pause: float, group: int
    ) -> int:
        target.cli("CLUSTER", "SETSLOT", slot, "IMPORTING", source.identity())
        source.cli("CLUSTER", "SETSLOT", slot, "MIGRATING", target.identity())
        moved = 0
        while keys := _keys(source.ask("CLUSTER", "GETKEYSINSLOT", slot, group)):
            secret = ("AUTH", self._password) if self._password else ()
            place = ("127.0.0.1", target.port, "", 0, MIGRATE_MS)
            source.cli("MIGRATE", *place, *secret, "KEYS", *keys)
            moved += len(keys)
            time.sleep(pause)
        # The target is told first: a slot that nobody claims would otherwise be possible.
        identity = target.identity()
        others = (self.primary(i) for i in range(self._shards))
        for node in (target, source, *(n for n in others if n not in (target, source))):
            node.cli("CLUSTER", "SETSLOT", slot, "NODE", identity)
        return moved


def _keys(reply: Reply) -> list[bytes]:
    assert isinstance(reply, list), reply
    return [key for key in reply if isinstance(key, bytes)]
