//! Cases about keys that nobody uses any more: they are forgotten, and their tokens never go back.

use std::time::Duration;

use super::{LeasesFixture, done, json, key, keys, lost};
use crate::leases::{AcquireRequest, Acquired, Fenced, Grant, LeaseKey, LossReason, TTL_MS_MIN};
use crate::receipt::Reason;

impl LeasesFixture {
    /// The same store, with a system that forgets a key after that time without use.
    fn forgetting(self, after: Duration) -> Self {
        let leases = (self.open_forgetting)(after);
        let (ttl, on) = self.base.into_store();
        LeasesFixture::new(leases, self.open_forgetting, (ttl, self.coarse), on)
    }

    /// Acquires the shortest lease there is; panics if the key is held.
    async fn acquire_short(&self, key: &LeaseKey, owner: &str) -> Grant {
        let wish = AcquireRequest { ttl_ms: TTL_MS_MIN, ..self.wish(key, owner) };
        match self.leases.acquire(&wish).await.expect("acquire").answer {
            Acquired::Granted(grant) => grant,
            Acquired::Held(grant) => panic!("held: {grant:?}"),
        }
    }

    /// Lets time pass until every key that nobody holds may be forgotten, and sweeps: the first pass
    /// finds it free, the second one forgets it.
    async fn forget(&self, after: Duration) {
        (self.advance)(Duration::from_millis(TTL_MS_MIN) + self.coarse).await;
        self.sweep().await;
        // The index tells in whole seconds when a key may be forgotten.
        (self.advance)(after + self.coarse * 2).await;
        self.sweep().await;
    }

    async fn is_known(&self, key: &LeaseKey) -> bool {
        self.leases.peek(key).await.expect("peek").is_some()
    }
}

/// Released, cleared by a pass, cleared by a look: whatever ended the last lease, the key goes, the
/// token does not come again, and the old holder gets `Lost`.
pub async fn trap_d5_a_forgotten_key_starts_above_its_old_tokens(f: LeasesFixture) {
    let after = Duration::from_secs(1);
    let f = f.forgetting(after);
    let all = keys(&["released", "swept"]);
    let mut last = Vec::new();
    for round in 0..2 {
        for k in &all {
            let grant = f.acquire_short(k, &format!("o{round}")).await;
            if round == 0 || k.key.as_str() == "released" {
                done(f.leases.release(&grant.ticket()).await.unwrap().answer);
            }
            last.push(grant);
        }
    }
    let last = last.split_off(2);
    f.forget(after).await;
    for (k, old) in all.iter().zip(&last) {
        assert!(!f.is_known(k).await, "{k} is still there");
        let told = lost(f.leases.renew(&old.ticket(), None).await.unwrap().answer);
        assert_eq!(told.why, LossReason::Ended, "{k}");
    }
    assert_eq!(f.leases.keys_forgotten(), 2);
    assert!(f.leases.list(&all[0].namespace, None, 10).await.unwrap().is_empty());
    assert!(f.suspects().await.is_empty(), "nothing points to them");
    for (k, old) in all.iter().zip(&last) {
        let new = f.acquire_long(k, "new").await;
        assert!(new.token > old.token, "{k}: {} after {}", new.token, old.token);
        let told = lost(f.set_state(&old.ticket(), "old").await);
        assert_eq!((told.why, told.token), (LossReason::Superseded, new.token));
    }
    let swept = f.receipts().await;
    let swept: Vec<_> = swept.iter().filter(|r| r.reason == Reason::LeaseExpired).collect();
    assert_eq!(swept.len(), 1, "forgetting writes no receipt and loses none: {swept:?}");
}

/// Held, with a state, or used again meanwhile: such a key stays as it is.
pub async fn only_unused_keys_are_forgotten(f: LeasesFixture) {
    // Long enough that a slow server does not forget a key between two steps (seen: 3 s were too short).
    let after = Duration::from_secs(8);
    let f = f.forgetting(after);
    let [held, state, again] = [key("held"), key("state"), key("again")];
    f.acquire_long(&held, "a").await;
    let ticket = f.acquire_short(&state, "a").await.ticket();
    done(f.set_state(&ticket, "kept").await);
    done(f.leases.release(&ticket).await.unwrap().answer);
    let first = f.acquire_short(&again, "a").await;
    done(f.leases.release(&first.ticket()).await.unwrap().answer);
    (f.advance)(Duration::from_millis(TTL_MS_MIN) + f.coarse).await;
    f.sweep().await;
    let second = f.acquire_long(&again, "b").await;
    f.forget(after).await;
    assert!(f.peek(&held).await.lease.is_some());
    assert_eq!(f.peek(&state).await.state, Some(json("kept")));
    assert_eq!(f.token(&again).await, second.token);
    assert!(matches!(
        f.leases.renew(&second.ticket(), None).await.unwrap().answer,
        Fenced::Done(_)
    ));
    assert_eq!(f.leases.keys_forgotten(), 0);
}
