//! A session from its activation to its end.

use lapsed::{Error, Every, Manual, Name, SessionProfile};

use crate::stores::{each, ms, until};

#[tokio::test]
async fn a_session_lives_while_somebody_is_connected_and_its_grace_longer() {
    for (lapsed, _folder) in each().await {
        let chat = lapsed.sessions("chat").grace(ms(200)).ttl(ms(400)).sweep(Every(ms(50)));
        let chat = chat.start().await.unwrap();
        let me = chat.join("server-1").await.unwrap();
        let profile = SessionProfile { value: Some("hello".to_owned()), ..Default::default() };
        me.activate_with("room-7", &profile).await.unwrap();
        assert_eq!(me.connect("room-7").await.unwrap(), Some(1));
        assert_eq!(me.connect("no-such").await.unwrap(), None);
        assert!(!chat.delete("room-7").await.unwrap(), "somebody is connected");
        assert_eq!(me.disconnect("room-7").await.unwrap(), Some(0));
        until("the orphan is swept", || async { chat.get("room-7").await.unwrap().is_none() })
            .await;
        assert_eq!(chat.receipts(1).await.unwrap()[0].key.as_str(), "room-7");
        me.leave().await.unwrap();
    }
}

#[tokio::test]
async fn an_owner_that_leaves_drops_its_references() {
    for (lapsed, _folder) in each().await {
        let chat = lapsed.sessions("chat").sweep(Manual).start().await.unwrap();
        let (a, b) = (chat.join("a").await.unwrap(), chat.join("b").await.unwrap());
        a.activate("room-7").await.unwrap();
        a.connect("room-7").await.unwrap();
        b.connect("room-7").await.unwrap();
        assert_eq!(a.leave().await.unwrap().released, 1);
        assert_eq!(chat.get("room-7").await.unwrap().unwrap().references, 1);
    }
}

#[tokio::test]
async fn a_broadcaster_is_named_by_a_string_and_has_one_current_session() {
    for (lapsed, _folder) in each().await {
        let chat = lapsed.sessions("chat").sweep(Manual).start().await.unwrap();
        let me = chat.join("server-1").await.unwrap();
        let session = me.activate_for("room-7", "anna").await.unwrap();
        assert_eq!(session.id.as_str(), "room-7");
        let broadcaster = session.profile.broadcaster_user_id.as_ref().map(Name::as_str);
        assert_eq!(broadcaster, Some("anna"));
        me.activate_for("room-8", "anna").await.unwrap();
        let current = chat.of_broadcaster("anna").await.unwrap();
        assert_eq!(current.as_deref(), Some("room-8"));
        assert_eq!(chat.of_broadcaster("bert").await.unwrap(), None);
        let refused = me.activate_for("room-9", "").await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        assert!(chat.get("room-9").await.unwrap().is_none());
    }
}
