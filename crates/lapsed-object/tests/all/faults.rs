//! Answers that are lost, late, made up, or bad: nothing is done twice, and nothing is believed that was
//! not said.

use std::time::Duration;

use lapsed_core::Error;
use lapsed_core::leases::conformance::{done, json, key, name};
use lapsed_core::leases::{AcquireRequest, Acquired, Decision, LeaseToken, LeasesStore};
use lapsed_core::sweep::{Cursor, PageRequest, Sweep};
use lapsed_testbed::{Fault, HttpProxy, ObjectEngine, ObjectServer, Rule};

use crate::fixture::{Site, layout, prefix};

const BOTH: [ObjectEngine; 2] = [ObjectEngine::Seaweed, ObjectEngine::Azurite];

impl Site {
    fn faulty(&self) -> &HttpProxy {
        self.proxy.as_ref().unwrap()
    }

    /// The same place seen past the proxy: what is really there.
    fn truth(&self, engine: ObjectEngine) -> Site {
        Site::at(engine, &self.prefix, layout(), None)
    }
}

fn wish(owner: &str) -> AcquireRequest {
    AcquireRequest { key: key("k"), owner: name(owner), ttl_ms: 600_000, request: None }
}

async fn token(leases: &dyn LeasesStore) -> Option<LeaseToken> {
    leases.peek(&key("k")).await.unwrap().map(|found| found.token)
}

fn granted(answer: Acquired) -> lapsed_core::leases::Grant {
    match answer {
        Acquired::Granted(grant) => grant,
        Acquired::Held(grant) => panic!("held by {grant:?}"),
    }
}

/// The write was made, its answer lost: repeating it finds its own, and is not held off by itself.
#[tokio::test]
async fn an_answer_lost_after_the_write_is_settled() {
    for engine in BOTH {
        for fault in [Fault::DropAnswer, Fault::AnswerAfter(503), Fault::AnswerAfter(500)] {
            let site = Site::proxied(engine);
            site.faulty().add(Rule::next("PUT", "/meta/", fault.clone()));
            let grant = granted(site.leases.acquire(&wish("a")).await.unwrap().answer);
            assert_eq!(grant.token, LeaseToken(1), "{engine:?} {fault:?}");
            for step in 0..3 {
                site.faulty().add(Rule::next("PUT", "/meta/", fault.clone()));
                let ticket = grant.ticket();
                match step {
                    0 => drop(done(site.leases.renew(&ticket, None).await.unwrap().answer)),
                    1 => {
                        done(site.leases.set_state(&ticket, Some(&json("s"))).await.unwrap().answer)
                    }
                    _ => done(site.leases.release(&ticket).await.unwrap().answer),
                }
            }
            assert!(site.faulty().is_done());
            let there = site.truth(engine).leases.peek(&key("k")).await.unwrap().unwrap();
            assert_eq!(
                (there.token, there.lease, there.state),
                (LeaseToken(1), None, Some(json("s")))
            );
        }
    }
}

/// The same for decisions: the first one is answered as the first.
#[tokio::test]
async fn a_decision_whose_answer_was_lost_is_still_the_first() {
    for engine in BOTH {
        let site = Site::proxied(engine);
        site.faulty().add(Rule::next("PUT", "/m/", Fault::DropAnswer));
        let decided =
            site.leases.decide(&name("t"), Decision::Commit, 60_000).await.unwrap().answer;
        assert!(decided.first && decided.decision == Decision::Commit, "{decided:?}");
        assert!(site.faulty().is_done());
    }
}

/// A store that is busy for a moment is asked again, more slowly; one that stays busy says so.
#[tokio::test]
async fn throttling_is_retried_and_then_reported() {
    for engine in BOTH {
        let site = Site::proxied(engine);
        site.faulty().add(Rule { times: 2, ..Rule::next("PUT", "/meta/", Fault::Answer(503)) });
        assert_eq!(
            granted(site.leases.acquire(&wish("a")).await.unwrap().answer).token,
            LeaseToken(1)
        );
        assert_eq!(site.store.requests().throttled, 2);
        let other = Site::proxied(engine);
        other.faulty().add(Rule::always("PUT", "/meta/", Fault::Answer(429)));
        let error = other.leases.acquire(&wish("a")).await.unwrap_err();
        assert!(matches!(error, Error::Throttled { .. }), "{error}");
        assert!(other.truth(engine).leases.peek(&key("k")).await.unwrap().is_none());
    }
}

