"""Certificates are given to libpq as files in a folder that everybody may have made before us."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from headwater.errors import HeadwaterError
from headwater.tls import pem_file, system_authorities

PEM = "-----BEGIN CERTIFICATE-----\nours\n-----END CERTIFICATE-----\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the files will be; it does not exist yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"headwater-tls-{os.getuid()}"


def test_pem_file(folder: Path) -> None:
    path = Path(pem_file(PEM))
    assert (path.parent, path.read_text(), path.stat().st_mode & 0o077) == (folder, PEM, 0)
    path.write_text("of somebody else")
    assert Path(pem_file(PEM)).read_text() == PEM
    elsewhere = folder / "elsewhere"
    elsewhere.write_text(PEM)
    path.unlink()
    path.symlink_to(elsewhere)
    assert not Path(pem_file(PEM)).is_symlink()


def test_folder_of_others(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)
    with pytest.raises(HeadwaterError, match=r"HW_2008.*open to other users"):
        pem_file(PEM)
    folder.rmdir()
    (tmp_path / "theirs").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "theirs")
    with pytest.raises(HeadwaterError, match=r"HW_2008.*is not a directory"):
        pem_file(PEM)
    assert list((tmp_path / "theirs").iterdir()) == []


def test_missing_authorities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "nowhere.pem"))
    with pytest.raises(HeadwaterError, match=r"HW_2009.*SSL_CERT_FILE names no file.*nowhere\.pem"):
        system_authorities()
    (tmp_path / "nowhere.pem").write_text(PEM)
    assert system_authorities() == str(tmp_path / "nowhere.pem")
