//! `lapsed webhook`: asks the daemon, which delivers the events.

use serde_json::{Value, json};

use crate::backend;
use crate::backend::remote::{RemoteBackend, segment};
use crate::cli::TargetArgs;
use crate::cli::webhook::{
    DeadDeliveryArgs, ListDeadDeliveries, ListWebhooks, TestWebhook, WebhookCommand,
};
use lapsed_server::failure::Failure;
use lapsed_server::print::{self, Table, line, lines, moment};

/// Runs one of the subcommands.
pub fn run(args: WebhookCommand) -> Result<(), Failure> {
    match args {
        WebhookCommand::List(args) => list(&args),
        WebhookCommand::Dead(args) => dead(&args),
        WebhookCommand::PutBack(args) => settle(&args, "put_back", "will be tried again"),
        WebhookCommand::Delete(args) => settle(&args, "delete", "is deleted"),
        WebhookCommand::Test(args) => test(&args),
    }
}

fn daemon(target: &TargetArgs) -> Result<RemoteBackend, Failure> {
    backend::remote(target)
}

fn list(args: &ListWebhooks) -> Result<(), Failure> {
    let answer = daemon(&args.target)?.get_json("/v1/webhooks")?;
    let empty = Vec::new();
    let webhooks = answer["webhooks"].as_array().unwrap_or(&empty);
    if args.output.json {
        return webhooks.iter().try_for_each(print::json);
    }
    if webhooks.is_empty() {
        return line("There are no webhooks; see docs/events.md for [[webhook]].");
    }
    let mut table = Table::new(&["webhook", "url", "system", "delivered to", "newest", "dead"]);
    for webhook in webhooks {
        for route in webhook["systems"].as_array().unwrap_or(&empty) {
            let mark =
                if route["mark"].is_null() { "not begun".to_owned() } else { text(&route["mark"]) };
            let [name, url] = [&webhook["name"], &webhook["url"]].map(text);
            let [system, newest, dead] =
                [&route["system"], &route["newest"], &route["dead"]].map(text);
            table.row(vec![name, url, system, mark, newest, dead]);
        }
    }
    lines(&table.text())
}

fn dead(args: &ListDeadDeliveries) -> Result<(), Failure> {
    let path = format!("/v1/webhooks/{}/dead?limit={}", segment(&args.name), args.limit);
    let answer = daemon(&args.target)?.get_json(&path)?;
    let empty = Vec::new();
    let letters = answer["dead"].as_array().unwrap_or(&empty);
    if args.output.json {
        return letters.iter().try_for_each(print::json);
    }
    if letters.is_empty() {
        return line("There are no dead letters.");
    }
    let mut table = Table::new(&["id", "since", "receipts", "tries", "why"]);
    for letter in letters {
        let [id, first, last] = [&letter["id"], &letter["first"], &letter["last"]].map(text);
        let since = moment(letter["at_ms"].as_u64().unwrap_or(0));
        let receipts = format!("{first} to {last}");
        table.row(vec![id, since, receipts, text(&letter["attempts"]), text(&letter["why"])]);
    }
    lines(&table.text())?;
    let again = args.target.again();
    line(&format!(
        "To retry one: lapsed webhook put-back NAME ID{again}; to delete it: lapsed webhook delete NAME ID{again}"
    ))
}

fn settle(args: &DeadDeliveryArgs, what: &str, then: &str) -> Result<(), Failure> {
    let path = format!("/v1/webhooks/{}/dead/{what}", segment(&args.name));
    let answer = daemon(&args.target)?.post_json(&path, &json!({ "id": args.id }))?;
    if args.output.json {
        return print::json(&answer);
    }
    line(&format!("{} {then}.", args.id))
}

fn test(args: &TestWebhook) -> Result<(), Failure> {
    let path = format!("/v1/webhooks/{}/test", segment(&args.name));
    let answer = daemon(&args.target)?.post_json(&path, &json!({}))?;
    if args.output.json {
        return print::json(&answer);
    }
    line(&format!("{} took the delivery {}.", args.name, text(&answer["delivery"])))
}

/// A JSON value for people: strings without quotes.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
