//! A cluster: keys find their node, also while their slot moves.
#![allow(clippy::unwrap_used)]

use lapsed_testbed::{Cluster, Engine};

#[test]
fn a_slot_of_redis_moves_with_its_keys() {
    a_slot_moves_with_its_keys(Engine::Redis);
}

#[test]
fn a_slot_of_valkey_moves_with_its_keys() {
    a_slot_moves_with_its_keys(Engine::Valkey);
}

fn a_slot_moves_with_its_keys(engine: Engine) {
    let cluster = Cluster::start(engine, 3).unwrap();
    let nodes = cluster.nodes();
    let slot = cluster.slot_of("{tag}0");
    let from = cluster.master_of_slot(slot).unwrap();
    let to = (from + 1) % 3;
    let keys: Vec<String> = (0..5).map(|nth| format!("{{tag}}{nth}")).collect();
    for key in &keys {
        assert_eq!(nodes[to].command(&["CLUSTER", "KEYSLOT", key]).unwrap(), slot.to_string());
        nodes[from].command(&["SET", key, key]).unwrap();
    }
    let moved = nodes[to].command(&["GET", &keys[0]]).unwrap_err().to_string();
    assert!(moved.contains(&format!("MOVED {slot} 127.0.0.1:{}", nodes[from].port())), "{moved}");

    let mut counts = Vec::new();
    let count = |node: usize| {
        nodes[node].command(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]).unwrap()
    };
    cluster
        .migrate_slot_in_steps(slot, to, || {
            counts.push(count(from));
            assert_eq!(cluster.master_of_slot(slot).unwrap(), from);
            let asked = nodes[from].command(&["GET", "{tag}none"]).unwrap_err().to_string();
            assert!(asked.contains("ASK"), "{asked}");
        })
        .unwrap();
    assert_eq!(counts, ["5", "4", "3", "2", "1", "0"]);
    for key in &keys {
        assert_eq!(&nodes[to].command(&["GET", key]).unwrap(), key);
    }
    assert!(nodes[from].command(&["GET", &keys[0]]).unwrap_err().to_string().contains("MOVED"));

    cluster.migrate_slot(slot, from).unwrap();
    assert_eq!(cluster.master_of_slot(slot).unwrap(), from);
    assert_eq!(nodes[from].command(&["GET", &keys[4]]).unwrap(), keys[4]);
    assert_eq!(cluster.url().matches("127.0.0.1:").count(), 3);

    nodes[to].kill().unwrap();
    nodes[to].restart().unwrap();
    cluster.wait_ok().unwrap();
}
