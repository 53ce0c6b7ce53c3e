"""Configs of tests, and what loading one gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.cli.config import ServiceConfig, load_config
from headwater.config import ConfigSource
from headwater.config.document import ConfigError

KEY = "{kty: oct, alg: HS256, kid: k, k: c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA}"
MINIMAL = f"""
replication:
  connections:
    - {{type: postgresql, uri: "postgresql://app:pass@db.example:5433/shop", sslmode: disable}}
storage: {{type: sqlite, path: data}}
client_auth: {{jwks: {{keys: [{KEY}]}}, audience: [app]}}
sync_config: {{path: sync.yaml}}
"""


def load(tmp_path: Path, text: str, name: str = "headwater.yaml", **environment: str) -> ServiceConfig:
    file = tmp_path / name
    file.write_text(text)
    return load_config(ConfigSource(path=file), environment, tmp_path)


def mistakes(tmp_path: Path, text: str, **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, **environment)
    return str(caught.value)


SOURCE = "replication:\n  connections:\n  - "
