//! Requests for objects: read, conditional write, list one page, delete.
//!
//! Two properties hold here. *A failed read never means "missing"*: only the store's own answer that the object
//! does not exist does. And *a conditional write in doubt is settled*: it is repeated with the same bytes, and if
//! its condition does not hold any more, the object is read to see whether the first attempt was carried out.
//! Each body has a nonce, so equal bytes prove it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use lapsed_core::clock::Clock;
use lapsed_core::{Error, Result};
use object_store::client::HttpRequestBody;
use object_store::list::PaginatedListOptions;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion};

use crate::config::Client;
use crate::failure::Failure;
use crate::http::MeteredTransport;
use crate::requests::back_off;

/// The most times that one request is sent.
const ATTEMPTS: u32 = 3;
/// How long a signed address is valid; it is used at once.
const SIGNED_FOR: Duration = Duration::from_secs(60);

/// An object as it was read.
#[derive(Clone, Debug)]
pub(crate) struct ReadObject {
    pub(crate) body: Bytes,
    pub(crate) version: UpdateVersion,
}

/// The condition of a write.
#[derive(Clone, Debug)]
pub(crate) enum WriteCondition {
    /// The object does not exist.
    IfAbsent,
    /// The object is still the version that was read.
    IfUnchanged(UpdateVersion),
    Always,
}

/// The result of a conditional write.
#[derive(Clone, Debug)]
pub(crate) enum Written {
    /// The object was written, as this version.
    Done(UpdateVersion),
    /// The condition did not hold. If an earlier attempt had no answer, it may have been carried out and
    /// overwritten since; a caller that must know looks for its traces.
    Lost,
}

/// The result of a conditional delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deleted {
    Done,
    Lost,
    /// This store does not support conditional deletes.
    Unable,
}

/// One page of a listing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listing {
    /// The folders directly below the prefix, without the prefix; only in a listing with a delimiter.
    pub(crate) folders: Vec<String>,
    /// The names of objects, without the prefix.
    pub(crate) names: Vec<String>,
    /// The token of the next page; `None`: this is the last page.
    pub(crate) token: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ListRequest<'a> {
    pub(crate) prefix: &'a str,
    /// Whether to list only what is directly below the prefix.
    pub(crate) flat: bool,
    /// List only names after this one, which is given without the prefix.
    pub(crate) after: Option<&'a str>,
    /// The token that the previous page returned.
    pub(crate) token: Option<String>,
    pub(crate) limit: usize,
}

pub(crate) struct Objects {
    name: String,
    bucket: String,
    client: Client,
    transport: Arc<MeteredTransport>,
    clock: Arc<dyn Clock>,
    /// Whether the store can begin a listing after a name.
    lists_after: bool,
}

impl Objects {
    pub(crate) fn new(
        name: &str,
        bucket: &str,
        client: Client,
        transport: Arc<MeteredTransport>,
        clock: Arc<dyn Clock>,
        lists_after: bool,
    ) -> Self {
        let (name, bucket) = (name.to_owned(), bucket.to_owned());
        Objects { name, bucket, client, transport, clock, lists_after }
    }

    /// The name of the store in errors.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The number of requests that were sent so far.
    pub(crate) fn sent(&self) -> u64 {
        self.transport.meter().counts().total()
    }

    /// Reads an object. `None`: the store says that there is no such object.
    pub(crate) async fn get(&self, path: &str) -> Result<Option<ReadObject>> {
        let parse_path = self.parse_path(path)?;
        let mut attempt = 0;
        loop {
            let failure = match self.get_once(&parse_path).await {
                Ok(read) => return Ok(Some(read)),
                Err(Failure::Missing) => return Ok(None),
                Err(failure) => failure,
            };
            self.retry_or_fail(&mut attempt, "get", failure).await?;
        }
    }

    async fn get_once(&self, parse_path: &Path) -> std::result::Result<ReadObject, Failure> {
        let answer = self.client.objects.get_opts(parse_path, GetOptions::default()).await;
        let answer = answer.map_err(|error| Failure::of(&error, &self.bucket))?;
        let version = UpdateVersion {
            e_tag: answer.meta.e_tag.clone(),
            version: answer.meta.version.clone(),
        };
        let body = answer.bytes().await.map_err(|error| Failure::of(&error, &self.bucket))?;
        Ok(ReadObject { body, version })
    }

    /// Writes `body`, which no other request may ever write.
    pub(crate) async fn put(
        &self,
        path: &str,
        body: Bytes,
        only: WriteCondition,
    ) -> Result<Written> {
        let parse_path = self.parse_path(path)?;
        let (mut attempt, mut in_doubt) = (0, false);
        loop {
            let failure = match self.put_once(&parse_path, &body, &only).await {
                Ok(version) => return Ok(Written::Done(version)),
                Err(failure) => failure,
            };
            match failure {
                Failure::Condition | Failure::Missing if !in_doubt => return Ok(Written::Lost),
                Failure::Condition | Failure::Missing => {
                    return self.is_own_write(path, &body).await;
                }
                Failure::Doubt(_) | Failure::Throttled(_) => in_doubt = true,
                Failure::Budget(_) | Failure::Refused(_) => {}
            }
            self.retry_or_fail(&mut attempt, "put", failure).await?;
        }
    }

    async fn put_once(
        &self,
        parse_path: &Path,
        body: &Bytes,
        only: &WriteCondition,
    ) -> std::result::Result<UpdateVersion, Failure> {
        let mode = match only {
            WriteCondition::IfAbsent => PutMode::Create,
            WriteCondition::IfUnchanged(version) => PutMode::Update(version.clone()),
            WriteCondition::Always => PutMode::Overwrite,
        };
        let options = PutOptions { mode, ..PutOptions::default() };
        let payload = PutPayload::from_bytes(body.clone());
        let put = self.client.objects.put_opts(parse_path, payload, options).await;
        let put = put.map_err(|error| Failure::of(&error, &self.bucket))?;
        Ok(UpdateVersion { e_tag: put.e_tag, version: put.version })
    }

