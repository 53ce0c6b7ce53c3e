"""`headwater api`: one process of the sync endpoint."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.routing import BaseRoute

from headwater.api.admin.settings import AdminSettings
from headwater.api.app import ApiSettings, create_app
from headwater.api.auth.fetch import JwksClient
from headwater.api.auth.keys import KeySource
from headwater.api.auth.remote import KeyRing, RemoteKeys
from headwater.api.http.server import bind, serve_app
from headwater.api.streams.admission import StreamLimits
from headwater.api.streams.plans import RequestLimits
from headwater.api.streams.traffic import DeviceTraces
from headwater.cli.watching.metrics import SETTING, endpoint_page
from headwater.cli.watching.traces import traces_of
from headwater.config.errors import ConfigError
from headwater.config.model import ClientAuth, ServiceConfig
from headwater.source.head import SourceHead
from headwater.storage.contract.versions import OwnConfig
from headwater.storage.open import open_backend
from headwater.sync.request import BodyLimits
from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import RuleErrors
from headwater_rules.versions import sides


def build(
    config: ServiceConfig, extra_routes: Sequence[BaseRoute] = (), traces: DeviceTraces | None = None
) -> Starlette:
    """The endpoint for the config's store and source."""
    settings = ApiSettings(
        keys=key_source(config.auth),
        audience=config.auth.audience,
        streams=StreamLimits(
            config.api.max_concurrent_connections, config.api.max_streams_per_user, config.api.stalled_stream_seconds
        ),
        max_data_fetch_concurrency=config.api.max_data_fetch_concurrency,
        requests=RequestLimits(config.api.max_buckets_per_connection, config.api.max_parameter_query_results),
        body=BodyLimits(config.api.max_subscriptions_per_connection, config.api.max_known_buckets_per_connection),
        chunk_cache_bytes=config.api.chunk_cache_mb * 1024 * 1024,
        keep_requests=config.api.checkpoint_request_retention_minutes * 60.0,
        admin=_admin(config),
        probes=config.probes,
        upload=config.upload,
        http=config.api.http,
        traces=traces,
    )
    reader = open_backend(config.storage).open_reader(_own(config))
    return create_app(settings, reader, SourceHead([config.source()]), extra_routes)


def key_source(auth: ClientAuth) -> KeySource:
    """The keys in a config, and those published at the addresses that it names."""
    clients = [JwksClient(address, auth.rules) for address in auth.addresses]
    return KeyRing(auth.keys, [RemoteKeys(client.fetch, client.address.shown) for client in clients])


def _admin(config: ServiceConfig) -> AdminSettings:
    return AdminSettings(
        tokens=config.api.tokens,
        storage=config.storage,
        sources=config.sources,
        port=config.api.admin_port,
        from_file=config.sync_config is not None,
        max_buckets=config.api.max_buckets_per_connection,
        max_results=config.api.max_parameter_query_results,
    )


def _own(config: ServiceConfig) -> OwnConfig | None:
    """The sync config that the service config names; None if it can't be used, which the replicator reports."""
    try:
        yaml = config.sync_text()
        return OwnConfig(yaml, sides(compile_config(yaml).plan))
    except (ConfigError, RuleErrors):
        return None


def run(config: ServiceConfig, *, unified: bool = False) -> None:
    """Serve until SIGTERM or SIGINT. With `unified`, the metrics are those of the replicator beside it, too."""
    with traces_of(config) as traces:
        _serve(config, build(config, traces=traces), unified=unified)


def _serve(config: ServiceConfig, app: Starlette, *, unified: bool) -> None:
    sockets = [bind(config.host, config.port)]
    if config.api.admin_port is not None:
        sockets.append(bind(config.api.admin_host or config.host, config.api.admin_port, "api.admin_port"))
    beside = {}
    if config.prometheus_port is not None:
        listening = bind(config.metrics_host, config.prometheus_port, SETTING)
        sockets.append(listening)
        port = listening.getsockname()[1]
        beside[port] = endpoint_page(config, port, app, unified=unified)
    serve_app(app, sockets, beside)
