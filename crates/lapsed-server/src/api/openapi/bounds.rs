//! Constraints of values for the OpenAPI document: the length of a name, the range of a number, the
//! form of a cursor. The Rust types of requests cannot express them, so they are added to the
//! finished document, by the names of parameters and of body members.
//!
//! Nothing is validated here: handlers and the library do that, and a Schemathesis test compares
//! the two. Constraints that a schema cannot express (a name's limit is in bytes; `after` and
//! `before` exclude each other) are stated only in descriptions.

use std::collections::BTreeSet;

use lapsed_core::Kind;
use serde_json::{Map, Value, json};

/// A printable name that is not empty. (The limit is 512 bytes, but a schema counts characters.)
const NAME: &str = r"^[^\x00-\x1f\x7f-\x9f]+$";
const NAMESPACE: &str = r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}$";
const SYSTEM: &str = r"^[A-Za-z0-9_-]{1,64}$";
/// Canonical Base64: unused bits of the last character are zero.
const BASE64: &str =
    r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$";
const NAME_CHARS_MAX: u64 = 512;
const LEASE_KEY_CHARS_MAX: u64 = 256;

const TAKE_WAIT_MS_MAX: u64 = 30_000;
const ACQUIRE_WAIT_MS_MAX: u64 = 60_000;
const TEN_YEARS_MS: u64 = 10 * 365 * 24 * 3600 * 1000;
const LEASE_TTL_MS: (u64, u64) = (1_000, 30 * 24 * 3600 * 1000);
const DAY_SECONDS: u64 = 24 * 3600;

/// The paths where `after`, `before` and `cursor` are cursors over several systems.
const CURSORS: &[&str] = &["/v1/receipts", "/v1/events", "/v1/audit"];

/// The members of bodies that are names or lists of names.
const NAMES: &[&str] = &[
    "owner",
    "key",
    "keys",
    "session",
    "sessions",
    "id",
    "queue",
    "provider",
    "providers",
    "to",
    "request",
    "broadcaster_user_id",
];

/// Adds all constraints to the document.
pub fn refine(document: &mut Value) {
    let bodies = bodies(document);
    for (path, item) in members(document.get_mut("paths")) {
        for (_, operation) in members(Some(item)) {
            for parameter in elements(operation.get_mut("parameters")) {
                let name = parameter["name"].as_str().unwrap_or_default().to_owned();
                if let Some(schema) = parameter.get_mut("schema") {
                    merge(schema, of_parameter(path, &name));
                }
            }
        }
    }
    for (name, schema) in members(document.pointer_mut("/components/schemas")) {
        if bodies.contains(name) {
            body(name, schema);
        }
        shape(name, schema);
    }
    widths(document);
}

fn members(value: Option<&mut Value>) -> impl Iterator<Item = (&String, &mut Value)> {
    value.and_then(Value::as_object_mut).into_iter().flatten()
}

fn elements(value: Option<&mut Value>) -> impl Iterator<Item = &mut Value> {
    value.and_then(Value::as_array_mut).into_iter().flatten()
}

/// The names of the schemas that request bodies use, directly or by reference.
fn bodies(document: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let operations = document["paths"].as_object().into_iter().flat_map(Map::values);
    for operation in operations.filter_map(Value::as_object).flat_map(Map::values) {
        point(&operation["requestBody"], document, &mut found);
    }
    found
}

fn point(value: &Value, document: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let name = value.as_str().and_then(|to| to.strip_prefix("#/components/schemas/"));
                match name {
                    Some(name) if key == "$ref" => {
                        if found.insert(name.to_owned()) {
                            point(&document["components"]["schemas"][name], document, found);
                        }
                    }
                    _ => point(value, document, found),
                }
            }
        }
        Value::Array(all) => all.iter().for_each(|value| point(value, document, found)),
        _ => {}
    }
}

