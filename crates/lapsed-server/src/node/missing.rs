//! Answers over several systems when some of their stores do not answer: what the others say, and
//! which systems are missing.

use std::sync::Arc;

use lapsed_core::Result;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::live::LiveSystem;

/// A system that an answer lacks because its store does not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MissingSystem {
    /// The system, as `KIND/NAME`.
    pub system: String,
    /// Why its store does not answer.
    pub error: String,
}

/// The answers of the systems that answered, in their order, and those that are missing. An error if
/// none answered.
pub fn split<T>(
    systems: &[Arc<LiveSystem>],
    answers: Vec<Result<T>>,
) -> Result<(Vec<T>, Vec<MissingSystem>)> {
    let (mut found, mut missing, mut first_error) = (Vec::new(), Vec::new(), None);
    for (live, answer) in systems.iter().zip(answers) {
        match answer {
            Ok(answer) => found.push(answer),
            Err(error) => {
                let system = live.id().to_string();
                missing.push(MissingSystem { system, error: error.to_string() });
                first_error.get_or_insert(error);
            }
        }
    }
    match first_error {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok((found, missing)),
    }
}
