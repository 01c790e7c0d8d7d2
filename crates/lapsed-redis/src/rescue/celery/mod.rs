//! Celery 5 over kombu's Redis transport.
//!
//! A delivered message lies in the hash `unacked` until it is acknowledged, and no key says which worker holds it, or that a worker
//! lives. So each look asks the workers through Celery's remote control (`inspect.rs`), and remembers what they
//! answered (`history.rs`). A message is an orphan if nobody claims it in two rounds, in each of which as many workers answered
//! as listen; it was in `unacked` before the first one; no heartbeat of a worker that does not answer was heard between the
//! two; and its last worker did not leave by itself. The rounds are 2.5 s apart within one look, so that a look needs no other
//! and a dry run sees the same. Fewer answers than listeners decide nothing.
//!
//! Three kinds of messages are claimed by nobody although their worker lives: those of a worker that was told to stop
//! and finishes its tasks, those that a worker holds back because of a rate limit, and those of a worker without remote
//! control. They are left to Celery.
//!
//! Who can come in between asking and putting back is written down in `put_back.lua`, which guards against it. A look that acts also
//! renews the score of what is claimed, so that Celery does not deliver long and scheduled tasks a second time.

mod delivered;
mod drift;
mod history;
mod inspect;
mod json;
mod look;
mod message;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use lapsed_core::{Error, Name, Result};

use super::RescueLayout;
use super::letters::{LetterFacts, letters_script};
use super::profile::{
    BehindPrefix, DriftPage, DriftRequest, HeldJob, LookRequest, Profile, ProfileFacts, Seen,
};
use super::reader::{Reader, escaped};
use crate::script::{Script, rescue_script};
use delivered::Places;
use look::Look;
use message::{Message, PRIORITY_STEPS, SEPARATOR, lists_of};

static PUT_BACK: Script = rescue_script!("rescue_celery", "put_back.lua");

static LETTERS: LetterFacts = LetterFacts {
    script: &LETTERS_SCRIPT,
    kept_in: "`dead_letters` of lapsed, because Celery keeps none",
    retried_by: None,
    deleted_by: None,
};

static LETTERS_SCRIPT: Script = letters_script!("rescue_celery_letters", "letters.lua");

/// A worker needs up to 32 s between two attempts to connect, and notices a half-open connection after 75 s.
pub(super) static FACTS: ProfileFacts = ProfileFacts {
    name: "celery",
    title: "Celery",
    limit: Duration::from_secs(2),
    grace: Duration::from_secs(90),
    script: &PUT_BACK,
    keys: 4,
    words: 6,
    shows_workers: true,
    own_recovery: "Celery itself delivers them again after `visibility_timeout`, one hour by default. Without `task_acks_late` a running task is lost with its worker and cannot be rescued: set `task_acks_late` and `task_reject_on_worker_lost`",
    must_watch: false,
    no_delay: Some(
        "Celery has no set of delayed tasks: a worker that takes a task with an ETA keeps it in its memory. Use on_death = \"back\"",
    ),
    no_class: None,
};

/// How often the names of exchanges are looked for, in milliseconds of the server's clock.
const EXCHANGES_EVERY_MS: u64 = 60_000;

const BINDING: &str = "_kombu.binding.";

/// Which of a job's words is its value in `unacked`.
const VALUE_WORD: usize = 1;

/// The binding of the remote control.
const PIDBOX: &str = "_kombu.binding.celery.pidbox";

const LOCK: &str = "no holder of this lock panics";

pub(super) fn open(layout: &RescueLayout) -> Box<dyn Profile> {
    let mut steps = layout.priority_steps.clone();
    steps.sort_unstable();
    if steps.is_empty() {
        steps = PRIORITY_STEPS.to_vec();
    }
    Box::new(Celery {
        configured: layout.prefix.clone(),
        steps,
        found: Mutex::default(),
        places: Mutex::default(),
    })
}

struct Celery {
    /// `global_keyprefix` of the application; `None`: none, or what is found.
    configured: Option<String>,
    /// `priority_steps` of the application, lowest first.
    steps: Vec<u8>,
    found: Mutex<FoundBindings>,
    places: Places,
}

/// The bindings that were found in the keyspace.
#[derive(Clone, Default)]
struct FoundBindings {
    /// `u64::MAX`: they were learned, and are not looked for again.
    at_ms: u64,
    keys: BTreeSet<String>,
}

