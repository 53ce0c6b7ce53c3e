"""Certificates for libpq, which only takes paths, and what it leaves unsaid about those that it does not trust."""

from __future__ import annotations

import hashlib
import os
import socket
import ssl
import stat
import struct
import tempfile
from pathlib import Path

import certifi

from headwater.errors import HeadwaterError

_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, Red Hat, Amazon Linux
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # macOS, BSD
)
_SSL_REQUEST = struct.pack("!II", 8, 80877103)
_LOOK_SECONDS = 5.0


def system_authorities() -> str:
    """The path of the authorities that this machine trusts, where the libpq in the psycopg wheel does not look by
    itself. SSL_CERT_FILE names another; a machine without any gets those of Mozilla. Raises HW_2009."""
    named = os.environ.get("SSL_CERT_FILE")
    if named and not Path(named).is_file():
        what = "the environment variable SSL_CERT_FILE names no file, so no certificate can be verified"
        raise HeadwaterError(what, named, "correct or unset it", code="HW_2009")
    found = ssl.get_default_verify_paths().cafile  # None where OpenSSL's own place has no such file
    return found or next((each for each in _BUNDLES if Path(each).is_file()), certifi.where())


def pem_file(text: str) -> str:
    """The path of a private file with this text, named by its hash. Raises HW_2008."""
    folder = Path(tempfile.gettempdir()) / f"headwater-tls-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    _check_private(folder)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.pem"
    if not _holds(path, text):
        handle, temporary = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    return str(path)


def _check_private(folder: Path) -> None:
    """Everybody may write to the folder above, so what is found there may be somebody else's, or a link."""
    found = folder.lstat()
    what, fix = "", "remove it"
    if not stat.S_ISDIR(found.st_mode):
        what = "the certificate path is not a directory"
    elif found.st_uid != os.getuid():
        what = "the certificate directory belongs to another user"
    elif found.st_mode & 0o077:
        what, fix = "the certificate directory is open to other users", "remove it with all that is in it"
    if what:
        raise HeadwaterError(what, str(folder), fix, code="HW_2008")


def _holds(path: Path, text: str) -> bool:
    try:
        return not path.is_symlink() and path.read_bytes() == text.encode()
    except FileNotFoundError:
        return False


def root_certificates(sslmode: str, cacert: str | None) -> str | None:
    """The path of the authorities that may vouch for a server; None where none has to. `cacert` is PEM text."""
    if cacert:
        return pem_file(cacert)
    return system_authorities() if sslmode.startswith("verify") else None  # with a file, libpq verifies for `require`


def why_untrusted(host: str, port: int, cacert: str | None) -> str:
    """What is wrong with the certificate of a Postgres server, as OpenSSL says it: libpq only says that something is.
    Asks the server; empty if nothing is found. `cacert` is PEM text, None for the authorities of this machine."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(pem_file(cacert) if cacert else system_authorities())
        with socket.create_connection((host, port), _LOOK_SECONDS) as plain:
            plain.sendall(_SSL_REQUEST)
            if plain.recv(1) == b"S":
                context.wrap_socket(plain, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except (OSError, HeadwaterError):
        pass  # the failure that is being explained has been reported already
    return ""
