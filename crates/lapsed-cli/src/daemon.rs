//! The daemon: opens, sweeps, serves, and drains when told to stop.
//!
//! The order of leaving matters: stop accepting, let every pass finish its batch, give back the
//! terms, and only then close the stores.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::ServiceExt;
use axum::serve::ListenerExt;
use lapsed::clock::{Clock, SystemClock};
use lapsed::schedule::{self, Stop};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;

use crate::config::Config;
use crate::failure::Failure;
use crate::http::{self, App};
use crate::metrics::Metrics;
use crate::node::Node;
use crate::systems::Occasion;

/// How long requests under way may take after the daemon was told to stop.
const DRAIN: Duration = Duration::from_secs(10);

/// Runs until SIGTERM or SIGINT.
pub async fn run(config: Config) -> Result<(), Failure> {
    let clock = SystemClock::shared();
    let metrics = Arc::new(Metrics::new(clock.clone()));
    let config = Arc::new(config);
    let node = open(config.clone(), clock.clone(), metrics.clone()).await?;
    for live in node.systems() {
        metrics.introduce(live.id());
        if live.reconciler().is_ok() {
            metrics.introduce_index(live.id());
        }
    }
    node.objects().for_each(|(name, _)| metrics.introduce_store(name));
    let listener = bind(&config).await?;
    let address = listener.local_addr()?;

    node.prepare(&config, Occasion::Daemon).await;
    let (stopper, stop) = Stop::channel();
    let (resigner, resign) = Stop::channel();
    let sweeping = sweep(&node, &clock, &stop);
    let reconciling = reconcile(&node, &stop);
    let errands = errands(&config, &node, &stop);
    let standing = campaign(&node, &resign);
    let (app, mut idle) = App::new(node.clone(), metrics, &config.server, stop.clone());
    let service = http::service(app).into_make_service();
    let told = stop.clone();
    let listener = listener.tap_io(|tcp| {
        let _ = tcp.set_nodelay(true);
    });
    let serving = axum::serve(listener, service).with_graceful_shutdown(async move {
        told.told().await;
    });
    let serving = tokio::spawn(async move { serving.await });
    // Before it says that it is there: whoever hears that may tell it to stop at once.
    let signals = Signals::listen()?;
    announce(&config, address)?;

    signals.wait().await;
    tracing::info!("stopping: finishing what is under way");
    stopper.stop();
    drain(serving).await;
    let _ = tokio::time::timeout(DRAIN, idle.recv()).await;
    join(sweeping).await;
    join(reconciling).await;
    join(errands).await;
    resigner.stop();
    join(standing).await;
    close(node).await?;
    tracing::info!("stopped");
    Ok(())
}

async fn open(
    config: Arc<Config>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
) -> Result<Arc<Node>, Failure> {
    let opening = tokio::task::spawn_blocking(move || Node::open(&config, clock, metrics));
    let node = opening.await.map_err(|e| Failure::failed(format!("opening the store: {e}")))??;
    node.probe().await?;
    Ok(Arc::new(node))
}

async fn close(node: Arc<Node>) -> Result<(), Failure> {
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

/// One task a system runs its passes.
fn sweep(node: &Node, clock: &Arc<dyn Clock>, stop: &Stop) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for live in node.systems() {
        tasks.spawn(schedule::run(live.sweeper().clone(), clock.clone(), stop.clone()));
    }
    tasks
}

/// One task a system that has an index compares it with its truth now and then; in leader mode only
/// whoever leads does.
fn reconcile(node: &Node, stop: &Stop) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for live in node.systems() {
        let Ok(reconciler) = live.reconciler().cloned() else { continue };
        let (sweeper, stop) = (live.sweeper().clone(), stop.clone());
        tasks.spawn(async move {
            reconciler.keep(stop, || sweeper.leads() != Some(false)).await;
        });
    }
    tasks
}

/// What some systems have to do besides.
fn errands(config: &Config, node: &Node, stop: &Stop) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for plan in &config.systems {
        let id = &plan.common().id;
        let Some(live) = node.find(id.kind, &id.name) else { continue };
        if let Some(errand) = plan.errand(live, stop.clone()) {
            tasks.spawn(errand);
        }
    }
    tasks
}

/// In leader mode, one more renews the term.
fn campaign(node: &Node, stop: &Stop) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for campaign in node.systems().iter().filter_map(|live| live.take_campaign()) {
        let stop = stop.clone();
        tasks.spawn(async move { campaign.run(stop.told()).await });
    }
    tasks
}

/// One line on stdout, once it can be reached: for scripts. The rest is for the log.
fn announce(config: &Config, address: SocketAddr) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "listening on http://{address}")?;
    out.flush()?;
    for plan in &config.systems {
        let common = plan.common();
        let stores: Vec<_> = common.stores().map(|name| config.stores[name].describe()).collect();
        tracing::info!(system = %common.id, store = %stores.join(", "), "sweeping");
    }
    tracing::info!("listening on http://{address}");
    Ok(())
}

/// What tells the daemon to stop.
struct Signals {
    term: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> Result<Signals, Failure> {
        let term = signal(SignalKind::terminate())?;
        Ok(Signals { term, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Until the first; a second one means now.
    async fn wait(mut self) {
        self.next().await;
        tokio::spawn(async move {
            self.next().await;
            tracing::warn!("told twice: leaving at once");
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

async fn drain(serving: tokio::task::JoinHandle<std::io::Result<()>>) {
    match tokio::time::timeout(DRAIN, serving).await {
        Ok(Ok(Ok(()))) => {}
        Ok(_) => tracing::warn!("the server ended with an error"),
        Err(_) => tracing::warn!("some requests took longer than {DRAIN:?} and were cut off"),
    }
}

async fn join(mut tasks: JoinSet<()>) {
    while tasks.join_next().await.is_some() {}
}
