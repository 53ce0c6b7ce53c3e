"""The directory of one `headwater dev`: its database, its store, and a service config for them."""

from __future__ import annotations

import base64
import fcntl
import hmac
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ruamel.yaml import YAML

from headwater.errors import HeadwaterError
from headwater.source.connect import SourceSettings

AUDIENCE = "headwater-demo"


class WorkspaceError(HeadwaterError):
    """The directory can't be used."""

    code = "HW_8001"


class Workspace:
    """The paths below `root`: `scratch` is for temporary files, such as Spark's, `rules` for the sync config that was
    proposed for somebody's own database."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.database, self.store, self.scratch = root / "postgres", root / "store", root / "scratch"
        self.config, self.rules = root / "headwater.yaml", root / "sync.yaml"
        self.link = StudioLink(self.config)

    def write_config(
        self, source: SourceSettings, rules: Path, host: str, port: int, upload: dict[str, object] | None
    ) -> None:
        """Write a service config with a new signing key, readable by its owner only."""
        document: dict[str, object] = {
            "replication": {
                "connections": [
                    {
                        "type": "postgresql",
                        "hostname": source.host,
                        "port": source.port,
                        "database": source.database,
                        "username": source.user,
                        "password": source.password,
                        "sslmode": source.sslmode,
                        "publications": list(source.publications),
                        "slot_name_prefix": source.slot_prefix,
                        **({"cacert": source.cacert} if source.cacert else {}),
                    }
                ]
            },
            "storage": {"type": "sqlite", "path": str(self.store)},
            "client_auth": {
                "audience": [AUDIENCE],
                "jwks": {"keys": [{"kty": "oct", "alg": "HS256", "k": _new_secret()}]},
            },
            "host": host,
            "port": port,
            "sync_config": {"path": str(rules)},
            "api": {"tokens": [{"token": secrets.token_hex(32), "name": "developer"}]},
            **({} if upload is None else {"upload": upload}),
            "spark": {
                "conf": {
                    "spark.local.dir": str(self.scratch),
                    "spark.driver.defaultJavaOptions": f'"-Djava.io.tmpdir={self.scratch}"',
                }
            },
        }
        self.config.touch(mode=0o600)
        with self.config.open("w", encoding="utf-8") as file:
            YAML().dump(document, file)


class StudioLink:
    """The secret of a link that signs in to the studio and works once: it is a file beside the service config, which is
    deleted when the link is used."""

    def __init__(self, config: Path) -> None:
        self._file = config.with_name("studio-link")

    def make(self) -> str:
        """A new secret, in place of the one before."""
        secret = secrets.token_urlsafe(32)
        self._file.touch(mode=0o600)
        self._file.write_text(secret, encoding="utf-8")
        return secret

    def use(self, secret: str) -> bool:
        """Whether this is the secret, which it is only once."""
        try:
            known = self._file.read_text(encoding="utf-8")
            if not hmac.compare_digest(known.encode(), secret.encode("utf-8", "surrogatepass")):
                return False
            self._file.unlink()
        except FileNotFoundError:
            return False
        return True


def _new_secret() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()


@contextmanager
def open_workspace(keep: Path | None) -> Iterator[Workspace]:
    """A workspace in `keep`, which is kept, or in a new temporary directory, which is deleted at the end.

    Raises WorkspaceError when the directory can't be created or another process uses it.
    """
    try:
        root = Path(tempfile.mkdtemp(prefix="headwater-dev-")) if keep is None else keep.absolute()
        root.mkdir(parents=True, exist_ok=True)
        workspace = Workspace(root)
        workspace.scratch.mkdir(exist_ok=True)
    except OSError as error:
        where = str(keep or tempfile.gettempdir())
        raise WorkspaceError(
            f"the directory can't be created: {error.strerror}", where, "choose another one"
        ) from error
    try:
        with _locked(root):
            yield workspace
            shutil.rmtree(workspace.scratch, ignore_errors=True)
    finally:
        if keep is None:
            shutil.rmtree(root, ignore_errors=True)


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    with (root / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise WorkspaceError(
                "another headwater dev uses this directory", str(root), "stop it, or choose another directory"
            ) from error
        yield
