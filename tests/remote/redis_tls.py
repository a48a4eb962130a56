# SPDX-License-Identifier: Apache-2.0
"""A Redis that speaks TLS alone, and the certificates for it, made on the spot."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from redis_servers import EVERYTHING, RedisServer

SERVER_NAMES = "IP:127.0.0.1,DNS:localhost"


class Certificates:
    """An authority, and what it signed for a server and for a client. They last two days.

    ``names``: those of the server. Tests that want a stranger make a second authority.
    """

    def __init__(self, folder: Path, *, names: str = SERVER_NAMES) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ca, self._ca_key = self._make("ca", "basicConstraints=critical,CA:TRUE", "")
        self.server, self.server_key = self._make("server", f"subjectAltName={names}", "ca")
        self.client, self.client_key = self._make("client", "extendedKeyUsage=clientAuth", "ca")

    def _make(self, name: str, extension: str, signer: str) -> tuple[Path, Path]:
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        command: list[str | Path] = ["openssl", "req", "-x509", "-nodes", "-days", "2"]
        # The settings of the system would add that every certificate is an authority's.
        command += ["-config", self._settings(), "-subj", f"/CN=modcache test {name}"]
        command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        command += ["-addext", extension, "-keyout", key, "-out", certificate]
        if signer:
            command += ["-CA", self.folder / f"{signer}.pem"]
            command += ["-CAkey", self.folder / f"{signer}.key"]
        made = subprocess.run(command, capture_output=True, text=True)
        assert made.returncode == 0, made.stderr
        return certificate, key

    def _settings(self) -> Path:
        file = self.folder / "openssl.cnf"
        file.write_text("[req]\ndistinguished_name = name\n[name]\n")
        return file


class TlsRedisServer(RedisServer):
    """Its port takes TLS alone; its unix socket is plain, and is for the tests themselves.

    ``client_certificates``: the server asks for one, so the address names the client's.
    """

    def __init__(
        self,
        folder: Path,
        *,
        certificates: Certificates | None = None,
        client_certificates: bool = False,
        config: Mapping[str, str | int] | None = None,
        binary: str = "redis-server",
        persistent: bool = False,
        password: str = "",
        user: str = "",
        allowed: str = EVERYTHING,
    ) -> None:
        super().__init__(
            folder,
            config=config,
            binary=binary,
            persistent=persistent,
            password=password,
            user=user,
            allowed=allowed,
        )
        self.certificates = certificates or Certificates(self.folder / "certificates")
        self._client_certificates = client_certificates

    def address_at(self, port: int) -> str:
        given = {"ca": self.certificates.ca}
        if self._client_certificates:
            given["cert"] = self.certificates.client
            given["key"] = self.certificates.client_key
        query = "&".join(f"{name}={quote(str(path))}" for name, path in given.items())
        return f"rediss://{self._credentials()}127.0.0.1:{port}/0?{query}"

    def _lines(self) -> list[str]:
        return [
            *super()._lines(),
            "port 0",
            f"tls-port {self.port}",
            f'tls-ca-cert-file "{self.certificates.ca}"',
            f'tls-cert-file "{self.certificates.server}"',
            f'tls-key-file "{self.certificates.server_key}"',
            f"tls-auth-clients {'yes' if self._client_certificates else 'no'}",
        ]

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.certificates.ca))
        if self._client_certificates:
            context.load_cert_chain(self.certificates.client, self.certificates.client_key)
        return context
