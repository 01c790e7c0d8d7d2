//! Adopted sessions name no owners that could be counted. A mass death is recognised by the share of all disconnected sessions that
//! became due within one grace. Every pass here is one of its own, as from a crontab.

use std::time::Duration;

use lapsed_core::store::Store;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{PassMode, PassReport, Stopped, Sweep};

use crate::chat::{Chat, on_both_chats, pass, uuid};

on_both_chats! {
    all_sessions_that_were_cut_off_at_once_are_held_and_go_in_steps,
    sessions_that_end_one_after_another_are_not_held,
    sessions_that_are_cut_off_one_after_another_are_a_mass_death,
    sessions_that_end_at_a_steady_rate_are_not_held,
}

const GRACE_MS: u64 = 4_000;
const ALL: usize = 500;

/// The same keys with a longer grace, on a server that has been there for longer than that.
async fn slow(chat: &Chat) -> Chat {
    let chat = chat.with_grace(Duration::from_millis(GRACE_MS));
    chat.settle().await;
    chat
}

async fn single_pass(chat: &Chat) -> PassReport {
    let policy = Policy { every: Duration::from_millis(200), ..Policy::default() };
    pass(&chat.sweeper_with("cron", policy), PassMode::Reclaim).await
}

/// Sessions whose connections all end in this second.
fn cut_off(chat: &Chat, from: usize, count: usize) -> u64 {
    let at_s = chat.app.now_s();
    let script = "for i = ARGV[1], ARGV[1] + ARGV[2] - 1 do \
        local id = string.format('00000000-0000-4000-8000-%012d', i) \
        redis.call('HSET', 'session:' .. id, 'value', '0', 'last_disconnect', ARGV[3]) \
        redis.call('ZADD', 'disconnected_sessions', ARGV[3], id) end";
    let (from, count, at) = (from.to_string(), count.to_string(), at_s.to_string());
    chat.app.call(&["EVAL", script, "0", &from, &count, &at]);
    // The end of that second counts.
    (at_s + 1) * 1_000 + GRACE_MS
}

async fn all_sessions_that_were_cut_off_at_once_are_held_and_go_in_steps(chat: Chat) {
    let chat = slow(&chat).await;
    let due_ms = cut_off(&chat, 0, ALL);
    chat.until_ms(due_ms + 1).await;
    let held = single_pass(&chat).await;
    assert_eq!((held.stopped, held.reclaimed), (Stopped::Brake, 0), "{held:?}");
    assert_eq!(chat.app.call(&["ZCARD", "disconnected_sessions"]), ALL.to_string());
    let hold = chat.redis.brake(&chat.id()).await.unwrap().hold.expect("the brake holds");
    chat.until_ms(hold.until_ms).await;
    let mut steps = Vec::new();
    while steps.iter().sum::<u64>() < ALL as u64 {
        let report = single_pass(&chat).await;
        assert_eq!(report.errors, 0, "{report:?}");
        if report.reclaimed > 0 {
            steps.push(report.reclaimed);
        }
    }
    assert_eq!(steps[..2], [50, 90], "a tenth of all, then a fifth of the rest: {steps:?}");
}

async fn sessions_that_end_one_after_another_are_not_held(chat: Chat) {
    let chat = slow(&chat).await;
    let due_ms = cut_off(&chat, 0, 25);
    chat.until_ms(due_ms + 1).await;
    cut_off(&chat, 25, ALL - 25);
    let census = chat.sessions.census().await.unwrap();
    let counted = (census.entries_tracked, census.entries_due_recently);
    assert_eq!(counted, (ALL as u64, 25), "{census:?}");
    let report = single_pass(&chat).await;
    assert_eq!((report.stopped, report.reclaimed), (Stopped::Done, 25), "{report:?}");
}

/// The same on a server that has been there for longer than the grace, so that what ended earlier is not spared.
async fn past_the_grace(chat: &Chat) -> Chat {
    let chat = slow(chat).await;
    let back_ms = chat.redis.info().await.unwrap().back_ms;
    chat.until_ms(back_ms + GRACE_MS + 1_000).await;
    chat
}

/// Registers sessions whose connections end at these times.
fn cut_off_at(chat: &Chat, first: usize, times: &[u64]) {
    for (n, at_ms) in times.iter().enumerate() {
        let (id, at) = (uuid(first + n), at_ms.to_string());
        let session = format!("session:{id}");
        chat.app.call(&["HSET", &session, "value", "0", "last_disconnect", &at]);
        chat.app.call(&["ZADD", "disconnected_sessions", &at, &id]);
    }
}

/// A proxy died, and noticed it of one connection after the other: each pass finds few due of those that are left.
async fn sessions_that_are_cut_off_one_after_another_are_a_mass_death(chat: Chat) {
    let chat = past_the_grace(&chat).await;
    let (now_ms, spread_ms) = (chat.app.now_ms(), GRACE_MS * 3 / 8);
    let times: Vec<u64> = (0..200).map(|n| now_ms - GRACE_MS / 2 + n * spread_ms / 200).collect();
    cut_off_at(&chat, 0, &times);
    let mut gone = 0;
    for pass in 1.. {
        chat.until_ms(now_ms + GRACE_MS / 2 + pass * 100).await;
        let report = single_pass(&chat).await;
        gone += report.reclaimed;
        // 110, and what becomes due between the count and the first page.
        assert!(gone <= 120, "{gone} of 200 before the first hold: {report:?}");
        if report.stopped == Stopped::Brake {
            break;
        }
    }
    assert!(gone > 0, "they were not all due at once");
}

/// Every 20 ms one session ends, and nobody comes back: as many have become due in the last grace as wait for it.
async fn sessions_that_end_at_a_steady_rate_are_not_held(chat: Chat) {
    let chat = past_the_grace(&chat).await;
    let began_ms = chat.app.now_ms();
    let mut until_ms = began_ms - GRACE_MS;
    let (mut known, mut gone) = (0, 0);
    while until_ms < began_ms + 2 * GRACE_MS {
        let now_ms = chat.app.now_ms();
        let times: Vec<u64> = (until_ms..now_ms).step_by(20).collect();
        until_ms = times.last().map_or(until_ms, |last| last + 20);
        cut_off_at(&chat, known, &times);
        known += times.len();
        let report = single_pass(&chat).await;
        assert_eq!(report.stopped, Stopped::Done, "{gone} of {known} are gone: {report:?}");
        gone += report.reclaimed;
    }
    assert!(gone as usize > known / 2, "{gone} of {known}");
}
