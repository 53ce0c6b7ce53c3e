"""`headwater api`: one process of the sync endpoint."""

from __future__ import annotations

import gc
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.routing import BaseRoute

from headwater.api.admin.route import AdminSettings
from headwater.api.app import ApiApp, ApiSettings, create_app
from headwater.api.auth.fetch import JwksClient
from headwater.api.auth.key_ring import KeyRing, RemoteKeys
from headwater.api.auth.settings import ClientAuth
from headwater.api.http.server import Shared, bind, serve_app
from headwater.api.metrics import METRICS
from headwater.api.workers import Answers, Workers, answering
from headwater.cli.config import ServiceConfig
from headwater.cli.metrics import endpoint_page, metrics_of
from headwater.cli.supervise import supervise
from headwater.cli.watching import traces_of
from headwater.cli.workers import (
    METRICS_PORT,
    WORKER,
    endpoint_children,
    listening_at,
    raise_if_in_use,
    this_worker,
    worker_count,
)
from headwater.config.document import ConfigError
from headwater.source.head import SourceHead
from headwater.source.upload.settings import UploadSettings
from headwater.storage.contract.versions import OwnConfig
from headwater.storage.open import open_store
from headwater.telemetry.log_facts import process_facts
from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import SyncConfigError
from headwater_rules.versions import definitions_of

if TYPE_CHECKING:
    from headwater.telemetry.traces import Traces


def build(
    config: ServiceConfig,
    extra_routes: Sequence[BaseRoute] = (),
    traces: Traces | None = None,
    together: Workers | None = None,
) -> ApiApp:
    """The endpoint for the config's store and source, or one of the processes that are it `together`."""
    workers = 1 if together is None else together.count
    limits = config.api.parameters
    settings = ApiSettings(
        keys=key_source(config.auth),
        audience=config.auth.audience,
        sources=tuple(source.name for source in config.sources),
        unknown_sources=bool(config.unread_lists),
        issuers=config.auth.issuers,
        streams=limits.streams,
        max_data_fetch_concurrency=_fetches(config, workers),
        requests=limits.requests,
        body=limits.body,
        chunk_cache_bytes=limits.chunk_cache_mb << 20,
        keep_requests=limits.checkpoint_request_retention_minutes * 60.0,
        admin=AdminSettings(
            tokens=config.api.tokens,
            storage=config.storage,
            sources=config.sources,
            port=config.api.admin_port,
            from_file=config.sync_config is not None,
            limits=limits.requests,
            workers=together,
            upload=config.upload,
        ),
        probes=config.probes,
        upload=upload_share(config.upload, workers),
        http=config.api.http,
        traces=traces,
    )
    reader = open_store(config.storage).open_reader(_own(config))
    sources = config.sources if config.reread_seconds else config.chosen(())
    return create_app(settings, reader, SourceHead(sources), extra_routes)


def _fetches(config: ServiceConfig, workers: int) -> int:
    """How many threads of a worker read downloads. The setting is for all workers together."""
    given = config.api.parameters.max_data_fetch_concurrency
    if given is None and config.storage.one_machine:
        return 3  # there is little to wait for, and more threads would wait for each other: most of the work is Python
    return math.ceil((given or 10) / workers)


def upload_share(settings: UploadSettings | None, workers: int) -> UploadSettings | None:
    """The share of a worker in what the source takes of uploads."""
    if settings is None:
        return None
    connections, per_user = (math.ceil(each / workers) for each in (settings.max_connections, settings.max_per_user))
    others = tuple(filter(None, (upload_share(each, workers) for each in settings.others)))
    return replace(settings, max_connections=connections, max_per_user=per_user, others=others)


def key_source(auth: ClientAuth) -> KeyRing:
    """The keys in a config, and those published at the addresses that it names."""
    clients = [JwksClient(address, auth.rules) for address in auth.addresses]
    return KeyRing(auth.keys, [RemoteKeys(client.fetch, client.address.shown) for client in clients])


def _own(config: ServiceConfig) -> OwnConfig | None:
    """The sync config that the service config names; None if it can't be used, which the replicator reports."""
    try:
        yaml = config.sync_text()
        return OwnConfig(yaml, definitions_of(compile_config(yaml).plan))
    except (ConfigError, SyncConfigError):
        return None


def has_children(config: ServiceConfig) -> bool:
    """Whether this process only supervises those that are the endpoint."""
    return WORKER not in os.environ and worker_count(config) > 1


def run(
    config: ServiceConfig,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    unified: bool,
    beat: Callable[[], None],
) -> None:
    """Serve until SIGTERM or SIGINT, in this process or in several children, to which `arguments` and `environment`
    pass the config. With `unified`, the metrics are those of the replicator beside it, too. `beat` is the heartbeat for
    the supervisor."""
    worker = this_worker()
    together, shared = None, Shared.NO
    ports: Sequence[int] = [port for _, port, _ in listening_at(config)]
    if worker is not None:
        process_facts.update(worker=worker.number)
        together, shared, ports = Workers(worker.directory, worker.of), Shared.LISTENING, worker.ports
    else:
        raise_if_in_use(config)
        if has_children(config):
            command = [sys.executable, "-m", "headwater", "api", *(["--unified"] if unified else []), *arguments]
            with endpoint_children(config, command, environment) as children:
                supervise(children)
            return
    with ExitStack() as stack:
        app = build(config, traces=stack.enter_context(traces_of(config)), together=together)
        gc.collect()
        gc.freeze()  # what the program itself consists of is there for good
        gc.set_threshold(2_000, 10, 50)  # streams are freed without it; it only looks at each of thousands in vain
        sockets, beside = [], {}
        for (host, _, setting), port in zip(listening_at(config), ports, strict=True):
            listening = bind(host, port, setting, shared=shared, backlog=config.api.http.max_connections)
            sockets.append(listening)
            if setting == METRICS_PORT:
                taken = listening.getsockname()[1]
                beside[taken] = endpoint_page(config, taken, app, together, unified=unified)
        if worker is not None:
            answers: Answers = {METRICS: lambda: metrics_of(app), **app.endpoint.answers}
            stack.enter_context(answering(worker.directory, worker.number, answers))
        serve_app(app, sockets, beside, beat)
