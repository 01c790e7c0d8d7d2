//! Cases about acquiring, holding and waiting.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;

use super::{LeasesFixture, done, json, key, keys, lost, name};
use crate::leases::{
    AcquireRequest, Acquired, Grant, HoldAttempt, HoldOptions, LeaseKey, LeaseState, LeaseTicket,
    LeaseToken, LossReason, LostLease, Namespace,
};

fn granted(acquired: Acquired) -> Grant {
    match acquired {
        Acquired::Granted(grant) => grant,
        Acquired::Held(grant) => panic!("held: {grant:?}"),
    }
}

fn held(acquired: Acquired) -> Grant {
    match acquired {
        Acquired::Held(grant) => grant,
        Acquired::Granted(grant) => panic!("granted twice: {grant:?}"),
    }
}

pub async fn a_held_lease_is_refused_with_its_holder(f: LeasesFixture) {
    let k = key("k");
    assert_eq!(f.leases.peek(&k).await.unwrap(), None);
    assert_eq!(f.leases.describe(&k).await.unwrap().answer, None);
    let grant = f.acquire_long(&k, "a").await;
    assert_eq!((grant.owner.as_str(), grant.token, grant.ttl_ms), ("a", LeaseToken(1), 3_600_000));
    assert!(grant.deadline_ms >= grant.now_ms + grant.ttl_ms - 1, "{grant:?}");
    let told = held(f.attempt(&k, "b").await.answer);
    assert_eq!((told.owner.as_str(), told.token), ("a", LeaseToken(1)));
    let described = f.leases.describe(&k).await.unwrap().answer.unwrap();
    assert_eq!((described.token, described.expired), (LeaseToken(1), false));
    assert_eq!(described.lease.unwrap().owner, name("a"));
}

pub async fn one_of_many_concurrent_acquires_wins(f: LeasesFixture) {
    for round in 0..3 {
        let k = key(&format!("k{round}"));
        let owners: Vec<String> = (0..8).map(|n| format!("o{n}")).collect();
        let wishes: Vec<AcquireRequest> = owners
            .iter()
            .map(|owner| AcquireRequest { ttl_ms: 3_600_000, ..f.wish(&k, owner) })
            .collect();
        let answers = join_all(wishes.iter().map(|wish| f.leases.acquire(wish))).await;
        let winners: Vec<Grant> = answers
            .into_iter()
            .filter_map(|answer| match answer.unwrap().answer {
                Acquired::Granted(grant) => Some(grant),
                Acquired::Held(_) => None,
            })
            .collect();
        assert_eq!(winners.len(), 1, "{winners:?}");
        assert_eq!(f.peek(&k).await.lease.unwrap().owner, winners[0].owner);
    }
}

pub async fn a_release_frees_the_key_and_keeps_the_token(f: LeasesFixture) {
    let k = key("k");
    let first = f.acquire_long(&k, "a").await;
    done(f.leases.release(&first.ticket()).await.unwrap().answer);
    let free = f.peek(&k).await;
    assert_eq!((free.token, free.lease), (LeaseToken(1), None));
    let again = lost(f.leases.release(&first.ticket()).await.unwrap().answer);
    assert_eq!((again.why, again.token, again.holder), (LossReason::Ended, LeaseToken(1), None));
    assert_eq!(f.acquire_long(&k, "b").await.token, LeaseToken(2));
    let late = lost(f.leases.release(&first.ticket()).await.unwrap().answer);
    assert_eq!((late.why, late.holder), (LossReason::Superseded, Some(name("b"))));
}

pub async fn a_repeated_request_gets_the_same_answer(f: LeasesFixture) {
    let k = key("k");
    let wish = AcquireRequest { request: Some(name("r")), ttl_ms: 3_600_000, ..f.wish(&k, "a") };
    let first = granted(f.leases.acquire(&wish).await.unwrap().answer);
    let again = granted(f.leases.acquire(&wish).await.unwrap().answer);
    assert_eq!((first.token, first.deadline_ms), (again.token, again.deadline_ms));
    let other = AcquireRequest { request: Some(name("s")), ..wish.clone() };
    assert_eq!(held(f.leases.acquire(&other).await.unwrap().answer).token, LeaseToken(1));
    let plain = AcquireRequest { request: None, ..wish };
    assert_eq!(held(f.leases.acquire(&plain).await.unwrap().answer).token, LeaseToken(1));
}

