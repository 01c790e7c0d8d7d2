//! The structure that `docs/decisions/0012-system-kinds.md` describes, read from the source: who may name a
//! kind of system or a store, which modules may depend on which, and that public names are unique.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const KINDS: &[&str] = &["registry", "sessions", "inflight", "leases", "availability"];

/// The crates that iterate over kinds and ask the table of stores.
const ABOVE: &[&str] = &["lapsed-server", "lapsed-cli", "lapsed-demo"];

/// Files that a new kind of system edits, besides the enum `Kind` in the core.
const NEW_KIND: &[(&str, &str)] = &[
    ("lapsed-server/src/systems.rs", "the table of kinds"),
    ("lapsed/src/stores.rs", "which store carries the kind"),
    ("lapsed/src/lib.rs", "exports the kind's builder"),
    ("lapsed-demo/src/kinds.rs", "the table of the show"),
];

/// Files that a new kind edits only if it has what the file is for.
const NEW_KIND_WITH: &[(&str, &str)] = &[
    ("lapsed-cli/src/kinds.rs", "verbs of its own on the command line"),
    ("lapsed-server/src/node/shapes.rs", "a member of its own in the status"),
];

/// Files that belong to one kind and are not in its folder yet. A new kind edits none of them.
const OF_ONE_KIND: &[&str] = &[
    "lapsed-server/src/api/openapi/bounds.rs",
    // Names the core's types for the OpenAPI document.
    "lapsed-server/src/schemas.rs",
    // `lapsed demo` without `--serve` is the story of one registry.
    "lapsed-demo/src/api.rs",
];

/// Files that a new store edits. Its own are its crate and `lapsed/src/stores/NAME.rs`.
const NEW_STORE: &[(&str, &str)] = &[
    ("lapsed/src/stores.rs", "the table of stores"),
    ("lapsed/Cargo.toml", "its feature and dependency"),
    ("../Cargo.toml", "the path of its crate"),
];

/// Files that use what only one store has. A new store edits none of them.
const OF_ONE_STORE: &[&str] = &[
    // How a kind is opened on the stores that came before it.
    "lapsed/src/availability/assembly.rs",
    "lapsed/src/inflight/assembly.rs",
    "lapsed/src/leases/assembly.rs",
    "lapsed/src/registry/assembly.rs",
    "lapsed/src/sessions/assembly.rs",
    // The accessor of what only object stores do.
    "lapsed/src/stores/opened.rs",
    "lapsed-server/src/config/store.rs",
    "lapsed-server/src/config/units.rs",
    "lapsed-server/src/stores.rs",
    "lapsed-server/src/metrics/requests.rs",
    "lapsed-server/src/systems/availability/change_follower.rs",
    "lapsed-server/src/systems/availability/layout.rs",
    "lapsed-server/src/systems/availability/notes.rs",
    "lapsed-server/src/systems/inflight/layout.rs",
    "lapsed-server/src/systems/inflight/rescued.rs",
    "lapsed-server/src/systems/registry.rs",
    "lapsed-server/src/systems/sessions.rs",
    "lapsed-cli/src/commands/check.rs",
    "lapsed-cli/src/commands/detect.rs",
    "lapsed-cli/src/commands/functions.rs",
    "lapsed-cli/src/kinds/availability.rs",
];

/// Published crates: the top-level modules of each depend on each other in one direction, except for `BACKWARD`.
const LAYERED: &[&str] = &[
    "lapsed",
    "lapsed-availability",
    "lapsed-cli",
    "lapsed-core",
    "lapsed-demo",
    "lapsed-embedded",
    "lapsed-object",
    "lapsed-postgres",
    "lapsed-redis",
    "lapsed-server",
];

/// Dependencies between top-level modules that close a circle, and why each stays: crate, user, used.
const BACKWARD: &[(&str, &str, &str, &str)] = &[
    ("lapsed-cli", "cli", "kinds", "the command line lists the kinds' own commands"),
    ("lapsed-core", "error", "owner", "`Error::Lost` says what the owner held"),
    ("lapsed-core", "receipt", "reconcile", "the observer is told of reconciliations"),
    ("lapsed-core", "receipt", "sweep", "the observer is told of passes"),
    ("lapsed-core", "store", "sweep", "the store keeps the record of the brake"),
    ("lapsed-demo", "show", "kinds", "the table of the kinds' actors"),
    ("lapsed-embedded", "services", "owners", "reads the table of owners before it writes"),
    ("lapsed-embedded", "tx", "inflight", "a transaction keeps the index of the jobs it changed"),
];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crates' folder").to_owned()
}

