"""The composition root: from settings to a manager that serves, and back in the opposite order."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from socket import socket

from proctor.manager.api.application import Application
from proctor.manager.api.context import ApiContext
from proctor.manager.api.guard import Guard
from proctor.manager.api.keepers import keeper_application
from proctor.manager.clock import SystemClock
from proctor.manager.dispatcher.client.liveness import Patience
from proctor.manager.engine.curve_packing import pack_curves_forever
from proctor.manager.engine.dispatchers import ProcessDispatchers
from proctor.manager.engine.manager import Manager, ServiceFactory
from proctor.manager.events import prune_events_forever
from proctor.manager.named_tokens import NamedTokens
from proctor.manager.process.control_database import PageCheck, open_control
from proctor.manager.process.instance import (
    InstanceLock,
    ManagerAddress,
    StartError,
    describe_unwritable,
    remove_address,
    write_address,
)
from proctor.manager.process.log import start_logging, stop_logging
from proctor.manager.process.server import HttpServer, TlsHttpServer
from proctor.manager.process.sockets import (
    KeeperListener,
    KeeperSocket,
    listen_for_keepers,
    listen_tcp,
    read_last_port,
    stop_pointing_to_listener,
    web_url,
)
from proctor.manager.security import HostGuard, Tokens
from proctor.manager.settings import Home, ManagerSettings, SettingsError, open_to_others
from proctor.manager.store.read_process import ReadProcesses
from proctor.manager.store.rows import TrialJobRow
from proctor.manager.store.tables import jobs
from proctor.sdk.client.home import serves
from proctor.sdk.disk_errors import is_full
from proctor.sdk.failpoints import failpoint
from proctor.sdk.files import replace_file
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.local.keeper import LocalKeeper, ensure_local_keeper
from proctor.training_services.local.service import LOCAL_NODE
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.providers import ProviderContext, Providers
from proctor.training_services.registry import create
from proctor.trial_keeper.start import stop_keeper

log = logging.getLogger(__name__)


def run(settings: ManagerSettings, create_service: ServiceFactory = create) -> None:
    """Serve in this process until SIGTERM, SIGINT or a shutdown over REST. Raises StartError.

    :param create_service: what makes the training services of the experiments.
    """
    try:
        _run(settings, create_service)
    except (OSError, ExceptionGroup) as error:
        first = _first(error)
        if not isinstance(first, OSError) or not is_full(first):
            raise
        raise StartError(describe_unwritable(settings.home, first)) from None


def _run(settings: ManagerSettings, create_service: ServiceFactory) -> None:
    home = settings.home
    prepare(home)
    with InstanceLock(home) as lock:
        replace_tokens(settings)
        os.chdir(home.path)  # hold no folder of the caller that has started us
        start_logging(home.manager_log, format=settings.log.format, level=settings.log.level)
        if danger := open_to_others(home.path):
            log.warning("%s; end that by: %s", *danger, extra={"action": "home.check"})
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(serve(settings, create_service, lock.report))
        except* StartError as group:
            raise _first(group) from None
        finally:
            stop_logging()


def replace_tokens(settings: ManagerSettings) -> None:
    """Let the home have the tokens that the settings name. Raises StartError."""
    try:
        Tokens.replace(settings.home, settings.web)
    except (SettingsError, OSError) as error:
        raise StartError(str(error)) from error


def _first(error: BaseException) -> BaseException:
    """The first of the errors in a group, however deep it is."""
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def prepare(home: Home) -> None:
    """Make the home's folders. Raises StartError when it cannot be written."""
    try:
        home.prepare()
        os.close(os.open(home.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        Tokens.of(home)
        NamedTokens.read(home.named_tokens_file, time.time)
    except OSError as error:
        raise StartError(describe_unwritable(home, error)) from error


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where there is one."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def serve(settings: ManagerSettings, create_service: ServiceFactory, report: Callable[[str], None]) -> None:
    """Open everything, say where it is reached, and close everything when asked to.

    :param report: receives what is being done, as a participle clause.
    """
    home, stop = settings.home, asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(listen_tcp(settings.web, last_port=read_last_port(home)))
        keeper_socket = KeeperSocket(home)
        keeper_listener = stack.enter_context(keeper_socket.listen())
        stack.callback(keeper_socket.remove)
        network_listener = _listen_for_keepers(settings, stack)
        host, port = settings.web.host, listener.getsockname()[1]
        url = web_url(host, port, settings.web.url_prefix)
        opened = open_manager(settings, url, stop.set, create_service, report)
        context = await stack.enter_async_context(opened)
        report("opening its ports")
        await stack.enter_async_context(_serving(settings, context, listener, keeper_listener, network_listener))
        replace_file(str(home.port_file), str(port).encode(), durable=False)
        keeper_url = str(network_listener.endpoint) if network_listener else ""
        write_address(home, ManagerAddress.of_this_process(host=host, port=port, url=url, keeper_url=keeper_url))
        stack.callback(remove_address, home)
        report("serving")
        failpoint("manager.ready.after")
        log.info("the manager of %s is at %s", home.path, url, extra={"action": "manager.start"})
        if keeper_url:
            log.info("keepers reach it at %s", keeper_url, extra={"action": "manager.start"})
        await stop.wait()
        report("ending")
        log.info("the manager ends; trials keep running under their keepers", extra={"action": "manager.stop"})


def _listen_for_keepers(settings: ManagerSettings, stack: AsyncExitStack) -> KeeperListener | None:
    """The listener for keepers over a network, if there is to be one."""
    if settings.keeper_listen is None:
        stop_pointing_to_listener(settings.home)
        return None
    listener = listen_for_keepers(settings.home, settings.keeper_listen)
    stack.enter_context(listener.socket)
    return listener


@asynccontextmanager
async def open_manager(
    settings: ManagerSettings,
    url: str,
    stop: Callable[[], None],
    create_service: ServiceFactory,
    report: Callable[[str], None],
) -> AsyncIterator[ApiContext]:
    """Store, nodes, engine: everything behind the API. Trials keep running after it is left."""
    home, clock = settings.home, SystemClock()
    patience = Patience(settings.dispatchers.patience_seconds)
    report("opening and checking the control database")
    opened = await open_control(home, clock, accept=settings.accept_database, claim=settings.claim)
    async with opened.database as control, ReadProcesses.open() as read_processes:
        pool = NodePool()
        hub = KeeperHub(pool, key=home.keeper_key(), heartbeat_seconds=settings.heartbeat_seconds, now=clock.now)
        keeper = ensure_local_keeper(home.path, hub, pool)
        manager_id, folder = home.manager_id(), home.nodes_directory
        has_url = settings.keeper_listen is not None and bool(settings.keeper_listen.url)
        around = ProviderContext(manager_id, folder, home.socket_pointer, pool, hub, home.endpoint_pointer, has_url)
        providers = Providers(around)
        manager = Manager(
            home=home,
            control=control,
            pool=pool,
            hub=hub,
            clock=clock,
            open_dispatcher=ProcessDispatchers(home, patience),
            create_service=create_service,
            providers=providers,
            is_whole=opened.pages.done,
            read_processes=read_processes,
        )
        context = ApiContext(
            manager=manager,
            home=home,
            named_tokens=NamedTokens.read(home.named_tokens_file, clock.now),
            public_url=url,
            started_at=clock.now(),
            request_shutdown=stop,
        )
        report("finding its experiments again")
        async with _background(context, keeper, opened.pages), providers.serve(), manager.serve():
            yield context
        hub.close()
        is_needed = has_jobs_on(LOCAL_NODE, await control.read(jobs.all_live))
    if not is_needed:
        await _stop_local_keeper(home)


def has_jobs_on(node_id: str, live: Iterable[tuple[TrialJobRow, int]]) -> bool:
    """Whether any of the live jobs runs on this node."""
    return any(job.node_id == node_id for job, _ in live)


@asynccontextmanager
async def _background(context: ApiContext, keeper: LocalKeeper, pages: PageCheck) -> AsyncIterator[None]:
    """What runs beside the engine."""
    manager, measurements = context.manager, context.measurements
    housekeeping = prune_events_forever(manager.control, lambda: measurements.count_before_pruning(manager.control))
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(keeper.run(), name="local keeper"),
            group.create_task(manager.nodes.keep(), name="node records"),
            group.create_task(manager.node_history.keep(), name="node history"),
            group.create_task(measurements.measure_loop_lag(), name="loop lag"),
            group.create_task(housekeeping, name="housekeeping"),
            group.create_task(pages.run(), name="page check"),
            group.create_task(pack_curves_forever(manager), name="curve packing"),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def _stop_local_keeper(home: Home) -> None:
    """A keeper without jobs has nothing to wait for: leave no process behind. It may just be coming up, in a thread."""
    await asyncio.get_running_loop().shutdown_default_executor()
    if serves(os.getpid(), home.path):  # else it was renamed, and there may be another home of its name
        stop_keeper(home.node_directory(LOCAL_NODE))


@asynccontextmanager
async def _serving(
    settings: ManagerSettings,
    context: ApiContext,
    listener: socket,
    keeper_listener: socket,
    network_listener: KeeperListener | None,
) -> AsyncIterator[None]:
    """People and programs on TCP, keepers on the Unix socket and over TLS, all on this loop."""
    application = Application(context)
    guard = Guard(
        application,
        tokens=Tokens.of(settings.home),
        named_tokens=context.named_tokens,
        hosts=HostGuard(bound=settings.web.host, allowed=settings.web.allowed_hosts),
        url_prefix=settings.web.url_prefix,
    )
    keepers = keeper_application(context.manager.hub)
    servers = {listener: HttpServer(guard), keeper_listener: HttpServer(keepers)}
    if network_listener is not None:
        servers[network_listener.socket] = TlsHttpServer(keepers, network_listener.context)
    async with asyncio.TaskGroup() as group:
        for where, server in servers.items():
            group.create_task(server.serve_on(where), name=f"server on {where.getsockname()}")
        try:
            for server in servers.values():
                await server.serving.wait()
            loading = group.create_task(application.load_rest(), name="loading of the API")
            yield
        finally:
            loading.cancel()
            began = time.monotonic()
            context.closing.set()
            context.manager.hub.close()
            for server in servers.values():
                server.leave()
    log.debug("all requests are answered after %.1f s", time.monotonic() - began, extra={"action": "manager.stop"})