pub async fn a_renewal_moves_the_deadline(f: LeasesFixture) {
    let k = key("k");
    let grant = f.acquire(&k, "a").await;
    let renewed = done(f.leases.renew(&grant.ticket(), Some(3_600_000)).await.unwrap().answer);
    assert_eq!((renewed.token, renewed.ttl_ms), (grant.token, 3_600_000));
    assert!(renewed.deadline_ms > grant.deadline_ms);
    f.expire().await;
    assert_eq!(held(f.attempt(&k, "b").await.answer).owner, name("a"));
    let again = done(f.leases.renew(&grant.ticket(), None).await.unwrap().answer);
    assert!(again.deadline_ms >= renewed.deadline_ms);
}

/// Neither one that was never granted, nor an old one.
pub async fn an_invalid_token_changes_nothing(f: LeasesFixture) {
    let k = key("k");
    let never = LeaseTicket { key: k.clone(), token: LeaseToken(1) };
    assert_eq!(lost(f.leases.renew(&never, None).await.unwrap().answer).why, LossReason::Unknown);
    assert_eq!(f.leases.peek(&k).await.unwrap(), None, "asking made nothing");
    let old = f.acquire_long(&k, "a").await.ticket();
    done(f.leases.release(&old).await.unwrap().answer);
    let new = f.acquire_long(&k, "b").await.ticket();
    done(f.set_state(&new, "b's").await);
    let before = f.peek(&k).await;
    for token in [LeaseToken(0), old.token, LeaseToken(7), LeaseToken(u64::MAX)] {
        let ticket = LeaseTicket { key: k.clone(), token };
        lost(f.leases.renew(&ticket, None).await.unwrap().answer);
        lost(f.leases.release(&ticket).await.unwrap().answer);
        lost(f.set_state(&ticket, "stolen").await);
        lost(f.stage(&ticket, "t", "stolen").await);
    }
    let after = f.peek(&k).await;
    assert_eq!((after.token, after.lease), (before.token, before.lease));
    assert_eq!((after.state, after.staged), (before.state, None));
}

pub async fn only_the_holder_changes_the_state(f: LeasesFixture) {
    let k = key("k");
    let first = f.acquire_long(&k, "a").await.ticket();
    done(f.set_state(&first, "one").await);
    done(f.leases.release(&first).await.unwrap().answer);
    lost(f.set_state(&first, "late").await);
    let second = f.acquire_long(&k, "b").await.ticket();
    assert_eq!(f.peek(&k).await.state, Some(json("one")), "handed on");
    done(f.leases.set_state(&second, None).await.unwrap().answer);
    assert_eq!(f.peek(&k).await.state, None);
}

pub async fn a_state_may_be_bytes(f: LeasesFixture) {
    let k = key("k");
    let ticket = f.acquire_long(&k, "a").await.ticket();
    let state = LeaseState::Bytes((0..=255).collect());
    done(f.leases.set_state(&ticket, Some(&state)).await.unwrap().answer);
    assert_eq!(f.peek(&k).await.state, Some(state));
    let large = LeaseState::Bytes(vec![7; crate::leases::STATE_BYTES_MAX]);
    done(f.leases.set_state(&ticket, Some(&large)).await.unwrap().answer);
    assert_eq!(f.peek(&k).await.state, Some(large));
}

