//! `lapsed explain`: prints why a key is, or is not, dead.

use super::ask;
use crate::backend::resolve;
use crate::cli::Explain;
use crate::hints::completed;
use lapsed_server::failure::Failure;
use lapsed_server::print::{self, line};

/// Prints the explanation for one key or owner.
pub fn run(args: Explain) -> Result<(), Failure> {
    let explanation = ask(&args.target, |backend| {
        let id = resolve(&args.system, &backend.systems()?)?;
        backend.explain(&id, &args.key)
    })?;
    if args.output.json {
        return print::json(&explanation);
    }
    line(&format!("{}: {}", explanation.key, explanation.verdict))?;
    let again = args.target.again();
    explanation
        .because
        .iter()
        .try_for_each(|sentence| line(&format!("  - {}", completed(sentence, &again))))
}
