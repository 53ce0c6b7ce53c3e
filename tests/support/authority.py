"""An authority that signs certificates of servers, as a hosting company has one of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Issued:
    """A server's certificate and key, as PEM text."""

    certificate: str
    key: str


@dataclass(slots=True)
class Authority:
    """Signs with a key of its own, which nobody trusts yet."""

    name: str
    _key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    @property
    def pem(self) -> str:
        """Its own certificate, which who trusts it has."""
        made = self._signed(self.name, self._key.public_key(), 10 * _DAY)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        return made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()

    def issue(self, host: str, valid_for: timedelta = _DAY) -> Issued:
        """A certificate for a host. With a negative time it is out of date."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._signed(host, key.public_key(), valid_for)
        made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        return Issued(
            made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM).decode(),
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
        )

    def _signed(self, subject: str, key: ec.EllipticCurvePublicKey, valid_for: timedelta) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(_name(subject))
            .issuer_name(_name(self.name))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 5 * _DAY)
            .not_valid_after(now + valid_for)
        )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