    /// Whether an earlier attempt in doubt is the reason why the condition did not hold.
    async fn is_own_write(&self, path: &str, body: &Bytes) -> Result<Written> {
        Ok(match self.get(path).await? {
            Some(read) if read.body == *body => Written::Done(read.version),
            Some(_) | None => Written::Lost,
        })
    }

    /// Deletes an object; succeeds if it does not exist.
    pub(crate) async fn delete(&self, path: &str) -> Result<()> {
        let parse_path = self.parse_path(path)?;
        let mut attempt = 0;
        loop {
            let failure = match self.client.objects.delete(&parse_path).await {
                Ok(()) => return Ok(()),
                Err(error) => Failure::of(&error, &self.bucket),
            };
            if matches!(failure, Failure::Missing) {
                return Ok(());
            }
            self.retry_or_fail(&mut attempt, "delete", failure).await?;
        }
    }

    /// Deletes it if it is still as it was read. Sent by hand, with a signed address: the client library
    /// has no such call.
    pub(crate) async fn delete_if(&self, path: &str, version: &UpdateVersion) -> Result<Deleted> {
        let (Some(signer), Some(etag)) = (&self.client.signer, &version.e_tag) else {
            return Ok(Deleted::Unable);
        };
        let parse_path = self.parse_path(path)?;
        let mut attempt = 0;
        loop {
            let signed = signer.signed_url(Method::DELETE, &parse_path, SIGNED_FOR).await;
            let sent = match signed {
                Ok(url) => self.delete_signed(url.as_str(), etag).await,
                Err(error) => Err(Failure::of(&error, &self.bucket)),
            };
            let failure = match sent {
                Ok(deleted) => return Ok(deleted),
                Err(failure) => failure,
            };
            self.retry_or_fail(&mut attempt, "delete", failure).await?;
        }
    }

    async fn delete_signed(&self, url: &str, etag: &str) -> std::result::Result<Deleted, Failure> {
        let request = http::Request::builder()
            .method(Method::DELETE)
            .uri(url)
            .header(http::header::IF_MATCH, etag)
            .body(HttpRequestBody::empty())
            .map_err(|error| Failure::Refused(error.to_string()))?;
        let answer =
            self.transport.send(request).await.map_err(|error| Failure::in_doubt(&error))?;
        match answer.status() {
            status if status.is_success() => Ok(Deleted::Done),
            // Deleted already, by an earlier attempt or by another process that had read the same version.
            StatusCode::NOT_FOUND => Ok(Deleted::Done),
            StatusCode::PRECONDITION_FAILED | StatusCode::CONFLICT => Ok(Deleted::Lost),
            StatusCode::NOT_IMPLEMENTED => Ok(Deleted::Unable),
            status => Err(Failure::Refused(format!("it answered {status} to a delete"))),
        }
    }

    /// Lists one page. If the store cannot begin after a name, the pages before that name are read and
    /// skipped.
    pub(crate) async fn list(&self, request: ListRequest<'_>) -> Result<Listing> {
        let mut token = request.token.clone();
        loop {
            let listing = self.list_page(&request, token).await?;
            let skipping = !self.lists_after && request.after.is_some();
            let empty = listing.names.is_empty() && listing.folders.is_empty();
            if !(skipping && empty && listing.token.is_some()) {
                return Ok(listing);
            }
            token = listing.token;
        }
    }

    async fn list_page(&self, request: &ListRequest<'_>, token: Option<String>) -> Result<Listing> {
        let mut attempt = 0;
        loop {
            let offset = request.after.filter(|_| self.lists_after && token.is_none());
            let options = PaginatedListOptions {
                offset: offset.map(|after| format!("{}{after}", request.prefix)),
                delimiter: request.flat.then_some("/".into()),
                max_keys: Some(request.limit.clamp(1, 1_000)),
                page_token: token.clone(),
                ..PaginatedListOptions::default()
            };
            let prefix = Some(request.prefix).filter(|prefix| !prefix.is_empty());
            let failure = match self.client.pages.list_paginated(prefix, options).await {
                Ok(page) => return Ok(listing(request, page)),
                Err(error) => Failure::of(&error, &self.bucket),
            };
            self.retry_or_fail(&mut attempt, "list", failure).await?;
        }
    }

    /// Waits before the next attempt; returns the error if no attempt is left or it would not help.
    async fn retry_or_fail(&self, attempt: &mut u32, call: &str, failure: Failure) -> Result<()> {
        if failure.passes() && *attempt + 1 < ATTEMPTS {
            self.clock.sleep(back_off(&*self.clock, *attempt)).await;
            *attempt += 1;
            return Ok(());
        }
        Err(failure.into_error(&self.name, call))
    }

    fn parse_path(&self, path: &str) -> Result<Path> {
        Path::parse(path).map_err(|error| Error::Invalid(format!("{path:?}: {error}")))
    }
}

fn listing(request: &ListRequest<'_>, page: object_store::list::PaginatedListResult) -> Listing {
    let below = |path: &Path| path.as_ref().strip_prefix(request.prefix).map(str::to_owned);
    let wanted = |name: &String| request.after.is_none_or(|after| name.as_str() > after);
    let found = page.result;
    let folders = found.common_prefixes.iter().filter_map(below).filter(wanted).collect();
    let names = found.objects.iter().filter_map(|object| below(&object.location)).filter(wanted);
    Listing { folders, names: names.collect(), token: page.page_token }
}
