//! The daemon: opens the stores, sweeps, serves, and shuts down gracefully.
//!
//! The order of the shutdown matters: stop accepting connections, let every pass finish its batch,
//! give up the leader terms, and only then close the stores.

mod notice;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::future::select;
use lapsed_core::clock::{Clock, SystemClock};
use lapsed_core::receipt::Observer;
use lapsed_core::schedule::{self, StopSignal};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;

use crate::api::{self, RequestGate};
use crate::config::server::LISTEN_DEFAULT;
use crate::connections::{self, Serving, WriteTimeoutListener};
use crate::failure::Failure;
use crate::http::jwt::KeySet;
use crate::http::{App, OutboundServices};
use crate::metrics::Metrics;
use crate::node::{Config, LiveSystem, OpenSystems, OpenedFor};
use crate::print;
use crate::systems;
use crate::telemetry::{Telemetry, TracingObserver};
use crate::tls::{self, Current, TlsListener};
use crate::webhooks::Webhooks;
use notice::Notice;

/// How long requests may still take after the daemon began to stop.
const DRAIN: Duration = Duration::from_secs(10);

/// Runs the daemon until SIGTERM or SIGINT.
pub async fn run(mut config: Config) -> Result<(), Failure> {
    let clock = SystemClock::shared();
    // From here on only the token's digest is needed.
    config.server.token = None;
    let tls = config.server.tls.as_ref().map(tls::open).transpose();
    let tls = tls.map_err(|what| Failure::usage(format!("`server.tls`: {what}")))?;
    if let Some(jwt) = &config.server.jwt {
        KeySet::read(jwt).map_err(|what| Failure::usage(format!("`server.jwt`: {what}")))?;
    }
    // The address is bound before any folder is created, so that a daemon that cannot listen leaves
    // nothing behind.
    let listener = bind(&config).await?;
    let address = listener.local_addr()?;
    let metrics = Arc::new(Metrics::new(clock.clone(), systems::metrics(&clock)));
    let config = Arc::new(config);
    let telemetry = config.telemetry.as_ref().map(Telemetry::start).transpose()?;
    let observer: Arc<dyn Observer> = match &telemetry {
        Some(telemetry) => TracingObserver::new(metrics.clone(), telemetry.clone()),
        None => metrics.clone(),
    };
    let node = open(config.clone(), clock.clone(), observer).await?;
    for live in node.systems() {
        metrics.introduce(live.id());
        if live.reconciler().is_ok() {
            metrics.introduce_index(live.id());
        }
    }
    node.objects().for_each(|(name, _)| metrics.introduce_store(name));
    let (stopper, stop) = StopSignal::channel();
    let watching = watch_stores(&node, &stop);
    node.prepare(&config, OpenedFor::Daemon).await;
    let (resigner, resign) = StopSignal::channel();
    let sweeping = sweep(&node, &clock, &stop);
    let reconciling = reconcile(&node, &stop);
    let background_tasks = background_tasks(&config, &node, &stop);
    let standing = campaign(&node, &resign);
    let webhooks = Webhooks::open(&config, &node, &metrics, &telemetry, &clock);
    let delivering = webhooks.deliver(&node, &stop);
    let outward = OutboundServices { webhooks: Arc::new(webhooks), telemetry: telemetry.clone() };
    let (app, mut idle) = App::new(node.clone(), metrics, outward, &config.server, stop.clone());
    if let Some(jwt) = app.authenticator.jwt() {
        jwt.follow().map_err(|what| Failure::usage(format!("`server.jwt`: {what}")))?;
    }
    let lines = WriteTimeoutListener::new(listener, config.server.write_timeout);
    let serving = serve(lines, tls, api::service(app), stop.clone())?;
    // Signal handlers are installed before the daemon reports that it is ready, because a script
    // may send SIGTERM right after that.
    let signals = Signals::listen()?;
    announce(&config, &*clock, address)?;
    let notice = Notice::from_env();
    notice.ready();
    let _alive = notice.keep_alive();

    signals.wait().await;
    tracing::info!("stopping: finishing what is under way");
    notice.stopping();
    stopper.stop();
    drain(serving).await;
    let _ = tokio::time::timeout(DRAIN, idle.recv()).await;
    join(watching).await;
    join(sweeping).await;
    join(reconciling).await;
    join(background_tasks).await;
    join(delivering).await;
    resigner.stop();
    join(standing).await;
    close(node).await?;
    if let Some(telemetry) = telemetry {
        let _ = tokio::task::spawn_blocking(move || telemetry.end()).await;
    }
    tracing::info!("stopped");
    Ok(())
}

async fn open(
    config: Arc<Config>,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
) -> Result<Arc<OpenSystems>, Failure> {
    let opening = tokio::task::spawn_blocking(move || OpenSystems::open(&config, clock, observer));
    let node = opening.await.map_err(|e| Failure::failed(format!("opening the store: {e}")))??;
    node.probe().await?;
    Ok(Arc::new(node))
}

async fn close(node: Arc<OpenSystems>) -> Result<(), Failure> {
    let closing = tokio::task::spawn_blocking(move || node.close());
    closing.await.map_err(|e| Failure::failed(format!("closing the store: {e}")))??;
    Ok(())
}

async fn bind(config: &Config) -> Result<TcpListener, Failure> {
    let addresses = config.server.addresses()?;
    TcpListener::bind(&addresses[..]).await.map_err(|error| {
        Failure::failed(format!(
            "cannot listen on {}: {error}. Is another lapsed running there? Choose another \
             address with --listen, for example --listen 127.0.0.1:0",
            config.server.listen
        ))
    })
}