#[async_trait]
impl Profile for Celery {
    fn facts(&self) -> &'static ProfileFacts {
        &FACTS
    }

    fn may_be_key(&self, key: &[u8]) -> bool {
        key.windows(BINDING.len()).any(|part| part == BINDING.as_bytes())
    }

    fn learn(&self, keys: &[Vec<u8>]) -> Vec<BehindPrefix> {
        let keys = keys.iter().filter_map(|key| String::from_utf8(key.clone()).ok()).collect();
        *self.found.lock().expect(LOCK) = FoundBindings { at_ms: u64::MAX, keys };
        Vec::new()
    }

    fn letters(&self) -> Option<&'static LetterFacts> {
        Some(&LETTERS)
    }

    async fn classes(&self, _: &Reader<'_>, jobs: &[&HeldJob]) -> Result<Vec<Option<String>>> {
        let task =
            |job: &&HeldJob| Message::read(&job.words[VALUE_WORD]).map(|message| message.task);
        Ok(jobs.iter().map(task).collect())
    }

    fn drift_subject(&self) -> &'static str {
        "`unacked` and `unacked_index`"
    }

    fn drift_script(&self) -> Option<&'static Script> {
        Some(&drift::DRIFT)
    }

    async fn drift(&self, reader: &Reader<'_>, request: DriftRequest<'_>) -> Result<DriftPage> {
        self.look_for_drift(reader, request).await
    }

    async fn look(&self, reader: &Reader<'_>, request: LookRequest<'_>) -> Result<Option<Seen>> {
        let bindings = self.bindings(reader).await?;
        let mut seen = Seen::default();
        let mut is_there = false;
        for prefix in self.prefixes(&bindings) {
            let (steps, places) = (self.steps.as_slice(), &self.places);
            let look = Look { reader, request, prefix: &prefix, steps, places };
            if look.is_celery().await? {
                is_there = true;
                self.queues(reader, &prefix, &bindings, &mut seen).await?;
                look.run(&mut seen).await?;
            }
        }
        Ok(is_there.then_some(seen))
    }
}

impl Celery {
    /// What stands before the keys of each application.
    fn prefixes(&self, bindings: &BTreeSet<String>) -> BTreeSet<String> {
        match &self.configured {
            Some(one) => BTreeSet::from([one.clone()]),
            None => {
                let of = |key: &String| Some(key.split_once(BINDING)?.0.to_owned());
                let mut all: BTreeSet<String> = bindings.iter().filter_map(of).collect();
                all.insert(String::new());
                all
            }
        }
    }

    async fn bindings(&self, reader: &Reader<'_>) -> Result<BTreeSet<String>> {
        let found = self.found.lock().expect(LOCK).clone();
        let now_ms = reader.now_ms().await?;
        if found.at_ms == u64::MAX || (found.at_ms > 0 && now_ms < found.at_ms + EXCHANGES_EVERY_MS)
        {
            return Ok(found.keys);
        }
        let prefix = self.configured.as_deref().map_or("*".to_owned(), escaped);
        let mut keys = BTreeSet::new();
        reader
            .scan(Some(format!("{prefix}{BINDING}*").as_bytes()), u64::MAX, |key| {
                keys.extend(std::str::from_utf8(key).ok().map(str::to_owned));
            })
            .await?;
        *self.found.lock().expect(LOCK) = FoundBindings { at_ms: now_ms, keys: keys.clone() };
        Ok(keys)
    }

    /// The queues that exchanges of tasks are bound to, and how much waits on each.
    async fn queues(
        &self,
        reader: &Reader<'_>,
        prefix: &str,
        bindings: &BTreeSet<String>,
        seen: &mut Seen,
    ) -> Result<()> {
        let mut queues: BTreeMap<Name, Vec<String>> = BTreeMap::new();
        for key in bindings {
            let exchange = key.strip_prefix(prefix).and_then(|key| key.strip_prefix(BINDING));
            let is_of_tasks =
                |exchange: &str| exchange != "celeryev" && !exchange.ends_with(".pidbox");
            if !exchange.is_some_and(is_of_tasks) || reader.kind(key.as_bytes()).await? != "set" {
                continue;
            }
            for member in reader.set(key.as_bytes()).await? {
                let member = String::from_utf8(member).unwrap_or_default();
                if member.split(SEPARATOR).count() != 3 {
                    return Err(Error::Unsupported {
                        operation: format!(
                            "rescuing tasks of Celery with another `sep` than kombu's default (`{key}` has {member:?})"
                        ),
                        store: reader.connection.place.to_string(),
                    });
                }
                let queue = member.rsplit(SEPARATOR).next().unwrap_or_default();
                let lists =
                    lists_of(queue, &self.steps).into_iter().map(|list| format!("{prefix}{list}"));
                queues.extend(Name::new(queue).ok().map(|name| (name, lists.collect())));
            }
        }
        for (name, lists) in queues {
            let asked: Vec<Vec<Vec<u8>>> =
                lists.into_iter().map(|list| vec![list.into_bytes()]).collect();
            let lengths: Vec<Option<u64>> = reader.each("LLEN", &asked).await?;
            seen.queues.insert(name, lengths.into_iter().flatten().sum());
        }
        Ok(())
    }
}

/// A key has another type than Celery gives it.
fn unknown_layout(reader: &Reader<'_>, key: &str, kind: &str) -> Error {
    Error::Unsupported {
        operation: format!("a layout of Celery that is not known (`{key}` is a {kind})"),
        store: reader.connection.place.to_string(),
    }
}