/// Every file below `folder` whose name ends like one of `ends`, by its path from the crates' folder.
fn files(folder: &Path, ends: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(folder) else { return found };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, ends));
        } else if ends.iter().any(|end| path.to_string_lossy().ends_with(end)) {
            let name = path.strip_prefix(crates()).unwrap().to_string_lossy().into_owned();
            found.push((name, std::fs::read_to_string(&path).unwrap()));
        }
    }
    found.sort();
    found
}

fn sources(name: &str, ends: &[&str]) -> Vec<(String, String)> {
    files(&crates().join(name).join("src"), ends)
}

/// Without comments and without what is only compiled for tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

fn is_part_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether `text` has `what` with no letter directly behind it.
fn has(text: &str, what: &str) -> bool {
    let ends = |at: usize| !text[at + what.len()..].starts_with(is_part_of_word);
    text.match_indices(what).any(|(at, _)| ends(at))
}

/// A variant of `Kind`, a module, or the whole of a word in a text or a path.
fn names_kind(code: &str, kind: &str) -> bool {
    let variant = format!("{}{}", kind[..1].to_uppercase(), &kind[1..]);
    let marks = ['"', '\'', '/', '`'];
    let quoted = |open: &char| marks.iter().any(|c| code.contains(&format!("{open}{kind}{c}")));
    ["systems", "lapsed_core", "crate", "self", "super", "kinds"]
        .iter()
        .any(|module| has(code, &format!("{module}::{kind}")))
        || has(code, &format!("Kind::{variant}"))
        || has(code, &format!("lapsed_{kind}"))
        || has(code, &format!("mod {kind}"))
        || marks.iter().any(quoted)
}

/// The names of the store crates, without `lapsed-`: those that a feature of the library includes.
fn stores() -> Vec<String> {
    let manifest = std::fs::read_to_string(crates().join("lapsed/Cargo.toml")).unwrap();
    let names = manifest.split("\"dep:lapsed-").skip(1).filter_map(|rest| rest.split('"').next());
    names.map(str::to_owned).collect()
}

fn names_store(code: &str, store: &str) -> bool {
    ["lapsed_", "stores::", "super::"].iter().any(|before| has(code, &format!("{before}{store}")))
}

/// Whether the file is in the folder of a kind, or the file beside that folder.
fn is_in_folder_of_kind(path: &str) -> bool {
    KINDS.iter().any(|kind| {
        ["", "systems/", "kinds/"].iter().any(|folder| {
            path.contains(&format!("/src/{folder}{kind}.rs"))
                || path.contains(&format!("/src/{folder}{kind}/"))
        })
    })
}

fn naming(crates: &[&str], names: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let all = crates.iter().flat_map(|name| sources(name, &[".rs", ".js"]));
    let shipped = all.filter(|(path, _)| !path.ends_with("/tests.rs"));
    shipped.filter(|(_, text)| names(&code(text))).map(|(path, _)| path).collect()
}

#[test]
fn a_kind_is_named_only_in_its_folders_and_in_the_files_that_a_new_kind_edits() {
    let edited = || NEW_KIND.iter().chain(NEW_KIND_WITH).map(|(file, _)| *file);
    let allowed = |path: &str| {
        is_in_folder_of_kind(path)
            // A new store says in its own file how it carries each kind.
            || path.starts_with("lapsed/src/stores/")
            || edited().any(|file| file == path)
            || OF_ONE_KIND.contains(&path)
    };
    let crates = [ABOVE, &["lapsed"]].concat();
    let found = naming(&crates, |code| KINDS.iter().any(|kind| names_kind(code, kind)));
    let more: Vec<_> = found.iter().filter(|path| !allowed(path)).collect();
    assert!(more.is_empty(), "these files name a kind of system; ask the kind instead: {more:#?}");
    let stale: Vec<_> =
        edited().chain(OF_ONE_KIND.iter().copied()).filter(|f| !found.contains(*f)).collect();
    assert!(stale.is_empty(), "these files name no kind any more: {stale:#?}");
    // The enum `Kind` in the core is one more.
    assert!(1 + NEW_KIND.len() < 6, "a new kind edits at most 6 existing files");
}

#[test]
fn a_store_is_named_only_in_its_file_and_in_the_files_that_a_new_store_edits() {
    let stores = stores();
    assert!(stores.len() >= 4, "the library has four stores, and found are {stores:?}");
    let own = |path: &str| stores.iter().any(|s| path == format!("lapsed/src/stores/{s}.rs"));
    let listed = |path: &str| {
        NEW_STORE.iter().any(|(file, _)| *file == path) || OF_ONE_STORE.contains(&path)
    };
    let crates = [ABOVE, &["lapsed"]].concat();
    let found = naming(&crates, |code| stores.iter().any(|store| names_store(code, store)));
    let more: Vec<_> = found.iter().filter(|path| !own(path) && !listed(path)).collect();
    assert!(more.is_empty(), "these files name a store; ask the table of stores: {more:#?}");
    let stale: Vec<_> = OF_ONE_STORE.iter().filter(|path| !found.contains(**path)).collect();
    assert!(stale.is_empty(), "these files name no store any more: {stale:#?}");
    assert!(NEW_STORE.len() <= 3, "a new store edits at most 3 existing files");
}