/// The store reports a conflict that did not happen: the object is read again, and the change is made once.
#[tokio::test]
async fn a_made_up_412_costs_another_round_and_no_token() {
    for engine in BOTH {
        let site = Site::proxied(engine);
        site.faulty().add(Rule::next("PUT", "/meta/", Fault::Answer(412)));
        let grant = granted(site.leases.acquire(&wish("a")).await.unwrap().answer);
        assert_eq!(grant.token, LeaseToken(1));
        site.faulty().add(Rule::next("PUT", "/meta/", Fault::Answer(412)));
        done(site.leases.renew(&grant.ticket(), None).await.unwrap().answer);
    }
}

/// Nobody answers in time, ever: an error within bounds, and what was carried out is found later.
#[tokio::test]
async fn a_time_out_is_an_error_and_the_next_attempt_finds_what_was_done() {
    let server = ObjectServer::shared(ObjectEngine::Seaweed);
    let proxy = HttpProxy::start(server.port()).unwrap();
    let home = prefix();
    let mut config = crate::fixture::config(server, proxy.port(), &home);
    config.timeout = Duration::from_millis(1_500);
    let store = crate::fixture::open(config);
    let leases = store.leases(crate::fixture::system(), layout()).unwrap();
    proxy.add(Rule::always("", "/meta/", Fault::DelayAnswer(Duration::from_secs(4))));
    let request = Some(name("r1"));
    let wish = AcquireRequest { request, ..wish("a") };
    let error = leases.acquire(&wish).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    proxy.clear();
    let grant = granted(leases.acquire(&wish).await.unwrap().answer);
    assert_eq!(grant.token, LeaseToken(1));
    lapsed_testbed::until("the late ones", Duration::from_secs(20), || {
        Ok(proxy.is_idle().then_some(()))
    })
    .unwrap();
    assert_eq!(token(&*leases).await, Some(LeaseToken(1)));
}

/// X2: a read that fails is not "nothing there".
#[tokio::test]
async fn trap_x2_a_failed_read_changes_nothing() {
    for engine in BOTH {
        let site = Site::proxied(engine);
        let grant = granted(site.leases.acquire(&wish("a")).await.unwrap().answer);
        let other = Site::at(
            engine,
            &site.prefix,
            layout(),
            Some(HttpProxy::start(ObjectServer::shared(engine).port()).unwrap()),
        );
        for fault in [Fault::Answer(500), Fault::DropRequest, Fault::Answer(403)] {
            other.faulty().add(Rule::always("GET", "", fault.clone()));
            other.faulty().take_seen();
            let error = other.leases.acquire(&wish("b")).await.unwrap_err();
            assert!(matches!(error, Error::Unavailable { .. }), "{fault:?}: {error}");
            let request = PageRequest { after: Cursor::default(), limit: 10, undeclared_max: None };
            assert!(other.leases.suspects(request).await.is_err(), "{fault:?}");
            assert!(other.leases.describe(&key("k")).await.is_err());
            assert!(other.leases.decision(&name("t")).await.is_err());
            let asked = other.faulty().take_seen();
            assert!(asked.iter().all(|line| line.starts_with("GET")), "{asked:?}");
            other.faulty().clear();
        }
        assert_eq!(token(&*site.leases).await, Some(grant.token));
    }
}

/// The store's clock is behind this host's, or ahead: leases last by the store's clock, and none is shortened.
#[tokio::test]
async fn a_store_with_another_clock_is_believed() {
    for shift in [-3_600, 3_600] {
        let site = Site::proxied(ObjectEngine::Seaweed);
        site.faulty().shift_date(shift);
        let grant = granted(site.leases.acquire(&wish("a")).await.unwrap().answer);
        let offset = site.store.offset().unwrap();
        assert!((offset.lo_ms - shift * 1_000).abs() < 20_000, "{offset:?}");
        assert_eq!(grant.deadline_ms, grant.now_ms + 600_000);
        assert!(offset.hi_ms >= offset.lo_ms);
        let described = site.leases.describe(&key("k")).await.unwrap();
        assert!(described.cleared.is_empty() && described.answer.unwrap().lease.is_some());
    }
}