fn name() -> Value {
    json!({ "minLength": 1, "maxLength": NAME_CHARS_MAX, "pattern": NAME })
}

fn lease_key() -> Value {
    json!({ "minLength": 1, "maxLength": LEASE_KEY_CHARS_MAX, "pattern": NAME })
}

fn kinds() -> Vec<&'static str> {
    Kind::ALL.iter().map(|kind| kind.as_str()).collect()
}

/// The pattern of a cursor: a number with its system, or one position for each of several systems.
fn cursor() -> String {
    let place = format!("({})/[A-Za-z0-9_-]{{1,64}}:[0-9]{{1,19}}", kinds().join("|"));
    format!("^([0-9]{{1,19}}|{place}(,{place})*)$")
}

/// The constraints of a parameter of a path or of a query.
fn of_parameter(path: &str, parameter: &str) -> Value {
    let is_listing_of = |end: &str| path.ends_with(end);
    match parameter {
        "name" => json!({ "pattern": SYSTEM }),
        "kind" => json!({ "enum": kinds() }),
        "namespace" => json!({ "pattern": NAMESPACE }),
        "id" if path.starts_with("/v1/receipts") => {
            json!({ "pattern": format!("^({})-[A-Za-z0-9_-]{{1,64}}-[0-9]{{1,19}}$", kinds().join("|")) })
        }
        "limit" => json!({ "minimum": 1 }),
        "after" if is_listing_of("/owners") => json!({}),
        "after" if is_listing_of("/namespaces") => json!({ "pattern": NAMESPACE }),
        "after" if is_listing_of("/available") => {
            json!({ "pattern": r"^[mt]:[^\x00-\x1f\x7f-\x9f]+$" })
        }
        "after" | "before" | "cursor" if CURSORS.contains(&path) => json!({ "pattern": cursor() }),
        // These are search terms, so they need not be valid names.
        "key" | "owner" if path == "/v1/receipts" => json!({}),
        "key" if path.starts_with("/v1/leases") => lease_key(),
        "txn" => lease_key(),
        "id" | "key" | "owner" | "session" | "after" => name(),
        _ => json!({}),
    }
}

/// Adds the constraints of the members of a request body.
fn body(component: &str, schema: &mut Value) {
    flatten(schema);
    for (member, schema) in members(schema.get_mut("properties")) {
        let bound = of_member(component, member);
        match schema.get_mut("items") {
            Some(items) => merge(items, bound),
            None => merge(schema, bound),
        }
    }
    let more = match component {
        "ReferenceBody" | "ReferencesBody" => {
            json!({
                "if": { "required": ["incarnation"], "properties": { "incarnation": { "type": "integer" } } },
                "then": { "required": ["owner"], "properties": { "owner": { "type": "string" } } },
            })
        }
        "RegisterBody" => json!({ "oneOf": [
            { "required": ["key"], "properties": { "key": { "type": "string" }, "keys": { "type": "null" } } },
            { "required": ["keys"], "properties": { "keys": { "type": "array" }, "key": { "type": "null" } } },
        ] }),
        _ => json!({}),
    };
    merge(schema, more);
}

fn of_member(component: &str, member: &str) -> Value {
    let between = |(least, most): (u64, u64)| json!({ "minimum": least, "maximum": most });
    match (component, member) {
        ("StartBody", "ttl_ms") | (_, "for_ms") => between((1, TEN_YEARS_MS)),
        (_, "ttl_ms") => between(LEASE_TTL_MS),
        ("TakeBody", "limit") => between((1, 1_000)),
        ("TakeBody", "wait_ms") => between((0, TAKE_WAIT_MS_MAX)),
        ("AcquireBody", "wait_ms") => between((0, ACQUIRE_WAIT_MS_MAX)),
        (_, "stale_after_seconds") => json!({ "maximum": DAY_SECONDS }),
        (_, "namespace") => json!({ "pattern": NAMESPACE }),
        ("AcquireBody" | "LeaseTicketBody" | "RenewBody" | "StageBody", "key") => lease_key(),
        (_, "txn") => lease_key(),
        (_, member) if NAMES.contains(&member) => name(),
        _ => json!({}),
    }
}

