//! Every call of the store traits, for a store whose server accepts connections and never answers (X1).
//!
//! A method that a trait gains belongs here too: nothing else notices a call without a time limit.

use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, join_all};

use super::name;
use crate::clock::{SystemClock, within};
use crate::error::{Error, Result};
use crate::inflight::rules::QueueEnd;
use crate::inflight::{Finish, InflightStore, JobTicket, JobToken, NewJob};
use crate::leases::{
    AcquireRequest, Decision, LeaseKey, LeaseTicket, LeaseToken, LeasesStore, Namespace,
};
use crate::name::SystemId;
use crate::notes::NoteQuery;
use crate::owner::{Claim, Incarnation, OwnerStore};
use crate::receipt::{Reason, ReceiptQuery, Retention};
use crate::registry::{RegistryStore, TakePolicy};
use crate::request::RequestId;
use crate::sessions::{ReferenceStep, SessionProfile, SessionsStore};
use crate::store::Store;
use crate::sweep::brake::BrakeSetting;
use crate::sweep::{Batch, BatchId, PageRequest, PassMode, Suspect, Sweep, TidyLimits};

/// A call under way, by its name.
pub type NamedCall<'a> = (&'static str, BoxFuture<'a, Result<()>>);

/// `call!(name, future)`: the call without its answer.
macro_rules! call {
    ($name:literal, $call:expr) => {
        ($name, async move { $call.await.map(drop) }.boxed())
    };
}

/// Makes all `calls` at the same time and panics if one has not failed within `limit`. `Unsupported`
/// counts as failed. Calls in `unasked` need no server, and may succeed.
pub async fn calls_end_without_an_answer(
    limit: Duration,
    calls: Vec<NamedCall<'_>>,
    unasked: &[&str],
) {
    let clock = SystemClock::new();
    let end = |(name, call)| within(&clock, limit, call).map(move |end| (name, end));
    let ends = join_all(calls.into_iter().map(end)).await;
    let wrong = ends.into_iter().filter_map(|(name, end)| match end {
        None => Some(format!("`{name}` still waits after {limit:?}")),
        Some(Ok(())) if unasked.contains(&name) => None,
        Some(Ok(())) => Some(format!("`{name}` was not answered and succeeded")),
        Some(Err(Error::Unavailable { .. } | Error::Unsupported { .. })) => None,
        Some(Err(error)) => Some(format!("`{name}` failed with {error:?}")),
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn claim() -> Claim {
    Claim::exact(name("o"), Incarnation(1))
}

fn request() -> RequestId {
    RequestId::new("r", "f", "a").expect("a valid request")
}

/// Every call of [`Store`] and of its notes.
pub fn store_calls<'a>(store: &'a dyn Store, system: &'a SystemId) -> Vec<NamedCall<'a>> {
    let (notes, setting) = (store.notes(), BrakeSetting::Hold);
    vec![
        call!("info", store.info()),
        call!("receipts", store.receipts(system, ReceiptQuery::default())),
        call!("receipt", store.receipt(system, 1)),
        call!("campaign", store.campaign(system, "c", 1_000)),
        call!("term", store.term(system)),
        call!("resign", store.resign(system, 1)),
        call!("brake", store.brake(system)),
        call!("brake_setting", store.brake_setting(system)),
        call!("set_brake", store.set_brake(system, setting)),
        call!("swap_brake", async move {
            let next = crate::sweep::brake::BrakeRecord::default().next();
            store.swap_brake(system, &next).await
        }),
        call!("note", async move { notes.note(system, &name("n"), "text").await }),
        call!("notes", async move {
            notes.notes(system, &name("n"), NoteQuery { before: None, limit: 10 }).await
        }),
        call!("delete_note", async move { notes.delete_note(system, &name("n"), 1).await }),
        call!("mark", async move { notes.mark(system, &name("n")).await }),
        call!("advance_mark", async move { notes.advance_mark(system, &name("n"), 1).await }),
        call!("take_turn", async move { notes.take_turn(system, &name("n"), "h", 1_000).await }),
        call!("end_turn", async move { notes.end_turn(system, &name("n"), "h").await }),
    ]
}

/// Every call of [`Sweep`]. `key` and `reason` are those of a suspect that this system could have.
pub fn sweep_calls<'a>(sweep: &'a dyn Sweep, key: &str, reason: Reason) -> Vec<NamedCall<'a>> {
    let id = BatchId { sweeper: "s".into(), number: 1 };
    let suspect = Suspect {
        key: name(key),
        owner: name("o"),
        incarnation: Incarnation(1),
        deadline_ms: 1,
        reason,
    };
    let batch = |act| Batch { id: id.clone(), suspects: vec![suspect.clone()], act, term: Some(1) };
    let (real, dry) = (batch(PassMode::Reclaim), batch(PassMode::DryRun));
    let request = PageRequest { after: sweep.after(&suspect), limit: 10, undeclared_max: None };
    let first = PageRequest { after: Default::default(), ..request.clone() };
    let limits =
        TidyLimits { rows: 10, undeclared_max: None, retention: Retention::default(), term: None };
    vec![
        call!("census", sweep.census()),
        call!("survey", sweep.survey(PassMode::Reclaim)),
        call!("survey for a dry run", sweep.survey(PassMode::DryRun)),
        call!("confirm_adoption", sweep.confirm_adoption()),
        call!("suspects", sweep.suspects(first)),
        call!("suspects after a cursor", sweep.suspects(request)),
        call!("held_by", async move { sweep.held_by(&claim(), 10).await }),
        call!("reclaim", sweep.reclaim(real)),
        call!("reclaim in a dry run", sweep.reclaim(dry)),
        call!("settle", async move { sweep.settle(&id).await }),
        call!("tidy", sweep.tidy(limits)),
    ]
}

/// Every call of [`OwnerStore`].
pub fn owner_calls(owners: &dyn OwnerStore) -> Vec<NamedCall<'_>> {
    vec![
        call!("start", async move { owners.start(&name("o"), 1_000).await }),
        call!("start_once", async move { owners.start_once(&request(), &name("o"), 1_000).await }),
        call!("beat", async move { owners.beat(&claim()).await }),
        call!("end", async move { owners.end(&claim()).await }),
        call!("owners", owners.owners(None, 10)),
        call!("owner", async move { owners.owner(&claim()).await }),
    ]
}

