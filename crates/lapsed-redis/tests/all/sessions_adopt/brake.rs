//! Adopted sessions name no owners that could be counted. A mass death is recognised by the share of all disconnected sessions that
//! became due within one grace. Every pass here is one of its own, as from a crontab.

use std::time::Duration;

use lapsed_core::store::Store;
use lapsed_core::sweep::policy::Policy;
use lapsed_core::sweep::{PassMode, PassReport, Stopped, Sweep};

use crate::chat::{Chat, on_both_chats, pass};

on_both_chats! {
    all_sessions_that_were_cut_off_at_once_are_held_and_go_in_steps,
    sessions_that_end_one_after_another_are_not_held,
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