pub async fn any_valid_key_can_be_leased(f: LeasesFixture) {
    let long = "ü".repeat(128);
    let odd = [
        "a/b",
        "a//b",
        "/",
        "..",
        ".",
        "../../meta/x",
        "a b",
        "ä€😀",
        "%2F",
        "a%2Fb",
        "a+b",
        "a?b=c&d#e",
        "~",
        "*",
        "\\",
        "\"'<>|",
        "x.pb",
        "A",
        &long,
    ];
    for text in odd {
        let grant = f.acquire_long(&key(text), "a").await;
        assert_eq!((grant.key.as_str(), grant.token), (text, LeaseToken(1)), "{text:?}");
    }
    for text in odd {
        assert_eq!(f.peek(&key(text)).await.key.as_str(), text);
    }
    let listed = f.leases.list(&Namespace::new("n").unwrap(), None, 100).await.unwrap();
    let listed: BTreeSet<String> = listed.iter().map(|one| one.key.to_string()).collect();
    assert_eq!(listed, odd.iter().map(|text| (*text).to_owned()).collect());
    assert!(LeaseKey::new("n", &"x".repeat(257)).is_err());
    assert!(LeaseKey::new("n", "").is_err());
    for namespace in ["", ".", ".x", "a/b", "ä", &"x".repeat(65)] {
        assert!(LeaseKey::new(namespace, "k").is_err(), "{namespace:?}");
    }
}

/// In any order that is kept from page to page.
pub async fn keys_are_listed_in_pages(f: LeasesFixture) {
    let all: Vec<String> = (0..7).map(|n| format!("k{n}")).collect();
    for text in &all {
        f.acquire_long(&key(text), "a").await;
    }
    let released = LeaseTicket { key: key("k3"), token: LeaseToken(1) };
    done(f.leases.release(&released).await.unwrap().answer);
    let namespace = Namespace::new("n").unwrap();
    let mut seen = Vec::new();
    loop {
        let after = seen.last().cloned();
        let page = f.leases.list(&namespace, after.as_ref(), 3).await.unwrap();
        assert!(page.len() <= 3);
        if page.is_empty() {
            break;
        }
        for one in page {
            assert_eq!(one.lease.is_none(), one.key.as_str() == "k3");
            seen.push(one.key);
        }
    }
    let seen: Vec<String> = seen.iter().map(ToString::to_string).collect();
    assert_eq!(seen, all);
}

/// The same key in two of them is two keys.
pub async fn namespaces_do_not_share_keys(f: LeasesFixture) {
    for namespace in ["blue", "green", "red"] {
        let grant = f.acquire_long(&LeaseKey::new(namespace, "k").unwrap(), namespace).await;
        assert_eq!(grant.token, LeaseToken(1));
    }
    let listed = f.leases.namespaces(None, 10).await.unwrap();
    let listed: Vec<&str> = listed.iter().map(Namespace::as_str).collect();
    assert_eq!(listed, ["blue", "green", "red"]);
    let after = Namespace::new("blue").unwrap();
    let one = f.leases.namespaces(Some(&after), 1).await.unwrap();
    assert_eq!(one, [Namespace::new("green").unwrap()]);
    let keys = f.leases.list(&one[0], None, 10).await.unwrap();
    assert_eq!(keys.len(), 1);
    assert_eq!(keys[0].lease.as_ref().unwrap().owner, name("green"));
}

pub async fn a_waiter_gets_the_lease_when_it_is_released(f: LeasesFixture) {
    let (k, system) = (key("k"), f.system());
    let holder = f.acquire_long(&k, "holder").await;
    let wait = |owner: &'static str| {
        let wish = AcquireRequest { ttl_ms: 3_600_000, ..f.wish(&k, owner) };
        let system = system.clone();
        tokio::spawn(async move { system.acquire(&wish, Duration::from_secs(120)).await })
    };
    let (first, second) = (wait("w1"), wait("w2"));
    done(f.leases.release(&holder.ticket()).await.unwrap().answer);
    let (winner, other) = match futures::future::select(first, second).await {
        futures::future::Either::Left((winner, other)) => (winner, other),
        futures::future::Either::Right((winner, other)) => (winner, other),
    };
    let winner = granted(winner.unwrap().unwrap());
    assert_eq!(winner.token, LeaseToken(2));
    assert!(!other.is_finished(), "one at a time");
    done(f.leases.release(&winner.ticket()).await.unwrap().answer);
    let last = granted(other.await.unwrap().unwrap());
    assert_eq!(last.token, LeaseToken(3));
    assert_ne!(last.owner, winner.owner);
}

