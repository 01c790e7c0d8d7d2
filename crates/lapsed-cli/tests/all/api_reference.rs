//! `docs/api.md` agrees with the binary's `/openapi.json`. `make api` writes it again.

use std::fmt::Write;

use serde_json::{Map, Value};

use crate::pages::root;
use crate::support::{CALM, Home};

const HEAD: &str = "\
# HTTP API
Made from `/openapi.json` by `make api`; a test fails when the two differ. Bodies and answers are JSON. Problems are
`application/problem+json` with `type`, `title`, `status` and `detail`, which says what to do next. `{name}` is the name of
the system in the configuration, `default` without one.

Every guarded route may also answer 401 (a token is needed), 403 (this token may not), 503 (the store does not answer;
try again later). These are left out below.
";

/// Written from what the daemon answers when the environment says so, else compared.
#[test]
fn api_md_matches_the_openapi_document() {
    let document = Home::new("1m", CALM).serve().get("/openapi.json").body;
    let (made, path) = (page(&document), root("docs/api.md"));
    if std::env::var_os("LAPSED_WRITE_API").is_some() {
        std::fs::write(path, made).unwrap();
        return;
    }
    let kept = std::fs::read_to_string(path).unwrap();
    let differs = kept.lines().zip(made.lines()).find(|(kept, made)| kept != made);
    assert!(kept == made, "docs/api.md is out of date: run `make api`. First: {differs:#?}");
}

fn page(document: &Value) -> String {
    let mut page = HEAD.to_owned();
    let routes = routes(document);
    for tag in document["tags"].as_array().unwrap() {
        let name = text(&tag["name"]);
        write!(page, "\n## {name}\n{}.\n", text(&tag["description"])).unwrap();
        for (method, path, operation) in &routes {
            if operation["tags"][0] == tag["name"] {
                page += &route(method, path, operation, document);
            }
        }
    }
    page + &shapes(document)
}

/// Method, path and operation of each route, as the document has them.
fn routes(document: &Value) -> Vec<(&str, &str, &Value)> {
    let paths = object(&document["paths"]).iter();
    let of = |(path, item)| object(item).iter().map(move |(method, op)| (&**method, path, op));
    let all = paths.flat_map(|(path, item)| of((&**path, item)));
    let mut routes: Vec<_> = all.filter(|(_, _, op)| op.is_object()).collect();
    routes.sort_by_key(|(method, path, _)| (*path, *method));
    routes
}

/// One route: what it does, what it takes, what it answers.
fn route(method: &str, path: &str, operation: &Value, document: &Value) -> String {
    let mut out = format!("\n### {} {path}\n{}\n", method.to_uppercase(), said(operation));
    if let Some(scope) = scope(operation) {
        writeln!(out, "- Scope: `{scope}`").unwrap();
    }
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    for parameter in parameters.filter(|parameter| parameter["name"] != "name") {
        let note = note(&parameter["description"]);
        let (name, place) = (text(&parameter["name"]), text(&parameter["in"]));
        let kind = kind(&parameter["schema"]);
        writeln!(out, "- `{name}` in the {place}, {kind}{note}").unwrap();
    }
    if let Some(schema) = operation["requestBody"].pointer("/content/application~1json/schema") {
        writeln!(out, "- Body: {}", body(schema, document)).unwrap();
    }
    out + &answers(object(&operation["responses"]))
}

/// What is needed to call it, if the document says so.
fn scope(operation: &Value) -> Option<&str> {
    let named = operation["x-scope"].as_str();
    named.or_else(|| operation["security"].pointer("/0/token/0").and_then(Value::as_str))
}

/// The fields of a body, in one line.
fn body(schema: &Value, document: &Value) -> String {
    let Some(fields) = resolved(schema, document)["properties"].as_object() else {
        return kind(schema);
    };
    let required = |name: &str| {
        let required = resolved(schema, document)["required"].as_array();
        required.into_iter().flatten().any(|one| one == name)
    };
    let field = |(name, schema): (&String, &Value)| {
        format!("`{name}`{} {}", if required(name) { "" } else { "?" }, kind(schema))
    };
    let fields: Vec<_> = sorted(fields).into_iter().map(field).collect();
    format!("{} ({})", kind(schema), fields.join(", "))
}

/// What may come back, but for what every route may answer.
fn answers(responses: &Map<String, Value>) -> String {
    let mut out = String::new();
    for (status, response) in sorted(responses) {
        if ["401", "403", "503", "default"].contains(&&**status) {
            continue;
        }
        let content = response["content"].as_object().into_iter().flatten().next();
        let shape = content.map(|(media, content)| match &content["schema"] {
            Value::Null => format!(" `{media}`"),
            schema => format!(" {}", kind(schema)),
        });
        writeln!(
            out,
            "- {status}{}: {}",
            shape.unwrap_or_default(),
            text(&response["description"])
        )
        .unwrap();
    }
    out
}

/// Every shape with its fields.
fn shapes(document: &Value) -> String {
    let mut out = "\n## Shapes\n".to_owned();
    for (name, schema) in sorted(object(&document["components"]["schemas"])) {
        write!(out, "\n### {name}\n{}\n", said(schema)).unwrap();
        out += &fields(schema);
    }
    out
}

fn fields(schema: &Value) -> String {
    let mut out = String::new();
    for (name, field) in schema["properties"].as_object().into_iter().flat_map(sorted) {
        writeln!(out, "- `{name}` {}{}", kind(field), note(&field["description"])).unwrap();
    }
    for part in ["allOf", "oneOf"].iter().flat_map(|of| schema[of].as_array()).flatten() {
        match part.get("$ref") {
            Some(_) => writeln!(out, "- all of {}", kind(part)).unwrap(),
            None => out += &fields(part),
        }
    }
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<_> = values.iter().map(|value| format!("`{}`", text(value))).collect();
        writeln!(out, "- one of {}", values.join(", ")).unwrap();
    }
    out
}

/// A type in a word, with a link where it has a name.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next()) {
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(parts) = schema["oneOf"].as_array() {
        let parts: Vec<_> = parts.iter().map(kind).filter(|kind| kind != "null").collect();
        return parts.join(" or ");
    }
    match &schema["type"] {
        Value::String(kind) if kind == "array" => {
            format!("list of {}", self::kind(&schema["items"]))
        }
        Value::String(kind) => kind.clone(),
        Value::Array(kinds) => text(&kinds[0]).to_owned(),
        _ => "any".to_owned(),
    }
}

fn resolved<'a>(schema: &'a Value, document: &'a Value) -> &'a Value {
    let place = schema["$ref"].as_str().and_then(|place| place.strip_prefix('#'));
    place.and_then(|place| document.pointer(place)).unwrap_or(schema)
}

fn said(thing: &Value) -> String {
    let parts = [&thing["summary"], &thing["description"]].map(text);
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("\n")
}

fn note(description: &Value) -> String {
    let text = text(description).replace('\n', " ");
    if text.is_empty() { text } else { format!(": {text}") }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// By name: which order a map has differs with how the program was built.
fn sorted(map: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut fields: Vec<_> = map.iter().collect();
    fields.sort_by_key(|(name, _)| *name);
    fields
}

fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().expect("an object of the document")
}
