//! An application's own tables: other names, other types, more columns than lapsed knows.

use lapsed_availability::{
    ProviderBeat, ProviderProfile, SessionChange, SessionOutcome, SessionRefusal, Truth,
};
use lapsed_core::{Error, Name};
use lapsed_postgres::{Layout, Postgres, PostgresTruth, Triggers};
use lapsed_testbed::PostgresServer;

use crate::fixture::{address, batch, flip_of, flipped, name, system};

struct Theirs {
    server: &'static PostgresServer,
    database: String,
    truth: PostgresTruth,
}

impl Theirs {
    async fn adopt(tables: &str, layout: Layout) -> Theirs {
        let server = PostgresServer::shared().unwrap();
        let database = server.database().unwrap();
        server.sql(&database, tables).unwrap();
        let postgres = Postgres::new(&address(&server.url(&database))).unwrap();
        let applied = postgres.apply_schema(&layout, Triggers::With).await.unwrap();
        assert!(applied.made.iter().all(|made| made.contains("lapsed_")), "{:?}", applied.made);
        let truth = postgres.availability(system(), layout).unwrap();
        Theirs { server, database, truth }
    }

    fn sql(&self, sql: &str) -> String {
        self.server.sql(&self.database, sql).unwrap()
    }

    /// All that is done to a provider, once.
    async fn go_through(&self, id: &Name, other: &Name, session: &Name) {
        let truth = &self.truth;
        let online = truth.set_online(id, true).await.unwrap().unwrap();
        assert!(online.changed && online.state.online && online.state.active);
        truth.set_online(other, true).await.unwrap().unwrap();
        assert_eq!(truth.beat(std::slice::from_ref(id)).await.unwrap(), [ProviderBeat::Noted]);
        assert_eq!(truth.note_beats(&[(id.clone(), 0)], u64::MAX).await.unwrap(), 0);
        let accept = SessionChange::Accept { session: session.clone(), provider: id.clone() };
        let done = truth.change_session(&accept, 3).await.unwrap();
        assert!(
            matches!(&done, SessionOutcome::Done { changed: true, touched, .. } if touched[0].sessions == 1)
        );
        let reroute = SessionChange::Reroute { session: session.clone(), to: other.clone() };
        let done = truth.change_session(&reroute, 3).await.unwrap();
        assert!(matches!(&done, SessionOutcome::Done { touched, .. } if touched.len() == 2));
        let end = SessionChange::Expire { session: session.clone() };
        truth.change_session(&end, 3).await.unwrap();
        assert_eq!(truth.session(session).await.unwrap().unwrap().status.as_str(), "expired");
        let states = truth.page(None, 9).await.unwrap();
        assert_eq!(states.len(), 2);
        assert_eq!(truth.page(Some(&states[0].id), 9).await.unwrap().len(), 1);
        assert_eq!(truth.available(&Default::default(), None, 9).await.unwrap().len(), 2);
        truth.set_active(other, false).await.unwrap().unwrap();
        assert_eq!(truth.count_available(&Default::default()).await.unwrap(), 1);
        let listed = truth.describe(id).await.unwrap().unwrap();
        assert!(listed.is_online && listed.last_heartbeat_ms.is_some());
        let state = truth.refresh(&[(id.clone(), 0)]).await.unwrap().pop().unwrap();
        flipped(&truth.flip(&batch(1), &[flip_of(&state)], 0).await.unwrap()[0]);
        assert!(!truth.read(std::slice::from_ref(id)).await.unwrap()[0].online);
        truth.settings().await.unwrap();
    }
}

