"""TLS as hosted databases have it: an authority of their own, the machine's, or none that anybody asks for."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.source.connect import SourceRefusedError, SourceSettings, connect
from headwater.source.slot import SnapshotKeeper
from headwater.storage.address import PostgresAddress
from headwater.storage.contract.store import StoreError
from headwater.storage.open import open_store
from tests.support.authority import Authority, Issued
from tests.support.command import headwater_here
from tests.support.fix_postgres import skip_without

COMPANY, STRANGER = Authority("a hosting company"), Authority("a stranger")
HOST = "localhost"
YESTERDAY = timedelta(days=-1)


@pytest.fixture
def served(postgres_with: Callable[..., EmbeddedPostgres]) -> Callable[[Issued], SourceSettings]:
    """Has a server show a certificate, and gives the settings that reach it, which trust nobody yet."""

    def serve(issued: Issued) -> SourceSettings:
        server = postgres_with()
        owner = server.data_dir.stat()
        for name, text in (("server.crt", issued.certificate), ("server.key", issued.key)):
            path = server.data_dir / name
            path.write_text(text)
            path.chmod(0o600)
            if os.getuid() == 0:
                os.chown(path, owner.st_uid, owner.st_gid)
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            skip_without("ssl", conn)
            conn.execute("alter system set ssl = on")
        server.stop()
        server.start()
        return SourceSettings(HOST, "postgres", "postgres", port=server.port)

    return serve


def encrypted(settings: SourceSettings) -> bool:
    with connect(settings) as conn:
        return conn.execute("select ssl from pg_stat_ssl where pid = pg_backend_pid()").fetchall() == [(True,)]


def refusal(settings: SourceSettings, **changes: str) -> str:
    with pytest.raises(SourceRefusedError) as caught:
        connect(replace(settings, **changes))  # type: ignore[arg-type]
    assert caught.value.fix
    return str(caught.value)


def store_at(settings: SourceSettings, sslmode: str, cacert: str | None) -> PostgresAddress:
    where = f"host={settings.host} port={settings.port} dbname=postgres user=postgres sslmode={sslmode}"
    return PostgresAddress(where, pem=(("sslrootcert", cacert),) if cacert else ())


def test_certificate_authority_and_host(
    served: Callable[[Issued], SourceSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = served(COMPANY.issue(HOST))
    ours = replace(settings, cacert=COMPANY.pem)
    assert encrypted(ours)
    SnapshotKeeper(ours, "looked", temporary=True).close()
    assert encrypted(replace(ours, sslmode="verify-ca", host="127.0.0.1"))
    assert encrypted(replace(settings, sslmode="require")), "no authority is asked"
    assert "certificate for another host name" in refusal(ours, host="127.0.0.1")
    assert re.search("unable to get local issuer certificate .*; put the certificate of the auth", refusal(settings))
    assert "unable to get local issuer certificate" in refusal(settings, cacert=STRANGER.pem)
    assert "unable to get local issuer certificate" in refusal(settings, cacert=STRANGER.pem, sslmode="verify-ca")
    assert "unable to get local issuer certificate" in refusal(settings, cacert=STRANGER.pem, sslmode="require")
    assert "cacert is no certificate" in refusal(settings, cacert="./ca.pem")
    with pytest.raises(StoreError, match=r"not trusted here: unable to get local issuer certificate.*set cacert"):
        open_store(store_at(settings, "verify-full", STRANGER.pem)).open_writer()
    open_store(store_at(settings, "verify-full", COMPANY.pem)).open_writer().close()

    trusted = tmp_path / "authorities.pem"
    trusted.write_text(STRANGER.pem + COMPANY.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))  # as an administrator adds one to the machine's
    for sslmode in ("verify-full", "verify-ca"):
        assert encrypted(replace(settings, sslmode=sslmode))
        open_store(store_at(settings, sslmode, None)).open_writer().close()


@pytest.mark.long
def test_expired_certificate_is_told_from_unknown(
    served: Callable[[Issued], SourceSettings],
) -> None:
    settings = served(COMPANY.issue(HOST, YESTERDAY))
    told = refusal(settings, cacert=COMPANY.pem)
    assert "certificate has expired" in told
    assert "renew the certificate of the server" in told
    assert encrypted(replace(settings, sslmode="require"))


@pytest.mark.long
def test_init_takes_authority_from_uri(
    served: Callable[[Issued], SourceSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = served(COMPANY.issue(HOST))
    with connect(replace(settings, sslmode="require")) as conn:
        conn.execute("create table notes (id text primary key, user_id text)")
    (tmp_path / "company.pem").write_text(COMPANY.pem)
    uri = f"postgresql://postgres@{HOST}:{settings.port}/postgres"
    arguments = ["init", "--yes", "--sdk", "none", "--force", "--uri"]
    unverified = headwater_here(*arguments, f"{uri}?sslmode=require", cwd=tmp_path)
    assert (unverified.code, "CAUTION" in unverified.out) == (0, True)
    assert "replication.connections[0].sslmode: require encrypts, but" in unverified.out
    assert "sslmode: require" in (tmp_path / "headwater.yaml").read_text()
    looked = headwater_here("doctor", cwd=tmp_path)
    assert "WARN  config" in looked.out
    assert "sslmode: require encrypts, but" in looked.out
    assert "ms away, encrypted" in looked.out
    untrusted = headwater_here(*arguments, f"{uri}?sslmode=verify-full", cwd=tmp_path)
    assert (untrusted.code, "?sslrootcert=FILE" in untrusted.err) == (1, True), untrusted.err
    missing = headwater_here(*arguments, f"{uri}?sslrootcert=nowhere.pem", cwd=tmp_path)
    assert (missing.code, "nowhere.pem" in missing.err) == (1, True), missing.err
    done = headwater_here(*arguments, f"{uri}?sslmode=verify-full&sslrootcert=company.pem", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "CREATE PUBLICATION" in done.out, "the source was reached"
    monkeypatch.chdir(tmp_path)
    assert headwater_here("source", "prepare", cwd=tmp_path).code == 0