/// Merges the parts of `allOf` into one object, because each part alone would refuse the members of
/// the others.
fn flatten(schema: &mut Value) {
    let Some(Value::Array(parts)) = schema.as_object_mut().and_then(|all| all.remove("allOf"))
    else {
        return;
    };
    for part in parts {
        for (key, value) in part.as_object().into_iter().flatten() {
            match schema.get_mut(key) {
                Some(Value::Array(all)) => {
                    all.extend(value.as_array().into_iter().flatten().cloned())
                }
                Some(object @ Value::Object(_)) => merge(object, value.clone()),
                _ => merge(schema, json!({ key: value })),
            }
        }
    }
}

/// Corrects schemas that are derived wrongly, in requests and in answers.
fn shape(component: &str, schema: &mut Value) {
    if let Some(ended) = schema.pointer_mut("/properties/ended") {
        *ended = json!({ "type": ["array", "null"], "description": ended["description"],
            "items": { "type": ["string", "integer"] }, "minItems": 2, "maxItems": 2 });
    }
    if component == "LeaseState" {
        for way in elements(schema.get_mut("oneOf")) {
            merge(way, json!({ "additionalProperties": false }));
            if let Some(json) = way.pointer_mut("/properties/json") {
                *json = json!({ "description": "Any JSON." });
            }
            if let Some(bytes) = way.pointer_mut("/properties/bytes") {
                merge(bytes, json!({ "pattern": BASE64, "contentEncoding": "base64" }));
            }
        }
    }
}

/// Corrects the range of unsigned numbers: their formats, `int32` and `int64`, are signed and too
/// narrow.
fn widths(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if map.get("minimum").and_then(Value::as_u64).is_some() {
                let most = match map.get("format").and_then(Value::as_str) {
                    Some("int32") => u64::from(u32::MAX),
                    _ => u64::MAX,
                };
                map.remove("format");
                map.entry("maximum").or_insert(most.into());
            }
            map.values_mut().for_each(widths);
        }
        Value::Array(all) => all.iter_mut().for_each(widths),
        _ => {}
    }
}

/// Adds members to a schema, and replaces those of the same name.
fn merge(schema: &mut Value, more: Value) {
    if let (Value::Object(schema), Value::Object(more)) = (schema, more) {
        schema.extend(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_added_and_nothing_else_is_changed() {
        let mut document = json!({
            "paths": { "/v1/x": {
                "get": { "parameters": [{ "name": "limit", "schema": { "type": "integer", "minimum": 0 } }] },
                "post": { "requestBody": { "schema": { "$ref": "#/components/schemas/B" } } },
            } },
            "components": { "schemas": {
                "B": { "allOf": [
                    { "type": "object", "properties": { "owner": { "type": "string" } }, "required": ["owner"] },
                    { "type": "object", "properties": { "n": { "type": "integer", "format": "int32", "minimum": 0 } } },
                ] },
                "Answer": { "properties": { "owner": { "type": "string" } } },
            } },
        });
        refine(&mut document);
        let schemas = &document["components"]["schemas"];
        assert_eq!(schemas["B"]["properties"]["owner"]["minLength"], 1);
        assert_eq!(schemas["B"]["properties"]["n"]["maximum"], u32::MAX);
        assert_eq!(schemas["B"]["required"], json!(["owner"]));
        assert_eq!(schemas["Answer"], json!({ "properties": { "owner": { "type": "string" } } }));
        let get = &document["paths"]["/v1/x"]["get"];
        assert_eq!(get["parameters"][0]["schema"]["minimum"], 1);
        assert!(get.get("requestBody").is_none() && !document.to_string().contains("null"));
    }
}
