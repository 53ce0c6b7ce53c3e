"""A device in Python: a local SQLite that works offline and syncs with a server of the PowerSync protocol.

db = Database("app.db", {"todos": {"title": "text", "done": "integer"}})
db.connect(UploadConnector("https://sync.example.com", token))
db["todos"].insert({"title": "milk", "done": 0})
"""

from __future__ import annotations

from headwater_client.attachments import ATTACHMENTS, Attachment, AttachmentQueue, RemoteStorage
from headwater_client.database.connector import REFUSALS, DownloadConnector, Refusal, UploadConnector
from headwater_client.database.database import Connector, CrudBatch, CrudTransaction, Database, Subscription
from headwater_client.errors import ClientError
from headwater_client.schema import RawTable, Schema, Statement, Table, TrackPrevious
from headwater_client.storage.uploads import CrudEntry
from headwater_client.sync.options import ConnectOptions
from headwater_client.sync.status import Progress, SyncStatus
from headwater_client.transport.http import Credentials
from headwater_client.version import VERSION

__all__ = [
    "ATTACHMENTS",
    "REFUSALS",
    "Attachment",
    "AttachmentQueue",
    "ClientError",
    "ConnectOptions",
    "Connector",
    "Credentials",
    "CrudBatch",
    "CrudEntry",
    "CrudTransaction",
    "Database",
    "DownloadConnector",
    "Progress",
    "RawTable",
    "Refusal",
    "RemoteStorage",
    "Schema",
    "Statement",
    "Subscription",
    "SyncStatus",
    "Table",
    "TrackPrevious",
    "UploadConnector",
]
__version__ = VERSION