/// Other names everywhere, numbers as ids, an enumeration as status, texts as settings, no logins.
#[tokio::test]
async fn other_names_numbers_and_an_enumeration() {
    let tables = r#"
        CREATE SCHEMA crm;
        CREATE TYPE crm.state AS ENUM ('new', 'active', 'pending_payment', 'ended', 'expired', 'cancelled');
        CREATE TYPE crm.flip AS ENUM ('online', 'offline');
        CREATE TABLE crm."Coaches" ("Id" int PRIMARY KEY, enabled boolean NOT NULL, phone text NOT NULL);
        CREATE TABLE crm.presence (coach int PRIMARY KEY, up boolean NOT NULL, "since" timestamptz,
            until timestamptz, "last ""beat""" timestamptz);
        CREATE TABLE crm.presence_log (coach bigint NOT NULL, what crm.flip NOT NULL,
            logged timestamptz NOT NULL DEFAULT now());
        CREATE TABLE crm.talks (talk bigint PRIMARY KEY, coach int, state crm.state NOT NULL);
        CREATE TABLE crm.knobs (name varchar(40) PRIMARY KEY, setting text NOT NULL);
        INSERT INTO crm."Coaches" VALUES (7, true, '+62'), (8, true, '+63');
        INSERT INTO crm.knobs VALUES ('stale', '45'), ('ping', 'true');"#;
    let mut layout = Layout::default();
    layout.providers.table = "crm.Coaches".to_owned();
    layout.providers.id = "Id".to_owned();
    layout.providers.is_active = "enabled".to_owned();
    layout.status.table = "crm.presence".to_owned();
    layout.status.provider = "coach".to_owned();
    layout.status.is_online = "up".to_owned();
    layout.status.last_online_at = "since".to_owned();
    layout.status.last_offline_at = "until".to_owned();
    layout.status.last_heartbeat_at = "last \"beat\"".to_owned();
    layout.logs.table = "crm.presence_log".to_owned();
    layout.logs.provider = "coach".to_owned();
    layout.logs.status = "what".to_owned();
    layout.logs.created_at = "logged".to_owned();
    layout.sessions.table = "crm.talks".to_owned();
    layout.sessions.id = "talk".to_owned();
    layout.sessions.provider = "coach".to_owned();
    layout.sessions.status = "state".to_owned();
    layout.logins.table = String::new();
    layout.config.table = "crm.knobs".to_owned();
    layout.config.key = "name".to_owned();
    layout.config.value = "setting".to_owned();
    layout.config.stale_after_seconds = "stale".to_owned();
    layout.config.require_ping = "ping".to_owned();
    let theirs = Theirs::adopt(tables, layout).await;
    assert_eq!(theirs.truth.settings().await.unwrap().stale_after_seconds, 45);
    theirs.go_through(&name("7"), &name("8"), &name("123")).await;
    assert_eq!(
        theirs.sql(
            "SELECT string_agg(what::text, ' ' ORDER BY logged) FROM crm.presence_log \
                           WHERE coach = 7"
        ),
        "online offline"
    );
    let flaps = theirs.truth.log(&name("7"), 9).await.unwrap();
    assert_eq!(flaps.iter().map(|flap| flap.online).collect::<Vec<_>>(), [false, true]);
    let patch = lapsed_availability::rules::SettingsPatch {
        max_customers_per_mitra: Some(9),
        ..Default::default()
    };
    theirs.truth.set_settings(&patch).await.unwrap();
    assert_eq!(
        theirs.sql("SELECT setting FROM crm.knobs WHERE name = 'max_customers_per_mitra'"),
        "9"
    );
    // Their table wants more than lapsed knows: making a provider is theirs.
    let profile = ProviderProfile { id: name("9"), display_name: None };
    let error = theirs.truth.put_provider(&profile).await.unwrap_err();
    assert!(matches!(&error, Error::Invalid(what) if what.contains("phone")), "{error}");
    // What cannot be an id is nobody.
    for stranger in ["x", "07", "9999999999"].map(name) {
        assert_eq!(theirs.truth.set_online(&stranger, true).await.unwrap(), None);
        assert_eq!(
            theirs.truth.beat(std::slice::from_ref(&stranger)).await.unwrap(),
            [ProviderBeat::Offline]
        );
        assert_eq!(theirs.truth.describe(&stranger).await.unwrap(), None);
        assert_eq!(theirs.truth.session(&name("x")).await.unwrap(), None);
        let accept = SessionChange::Accept { session: name("5"), provider: stranger };
        let refused = theirs.truth.change_session(&accept, 3).await.unwrap();
        assert_eq!(refused, SessionOutcome::Refused(SessionRefusal::NoSuchProvider));
    }
    let ids = ["7", "x", "8"].map(name);
    assert_eq!(theirs.truth.read(&ids).await.unwrap().len(), 2, "one bad name spoils nothing");
}

