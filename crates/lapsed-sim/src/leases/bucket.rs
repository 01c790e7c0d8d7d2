//! An S3 bucket, in as much as the store asks of it: answers come late, get lost, or say that it is
//! overloaded; and a bucket that lies, for the bugs that must be found.
//!
//! An ETag is a hash of what an object holds, as on a real server: the same bytes again have the same.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, Response, StatusCode};
use http_body_util::BodyExt;
use object_store::client::{HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService};

use crate::executor::World;
use crate::leases::bug::LeaseBug;
use crate::random::mix;

/// The probability of each network fault.
#[derive(Clone, Copy, Debug, Default)]
pub struct BucketFaults {
    /// The share of requests that are lost.
    pub lost: f64,
    /// The share of answers that are lost after the request was carried out.
    pub unanswered: f64,
    /// The share of requests that are answered 503.
    pub overloaded: f64,
}

/// The bucket that all processes share.
pub struct SimBucket {
    world: Arc<World>,
    bug: Option<LeaseBug>,
    objects: Mutex<BTreeMap<String, Bytes>>,
    faults: Mutex<BucketFaults>,
}

/// One process's connection to the bucket.
#[derive(Clone)]
pub struct BucketConnection {
    bucket: Arc<SimBucket>,
    who: String,
    /// By how many milliseconds the `date` of its answers is ahead.
    date_off_ms: i64,
}

fn etag(body: &[u8]) -> String {
    let hash = body.iter().fold(0u64, |hash, byte| mix(hash ^ u64::from(*byte)));
    format!("\"{hash:016x}\"")
}

impl SimBucket {
    /// An empty bucket without network faults.
    pub fn new(world: &Arc<World>, bug: Option<LeaseBug>) -> Arc<SimBucket> {
        let (objects, faults) = (Mutex::default(), Mutex::default());
        Arc::new(SimBucket { world: world.clone(), bug, objects, faults })
    }

    /// A connection to the bucket; with `DateAhead` its date may be wrong.
    pub fn line(self: &Arc<Self>, who: &str) -> BucketConnection {
        let lies = self.bug == Some(LeaseBug::DateAhead) && self.world.random.odds(0.5);
        let date_off_ms = if lies { 40_000 } else { 0 };
        BucketConnection { bucket: self.clone(), who: who.to_owned(), date_off_ms }
    }

