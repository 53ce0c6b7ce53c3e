"""The poolers of hosting companies are recognised by their addresses, and no database is taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.cli.init.run import run
from headwater.config.document import ConfigError
from headwater.source.connect import known_pooler
from tests.unit.config.configs import MINIMAL, mistakes

_SUPABASE = "aws-0-eu-central-1.pooler.supabase.com"
_NEON = "ep-cool-leaf-12-pooler.c-2.us-east-2.aws.neon.tech"
_CHINA = ".rds.cn-north-1.amazonaws.com.cn"
_AZURE = "shop.postgres.database.azure.com"
_OCEAN = "db-postgresql-ams3-1-do-user-1-0.c.db.ondigitalocean.com"
_BRIDGE = "p.abcdef.db.postgresbridge.com"


@pytest.mark.parametrize(
    ("host", "port", "user", "direct"),
    [
        (_SUPABASE, 6543, "postgres.abcd", "db.abcd.supabase.co, port 5432, user postgres,"),
        (_SUPABASE, 5432, "app.abcd", "db.abcd.supabase.co, port 5432, user app,"),
        (_SUPABASE.upper(), 5432, "postgres", "db.PROJECT.supabase.co, port 5432, user postgres,"),
        ("db.abcd.supabase.co", 6543, "postgres", "db.abcd.supabase.co, port 5432,"),
        (_NEON, 5432, "u", _NEON.replace("-pooler", "")),
        ("ep-cool-leaf-12-pooler.eastus2.azure.neon.tech", 5432, "u", "ep-cool-leaf-12.eastus2.azure.neon.tech"),
        ("shop.proxy-ab12.us-east-1.rds.amazonaws.com", 5432, "u", "NAME.cluster-ID.us-east-1.rds.amazonaws.com"),
        ("ro.endpoint.proxy-ab12" + _CHINA, 5432, "u", f"NAME.ID{_CHINA},"),
        (_AZURE, 6432, "u", f"{_AZURE}, port 5432"),
        (_OCEAN, 25061, "u", f"{_OCEAN}, port 25060"),
        (_BRIDGE, 5431, "u", f"{_BRIDGE}, port 5432"),
    ],
)
def test_known_pooler(host: str, port: int, user: str, direct: str) -> None:
    found = known_pooler(host, port, user)
    assert found is not None
    assert direct in f"{found.direct},"


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("db.abcd.supabase.co", 5432),
        ("ep-cool-leaf-12.c-2.us-east-2.aws.neon.tech", 5432),
        ("shop.ab12.us-east-1.rds.amazonaws.com", 5432),
        ("shop.ab12.rds.cn-north-1.amazonaws.com.cn", 5432),
        ("proxy-shop.ab12.us-east-1.rds.amazonaws.com", 5432),
        ("shop.cluster-ab12.us-east-1.rds.amazonaws.com", 5432),
        (_AZURE, 5432),
        (_OCEAN, 25060),
        (_BRIDGE, 5432),
        ("10.0.0.7", 6432),
        ("pooler.example.com", 6543),
    ],
)
def test_database_is_no_pooler(host: str, port: int) -> None:
    assert known_pooler(host, port, "app") is None


def test_config_with_a_pooler(tmp_path: Path) -> None:
    uri = f"postgresql://postgres.abcd:secret@{_SUPABASE}:6543/postgres"
    source = mistakes(tmp_path, MINIMAL.replace("postgresql://app:pass@db.example:5433/shop", uri))
    assert "replication.connections[0].uri: is Supabase's pooler" in source
    assert "use db.abcd.supabase.co, port 5432, user postgres, which is reached by IPv6" in source
    assert "secret" not in source
    host = "hostname: ep-a-1-pooler.eu.aws.neon.tech, database: d, username: u"
    store = mistakes(tmp_path, MINIMAL.replace("{type: sqlite, path: data}", f"{{type: postgresql, {host}}}"))
    assert "storage.hostname: is Neon's pooler" in store
    assert "use ep-a-1.eu.aws.neon.tech" in store


def test_init_with_a_pooler(tmp_path: Path) -> None:
    uri = f"postgresql://postgres.abcd:secret@{_SUPABASE}:6543/postgres"
    with pytest.raises(ConfigError, match=r"--uri.*|use db\.abcd\.supabase\.co") as caught:
        run([uri], tmp_path, ask=False, force=False)
    assert "use db.abcd.supabase.co, port 5432, user postgres" in str(caught.value)
