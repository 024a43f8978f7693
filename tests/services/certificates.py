"""Certificates made on the fly: an authority of its own for each test that asks."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import trustme
from cryptography.hazmat.primitives import serialization
from tests.services.ports import LOOPBACK


class Identity(NamedTuple):
    """Who one end of a TLS connection is (a PEM file: key, then certificate), and whom it believes."""

    pem: Path
    authority: Path


class Authority:
    """Signs certificates; who believes another authority believes none of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = trustme.CA()
        self.pem = folder / "authority.pem"
        self._authority.cert_pem.write_to_path(self.pem)

    def issue(self, name: str) -> Identity:
        """Make a key and a certificate for a client of that name, or for a server on loopback."""
        issued = self._authority.issue_cert(LOOPBACK, "localhost", common_name=name)
        # Java reads keys as PKCS #8 only.
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        pem = self._folder / f"{name}.pem"
        pem.touch(0o600)
        pem.write_bytes(key + b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        return Identity(pem, self.pem)
