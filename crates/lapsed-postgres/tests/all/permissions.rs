//! The permissions that docs/operations.md names are enough, each for a user that has just these.

use lapsed_availability::rules::SettingsPatch;
use lapsed_availability::{ProviderProfile, SessionChange, Truth};
use lapsed_core::receipt::Retention;
use lapsed_core::store::Store;
use lapsed_core::sweep::TidyLimits;
use lapsed_core::sweep::brake::BrakeSetting;
use lapsed_postgres::Postgres;

use crate::fixture::{Bench, address, batch, flip_of, flipped, layout, name, system};

/// The statements of the page, between its fences.
fn granted() -> String {
    let page = include_str!("../../../../docs/operations.md");
    let (_, section) = page.split_once("\n## What must I know about PostgreSQL?\n").unwrap();
    let (_, fenced) = section.split_once("```sql\n").unwrap();
    fenced.split_once("```").unwrap().0.to_owned()
}

#[tokio::test]
async fn a_user_with_just_these_can_do_everything() {
    let b = Bench::new().await;
    let user = format!("daemon_{}", b.database);
    b.sql(&format!("CREATE ROLE {user} LOGIN"));
    b.sql(&granted().replace("TO lapsed", &format!("TO {user}")));
    let url = b.url().replace("lapsed@", &format!("{user}@"));
    let postgres = Postgres::new(&address(&url)).unwrap();
    let truth = postgres.availability(system(), layout()).unwrap();
    let a = name("a");
    truth
        .put_provider(&ProviderProfile { id: a.clone(), display_name: Some("A".into()) })
        .await
        .unwrap();
    truth.set_online(&a, true).await.unwrap().unwrap();
    truth.set_active(&a, false).await.unwrap().unwrap();
    truth.set_active(&a, true).await.unwrap().unwrap();
    let session = name("s");
    let accept = SessionChange::Accept { session: session.clone(), provider: a.clone() };
    truth.change_session(&accept, 3).await.unwrap();
    truth.change_session(&SessionChange::End { session: session.clone() }, 3).await.unwrap();
    truth.session(&session).await.unwrap();
    truth.beat(std::slice::from_ref(&a)).await.unwrap();
    truth.note_beats(&[(a.clone(), 0)], u64::MAX).await.unwrap();
    let patch = SettingsPatch { stale_after_seconds: Some(60), ..SettingsPatch::default() };
    let settings = truth.set_settings(&patch).await.unwrap();
    assert_eq!(truth.settings().await.unwrap(), settings);
    assert_eq!(truth.count_available(&settings).await.unwrap(), 1);
    assert_eq!(truth.available(&settings, None, 9).await.unwrap().len(), 1);
    assert_eq!(truth.list(&Default::default()).await.unwrap().len(), 0);
    truth.extent().await.unwrap();
    let state = truth.refresh(&[(a.clone(), 0)]).await.unwrap().pop().unwrap();
    let term = postgres.campaign(&system(), "me", 600_000).await.unwrap().unwrap();
    let led = lapsed_core::sweep::Batch { term: Some(term.number), ..batch(1) };
    let answer = truth.flip(&led, &[flip_of(&state)], 0).await.unwrap();
    let seq = flipped(&answer[0]).0.id.seq;
    truth.settle(&batch(1).id).await.unwrap();
    truth.restore(seq).await.unwrap();
    assert_eq!(truth.log(&a, 9).await.unwrap().len(), 3);
    let limits = TidyLimits {
        rows: 10,
        undeclared_max: None,
        retention: Retention { age_ms: 0, count: 0, ..Retention::default() },
        term: Some(term.number),
    };
    assert_eq!(truth.tidy(limits).await.unwrap().receipts_pruned, 1);
    postgres.set_brake(&system(), BrakeSetting::Hold).await.unwrap();
    postgres.brake_setting(&system()).await.unwrap();
    postgres.resign(&system(), term.number).await.unwrap();
    let (notes, book) = (postgres.notes(), name("audit"));
    let seq = notes.note(&system(), &book, "text").await.unwrap();
    notes.notes(&system(), &book, lapsed_core::notes::NoteQuery::default()).await.unwrap();
    notes.delete_note(&system(), &book, seq).await.unwrap();
    notes.advance_mark(&system(), &book, 1).await.unwrap();
    notes.mark(&system(), &book).await.unwrap();
    notes.take_turn(&system(), &book, "me", 1).await.unwrap();
    notes.end_turn(&system(), &book, "me").await.unwrap();
    postgres.info().await.unwrap();
    let mut listener = postgres.listen();
    listener.next().await;
    drop((truth, postgres, listener));
    b.sql(&format!("DROP OWNED BY {user}; DROP ROLE {user}"));
}
