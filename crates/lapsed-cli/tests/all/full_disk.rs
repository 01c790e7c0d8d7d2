//! A full disk: writes are refused with a clear error, reads go on, and when there is room again
//! writes go on by themselves. Needs leave to mount a small tmpfs; says so and passes without it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Daemon, JSON, lapsed, until};
use serde_json::json;

lapsed_testbed::steady_tests! {
    a_full_disk_refuses_writes_keeps_reading_and_recovers,
}

/// A small file system of its own.
struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    fn mount() -> Option<SmallDisk> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=48m", "tmpfs"]).arg(dir.path());
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then_some(SmallDisk { dir })
    }

    fn filler(&self) -> PathBuf {
        self.dir.path().join("filler")
    }

    fn fill(&self) {
        let mut file = std::fs::File::create(self.filler()).unwrap();
        let block = vec![7_u8; 1 << 16];
        while file.write_all(&block).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.dir.path()).status();
    }
}

fn serve(disk: &SmallDisk, log: &Path) -> Daemon {
    let mut command = lapsed();
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(disk.dir.path().join("data"));
    Daemon::spawn(command, log).unwrap()
}

fn a_full_disk_refuses_writes_keeps_reading_and_recovers() {
    let Some(disk) = SmallDisk::mount() else {
        println!("skipped: no leave to mount a tmpfs");
        return;
    };
    let log = tempfile::tempdir().unwrap();
    let daemon = serve(&disk, log.path());
    let register = |key: &str| {
        let body = json!({ "owner": "a", "key": key });
        daemon.post("/v1/registry/default/register", body)
    };
    let lookup = |key: &str| daemon.get(&format!("/v1/registry/default/lookup/{key}")).status;
    assert_eq!(register("before").status, 200);
    disk.fill();
    let refused = until("a write to be refused", || {
        let reply = register("during");
        (reply.status != 200).then_some(reply)
    });
    refused.is_problem(503, "unavailable");
    assert!(refused.body["detail"].as_str().unwrap().contains("disk is full"), "{refused:?}");
    assert_ne!(refused.header("retry-after"), "");
    let brake = Some(json!({ "setting": "hold" }).to_string());
    let unwritten = daemon.call("PUT", "/v1/brakes/registry/default", brake, &[JSON]);
    unwritten.is_problem(503, "unavailable");
    let detail = unwritten.body["detail"].as_str().unwrap();
    assert!(detail.contains("nothing was done") && detail.contains("audit"), "{detail}");
    assert_eq!(daemon.get("/v1/brakes/registry/default").body["setting"], "auto");
    assert_eq!(lookup("before"), 200, "reads go on");
    assert_eq!(daemon.get("/readyz").status, 200);
    let beat = daemon.post("/v1/registry/default/beat", json!({ "owner": "a" }));
    assert_eq!(beat.status, 200, "so do beats: {beat:?}");
    let metrics = daemon.get("/metrics").text;
    assert!(metrics.contains(
        "lapsed_store_errors_total{system=\"default\",error=\"unavailable\",kind=\"registry\"}"
    ));

    std::fs::remove_file(disk.filler()).unwrap();
    until("writes to go on", || (register("after").status == 200).then_some(()));
    assert_eq!((lookup("before"), lookup("after")), (200, 200));
    assert_eq!(daemon.stop(), Some(0));
    let daemon = serve(&disk, log.path());
    for key in ["before", "after"] {
        assert_eq!(daemon.get(&format!("/v1/registry/default/lookup/{key}")).status, 200, "{key}");
    }
}
