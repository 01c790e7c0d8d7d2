//! Tests how the server treats conditional writes, before it may hold data.
//!
//! Leases rest on two properties: an object is created only if there is none, and replaced only if it is
//! still what was read. Some servers accept the conditions and ignore them, which loses data silently. So
//! each property is tried with one writer and with concurrent writers, on objects of the probe's own.

use bytes::Bytes;
use futures::future::join_all;
use lapsed_core::{Error, Result};

use crate::objects::{Deleted, ListRequest, WriteCondition, Written};
use crate::system_context::SystemContext;

/// How many writers race, and in how many rounds.
const RACERS: usize = 6;
const ROUNDS: usize = 4;

/// The result of one test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeLine {
    pub what: &'static str,
    /// Whether the store is refused if this test fails.
    pub needed: bool,
    /// What the server did wrong; `None`: the test passed.
    pub failed: Option<String>,
}

/// The results of all tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeReport {
    /// The results, in the order of the tests.
    pub lines: Vec<ProbeLine>,
}

impl ProbeReport {
    /// Returns an error that names the failed tests, if one of them is needed.
    pub fn verdict(&self, store: &str) -> Result<()> {
        let failed: Vec<String> = self
            .lines
            .iter()
            .filter(|line| line.needed)
            .filter_map(|line| Some(format!("{}: {}", line.what, line.failed.as_ref()?)))
            .collect();
        if failed.is_empty() {
            return Ok(());
        }
        Err(Error::Unsupported {
            operation: format!("what leases rest on ({})", failed.join("; ")),
            store: store.to_owned(),
        })
    }

    /// Whether the server supports conditional deletes.
    pub fn deletes_under_condition(&self) -> bool {
        self.lines.iter().any(|line| line.what == DELETE_IF && line.failed.is_none())
    }

    fn note(&mut self, what: &'static str, needed: bool, found: Found) {
        self.lines.push(ProbeLine { what, needed, failed: found.err() });
    }
}

type Found = std::result::Result<(), String>;

const DELETE_IF: &str = "an object is deleted only if it is still what was read";
const CREATE_REFUSED: &str = "If-None-Match failed although the object does not exist";

/// Runs all tests. After an error the store did not answer, and no test was run.
pub(crate) async fn run(context: &SystemContext) -> Result<ProbeReport> {
    let probe = Probe { context, place: context.paths.probe(context.nonce()) };
    // A read comes first: it finds wrong credentials, a missing bucket and an unreachable server before
    // anything is written.
    context.objects.get(&probe.at("first")).await?;
    let mut report = ProbeReport::default();
    report.note("answers tell the time (a Date header)", true, probe.date());
    report.note("an object is made only if there is none", true, probe.create().await?);
    report.note(
        "an object is replaced only if it is still what was read",
        true,
        probe.replace().await?,
    );
    report.note("of racing makers one wins", true, probe.race(Race::Create).await?);
    report.note("of racing writers one wins", true, probe.race(Race::Replace).await?);
    report.note("a listing shows what was just written", true, probe.list().await?);
    report.note(DELETE_IF, false, probe.delete().await?);
    probe.tidy().await;
    // A sweep may have set it already, to the same value.
    let _ = context.deletes_if.set(report.deletes_under_condition());
    Ok(report)
}

/// Tests only conditional deletes.
pub(crate) async fn deletes_under_condition(context: &SystemContext) -> Result<bool> {
    let probe = Probe { context, place: context.paths.probe(context.nonce()) };
    let found = probe.delete().await?;
    probe.tidy().await;
    Ok(found.is_ok())
}

enum Race {
    Create,
    Replace,
}

struct Probe<'g> {
    context: &'g SystemContext,
    place: String,
}