    /// Sets the network faults from now on.
    pub fn set_faults(&self, faults: BucketFaults) {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    /// The names of all objects.
    pub fn names(&self) -> Vec<String> {
        self.objects().keys().cloned().collect()
    }

    /// Puts copies of every object whose name contains `word` under names with each of `others` in its
    /// place, in their contents too. All must be equally long.
    pub fn copy_objects(&self, word: &str, others: impl Iterator<Item = String>) {
        let mut objects = self.objects();
        let named = objects.iter().filter(|(name, _)| name.contains(word));
        let models: Vec<(String, Bytes)> =
            named.map(|(name, body)| (name.clone(), body.clone())).collect();
        for other in others {
            for (name, body) in &models {
                let copy = replaced(body, word.as_bytes(), other.as_bytes());
                objects.insert(name.replace(word, &other), copy);
            }
        }
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Bytes>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is(&self, bug: LeaseBug) -> bool {
        self.bug == Some(bug)
    }

    fn put(&self, key: &str, body: Bytes, create: bool, expected: Option<&str>) -> Answer {
        let mut objects = self.objects();
        let present = objects.get(key).map(|body| etag(body));
        if create && present.is_some() && !self.is(LeaseBug::CreateOnlyIgnored) {
            return Answer::status(StatusCode::PRECONDITION_FAILED);
        }
        if let Some(expected) = expected.filter(|_| !self.is(LeaseBug::IfMatchIgnored)) {
            match present {
                None => return Answer::status(StatusCode::NOT_FOUND),
                Some(present) if present != expected => {
                    return Answer::status(StatusCode::PRECONDITION_FAILED);
                }
                Some(_) => {}
            }
        }
        let etag = etag(&body);
        if key.ends_with(".lapsed/token-floor") && self.is(LeaseBug::TokenFloorDropped) {
            return Answer { status: StatusCode::OK, etag: Some(etag), body: Bytes::new() };
        }
        objects.insert(key.to_owned(), body);
        Answer { status: StatusCode::OK, etag: Some(etag), body: Bytes::new() }
    }

    fn get(&self, key: &str) -> Answer {
        match self.objects().get(key) {
            Some(body) => {
                Answer { status: StatusCode::OK, etag: Some(etag(body)), body: body.clone() }
            }
            None => Answer::status(StatusCode::NOT_FOUND),
        }
    }

    fn delete(&self, key: &str, expected: Option<&str>) -> Answer {
        let mut objects = self.objects();
        // The bug spares the objects of the probe, which would find it out.
        let ignored = self.is(LeaseBug::DeleteIfIgnored) && key.contains("/meta/");
        if let (Some(expected), false) = (expected, ignored) {
            match objects.get(key).map(|body| etag(body)) {
                None => return Answer::status(StatusCode::NOT_FOUND),
                Some(present) if present != expected => {
                    return Answer::status(StatusCode::PRECONDITION_FAILED);
                }
                Some(_) => {}
            }
        }
        objects.remove(key);
        Answer::status(StatusCode::NO_CONTENT)
    }

    /// Deletes the objects that the request body names.
    fn delete_many(&self, body: &[u8]) -> Answer {
        let text = String::from_utf8_lossy(body);
        let mut xml = String::from("<DeleteResult>");
        for part in text.split("<Key>").skip(1) {
            let key = part.split("</Key>").next().unwrap_or_default();
            self.objects().remove(&key.replace("&lt;", "<").replace("&amp;", "&"));
            let _ = write!(xml, "<Deleted><Key>{key}</Key></Deleted>");
        }
        xml.push_str("</DeleteResult>");
        Answer { status: StatusCode::OK, etag: None, body: xml.into() }
    }

    fn list(&self, query: &Query) -> Answer {
        let hidden = |name: &str| self.is(LeaseBug::IndexHidden) && name.contains("lease-index");
        let after = query.after.as_deref().unwrap_or("");
        let (mut keys, mut prefixes): (Vec<(String, usize)>, Vec<String>) = Default::default();
        let objects = self.objects();
        let mut from = query.prefix.clone().max(after.to_owned());
        while let Some((name, body)) = objects.range(from.clone()..).next() {
            if !name.starts_with(&query.prefix) {
                break;
            }
            from = format!("{name}\0");
            if name.as_str() <= after || hidden(name) {
                continue;
            }
            let rest = &name[query.prefix.len()..];
            let folder = query.delimited.then(|| rest.find('/')).flatten();
            let folder = folder.map(|at| name[..=query.prefix.len() + at].to_owned());
            // What else is in the folder is passed over.
            if let Some(folder) = &folder {
                from = format!("{folder}\u{10ffff}");
            }
            if folder.as_ref().is_some_and(|folder| after.starts_with(folder.as_str())) {
                continue;
            }
            if keys.len() + prefixes.len() == query.max {
                let last = keys.last().map(|(key, _)| key.clone()).max(prefixes.last().cloned());
                let next =
                    last.map(
                        |last| if last.ends_with('/') { format!("{last}\u{10ffff}") } else { last },
                    );
                return page(query, &keys, &prefixes, next.as_deref());
            }
            match folder {
                Some(folder) => prefixes.push(folder),
                None => keys.push((name.clone(), body.len())),
            }
        }
        page(query, &keys, &prefixes, None)
    }
}

fn page(
    query: &Query,
    keys: &[(String, usize)],
    prefixes: &[String],
    next: Option<&str>,
) -> Answer {
    let mut xml = String::from("<ListBucketResult>");
    let _ = write!(
        xml,
        "<Prefix>{}</Prefix><IsTruncated>{}</IsTruncated>",
        escaped(&query.prefix),
        next.is_some()
    );
    if let Some(next) = next {
        let _ = write!(xml, "<NextContinuationToken>{}</NextContinuationToken>", escaped(next));
    }
    for (key, size) in keys {
        let _ = write!(
            xml,
            "<Contents><Key>{}</Key><Size>{size}</Size>\
             <LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>\"x\"</ETag></Contents>",
            escaped(key)
        );
    }
    for prefix in prefixes {
        let _ =
            write!(xml, "<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", escaped(prefix));
    }
    xml.push_str("</ListBucketResult>");
    Answer { status: StatusCode::OK, etag: None, body: xml.into() }
}

fn replaced(body: &[u8], word: &[u8], other: &[u8]) -> Bytes {
    let mut copy = body.to_vec();
    for at in 0..(body.len() + 1).saturating_sub(word.len()) {
        if body[at..].starts_with(word) {
            copy[at..at + word.len()].copy_from_slice(other);
        }
    }
    copy.into()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// The parameters of a list request.
struct Query {
    prefix: String,
    after: Option<String>,
    delimited: bool,
    max: usize,
}

impl Query {
    fn parse(query: &str) -> Query {
        let mut parsed = Query { prefix: String::new(), after: None, delimited: false, max: 1_000 };
        for pair in query.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decoded(value);
            match name {
                "prefix" => parsed.prefix = value,
                "start-after" | "continuation-token" => {
                    parsed.after = parsed.after.max(Some(value));
                }
                "delimiter" => parsed.delimited = true,
                "max-keys" => parsed.max = value.parse().unwrap_or(1_000),
                _ => {}
            }
        }
        parsed
    }
}

fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, others @ ..] = rest {
        let hex = (*first == b'%').then(|| others.get(..2)).flatten();
        let hex = hex.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match hex {
            Some(byte) => {
                bytes.push(byte);
                rest = &others[2..];
            }
            None => {
                bytes.push(if *first == b'+' { b' ' } else { *first });
                rest = others;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

struct Answer {
    status: StatusCode,
    etag: Option<String>,
    body: Bytes,
}

impl Answer {
    fn status(status: StatusCode) -> Answer {
        Answer { status, etag: None, body: Bytes::new() }
    }

    fn into_http(self, date_ms: u64) -> HttpResponse {
        let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_millis(date_ms));
        let mut response = Response::builder()
            .status(self.status)
            .header("date", date)
            .header("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            .header("content-length", self.body.len());
        if let Some(etag) = self.etag {
            response = response.header("etag", etag);
        }
        response.body(self.body.into()).expect("every part of it is well-formed")
    }
}

impl std::fmt::Debug for BucketConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Line")
    }
}

impl BucketConnection {
    fn fault(&self, share: f64) -> bool {
        share > 0.0 && self.bucket.world.random.odds(share)
    }

    fn carry_out(&self, method: &Method, path: &str, query: Option<&str>, parts: Parts) -> Answer {
        // `/bucket/key`, each part escaped.
        let key = decoded(path.splitn(3, '/').nth(2).unwrap_or_default());
        match (method, query) {
            (&Method::GET, Some(query)) if query.contains("list-type") => {
                self.bucket.list(&Query::parse(query))
            }
            (&Method::GET | &Method::HEAD, _) => self.bucket.get(&key),
            (&Method::PUT, _) => {
                self.bucket.put(&key, parts.body, parts.create, parts.expected.as_deref())
            }
            (&Method::DELETE, _) => self.bucket.delete(&key, parts.expected.as_deref()),
            (&Method::POST, Some(query)) if query.starts_with("delete") => {
                self.bucket.delete_many(&parts.body)
            }
            _ => Answer::status(StatusCode::METHOD_NOT_ALLOWED),
        }
    }
}

/// The body and the conditions of a request.
struct Parts {
    body: Bytes,
    create: bool,
    expected: Option<String>,
}

fn lost() -> HttpError {
    HttpError::new(HttpErrorKind::Timeout, std::io::Error::other("no answer"))
}

#[async_trait]
impl HttpService for BucketConnection {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let world = &self.bucket.world;
        let faults = *self.bucket.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
        let parts = Parts {
            body,
            create: header("if-none-match") == Some("*"),
            expected: header("if-match").map(str::to_owned),
        };
        let way = |random: &crate::random::SimRandom| match random.odds(0.05) {
            true => Duration::from_millis(random.between(500, 4_000)),
            false => Duration::from_millis(random.between(1, 60)),
        };
        world.sleep(way(&world.random)).await;
        let (method, key) = (&head.method, decoded(head.uri.path()));
        if self.fault(faults.lost) {
            world.note(&self.who, format_args!("{method} {key} is lost"));
            return Err(lost());
        }
        let answer = match self.fault(faults.overloaded) {
            true => Answer::status(StatusCode::SERVICE_UNAVAILABLE),
            false => self.carry_out(&head.method, head.uri.path(), head.uri.query(), parts),
        };
        let unanswered = self.fault(faults.unanswered);
        let how = if unanswered { ", unanswered" } else { "" };
        let status = answer.status.as_u16();
        world.note(&self.who, format_args!("{method} {key}: {status}{how}"));
        let date_ms = world.now_ms().saturating_add_signed(self.date_off_ms);
        world.sleep(way(&world.random)).await;
        match unanswered {
            true => Err(lost()),
            false => Ok(answer.into_http(date_ms)),
        }
    }
}