/// Starts to serve HTTP until `stop`.
fn serve(
    lines: WriteTimeoutListener,
    tls: Option<Current>,
    gate: RequestGate,
    stop: StopSignal,
) -> io::Result<Serving> {
    let answering = move |peer, cut| gate.facing(peer, cut);
    Ok(match tls {
        Some(current) => connections::serve(TlsListener::new(lines, current)?, answering, stop),
        None => connections::serve(lines, answering, stop),
    })
}

/// Starts the task that probes all stores now, and those that do not answer until they are back.
fn watch_stores(node: &Arc<OpenSystems>, stop: &StopSignal) -> JoinSet<()> {
    let (node, stop) = (node.clone(), stop.clone());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        node.journal().outages().watch(node.store_monitors(), stop).await;
    });
    tasks
}

/// Starts one task per system, which runs its passes.
fn sweep(node: &OpenSystems, clock: &Arc<dyn Clock>, stop: &StopSignal) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for live in node.systems() {
        tasks.spawn(schedule::run(live.sweeper().clone(), clock.clone(), stop.clone()));
        tasks.spawn(begin_adopting(live.clone(), clock.clone(), stop.clone()));
        if let Some(signs) = live.take_activity_signs() {
            let stop = stop.clone();
            tasks.spawn(async move { signs.run(stop.stopped()).await });
        }
    }
    tasks
}

/// How long to wait before a store that did not answer is asked again about an adopted system.
const ADOPT_RETRY: Duration = Duration::from_secs(5);

/// Once the store answers, confirms an adopted configuration if the file says so, and logs what was
/// found under its key names.
async fn begin_adopting(live: Arc<LiveSystem>, clock: Arc<dyn Clock>, stop: StopSignal) {
    while !stop.is_stopped() {
        let begun = async {
            live.adopt_as_configured().await?;
            live.log_adoption().await
        };
        if begun.await.is_ok() {
            return;
        }
        let pause = clock.sleep(ADOPT_RETRY);
        select(Box::pin(stop.stopped()), pause).await;
    }
}

/// Starts one task for each system that has an index, which regularly compares it with its truth.
/// In leader mode only the leader does so.
fn reconcile(node: &OpenSystems, stop: &StopSignal) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for live in node.systems() {
        let Ok(reconciler) = live.reconciler().cloned() else { continue };
        let (sweeper, stop) = (live.sweeper().clone(), stop.clone());
        let leads = move || sweeper.leads() != Some(false);
        match live.resumable_reconcile().cloned() {
            Some(resumable) => {
                tasks.spawn(async move { resumable.keep(stop, leads).await });
            }
            None => {
                tasks.spawn(async move { reconciler.keep(stop, leads).await });
            }
        }
    }
    tasks
}

/// Starts the background tasks that some kinds of system have besides passes.
fn background_tasks(config: &Config, node: &OpenSystems, stop: &StopSignal) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for plan in &config.systems {
        let id = &plan.common().id;
        let Some(live) = node.find(id.kind, &id.name) else { continue };
        if let Some(background_task) = plan.background_task(live, stop.clone()) {
            tasks.spawn(background_task);
        }
    }
    tasks
}

/// In leader mode, starts one task per system that renews the leader's term.
fn campaign(node: &OpenSystems, stop: &StopSignal) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for campaign in node.systems().iter().filter_map(|live| live.take_campaign()) {
        let stop = stop.clone();
        tasks.spawn(async move { campaign.run(stop.stopped()).await });
    }
    tasks
}

/// Prints one line to stdout once the daemon can be reached, for scripts. Everything else goes to
/// the log.
fn announce(config: &Config, clock: &dyn Clock, address: SocketAddr) -> Result<(), Failure> {
    let scheme = config.server.scheme();
    print::line(&format!("listening on {scheme}://{address}"))?;
    for plan in &config.systems {
        let common = plan.common();
        let stores: Vec<_> = common.stores().map(|name| config.stores[name].describe()).collect();
        tracing::info!(system = %common.id, store = %stores.join(", "), "sweeping");
    }
    let now_ms = clock.wall_ms();
    for warning in config.server.tokens.iter().filter_map(|token| token.warning(now_ms)) {
        tracing::warn!("{warning}");
    }
    tracing::info!("listening on {scheme}://{address}");
    let url = format!("{scheme}://{}", reached(address));
    let usual = url == format!("http://{LISTEN_DEFAULT}");
    let whom = if usual { String::new() } else { format!(" --url {url}") };
    tracing::info!("dashboard: {url}/; in another terminal: `lapsed top{whom}`");
    Ok(())
}

/// The address by which this machine reaches the daemon: an unspecified address is replaced by
/// loopback.
fn reached(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => (Ipv4Addr::LOCALHOST, v4.port()).into(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => (Ipv6Addr::LOCALHOST, v6.port()).into(),
        other => other,
    }
}

/// The signals that stop the daemon.
struct Signals {
    term: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> Result<Signals, Failure> {
        let term = signal(SignalKind::terminate())?;
        Ok(Signals { term, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the first signal. A second signal ends the process at once.
    async fn wait(mut self) {
        self.next().await;
        tokio::spawn(async move {
            self.next().await;
            tracing::warn!("second signal: leaving at once");
            std::process::exit(1);
        });
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

async fn drain(mut serving: Serving) {
    match tokio::time::timeout(DRAIN, &mut serving).await {
        Ok(Ok(Ok(()))) => {}
        Ok(_) => tracing::warn!("the server ended with an error"),
        Err(_) => {
            tracing::warn!("some requests took longer than {DRAIN:?} and were cut off");
            serving.abort();
        }
    }
}

async fn join(mut tasks: JoinSet<()>) {
    while tasks.join_next().await.is_some() {}
}
