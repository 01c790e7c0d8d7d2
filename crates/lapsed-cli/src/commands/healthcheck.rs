//! `lapsed healthcheck`: the probe for containers without another HTTP client. It needs no token and reads no
//! configuration.

use crate::backend::remote::{RemoteBackend, RequestLimit, segment};
use crate::backend::url_or_default;
use crate::cli::health::Healthcheck;
use lapsed_server::config::units::parse_span;
use lapsed_server::failure::Failure;
use lapsed_server::print::line;

/// Fails, with exit code 1, if the daemon is not ready.
pub fn run(args: Healthcheck) -> Result<(), Failure> {
    let within = parse_span(&args.within).map_err(|e| Failure::usage(format!("--within: {e}")))?;
    let (path, word) = match &args.system {
        Some(system) => {
            let (kind, name) = system.split_once('/').ok_or_else(|| {
                Failure::usage(format!("--system {system}: write it as KIND/NAME"))
            })?;
            (format!("/readyz/{}/{}", segment(kind), segment(name)), "ready")
        }
        None if args.live => ("/healthz".to_owned(), "alive"),
        None => ("/readyz".to_owned(), "ready"),
    };
    let daemon = RemoteBackend::with_ca(&url_or_default(args.url), None, args.ca.as_deref())?;
    daemon.open(&path, &[], RequestLimit::For(within))?;
    line(word)
}
