//! The probe: what a server must do, tried; and servers that do not, refused by name.

use std::time::Duration;

use lapsed_core::Error;
use lapsed_core::store::Store;
use lapsed_object::ObjectConfig;
use lapsed_testbed::{BUCKET, ObjectEngine, ObjectServer, http_call};

use crate::fixture::{Site, config, open, prefix};

async fn holds(engine: ObjectEngine) {
    let site = Site::new(engine);
    let report = site.store.probe().await.unwrap();
    report.verdict("main").unwrap();
    assert!(report.lines.iter().all(|line| line.failed.is_none()), "{report:#?}");
    assert!(report.deletes_under_condition());
    let before = site.store.requests().total();
    site.store.probe().await.unwrap();
    assert_eq!(site.store.requests().total(), before, "once a process");
}

#[tokio::test]
async fn seaweed_holds_what_leases_rest_on() {
    holds(ObjectEngine::Seaweed).await;
}

#[tokio::test]
async fn moto_with_one_thread_holds_what_leases_rest_on() {
    holds(ObjectEngine::Moto).await;
}

#[tokio::test]
async fn azurite_holds_what_leases_rest_on() {
    holds(ObjectEngine::Azurite).await;
}

/// It takes every condition for granted: two makers both win.
#[tokio::test]
async fn s3rver_is_refused_and_nothing_but_the_probe_was_there() {
    let site = Site::new(ObjectEngine::S3rver);
    let report = site.store.probe().await.unwrap();
    let refused = report.verdict("main").unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    let words = refused.to_string();
    assert!(words.contains("If-None-Match is ignored"), "{words}");
    assert!(words.contains("an object is replaced only if it is still what was read"), "{words}");
    let server = ObjectServer::shared(ObjectEngine::S3rver);
    let list = format!("/{BUCKET}?list-type=2&prefix={}", site.prefix);
    let listed = http_call(server.port(), "GET", &list, &[], Duration::from_secs(10)).unwrap();
    assert_eq!(listed.status, 200, "{}", listed.body);
    assert!(!listed.body.contains("<Key>"), "{}", listed.body);
}

async fn refused(config: ObjectConfig, word: &str) {
    let store = open(config);
    for error in [store.probe().await.unwrap_err(), store.info().await.unwrap_err()] {
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[tokio::test]
async fn a_wrong_bucket_is_named() {
    for engine in ObjectEngine::GOOD {
        let server = ObjectServer::shared(engine);
        let mut wrong = config(server, server.port(), &prefix());
        wrong.url = wrong.url.replace(BUCKET, "no-such-bucket");
        refused(wrong, "no bucket \"no-such-bucket\"").await;
    }
}

#[tokio::test]
async fn wrong_credentials_are_named() {
    for engine in [ObjectEngine::Seaweed, ObjectEngine::Azurite] {
        let server = ObjectServer::shared(engine);
        let mut wrong = config(server, server.port(), &prefix());
        wrong.secret_access_key = wrong.secret_access_key.map(|_| "wrong".to_owned());
        wrong.account_key = wrong.account_key.map(|_| "d3Jvbmc=".to_owned());
        refused(wrong, "credentials are not accepted").await;
    }
}

#[tokio::test]
async fn an_unreachable_store_is_reported() {
    for engine in [ObjectEngine::Seaweed, ObjectEngine::Azurite] {
        let server = ObjectServer::shared(engine);
        // Port 1: nobody listens there.
        refused(config(server, 1, &prefix()), "no server answers there").await;
    }
}
