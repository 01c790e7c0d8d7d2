//! Cases about requests that are repeated because their answer was lost.

use super::{SessionsFixture, name};
use crate::Error;
use crate::request::RequestId;
use crate::sessions::ReferenceStep;

pub async fn repeated_changes_of_references_count_once(f: SessionsFixture) {
    let claim = f.start("i").await;
    let change = async |key: &str, fingerprint: &str, step: ReferenceStep| {
        let attempt = crate::conformance::unique("attempt");
        let request = RequestId::new(key, fingerprint, &attempt).expect("a valid key");
        f.sessions.change_once(&request, step, Some(&claim), &name("s")).await
    };
    let missing = change("early", "f", ReferenceStep::Connect).await.unwrap();
    assert!(missing.is_none(), "there is no session, and that is not kept");
    f.activate(&["s"]).await;
    change("early", "f", ReferenceStep::Connect).await.unwrap().expect("it is there by now");
    let first = change("c", "f", ReferenceStep::Connect).await.unwrap().expect("it is there");
    assert_eq!((first.references, first.yours, first.changed), (2, 2, true));
    let again = change("c", "f", ReferenceStep::Connect).await.unwrap().expect("it is there");
    assert_eq!((again.references, again.yours, again.incarnation), (2, 2, claim.incarnation));
    assert_eq!(f.references("s").await, 2);
    for _ in 0..3 {
        let gone = change("d", "f", ReferenceStep::Disconnect).await.unwrap().expect("it is there");
        assert_eq!((gone.references, gone.yours, gone.changed), (1, 1, true));
    }
    assert_eq!(f.references("s").await, 1);
    let reused = change("d", "other", ReferenceStep::Disconnect).await;
    assert!(matches!(reused, Err(Error::KeyReused { .. })), "{reused:?}");
    assert_eq!(f.references("s").await, 1);
}
