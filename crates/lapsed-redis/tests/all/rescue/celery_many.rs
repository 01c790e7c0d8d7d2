//! More messages in `unacked` than one look judges: each look takes a page, and the passes go round through all of them.

use std::time::Instant;

use super::celery::{LATE, Place, STUCK, message};
use super::*;
use crate::rescue::faults::now_ms;

lapsed_testbed::steady_async_tests! {
    an_orphan_behind_three_hundred_thousand_messages_is_put_back_and_the_living_keep_theirs,
    orphans_of_several_pages_are_each_put_back_once,
}

/// Fills `unacked` with messages that were delivered ten minutes ago, one after the other.
fn fill(app: &App, count: usize, value: &str) {
    let script = "for n = ARGV[1], ARGV[2] do
        local tag = 'tag-' .. string.format('%07d', n)
        redis.call('HSET', 'unacked', tag, (string.gsub(ARGV[3], 'NUMBER', tostring(n))))
        redis.call('ZADD', 'unacked_index', ARGV[4] + n / 1000, tag)
      end";
    let began = (now_ms(app) / 1_000 - 600).to_string();
    for from in (0..count).step_by(2_000) {
        let to = (count.min(from + 2_000) - 1).to_string();
        app.text(&["EVAL", script, "0", &from.to_string(), &to, value, &began]);
    }
}

/// Calls of a command since the statistics were reset, and the server's time for one.
fn calls(app: &App, command: &str) -> (u64, Duration) {
    let stats = app.text(&["INFO", "commandstats"]);
    let name = format!("cmdstat_{command}:");
    let Some(line) = stats.lines().find(|line| line.starts_with(&name)) else {
        return (0, Duration::ZERO);
    };
    let field = |name: &str| -> u64 {
        line.split_once(name).unwrap().1.split(',').next().unwrap().parse().unwrap()
    };
    (field("calls="), Duration::from_micros(field("usec=") / field("calls=")))
}

/// The messages before it are of a program that uses kombu without Celery, so that they stay for ever.
async fn an_orphan_behind_three_hundred_thousand_messages_is_put_back_and_the_living_keep_theirs() {
    const MANY: usize = 300_000;
    let mut place = Place::new(Engine::Redis);
    place.redis = many_orphans::patient(&place.server);
    place.add(&["kept"], &[]);
    let (_alive, kept) = place.stuck("w1", STUCK);
    place.add(&["lost"], &[]);
    let (killed, lost) = place.stuck("w2", STUCK);
    let inflight = place.inflight();
    place.answering(&inflight, 2).await;
    place.leaves_alone(&inflight, 1).await;
    fill(&place.app, MANY, r#"[{"headers": {}, "properties": {}}, "", "other"]"#);
    killed.kill().unwrap();
    let sweep: Arc<dyn Sweep> = inflight.clone();
    let sweeper = sweeper(&sweep, &place.redis, Policy::default());
    let (mut passes, began) = (0, Instant::now());
    loop {
        place.app.call(&["CONFIG", "RESETSTAT"]);
        let report = pass(&sweeper).await;
        passes += 1;
        let names = ["hget", "zrange", "hscan", "hexists", "publish"];
        let found = names.map(|name| (name, calls(&place.app, name)));
        assert!(found.iter().all(|(_, (_, mean))| *mean < Duration::from_millis(2)), "{found:?}");
        // One page, and what has been noted of it.
        assert!(found.iter().all(|(_, (calls, _))| *calls <= 25_000), "{found:?}");
        assert_eq!(place.app.number(&["EXISTS", "unacked"]), 1);
        if report.reclaimed > 0 {
            println!("pass {passes} of {:.1?}: {found:?}", began.elapsed());
            assert_eq!(report.reclaimed, 1);
            break;
        }
        assert!(passes < 2 * MANY / 10_000, "the passes do not come to the newest message");
    }
    assert!(
        passes >= MANY / 10_000,
        "{passes} passes: the messages before it were not passed over"
    );
    let found = receipts(&place.redis, &id()).await;
    assert_eq!((found.len(), found[0].key.as_str()), (1, lost.as_str()));
    assert_eq!(found[0].owner.as_str(), "w2@host");
    let left = place.app.number(&["HLEN", "unacked"]);
    assert_eq!(left, MANY as i64 + 1, "`{kept}` stays, and every other message");
    let other = place.start(&["work", "w3"], LATE);
    wait_for(&other, &format!("ran {lost}"));
}

fn wait_for(worker: &Program, wanted: &str) {
    while worker.line(LIMIT).unwrap() != wanted {}
}

async fn orphans_of_several_pages_are_each_put_back_once() {
    const MANY: usize = 25_000;
    let mut place = Place::new(Engine::Valkey);
    place.redis = many_orphans::patient(&place.server);
    place.app.text(&[
        "SADD",
        "_kombu.binding.celery.pidbox",
        "\u{6}\u{16}\u{6}\u{16}w1@host.celery.pidbox",
    ]);
    fill(&place.app, MANY, &message("jNUMBER", "", "mails"));
    place.app.call(&["CONFIG", "RESETSTAT"]);
    let inflight = many_orphans::of_mails(&place.redis, "celery", many_orphans::SHORT);
    let sweep: Arc<dyn Sweep> = inflight.clone();
    let sweeper = sweeper(&sweep, &place.redis, Policy::default());
    let (mut put_back, mut passes) = (0, 0);
    while put_back < MANY as u64 {
        let now = pass(&sweeper).await.reclaimed;
        (put_back, passes) = (put_back + now, passes + 1);
        assert!(now <= 10_000, "{now} in one pass");
        assert!(passes < 40, "{put_back} of {MANY}");
    }
    let (scripts, mean) = calls(&place.app, "evalsha");
    println!("{MANY} messages in {passes} passes, {scripts} calls, {mean:.2?} each");
    assert!(mean < Duration::from_millis(2), "{mean:?}");
    assert_eq!(place.app.number(&["EXISTS", "unacked", "unacked_index"]), 0);
    assert_eq!(place.app.number(&["LLEN", "mails"]), MANY as i64);
    assert_eq!(receipts(&place.redis, &id()).await.len(), MANY);
}
