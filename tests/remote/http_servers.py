# SPDX-License-Identifier: Apache-2.0
"""Servers of plain HTTP and S3 that a test starts for itself, on a loopback address."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from redis_servers import free_port

HOST = "127.0.0.1"
STARTS_WITHIN_S = 30.0


@dataclass
class RunningProcess:
    """A server with all its processes, which form a group of their own."""

    command: list[str]
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self, is_ready: Callable[[], bool]) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )
        until = time.monotonic() + STARTS_WITHIN_S
        while not is_ready():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        if self.process is None:
            return
        self.send(signal.SIGKILL)
        self.process.wait()
        self.process = None


def answers(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/")
        connection.getresponse().read()
    except OSError:
        return False
    finally:
        connection.close()
    return True


def accepts(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=5).close()
    except OSError:
        return False
    return True


@dataclass
class Nginx:
    url: str
    root: Path
    running: RunningProcess
    port: int
    ca: Path | None = None

    def start(self) -> None:
        self.running.start(lambda: accepts(self.port))

    def kill(self) -> None:
        self.running.kill()

    def send(self, number: signal.Signals) -> None:
        self.running.send(number)


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for the loopback address, which is its own authority, and its key."""
    certificate, key = folder / "server.crt", folder / "server.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += [
        "-nodes",
        "-days",
        "2",
        "-subj",
        f"/CN={HOST}",
        "-addext",
        f"subjectAltName=IP:{HOST}",
    ]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def write_passwords(file: Path, user: str, password: str) -> None:
    digest = base64.b64encode(hashlib.sha1(password.encode()).digest()).decode()
    file.write_text(f"{user}:{{SHA}}{digest}\n")


def nginx_configuration(
    folder: Path, root: Path, port: int, *, inside: str, listen: str, methods: str
) -> str:
    user = "user root;" if os.geteuid() == 0 else ""
    temporary = "\n".join(
        f"  {kind}_temp_path {folder / 'temporary' / kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return f"""
{user}
daemon off;
worker_processes 1;
pid {folder / "nginx.pid"};
error_log {folder / "error.log"};
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_max_body_size 0;
{temporary}
  server {{
    listen {HOST}:{port}{listen};
{inside}
    location / {{
      root {root};
      {methods}
      create_full_put_path on;
    }}
  }}
}}
"""


@contextlib.contextmanager
def nginx(
    folder: Path,
    *,
    read_only: bool = False,
    may_delete: bool = True,
    user: str = "",
    password: str = "",
    tls: bool = False,
    root: Path | None = None,
    more: str = "",
) -> Iterator[Nginx]:
    """nginx with PUT and DELETE. ``root``: where its files lie. ``more``: lines of its server."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "temporary").mkdir()
    root = root or folder / "root"
    root.mkdir(exist_ok=True)
    port = free_port()
    inside, listen, ca = more + "\n", "", None
    if tls:
        ca, key = make_certificate(folder)
        listen = " ssl"
        inside += f"    ssl_certificate {ca};\n    ssl_certificate_key {key};\n"
    if user:
        write_passwords(folder / "passwords", user, password)
        inside += f'    auth_basic "cache";\n    auth_basic_user_file {folder / "passwords"};\n'
    deletes = " DELETE" if may_delete else ""
    methods = "" if read_only else f"dav_methods PUT{deletes};"
    configuration = folder / "nginx.conf"
    configuration.write_text(
        nginx_configuration(folder, root, port, inside=inside, listen=listen, methods=methods)
    )
    command = [
        "nginx",
        "-c",
        str(configuration),
        "-p",
        str(folder),
        "-e",
        str(folder / "error.log"),
    ]
    credentials = f"{user}:{password}@" if user else ""
    url = f"{'https' if tls else 'http'}://{credentials}{HOST}:{port}/cache"
    server = Nginx(url, root, RunningProcess(command, folder / "nginx.log"), port, ca)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@dataclass
class S3:
    address: str
    endpoint: str
    running: RunningProcess
    environment: dict[str, str]  # with the credentials


def boto3_client(endpoint: str, environment: dict[str, str], service: str):  # type: ignore[no-untyped-def]
    import boto3

    return boto3.client(
        service,
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
    )


def make_user(endpoint: str, environment: dict[str, str]) -> dict[str, str]:
    """A user of the server who may do everything with S3, and whose signatures it checks."""
    iam = boto3_client(endpoint, environment, "iam")
    iam.create_user(UserName="cache")
    statement = '{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}'
    document = f'{{"Version": "2012-10-17", "Statement": [{statement}]}}'
    iam.put_user_policy(UserName="cache", PolicyName="all", PolicyDocument=document)
    key = iam.create_access_key(UserName="cache")["AccessKey"]
    return {
        "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
    }


@contextlib.contextmanager
def s3(folder: Path, *, checks_signatures: bool = False) -> Iterator[S3]:
    """moto's server with one bucket."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)]
    # Four requests make the bucket and the user; later ones have to be signed.
    free = {"INITIAL_NO_AUTH_ACTION_COUNT": "4"} if checks_signatures else {}
    running = RunningProcess(command, folder / "moto.log", free)
    running.start(lambda: accepts(port))
    endpoint = f"http://{HOST}:{port}"
    environment = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    try:
        boto3_client(endpoint, environment, "s3").create_bucket(Bucket="values")
        if checks_signatures:
            environment = make_user(endpoint, environment)
        yield S3(f"s3://values/some/cache?endpoint={endpoint}", endpoint, running, environment)
    finally:
        running.kill()