impl Probe<'_> {
    fn at(&self, name: &str) -> String {
        format!("{}{name}", self.place)
    }

    fn body(&self) -> Bytes {
        format!("{:016x}", self.context.nonce()).into()
    }

    async fn put(&self, name: &str, only: WriteCondition) -> Result<Written> {
        self.context.objects.put(&self.at(name), self.body(), only).await
    }

    fn date(&self) -> Found {
        match self.context.time.now() {
            Some(_) => Ok(()),
            None => Err("none of the server's answers has a Date header".to_owned()),
        }
    }

    async fn create(&self) -> Result<Found> {
        let first = self.put("create", WriteCondition::IfAbsent).await?;
        let second = self.put("create", WriteCondition::IfAbsent).await?;
        Ok(match (first, second) {
            (Written::Done(_), Written::Lost) => Ok(()),
            (Written::Lost, _) => Err(CREATE_REFUSED.to_owned()),
            (Written::Done(_), Written::Done(_)) => {
                Err("If-None-Match is ignored: the second create overwrote the first".to_owned())
            }
        })
    }

    async fn replace(&self) -> Result<Found> {
        let Written::Done(first) = self.put("replace", WriteCondition::IfAbsent).await? else {
            return Ok(Err(CREATE_REFUSED.to_owned()));
        };
        let Written::Done(second) =
            self.put("replace", WriteCondition::IfUnchanged(first.clone())).await?
        else {
            return Ok(Err(
                "If-Match failed although the ETag was the object's current one".to_owned()
            ));
        };
        if first.e_tag == second.e_tag || second.e_tag.is_none() {
            return Ok(Err("the ETag does not change with the body".to_owned()));
        }
        Ok(match self.put("replace", WriteCondition::IfUnchanged(first)).await? {
            Written::Lost => Ok(()),
            Written::Done(_) => Err("If-Match is ignored: an old ETag was accepted".to_owned()),
        })
    }

    async fn race(&self, race: Race) -> Result<Found> {
        for round in 0..ROUNDS {
            let name = match race {
                Race::Create => format!("race-create-{round}"),
                Race::Replace => format!("race-replace-{round}"),
            };
            let only = match race {
                Race::Create => WriteCondition::IfAbsent,
                Race::Replace => match self.put(&name, WriteCondition::IfAbsent).await? {
                    Written::Done(version) => WriteCondition::IfUnchanged(version),
                    Written::Lost => return Ok(Err(CREATE_REFUSED.to_owned())),
                },
            };
            let all = (0..RACERS).map(|_| self.put(&name, only.clone()));
            let mut won = 0;
            for written in join_all(all).await {
                won += usize::from(matches!(written?, Written::Done(_)));
            }
            if won != 1 {
                return Ok(Err(format!("{won} of {RACERS} concurrent writers succeeded, not one")));
            }
        }
        Ok(Ok(()))
    }

    async fn list(&self) -> Result<Found> {
        self.put("list", WriteCondition::IfAbsent).await?;
        let request = ListRequest { prefix: &self.place, limit: 1_000, ..ListRequest::default() };
        let listing = self.context.objects.list(request).await?;
        Ok(match listing.names.iter().any(|name| name == "list") {
            true => Ok(()),
            false => Err("an object that was just written is missing from the listing".to_owned()),
        })
    }

    async fn delete(&self) -> Result<Found> {
        let Written::Done(old) = self.put("delete", WriteCondition::IfAbsent).await? else {
            return Ok(Err(CREATE_REFUSED.to_owned()));
        };
        let Written::Done(new) = self.put("delete", WriteCondition::Always).await? else {
            return Ok(Err("an overwrite was refused".to_owned()));
        };
        let path = self.at("delete");
        let stale = self.context.objects.delete_if(&path, &old).await;
        Ok(match stale {
            Ok(Deleted::Lost) => match self.context.objects.delete_if(&path, &new).await {
                Ok(Deleted::Done) if self.context.objects.get(&path).await?.is_none() => Ok(()),
                Ok(_) => Err("the present ETag is refused".to_owned()),
                Err(error) => Err(error.to_string()),
            },
            Ok(Deleted::Done) => Err("If-Match is ignored: an old ETag was accepted".to_owned()),
            Ok(Deleted::Unable) => Err("this store is not asked to".to_owned()),
            Err(error) => Err(error.to_string()),
        })
    }

    /// Deletes the objects of the tests; one that is left behind does no harm.
    async fn tidy(&self) {
        let request = ListRequest { prefix: &self.place, limit: 1_000, ..ListRequest::default() };
        let Ok(listing) = self.context.objects.list(request).await else { return };
        for name in listing.names {
            if let Err(error) = self.context.objects.delete(&self.at(&name)).await {
                tracing::debug!(%error, "an object of the probe stays behind");
            }
        }
    }
}