/// Every call of [`RegistryStore`] itself.
pub fn registry_calls(registry: &dyn RegistryStore) -> Vec<NamedCall<'_>> {
    vec![
        call!("register", async move {
            registry.register(&claim(), &[name("k")], TakePolicy::Always).await
        }),
        call!("unregister", async move { registry.unregister(&claim(), &[name("k")]).await }),
        call!("find", async move { registry.find(&[name("k")]).await }),
        call!("adopted_owner_state", async move { registry.adopted_owner_state(&name("o")).await }),
        call!("entries", async move { registry.entries(&claim(), None, 10).await }),
        call!("restore", registry.restore(1)),
    ]
}

/// Every call of [`SessionsStore`] itself.
pub fn sessions_calls(sessions: &dyn SessionsStore) -> Vec<NamedCall<'_>> {
    let profile = SessionProfile::default();
    let update = SessionProfile { value: Some("v".to_owned()), ..SessionProfile::default() };
    vec![
        call!("activate", async move { sessions.activate(&name("s"), &profile).await }),
        call!("connect", async move { sessions.connect(Some(&claim()), &name("s")).await }),
        call!("disconnect", async move { sessions.disconnect(Some(&claim()), &name("s")).await }),
        call!("change_once", async move {
            let step = ReferenceStep::Connect;
            sessions.change_once(&request(), step, Some(&claim()), &name("s")).await
        }),
        call!("resume", async move { sessions.resume(&name("s")).await }),
        call!("get", async move { sessions.get(&name("s")).await }),
        call!("update", async move { sessions.update(&name("s"), &update).await }),
        call!("delete", async move { sessions.delete(&name("s")).await }),
        call!("of_broadcaster", async move { sessions.of_broadcaster(&name("b")).await }),
        call!("orphans", sessions.orphans(10)),
        call!("disconnected_count", sessions.disconnected_count()),
        call!("referred", async move { sessions.referred(&claim(), None, 10).await }),
        call!("restore", sessions.restore(1)),
    ]
}

/// Every call of [`InflightStore`] itself.
pub fn inflight_calls(inflight: &dyn InflightStore) -> Vec<NamedCall<'_>> {
    let job = || NewJob::new(name("j"), name("q"), "payload");
    let ticket = JobTicket { id: name("j"), token: JobToken(1), incarnation: Some(Incarnation(1)) };
    vec![
        call!("enqueue", async move { inflight.enqueue(&[job()]).await }),
        call!("enqueue_once", async move { inflight.enqueue_once(&request(), &[job()]).await }),
        call!("take", async move { inflight.take(&claim(), &name("q"), 10).await }),
        call!("take_once", async move {
            inflight.take_once(&request(), &claim(), &name("q"), 10).await
        }),
        call!("give_up_take", async move { inflight.give_up_take(&request()).await }),
        call!("register", async move { inflight.register(&claim(), &[job()]).await }),
        call!("finish", async move { inflight.finish(&[ticket], &Finish::Complete).await }),
        call!("job", async move { inflight.job(&name("j")).await }),
        call!("in_flight", async move { inflight.in_flight(&claim(), None, 10).await }),
        call!("counts", inflight.counts()),
        call!("queues", inflight.queues(None, 10)),
        call!("dead", inflight.dead(None, 10)),
        call!("put_back", async move { inflight.put_back(&name("j"), QueueEnd::Front).await }),
        call!("delete", async move { inflight.delete(&name("j")).await }),
        call!("restore", inflight.restore(1)),
    ]
}

/// Every call of [`LeasesStore`] itself.
pub fn leases_calls(leases: &dyn LeasesStore) -> Vec<NamedCall<'_>> {
    let key = || LeaseKey::new("n", "k").expect("a valid key");
    let ticket = move || LeaseTicket { key: key(), token: LeaseToken(1) };
    let namespace = || Namespace::new("n").expect("a valid namespace");
    let wish = AcquireRequest { key: key(), owner: name("o"), ttl_ms: 1_000, request: None };
    vec![
        call!("acquire", async move { leases.acquire(&wish).await }),
        call!("renew", async move { leases.renew(&ticket(), None).await }),
        call!("release", async move { leases.release(&ticket()).await }),
        call!("describe", async move { leases.describe(&key()).await }),
        call!("peek", async move { leases.peek(&key()).await }),
        call!("list", async move { leases.list(&namespace(), None, 10).await }),
        call!("namespaces", leases.namespaces(None, 10)),
        call!("set_state", async move { leases.set_state(&ticket(), None).await }),
        call!("stage", async move { leases.stage(&ticket(), None).await }),
        call!("decide", async move { leases.decide(&name("t"), Decision::Commit, 1_000).await }),
        call!("decision", async move { leases.decision(&name("t")).await }),
        call!("peek_decision", async move { leases.peek_decision(&name("t")).await }),
        call!("restore", leases.restore(1)),
    ]
}