/// The seed's own tables: uuid, and foreign keys between them.
#[tokio::test]
async fn the_seeds_tables_with_uuids_and_foreign_keys() {
    let tables = "
        CREATE TABLE mitras (id uuid PRIMARY KEY, display_name varchar(100), is_active boolean NOT NULL
            DEFAULT true);
        CREATE TABLE mitra_online_status (mitra_id uuid PRIMARY KEY REFERENCES mitras, is_online boolean
            NOT NULL DEFAULT false, last_online_at timestamptz, last_offline_at timestamptz,
            last_heartbeat_at timestamptz, updated_at timestamptz NOT NULL DEFAULT now());
        CREATE TABLE mitra_online_logs (id bigserial PRIMARY KEY, mitra_id uuid REFERENCES mitras,
            status text, created_at timestamptz NOT NULL DEFAULT now());
        CREATE TABLE chat_sessions (id uuid PRIMARY KEY, mitra_id uuid REFERENCES mitras, status text);
        CREATE TABLE auth_sessions (id bigserial, user_id text NOT NULL, revoked_at timestamptz);
        CREATE TABLE app_config (key text PRIMARY KEY, value jsonb NOT NULL);
        INSERT INTO mitras (id) VALUES ('0190f0a0-1111-7222-8333-00000000000a'),
            ('0190f0a0-1111-7222-8333-00000000000b');
        INSERT INTO auth_sessions (user_id) VALUES ('0190f0a0-1111-7222-8333-00000000000b');";
    let theirs = Theirs::adopt(tables, Layout::default()).await;
    let id = |letter: char| name(&format!("0190f0a0-1111-7222-8333-00000000000{letter}"));
    theirs.go_through(&id('a'), &id('b'), &id('c')).await;
    assert_eq!(theirs.sql("SELECT count(*) FROM auth_sessions WHERE revoked_at IS NULL"), "0");
    let upper = name("0190F0A0-1111-7222-8333-00000000000A");
    assert_eq!(
        theirs.truth.set_online(&upper, true).await.unwrap(),
        None,
        "one provider, one name"
    );
    let made = ProviderProfile { id: id('d'), display_name: Some("D".to_owned()) };
    assert!(theirs.truth.put_provider(&made).await.unwrap().changed);
    let wrong = ProviderProfile { id: name("d"), display_name: None };
    assert!(matches!(theirs.truth.put_provider(&wrong).await, Err(Error::Invalid(_))));
}

/// The application toggles by itself: the next refresh begins an epoch, and only then.
#[tokio::test]
async fn a_toggle_of_the_applications_begins_an_epoch() {
    let b = crate::fixture::Bench::new().await;
    b.there(&["a"]).await;
    let refresh = async || b.truth.refresh(&[(name("a"), 0)]).await.unwrap().pop().unwrap();
    let first = refresh().await;
    assert_eq!(refresh().await.epoch, first.epoch);
    b.sql("UPDATE mitra_online_status SET last_heartbeat_at = now()");
    assert_eq!(refresh().await.epoch, first.epoch, "a beat is no toggle");
    b.sql("UPDATE mitra_online_status SET is_online = false, last_offline_at = now()");
    let off = refresh().await;
    assert!(!off.online && off.epoch == off.version);
    b.sql("UPDATE mitra_online_status SET is_online = true, last_online_at = now()");
    let on = refresh().await;
    assert!(on.online && on.epoch == on.version && on.epoch > off.epoch);
    // Off and on between two looks: the time tells.
    b.sql("UPDATE mitra_online_status SET is_online = false, last_offline_at = now()");
    b.sql("UPDATE mitra_online_status SET is_online = true, last_online_at = now()");
    assert!(refresh().await.epoch > on.epoch);
}
