//! The context that all operations on one store share: its objects, their paths, its clock, random numbers.

use std::sync::Arc;

use bytes::Bytes;
use lapsed_core::clock::Clock;
use lapsed_core::leases::rules::ClockReading;
use lapsed_core::leases::{LeaseKey, Subject};
use lapsed_core::{Error, Result};

use crate::clock::StoreClock;
use crate::document::Document;
use crate::names::{ObjectPaths, escape};
use crate::objects::{Objects, WriteCondition, Written};

pub(crate) struct SystemContext {
    pub(crate) objects: Objects,
    pub(crate) paths: ObjectPaths,
    pub(crate) time: Arc<StoreClock>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Whether the server supports conditional deletes; empty until that was tested.
    pub(crate) deletes_if: tokio::sync::OnceCell<bool>,
}

/// An object as it was read or written last, and the condition under which it may be replaced.
#[derive(Clone, Debug)]
pub(crate) struct StoredObject {
    pub(crate) doc: Document,
    pub(crate) only: WriteCondition,
}

/// What was found under a path.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    Document(Box<StoredObject>),
    Nothing,
    /// An object that cannot be read; says why.
    Unreadable(String),
}

impl SystemContext {
    pub(crate) fn name(&self) -> &str {
        self.objects.name()
    }

    /// The store's time. Asks for it, if no answer has told it yet.
    pub(crate) async fn clock_reading(&self) -> Result<ClockReading> {
        if self.time.now().is_none() {
            self.objects.get(&format!("{}.lapsed/hello", self.paths.root())).await?;
        }
        self.time.clock_reading(self.name())
    }

    pub(crate) fn nonce(&self) -> u64 {
        self.clock.random()
    }

    /// Where the object of a subject is.
    pub(crate) fn path(&self, subject: &Subject) -> String {
        match subject {
            Subject::Lease(key) => {
                self.paths.meta(key.namespace.as_str(), &escape(key.key.as_str()))
            }
            Subject::Decision(txn) => self.paths.marker(&escape(txn.as_str())),
        }
    }

    /// Reads what is under the name of a record (or of a marker, where the namespace is theirs).
    pub(crate) async fn find(&self, path: &str, namespace: Option<&str>) -> Result<Found> {
        let Some(read) = self.objects.get(path).await? else { return Ok(Found::Nothing) };
        let decoded = match namespace {
            Some(namespace) => Document::decode_meta(namespace, &read.body, path),
            None => Document::decode_marker(&read.body, path),
        };
        Ok(match decoded {
            // Copied there by hand: what it says is about another key.
            Ok(doc) if self.path(&doc.subject()) != path => Found::Unreadable(format!(
                "{path} is a copy of what is about {}",
                doc.subject().name()
            )),
            Ok(doc) => Found::Document(Box::new(StoredObject {
                doc,
                only: WriteCondition::IfUnchanged(read.version),
            })),
            Err(words) => Found::Unreadable(words),
        })
    }

    /// The object of a subject, ready to be replaced; a new one if there is none.
    pub(crate) async fn load(&self, subject: &Subject) -> Result<StoredObject> {
        let found = self.find(&self.path(subject), namespace_of(subject)).await?;
        match found {
            Found::Document(held) => Ok(*held),
            Found::Nothing => {
                let doc = match subject {
                    Subject::Lease(key) => Document::lease(key),
                    Subject::Decision(txn) => Document::decision(txn),
                };
                Ok(StoredObject { doc, only: WriteCondition::IfAbsent })
            }
            Found::Unreadable(what) => Err(Error::Corrupt { store: self.name().to_owned(), what }),
        }
    }

    /// Replaces an object if it is still what was read. `None`: another writer was first.
    pub(crate) async fn replace(
        &self,
        held: &StoredObject,
        mut doc: Document,
    ) -> Result<Option<StoredObject>> {
        let path = self.path(&doc.subject());
        let body = doc.encode(self.nonce());
        Ok(match self.objects.put(&path, body, held.only.clone()).await? {
            Written::Done(version) => {
                Some(StoredObject { doc, only: WriteCondition::IfUnchanged(version) })
            }
            Written::Lost => None,
        })
    }

    /// Writes an entry of the index.
    pub(crate) async fn write_entry(&self, subject: &Subject, bucket: &str) -> Result<()> {
        let (namespace, name) = index_name(subject);
        let path = self.paths.entry(&namespace, bucket, &name);
        self.objects.put(&path, Bytes::from_static(b"{}"), WriteCondition::Always).await?;
        Ok(())
    }
}

/// The namespace of a record; `None` for a decision.
pub(crate) fn namespace_of(subject: &Subject) -> Option<&str> {
    match subject {
        Subject::Lease(LeaseKey { namespace, .. }) => Some(namespace.as_str()),
        Subject::Decision(_) => None,
    }
}

/// Where and under which name the index has it.
pub(crate) fn index_name(subject: &Subject) -> (String, String) {
    match subject {
        Subject::Lease(key) => (key.namespace.to_string(), escape(key.key.as_str())),
        Subject::Decision(txn) => (lapsed_core::leases::DECISIONS.to_owned(), escape(txn.as_str())),
    }
}
