//! Advice about the servers that a system of availability uses: settings that are not wrong, but
//! that the person who sets the servers up should know about.

use lapsed_availability::{Mirror, PAGE_MAX};
use lapsed_core::sweep::Cursor;
use lapsed_postgres::Postgres;
use lapsed_redis::Redis;

use super::{is_instant, mirror_keys, tables};
use crate::config::store::StoreConfig;
use crate::node::SystemPlan;
use crate::node::shapes::MassHeartbeats;
use crate::stores::OpenStore;

/// The advice about one store, one sentence per element.
pub async fn of(
    plans: &[Box<dyn SystemPlan>],
    store: &StoreConfig,
    opened: &OpenStore,
) -> lapsed_core::Result<Vec<String>> {
    let plans = || plans.iter().map(|plan| &**plan);
    let mut notes = Vec::new();
    if let Some(redis) = opened.get::<Redis>() {
        let mirrored: Vec<&dyn SystemPlan> =
            plans().filter(|plan| plan.common().mirror.as_ref() == Some(&store.name)).collect();
        if !mirrored.is_empty() {
            notes.extend(eviction(redis.eviction().await?));
        }
        if mirrored.iter().any(|plan| is_instant(*plan)) {
            notes.push(instant(redis.keyspace_events().await));
        }
        for plan in mirrored {
            notes.extend(mass_heartbeats(plan, redis).await?);
        }
    }
    if let Some(postgres) = opened.get::<Postgres>() {
        for plan in plans().filter(|plan| plan.common().store == store.name) {
            let Some(tables) = tables(plan) else { continue };
            let (there, all) = postgres.triggers(tables).await?;
            notes.push(triggers(plan, there, all));
        }
    }
    Ok(notes)
}

/// Looks at the heartbeats now, and tells of those that were found written at once in the past hour.
async fn mass_heartbeats(
    plan: &dyn SystemPlan,
    redis: &Redis,
) -> lapsed_core::Result<Option<String>> {
    let Some(keys) = mirror_keys(plan) else { return Ok(None) };
    let (id, stale) = (plan.common().id.clone(), plan.common().threshold);
    let mirror = redis.mirror(id.clone(), keys.clone(), stale)?;
    let stale_ms = stale.as_millis() as u64;
    mirror.beats(&Cursor::default(), PAGE_MAX, stale_ms).await?;
    let found = MassHeartbeats::of(&mirror.presence(stale_ms).await?);
    Ok(found.map(|found| format!("warning: {id}: {}", found.describe())))
}

fn eviction(policy: Option<String>) -> Option<String> {
    let policy = policy.filter(|policy| policy != "noeviction")?;
    Some(format!(
        "warning: its maxmemory-policy is {policy}: when its memory is full it throws keys away, and reads \
         go to Postgres until the mirror is filled again; noeviction is better"
    ))
}

fn instant(events: Option<String>) -> String {
    let tells =
        |events: &str| events.contains('E') && (events.contains('x') || events.contains('A'));
    match events {
        Some(events) if tells(&events) => {
            "keyspace notifications report expired heartbeats immediately (instant)".to_owned()
        }
        Some(_) => {
            "warning: `instant` needs `CONFIG SET notify-keyspace-events Ex` there; until then \
                    the next pass finds expired heartbeats"
                .to_owned()
        }
        None => {
            "this server does not say whether its keyspace notifications are on; `instant` needs \
                 notify-keyspace-events Ex"
                .to_owned()
        }
    }
}

fn triggers(plan: &dyn SystemPlan, there: usize, all: usize) -> String {
    let id = &plan.common().id;
    match there {
        0 => format!(
            "{id}: no triggers: the application's own changes are followed when mirror and truth are \
             compared (with `lapsed schema apply --triggers{{again}}`, at once)"
        ),
        there if there < all => format!(
            "warning: {id}: only {there} of {all} triggers are there or enabled; `lapsed schema apply \
             --triggers{{again}}` makes them all"
        ),
        _ => format!("{id}: triggers report the application's own changes"),
    }
}
