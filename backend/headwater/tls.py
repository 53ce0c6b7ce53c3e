"""Certificates for libpq, which only takes paths: writes the text from the config into private files."""

from __future__ import annotations

import hashlib
import os
import ssl
import tempfile
from pathlib import Path

from headwater.errors import HeadwaterError


class CertificateFolderError(HeadwaterError):
    """The folder for certificates belongs to another user."""

    code = "HW_2008"


def system_authorities() -> str:
    """The path of this machine's trusted authorities, where the libpq in the psycopg wheel does not look by itself."""
    return ssl.get_default_verify_paths().cafile or "system"


def pem_file(text: str) -> str:
    """The path of a private file with this text, named by its hash. Raises CertificateFolderError."""
    folder = Path(tempfile.gettempdir()) / f"headwater-tls-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise CertificateFolderError("the folder for certificates belongs to another user", str(folder), "remove it")
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.pem"
    if not path.exists():
        handle, temporary = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    return str(path)
