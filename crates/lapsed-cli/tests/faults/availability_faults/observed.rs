//! What is in both stores, read directly.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lapsed_testbed::RedisServer;
use lapsed_testbed::resp::{Reply, RespConnection};
use serde::Deserialize;

use super::world::World;

/// Everything that the truth has.
#[derive(Clone, Debug, Deserialize)]
pub struct Truth {
    pub providers: Vec<Row>,
    pub sessions: Vec<SessionRow>,
    /// In the order in which they were written.
    pub logs: Vec<LogRow>,
    pub receipts: Vec<ReceiptRow>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Row {
    pub id: String,
    pub online: bool,
    pub active: bool,
    pub sessions: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct SessionRow {
    pub id: String,
    pub provider: Option<String>,
    pub status: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct LogRow {
    pub provider: String,
    pub status: String,
}

/// Of one who was set offline by a sweep.
#[derive(Clone, Debug, Deserialize)]
pub struct ReceiptRow {
    pub key: String,
    pub incarnation: u64,
    pub at_ms: u64,
}

/// Everything that the mirror has of the application's keys.
#[derive(Clone, Debug, Default)]
pub struct Mirror {
    pub online: BTreeSet<String>,
    pub deactivated: BTreeSet<String>,
    pub capacity: BTreeMap<String, String>,
    pub heartbeats: BTreeSet<String>,
}

#[derive(Clone, Debug)]
pub struct Observed {
    pub truth: Truth,
    pub mirror: Mirror,
}

const SQL: &str = "SELECT json_build_object(
  'providers', (SELECT coalesce(json_agg(json_build_object('id', m.id, 'online', coalesce(s.is_online, false),
     'active', m.is_active, 'sessions', (SELECT count(*) FROM chat_sessions c WHERE c.mitra_id = m.id
        AND c.status IN ('active', 'pending_payment')))), '[]')
     FROM mitras m LEFT JOIN mitra_online_status s ON s.mitra_id = m.id),
  'sessions', (SELECT coalesce(json_agg(json_build_object('id', id, 'provider', mitra_id,
     'status', status)), '[]') FROM chat_sessions),
  'logs', (SELECT coalesce(json_agg(json_build_object('provider', mitra_id, 'status', status) ORDER BY id), '[]')
     FROM mitra_online_logs),
  'receipts', (SELECT coalesce(json_agg(json_build_object('key', body->>'key',
     'incarnation', (body->>'incarnation')::bigint, 'at_ms', (body->>'at_ms')::bigint) ORDER BY seq), '[]')
     FROM lapsed_receipts))";

pub fn observe(world: &World) -> Observed {
    Observed { truth: truth(world), mirror: mirror(&world.valkey) }
}

pub fn truth(world: &World) -> Truth {
    serde_json::from_str(&world.sql(SQL)).unwrap()
}

fn mirror(server: &RedisServer) -> Mirror {
    let mut connection = server.connect(Duration::from_secs(20)).unwrap();
    let online = texts(&mut connection, &["SMEMBERS", "mitras:online"]);
    let deactivated = texts(&mut connection, &["SMEMBERS", "mitras:deactivated"]);
    let heartbeats = texts(&mut connection, &["KEYS", "mitra:heartbeat:*"]);
    let keys = texts(&mut connection, &["KEYS", "mitra:capacity:*"]);
    let mut capacity = BTreeMap::new();
    for key in keys {
        let value = connection.call(&["GET", &key]).unwrap().to_string();
        capacity.insert(key.trim_start_matches("mitra:capacity:").to_owned(), value);
    }
    let name = |key: &String| key.trim_start_matches("mitra:heartbeat:").to_owned();
    let heartbeats = heartbeats.iter().map(name).collect();
    Mirror {
        online: online.into_iter().collect(),
        deactivated: deactivated.into_iter().collect(),
        capacity,
        heartbeats,
    }
}

fn texts(connection: &mut RespConnection, command: &[&str]) -> Vec<String> {
    match connection.call(command).unwrap() {
        Reply::List(items) => items.iter().map(ToString::to_string).collect(),
        other => panic!("{command:?}: {other}"),
    }
}