/// Which other top-level modules each one of a crate uses, outside tests and conformance suites.
fn module_graph(name: &str) -> BTreeMap<String, BTreeSet<String>> {
    let root = format!("{name}/src/");
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let all = sources(name, &[".rs"]);
    let module = |path: &str| {
        let first = path[root.len()..].split('/').next().unwrap_or_default();
        first.trim_end_matches(".rs").to_owned()
    };
    let modules: BTreeSet<String> = all.iter().map(|(path, _)| module(path)).collect();
    let is_tested = |path: &str| path.ends_with("tests.rs") || path.contains("conformance");
    for (path, text) in all.iter().filter(|(path, _)| !is_tested(path)) {
        let own = module(path);
        for used in code(text).split("crate::").skip(1) {
            let used = used.split(|c| !is_part_of_word(c)).next().unwrap_or_default();
            if modules.contains(used) && used != own && own != "lib" && own != "main" {
                graph.entry(own.clone()).or_default().insert(used.to_owned());
            }
        }
    }
    graph
}

/// The modules that are in a cycle: what is left when those that use nothing are taken away again and again.
fn cycle(mut graph: BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    loop {
        let users: BTreeSet<String> = graph.keys().cloned().collect();
        graph.values_mut().for_each(|used| used.retain(|module| users.contains(module)));
        let before = graph.len();
        graph.retain(|_, used| !used.is_empty());
        if graph.len() == before {
            return graph.into_keys().collect();
        }
    }
}

#[test]
fn modules_depend_on_each_other_in_a_circle_only_where_it_is_listed() {
    let server = module_graph("lapsed-server");
    assert!(server["systems"].contains("http") && server["api"].contains("systems"));
    for name in LAYERED {
        let mut graph = module_graph(name);
        for (_, user, used, _) in BACKWARD.iter().filter(|(of, ..)| of == name) {
            let is_there = graph.get_mut(*user).is_some_and(|all| all.remove(*used));
            assert!(
                is_there,
                "{name}: {user} does not use {used} any more; remove it from the list"
            );
        }
        assert_eq!(cycle(graph), Vec::<String>::new(), "{name}: a circle, or on the way to one");
    }
}

#[test]
fn a_circle_between_modules_is_found() {
    let graph = [("a", "b"), ("b", "c"), ("c", "b"), ("d", "a")];
    let graph = graph.map(|(own, used)| (own.to_owned(), BTreeSet::from([used.to_owned()])));
    assert_eq!(cycle(graph.into_iter().collect()), ["a", "b", "c", "d"]);
    let graph = [("a", "b"), ("b", "c")];
    let graph = graph.map(|(own, used)| (own.to_owned(), BTreeSet::from([used.to_owned()])));
    assert!(cycle(graph.into_iter().collect()).is_empty());
}

fn all_crates() -> Vec<(String, String)> {
    let names = std::fs::read_dir(crates()).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.flat_map(|name| sources(&name, &[".rs"])).collect()
}

/// Files that write to the terminal without `print`, and why what they write cannot be hostile.
const WRITES_ITSELF: &[(&str, &str)] = &[
    ("lapsed-server/src/print.rs", "escapes what it writes"),
    ("lapsed-cli/src/log.rs", "escapes the fields of each event"),
    (
        "lapsed-cli/src/top.rs",
        "asks whether it is a terminal; ratatui draws what `top/draw` escaped",
    ),
    ("lapsed-cli/src/commands/completions.rs", "a generated script"),
    ("lapsed-cli/src/commands/init.rs", "questions to the person who answers them"),
    ("lapsed-cli/src/commands/man.rs", "a generated page"),
    ("lapsed-cli/src/commands/reconcile.rs", "a progress bar of numbers"),
    ("lapsed-demo/src/screen.rs", "draws tables and lines that were escaped"),
];

#[test]
fn everything_for_people_is_written_by_print() {
    let marks = ["println!", "print!(", "io::stdout", "io::stderr", "io::{stdout", "io::{stderr"];
    let mut found = BTreeSet::new();
    for (path, text) in ABOVE.iter().flat_map(|name| sources(name, &[".rs"])) {
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        if lines.any(|line| marks.iter().any(|mark| line.contains(mark))) {
            found.insert(path);
        }
    }
    let allowed = WRITES_ITSELF.iter().map(|(path, _)| (*path).to_owned()).collect();
    assert_eq!(found, allowed, "write it with lapsed_server::print, which escapes");
}

