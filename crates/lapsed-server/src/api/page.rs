//! The dashboard: a page and its files, all embedded in this binary. There is no build step, and
//! nothing is loaded from another host.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use ring::digest::{SHA256, digest};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::http::{Shared, problem};
use crate::systems;
use crate::systems::words::{GENERAL, KindWords};

/// The content security policy: the page may load only files of this daemon, and may not be framed.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// One file of the dashboard.
struct File {
    name: &'static str,
    text: Cow<'static, str>,
    tag: HeaderValue,
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        vec![$(File {
            name: $name,
            text: Cow::Borrowed(include_str!(concat!("../page/", $name))),
            tag: tag(include_str!(concat!("../page/", $name))),
        }),*]
    };
}

static FILES: LazyLock<Vec<File>> = LazyLock::new(|| {
    let mut files = files![
        "index.html",
        "page.css",
        "icon.svg",
        "main.js",
        "actions.js",
        "api.js",
        "charts.js",
        "dialog.js",
        "elements.js",
        "explain.js",
        "letters.js",
        "login.js",
        "passes.js",
        "receipt.js",
        "receipts.js",
        "stores.js",
        "stream.js",
        "systems.js",
        "words.js",
    ];
    let text = kinds();
    files.push(File { name: "kinds.js", tag: tag(&text), text: Cow::Owned(text) });
    files
});

/// The texts of every kind of system, as a JavaScript module of the dashboard.
fn kinds() -> String {
    let all = systems::KINDS.iter();
    let words: BTreeMap<&str, &KindWords> =
        all.map(|kind| (kind.kind().as_str(), kind.words())).collect();
    let [words, general] = [serde_json::to_string(&words), serde_json::to_string(&GENERAL)]
        .map(|json| json.expect("words are plain data"));
    format!("export const KINDS = {words};\nexport const GENERAL = {general};\n")
}

/// The route of the dashboard's HTML page.
pub fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(page))
}

/// The routes of the dashboard's files. They are not part of the API, so the OpenAPI document omits
/// them.
pub fn files() -> Router<Shared> {
    Router::new().route("/page/{name}", get(file))
}

/// Serves the dashboard's HTML page.
#[utoipa::path(get, path = "/", tag = "service",
    responses((status = 200, body = String, content_type = "text/html")))]
async fn page(headers: HeaderMap) -> Response {
    serve(&FILES[0], &headers)
}

async fn file(Path(name): Path<String>, uri: Uri, headers: HeaderMap) -> Response {
    match FILES.iter().find(|file| file.name == name) {
        Some(file) => serve(file, &headers),
        None => problem::no_route(uri).await.into_response(),
    }
}

/// File names do not change between versions, so a browser revalidates each file by its `ETag`; the
/// usual answer is 304.
fn serve(file: &'static File, asked: &HeaderMap) -> Response {
    let fixed: [(HeaderName, &'static str); 5] = [
        (header::CONTENT_TYPE, content_type(file.name)),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    let tag = [(header::ETAG, file.tag.clone())];
    let known = asked.get_all(header::IF_NONE_MATCH).iter().any(|known| *known == file.tag);
    match known {
        true => (StatusCode::NOT_MODIFIED, fixed, tag).into_response(),
        false => (fixed, tag, &*file.text).into_response(),
    }
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

/// The `ETag` of a text: it depends on the text only, not on the binary.
fn tag(text: &str) -> HeaderValue {
    let sum = digest(&SHA256, text.as_bytes());
    let hex: String = sum.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    HeaderValue::from_str(&format!("\"{hex}\"")).expect("hexadecimal digits fit into a header")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If one module cannot be fetched, or imports one that does not exist, the whole dashboard
    /// fails.
    #[test]
    fn every_file_that_the_page_names_is_served() {
        let names: Vec<&str> = FILES.iter().map(|file| file.name).collect();
        for file in FILES.iter() {
            let quoted = file.text.split('"').skip(1).step_by(2);
            let local = |text: &str| {
                text.strip_prefix("./").or(text.strip_prefix("/page/")).map(str::to_owned)
            };
            for wanted in quoted.filter_map(local) {
                assert!(names.contains(&wanted.as_str()), "{} wants {wanted}", file.name);
            }
        }
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/src/page");
        for found in std::fs::read_dir(dir).unwrap() {
            let found = found.unwrap().file_name().into_string().unwrap();
            assert!(names.contains(&found.as_str()), "{found} is not served");
        }
    }
}
