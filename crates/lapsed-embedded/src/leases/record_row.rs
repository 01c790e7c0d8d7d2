//! The row of a key: its token, its lease, and as JSON the state that the application stored.

use lapsed_core::leases::LeaseToken;
use lapsed_core::leases::rules::{Lease, LeaseRecord};

use crate::compact::{RowReader, RowWriter};
use crate::fault::Tried;

pub(super) fn write(record: &LeaseRecord) -> Tried<Vec<u8>> {
    let state = (&record.state, &record.staged);
    let row = RowWriter::new().number(record.token.0).option(record.lease.as_ref(), write_lease);
    let row = row.number(record.ended_ms);
    let row = match state {
        (None, None) => row.number(0),
        state => row.number(1).json(&state)?,
    };
    Ok(row.finish())
}

fn write_lease(row: RowWriter, lease: &Lease) -> RowWriter {
    let Lease { owner, ttl_ms, acquired_ms, deadline_ms, request } = lease;
    row.text(owner.as_str())
        .number(*ttl_ms)
        .number(*acquired_ms)
        .number(*deadline_ms)
        .option(request.as_ref(), |row, request| row.text(request.as_str()))
}

pub(super) fn read(row: &[u8]) -> Tried<LeaseRecord> {
    let Some(mut reader) = RowReader::new(row)? else { return Ok(serde_json::from_slice(row)?) };
    let token = LeaseToken(reader.number()?);
    let lease = reader.option(read_lease)?;
    let ended_ms = reader.number()?;
    let (state, staged) = reader.option(RowReader::json)?.unwrap_or_default();
    reader.finish(LeaseRecord { token, lease, state, staged, ended_ms })
}

fn read_lease(row: &mut RowReader<'_>) -> Tried<Lease> {
    Ok(Lease {
        owner: row.name()?,
        ttl_ms: row.number()?,
        acquired_ms: row.number()?,
        deadline_ms: row.number()?,
        request: row.option(RowReader::name)?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use lapsed_core::Name;
    use lapsed_core::leases::LeaseState;
    use lapsed_core::leases::rules::StagedState;
    use serde_json::json;

    use super::*;

    fn records() -> Vec<LeaseRecord> {
        let name = |text| Name::new(text).unwrap();
        let lease = Lease {
            owner: name("o"),
            ttl_ms: 30_000,
            acquired_ms: 1_700_000_000_000,
            deadline_ms: 1_700_000_030_000,
            request: None,
        };
        let held = LeaseRecord { token: LeaseToken(7), lease: Some(lease), ..Default::default() };
        let mut staged = held.clone();
        staged.lease.as_mut().unwrap().request = Some(name("r"));
        staged.state = Some(LeaseState::Bytes(vec![0, 255]));
        let state = LeaseState::Json(json!({ "step": 0.5 }));
        staged.staged = Some(StagedState { txn: name("t"), state });
        let free = LeaseRecord { token: LeaseToken(u64::MAX), ended_ms: 5, ..Default::default() };
        vec![LeaseRecord::default(), held, staged, free]
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for record in records() {
            let row = write(&record).unwrap();
            assert_eq!(read(&row).unwrap(), record);
            assert!(read(&row[..row.len() - 1]).is_err(), "a row that is cut off is refused");
        }
    }

    #[test]
    fn a_record_of_an_older_version_is_read() {
        for record in records() {
            assert_eq!(read(&serde_json::to_vec(&record).unwrap()).unwrap(), record);
        }
    }
}
