//! Receipts, terms and settings on PostgreSQL.

use lapsed_core::store::Store;
use lapsed_core::store::conformance::a_brake_record_is_replaced_by_one_of_many;
use lapsed_core::sweep::brake::BrakeSetting;

use crate::fixture::{Bench, eventually, system};

#[tokio::test]
async fn a_term_is_held_by_one_and_its_number_grows_with_every_change() {
    let b = Bench::new().await;
    let first = b.postgres.campaign(&system(), "one", 60_000).await.unwrap().unwrap();
    let again = b.postgres.campaign(&system(), "one", 60_000).await.unwrap().unwrap();
    assert_eq!(again.number, first.number);
    assert!(again.until_ms >= first.until_ms);
    assert_eq!(b.postgres.campaign(&system(), "two", 60_000).await.unwrap(), None);
    assert_eq!(b.postgres.term(&system()).await.unwrap(), Some(again), "whoever asks");
    b.postgres.resign(&system(), first.number - 1).await.unwrap();
    assert_eq!(b.postgres.campaign(&system(), "two", 60_000).await.unwrap(), None);
    b.postgres.resign(&system(), first.number).await.unwrap();
    assert_eq!(b.postgres.term(&system()).await.unwrap(), None, "given back");
    let second = b.postgres.campaign(&system(), "two", 1).await.unwrap().unwrap();
    assert!(second.number > first.number);
    eventually("the end of a term", async || {
        let third = b.postgres.campaign(&system(), "one", 60_000).await.unwrap();
        third.is_some_and(|third| third.number > second.number)
    })
    .await;
}

#[tokio::test]
async fn the_operators_word_is_kept_and_asked_for_in_one_statement() {
    let b = Bench::new().await;
    assert_eq!(b.postgres.brake_setting(&system()).await.unwrap(), BrakeSetting::Auto);
    let overridden = BrakeSetting::Override { reason: "a drill".into() };
    for setting in [BrakeSetting::Hold, overridden, BrakeSetting::Auto] {
        b.postgres.set_brake(&system(), setting.clone()).await.unwrap();
        let before = b.postgres.statements();
        assert_eq!(b.postgres.brake_setting(&system()).await.unwrap(), setting);
        assert_eq!(b.postgres.statements() - before, 1);
    }
}

#[tokio::test]
async fn a_step_or_an_override_of_the_brake_is_given_to_one() {
    let b = Bench::new().await;
    a_brake_record_is_replaced_by_one_of_many(&b.postgres, &system()).await;
}

#[tokio::test]
async fn info_names_the_engine_and_its_version() {
    let b = Bench::new().await;
    let info = b.postgres.info().await.unwrap();
    assert!(info.engine.starts_with("postgres 1"), "{info:?}");
    assert!(info.back_ms > 0 && info.back_ms <= info.now_ms, "{info:?}");
    assert!(!info.place.contains('@') && info.place.ends_with(&b.database), "{info:?}");
}