#[test]
fn no_two_public_types_share_a_name() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in all_crates() {
        for line in text.lines().map(str::trim_start) {
            let item = ["pub struct ", "pub enum ", "pub trait ", "pub type "];
            let Some(rest) = item.iter().find_map(|item| line.strip_prefix(item)) else { continue };
            let name: String = rest.chars().take_while(|c| is_part_of_word(*c)).collect();
            places.entry(name).or_default().push(path.clone());
        }
    }
    places.retain(|_, files| files.len() > 1);
    assert!(places.is_empty(), "{places:#?}");
}

/// The crates whose types other crates use: what they export must be able to grow.
const LIBRARIES: &[&str] = &[
    "lapsed",
    "lapsed-core",
    "lapsed-availability",
    "lapsed-embedded",
    "lapsed-object",
    "lapsed-postgres",
    "lapsed-redis",
];

/// Public enums without `#[non_exhaustive]`, and why. Those that a store implements are closed on purpose: with
/// one more variant, every store must fail to compile until it handles it. Nothing that reads an answer does.
const CLOSED: &[(&str, &str)] = &[
    ("AcquireOutcome", "a rule's verdict, which each store of leases writes"),
    ("Acquired", "granted, or held by another"),
    ("BreakerState", "the three states of a circuit breaker"),
    ("Decision", "a transaction commits or rolls back"),
    ("Downgrade", "a yes or no with a name"),
    ("Fenced", "done or lost, like a `Result`"),
    ("Finish", "an order that each store of jobs carries out"),
    ("Flipped", "an answer of the truth, which the mirror must follow"),
    ("IdleRecord", "a rule's verdict, which each store of leases writes"),
    ("JobDecision", "a rule's verdict, which each store of jobs writes"),
    ("KeptRequest", "unknown, begun or answered, like an `Option` of a `Result`"),
    ("LeaseState", "what each store of leases writes and reads back"),
    ("LogStatus", "a provider's status in its log: online or offline"),
    ("MirrorBeat", "an answer of the mirror, on which the operations decide"),
    ("QueueEnd", "a queue has two ends"),
    ("RedisInflight", "the modes of a system on Redis, inside the library"),
    ("RedisRegistry", "the modes of a system on Redis, inside the library"),
    ("RedisSessionsKeys", "the modes of a system on Redis, inside the library"),
    ("ReferenceStep", "a reference begins or ends"),
    ("RemovedLease", "what each store of leases puts into a receipt and restores"),
    ("SeenBeat", "an answer of the mirror, on which the operations decide"),
    ("SessionOutcome", "done or refused, like a `Result`"),
    ("SnapshotTurn", "an answer of the mirror, on which the operations decide"),
    ("StoreFile", "the files of an embedded store, which who passes them must make"),
    ("StoreUse", "a store is exclusive, shared, or paid by request, inside the library"),
    ("Subject", "what each store of leases sweeps"),
    ("SweepMoment", "a moment of the conformance suites"),
    ("Triggers", "a yes or no with a name"),
    ("What", "an event of the conformance suites"),
];

#[test]
fn public_enums_can_grow_without_breaking_a_caller() {
    let mut closed = BTreeSet::new();
    for (_, text) in LIBRARIES.iter().flat_map(|name| sources(name, &[".rs"])) {
        let mut can_grow = false;
        for line in text.lines().map(str::trim_start) {
            if let Some(rest) = line.strip_prefix("pub enum ") {
                let name: String = rest.chars().take_while(|c| is_part_of_word(*c)).collect();
                closed.extend((!can_grow).then_some(name));
            }
            // The attribute and the enum are in one block of attributes.
            can_grow = line == "#[non_exhaustive]" || (can_grow && line.starts_with("#["));
        }
    }
    let listed = CLOSED.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(closed, listed, "make the enum #[non_exhaustive], or list it with the reason");
}

#[test]
fn doc_comments_say_something() {
    let mut short = Vec::new();
    for (path, text) in all_crates() {
        let mut words: Option<usize> = None;
        for line in text.lines().chain([""]) {
            match line.trim_start().strip_prefix("///") {
                Some(rest) => *words.get_or_insert(0) += rest.split_whitespace().count(),
                None => {
                    if words.take().is_some_and(|count| count <= 3) {
                        short.push(path.clone());
                    }
                }
            }
        }
    }
    assert!(short.is_empty(), "doc comments of three words or fewer: {short:#?}");
}
