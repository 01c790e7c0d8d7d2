//! `lapsed token`: creates tokens and hashes, without a daemon.

use std::io::{IsTerminal, Read};

use jiff::Timestamp;
use lapsed_core::clock::{Clock, SystemClock};
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::json;

use crate::cli::token::{HashToken, NewToken, TokenCommand};
use lapsed_server::config::secret::{Secret, TOKEN_BYTES_MAX};
use lapsed_server::config::token::{Digest, Scope, Scopes, check_name};
use lapsed_server::config::units::parse_span;
use lapsed_server::failure::Failure;
use lapsed_server::print::{self, line, lines};

/// The prefix of every token, so that a leaked token can be recognized.
const PREFIX: &str = "lapsed_";

/// Creates a token, or hashes one from stdin.
pub fn run(args: TokenCommand) -> Result<(), Failure> {
    match args {
        TokenCommand::New(args) => new(args),
        TokenCommand::Hash(args) => hash(args),
    }
}

fn new(args: NewToken) -> Result<(), Failure> {
    check_name(&args.name).map_err(|what| Failure::usage(format!("--name: {what}")))?;
    let list: Vec<Scope> = args.scopes.iter().copied().map(Scope::from).collect();
    let scopes = Scopes::of(&list);
    let expires_ms = args.span.as_deref().map(end_of).transpose()?;
    let token = make()?;
    let hash = Digest::of(&token).text();
    if args.output.json {
        return print::json(&json!({
            "token": token,
            "hash": hash,
            "name": args.name,
            "scopes": scopes.list(),
            "expires_ms": expires_ms,
        }));
    }
    lines(&format!(
        "{token}\n\nThis is the token. It is shown once: keep it where it is used, for example as \
         LAPSED_TOKEN.\nThe daemon needs only its hash; put this into its configuration:\n\n{}",
        section(&args.name, &hash, scopes, expires_ms)
    ))
}

fn end_of(span: &str) -> Result<u64, Failure> {
    let span = parse_span(span).map_err(|what| Failure::usage(format!("--for: {what}")))?;
    Ok(SystemClock::new().wall_ms().saturating_add(span.as_millis() as u64))
}

/// The section of the configuration file for this token.
fn section(name: &str, hash: &str, scopes: Scopes, expires_ms: Option<u64>) -> String {
    let scopes: Vec<String> =
        scopes.list().into_iter().map(|scope| format!("{:?}", scope.as_str())).collect();
    let scopes = scopes.join(", ");
    let mut text =
        format!("[[server.tokens]]\nname   = \"{name}\"\nhash   = \"{hash}\"\nscopes = [{scopes}]");
    let end = expires_ms.and_then(|ms| Timestamp::from_second(ms as i64 / 1_000).ok());
    if let Some(end) = end {
        text.push_str(&format!("\nexpires = \"{end}\""));
    }
    text
}

/// A token with 256 random bits, in characters that need no quoting in shells or URLs.
fn make() -> Result<String, Failure> {
    let mut bytes = [0_u8; 32];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| Failure::failed("this machine gives no random numbers"))?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{PREFIX}{hex}"))
}

fn hash(args: HashToken) -> Result<(), Failure> {
    let mut input = std::io::stdin();
    if input.is_terminal() {
        print::stderr_lines("Type the token, then Enter and Ctrl-D:");
    }
    let mut text = String::new();
    let limit = 2 * TOKEN_BYTES_MAX as u64;
    (&mut input).take(limit).read_to_string(&mut text)?;
    let token = Secret::new(text.trim());
    token.check_token("standard input").map_err(|e| Failure::usage(e.0))?;
    let hash = Digest::of(token.reveal()).text();
    if args.output.json { print::json(&json!({ "hash": hash })) } else { line(&hash) }
}
