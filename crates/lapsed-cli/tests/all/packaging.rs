//! What `deploy/` has, against the tools that will read it: the Dockerfile, the Compose file, the
//! manifests, the unit; and every configuration in them against lapsed itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use lapsed_server::config::Overrides;
use lapsed_server::node::Config;
use lapsed_testbed::paths::checks_python;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Runs a program of the checks, or a module of theirs, to its end; must work.
#[track_caller]
fn check(command: &mut Command) -> String {
    let output = command.current_dir(root()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = said + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

fn python(module: &str) -> Command {
    let mut command = Command::new(checks_python().unwrap());
    command.args(["-m", module]);
    command
}

fn manifests() -> Vec<PathBuf> {
    let files = std::fs::read_dir(root().join("deploy/kubernetes")).unwrap();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 4, "{files:?}");
    files
}

#[test]
fn hadolint_accepts_the_dockerfile() {
    let hadolint = checks_python().unwrap().with_file_name("hadolint");
    check(Command::new(hadolint).arg("Dockerfile"));
}

#[test]
fn the_image_runs_without_root_and_has_a_health_check() {
    let text = read("Dockerfile");
    for line in ["USER 65532:65532", "VOLUME [\"/var/lib/lapsed\"]", "\"healthcheck\", \"--live\""]
    {
        assert!(text.contains(line), "{line}");
    }
    for base in text.lines().filter_map(|line| line.strip_prefix("FROM ")) {
        let tag = base.split(' ').next().unwrap().split_once(':').map(|(_, tag)| tag);
        assert!(tag.is_some_and(|tag| tag != "latest"), "{base} is not pinned");
    }
}

#[test]
fn the_compose_file_fits_its_schema() {
    let mut command = python("check_jsonschema");
    check(command.args(["--builtin-schema", "vendor.compose-spec", "deploy/compose/compose.yml"]));
}

#[test]
fn the_manifests_match_the_kubernetes_schema() {
    let said = check(python("kubernetes_validate").arg("--strict").args(manifests()));
    for kind in [
        "deployment",
        "statefulset",
        "service",
        "configmap",
        "poddisruptionbudget",
        "networkpolicy",
        "job",
    ] {
        assert!(said.contains(&format!("passed for resource {kind}/")), "{kind}: {said}");
    }
}

/// Every pod that runs lapsed drops the privileges that it does not need.
#[test]
fn every_pod_drops_privileges_and_has_probes() {
    for file in ["deployment", "statefulset"] {
        let text = read(&format!("deploy/kubernetes/{file}.yaml"));
        for line in [
            "runAsNonRoot: true",
            "readOnlyRootFilesystem: true",
            "allowPrivilegeEscalation: false",
            "drop: [ALL]",
            "type: RuntimeDefault",
            "automountServiceAccountToken: false",
            "livenessProbe:\n            httpGet: {path: /healthz",
            "readinessProbe:\n            httpGet: {path: /readyz",
        ] {
            assert!(text.contains(line), "{file}: {line}");
        }
    }
}

/// systemd has its say in a folder that holds no more than the unit and what it starts.
#[test]
fn systemd_accepts_the_unit_and_its_sandboxing() {
    let dir = tempfile::tempdir().unwrap();
    let units = dir.path().join("etc/systemd/system");
    std::fs::create_dir_all(&units).unwrap();
    std::fs::create_dir_all(dir.path().join("usr/bin")).unwrap();
    std::fs::copy("/bin/true", dir.path().join("usr/bin/lapsed")).unwrap();
    std::fs::write(units.join("lapsed.service"), read("deploy/systemd/lapsed.service")).unwrap();
    for target in ["sysinit", "basic", "network-online", "shutdown", "multi-user"] {
        std::fs::write(units.join(format!("{target}.target")), "[Unit]\nDescription=x\n").unwrap();
    }
    let analyze = lapsed_testbed::paths::systemd_analyze().unwrap();
    let analyze = |args: &[&str]| {
        let at = format!("--root={}", dir.path().display());
        check(Command::new(&analyze).args(args).args([&at, "lapsed.service"]))
    };
    let said = analyze(&["verify", "--man=no"]);
    assert!(!said.contains("lapsed.service:"), "{said}");
    // In tenths of its scale of exposure: from 0 (confined) to 100.
    analyze(&["security", "--offline=yes", "--threshold=15"]);
}

/// What stands indented after a line that begins it.
fn block(text: &str, begin: &str) -> String {
    let mut lines = text.lines().skip_while(|line| line.trim() != begin);
    lines.next().unwrap_or_else(|| panic!("no {begin}"));
    let inside = lines.take_while(|line| line.is_empty() || line.starts_with("    "));
    inside.map(|line| format!("{}\n", line.trim_start_matches("    "))).collect()
}

/// A configuration that lapsed takes, with the secrets that the deployment gives it.
#[track_caller]
fn accepted(text: &str) -> Config {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lapsed.toml");
    std::fs::write(&file, text).unwrap();
    let env = |name: &str| match name {
        "LAPSED_TOKEN" | "POSTGRES_PASSWORD" => Some("a-secret-of-your-own-0123456789".to_owned()),
        "REDIS_URL" => Some("redis://valkey:6379/0".to_owned()),
        "POSTGRES_URL" => Some("postgres://lapsed:secret@db:5432/lapsed".to_owned()),
        _ => None,
    };
    Config::load(Some(&file), &Overrides::default(), &env)
        .unwrap_or_else(|e| panic!("{e:?}\n{text}"))
}

#[test]
fn every_configuration_in_deploy_is_accepted() {
    for (text, systems) in [
        (read("deploy/debian/lapsed.toml"), 5),
        (read("deploy/compose/lapsed.toml"), 5),
        (block(&read("deploy/kubernetes/deployment.yaml"), "lapsed.toml: |"), 4),
        (block(&read("deploy/kubernetes/statefulset.yaml"), "lapsed.toml: |"), 5),
    ] {
        assert_eq!(accepted(&text).systems.len(), systems, "{text}");
    }
}