pub async fn a_waiter_that_times_out_learns_the_holder(f: LeasesFixture) {
    let (k, system) = (key("k"), f.system());
    f.acquire_long(&k, "holder").await;
    let wish = f.wish(&k, "w");
    let told = held(system.acquire(&wish, Duration::from_millis(400)).await.unwrap());
    assert_eq!((told.owner.as_str(), told.token), ("holder", LeaseToken(1)));
    assert_eq!(f.token(&k).await, LeaseToken(1));
}

pub async fn a_hold_renews_in_the_background(f: LeasesFixture) {
    let (k, system) = (key("k"), f.system());
    let wish = f.wish(&k, "a");
    let options = HoldOptions { every: Some(Duration::from_millis(200)), ..HoldOptions::default() };
    let HoldAttempt::Hold(hold) = system.hold(&wish, Duration::ZERO, options).await.unwrap() else {
        panic!("nobody holds it")
    };
    let first = f.peek(&k).await.lease.unwrap().deadline_ms;
    (f.advance)(f.ttl / 10).await;
    let mut renewed = false;
    for _ in 0..3_000 {
        renewed = f.peek(&k).await.lease.as_ref().is_some_and(|lease| lease.deadline_ms > first);
        if renewed {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(renewed && hold.is_held(), "it was renewed");
    assert_eq!(hold.token(), LeaseToken(1));
    let HoldAttempt::Held(told) =
        system.hold(&wish, Duration::ZERO, HoldOptions::default()).await.unwrap()
    else {
        panic!("it is held")
    };
    assert_eq!(told.token, LeaseToken(1));
    done(hold.release().await.unwrap());
    assert_eq!(f.peek(&k).await.lease, None);
}

pub async fn a_hold_reports_that_it_was_lost(f: LeasesFixture) {
    let (k, system) = (key("k"), f.system());
    let options = HoldOptions { every: Some(Duration::from_millis(200)), ..HoldOptions::default() };
    let wish = AcquireRequest { ttl_ms: 3_600_000, ..f.wish(&k, "a") };
    let HoldAttempt::Hold(hold) = system.hold(&wish, Duration::ZERO, options).await.unwrap() else {
        panic!("nobody holds it")
    };
    assert!(hold.is_held());
    done(f.leases.release(hold.ticket()).await.unwrap().answer);
    match hold.lost().await {
        LostLease::Told(loss) => assert_eq!(loss.why, LossReason::Ended),
        LostLease::Silence => panic!("the store answered"),
    }
    assert!(!hold.is_held());
    let bad = HoldOptions { every: Some(f.ttl * 2), ..HoldOptions::default() };
    assert!(system.hold(&f.wish(&k, "a"), Duration::ZERO, bad).await.is_err());
}

pub async fn explain_gives_reasons(f: LeasesFixture) {
    use crate::system::System;
    let system = f.system();
    let [held, over, free] = [key("held"), key("over"), key("free")];
    f.acquire_long(&held, "a").await;
    let ticket = f.acquire_long(&free, "b").await.ticket();
    done(f.leases.release(&ticket).await.unwrap().answer);
    f.acquire_all(&keys(&["over"]), "c").await;
    f.expire().await;
    let explain = async |subject: &str| system.explain(subject).await.unwrap();
    assert_eq!(explain("n/held").await.verdict, "live");
    let told = explain("n/over").await;
    assert_eq!(told.verdict, "overdue");
    assert!(told.because[0].contains("`c`"), "{told:?}");
    assert!(f.peek(&over).await.expired, "it was looked at, not cleared");
    assert_eq!(explain("n/free").await.verdict, "free");
    assert_eq!(explain("n/never").await.verdict, "unknown");
    assert_eq!(explain(".txn-decisions/t").await.verdict, "unknown");
    assert_eq!(explain("no-slash").await.key, "default/no-slash", "as `lapsed lease` has it");
}
