//! What a receipt says was removed. A removed lease or entry is a few numbers, because its key, owner, incarnation and
//! deadline are in the receipt; everything else is JSON. Readers of receipts see JSON in either case.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::compact::{RowReader, RowWriter};
use crate::fault::{Fault, Tried};

const JSON: u64 = 0;
const ENTRY: u64 = 1;
const LEASE: u64 = 2;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RemovedFields<'r> {
    Json(Cow<'r, str>),
    /// What a registry removed; the key is in the receipt itself.
    Entry {
        registered_ms: u64,
    },
    /// `leases::RemovedLease::Lease` whose token is the incarnation of the receipt.
    Lease {
        ttl_ms: u64,
        acquired_ms: u64,
        request: Option<&'r str>,
        /// The transaction of its staged state and the decision that was applied, as JSON.
        staged: Option<Cow<'r, str>>,
    },
}

impl<'r> RemovedFields<'r> {
    pub fn json<T: serde::Serialize>(what: &T) -> Tried<RemovedFields<'static>> {
        Ok(RemovedFields::Json(Cow::Owned(serde_json::to_string(what)?)))
    }

    pub fn write(&self, row: RowWriter) -> RowWriter {
        match self {
            RemovedFields::Json(json) => row.number(JSON).text(json),
            RemovedFields::Entry { registered_ms } => row.number(ENTRY).number(*registered_ms),
            RemovedFields::Lease { ttl_ms, acquired_ms, request, staged } => row
                .number(LEASE)
                .number(*ttl_ms)
                .number(*acquired_ms)
                .option(*request, RowWriter::text)
                .option(staged.as_deref(), RowWriter::text),
        }
    }

    pub fn read(row: &mut RowReader<'r>) -> Tried<Self> {
        match row.number()? {
            JSON => Ok(RemovedFields::Json(Cow::Borrowed(row.text()?))),
            ENTRY => Ok(RemovedFields::Entry { registered_ms: row.number()? }),
            LEASE => Ok(RemovedFields::Lease {
                ttl_ms: row.number()?,
                acquired_ms: row.number()?,
                request: row.option(RowReader::text)?,
                staged: row.option(RowReader::text)?.map(Cow::Borrowed),
            }),
            _ => Err(Fault::row("a receipt has removed something that is not known")),
        }
    }

    /// The field `removed` of the receipt, of which the arguments are part.
    pub fn to_json(&self, owner: &str, incarnation: u64, deadline_ms: u64) -> Tried<Value> {
        match self {
            RemovedFields::Json(text) => Ok(serde_json::from_str(text)?),
            RemovedFields::Entry { registered_ms } => Ok(json!({ "registered_ms": registered_ms })),
            RemovedFields::Lease { ttl_ms, acquired_ms, request, staged } => {
                let mut lease = Map::new();
                lease.insert("owner".to_owned(), owner.into());
                lease.insert("ttl_ms".to_owned(), (*ttl_ms).into());
                lease.insert("acquired_ms".to_owned(), (*acquired_ms).into());
                lease.insert("deadline_ms".to_owned(), deadline_ms.into());
                if let Some(request) = request {
                    lease.insert("request".to_owned(), (*request).into());
                }
                let mut removed = Map::new();
                removed.insert("what".to_owned(), "lease".into());
                removed.insert("token".to_owned(), incarnation.into());
                removed.insert("lease".to_owned(), lease.into());
                if let Some(staged) = staged {
                    removed.insert("staged".to_owned(), serde_json::from_str(staged)?);
                }
                Ok(removed.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use lapsed_core::Name;
    use lapsed_core::leases::rules::{ClearedLease, Lease};
    use lapsed_core::leases::{Decision, LeaseToken, RemovedLease};

    use super::*;

    #[test]
    fn a_removed_lease_is_the_json_that_leases_define() {
        let name = |text| Name::new(text).unwrap();
        for (request, staged) in
            [(None, None), (Some(name("r")), Some((name("t"), Decision::Commit)))]
        {
            let lease = Lease {
                owner: name("o"),
                ttl_ms: 30_000,
                acquired_ms: 1_700_000_000_000,
                deadline_ms: 1_700_000_030_000,
                request: request.clone(),
            };
            let removed = RemovedLease::Lease(ClearedLease {
                token: LeaseToken(7),
                lease,
                staged: staged.clone(),
            });
            let fields = RemovedFields::Lease {
                ttl_ms: 30_000,
                acquired_ms: 1_700_000_000_000,
                request: request.as_ref().map(Name::as_str),
                staged: staged.map(|staged| Cow::Owned(serde_json::to_string(&staged).unwrap())),
            };
            let json = fields.to_json("o", 7, 1_700_000_030_000).unwrap();
            assert_eq!(json.to_string(), serde_json::to_value(&removed).unwrap().to_string());
            assert_eq!(serde_json::from_value::<RemovedLease>(json).unwrap(), removed);
        }
    }
}
