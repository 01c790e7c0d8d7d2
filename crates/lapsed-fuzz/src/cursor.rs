//! A cursor of events and receipts: as text, and where clients send it, as `Last-Event-ID`, in queries and in
//! bodies of requests.

use axum::body::Body;
use axum::extract::Request;
use lapsed_server::node::page::ReceiptCursor;

use crate::http;

/// Parses the input, and sends it to every route that takes a cursor.
pub fn read(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input)
        && let Ok(cursor) = ReceiptCursor::parse(text, &[])
    {
        let again = ReceiptCursor::parse(&cursor.to_string(), &[]);
        let again = again.expect("it was written by lapsed").to_string();
        assert_eq!(again, cursor.to_string());
    }
    let escaped: String = input.iter().map(|byte| format!("%{byte:02X}")).collect();
    for path in ["receipts?after=", "receipts?before=", "receipts?system=registry%2Fdefault&after="]
    {
        http::send(Request::get(format!("/v1/{path}{escaped}")).body(Body::empty()).ok());
    }
    http::send(Request::get(format!("/v1/events?cursor={escaped}")).body(Body::empty()).ok());
    let resumed = Request::get("/v1/events").header("last-event-id", input);
    http::send(resumed.body(Body::empty()).ok());
    let body = serde_json::json!({ "dry_run": true, "from": String::from_utf8_lossy(input) });
    let reconcile = Request::post("/v1/reconcile/registry/default");
    let reconcile = reconcile.header("content-type", "application/json");
    http::send(reconcile.body(Body::from(body.to_string())).ok());
}
