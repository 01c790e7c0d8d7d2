//! The checker explores every order of events within the model's bounds: the protocol keeps its promises, and each
//! planted bug breaks the promise that it is listed with.

use lapsed_model::{ProtocolBug, ReclaimProtocol};
use stateright::{Checker, HasDiscoveries, Model};

#[test]
fn the_protocol_keeps_its_promises_in_every_order_of_events() {
    let began = std::time::Instant::now();
    let checker = ReclaimProtocol::default().checker().threads(2).spawn_bfs().join();
    println!(
        "{} states, {} of them different, in {:.1} s",
        checker.state_count(),
        checker.unique_state_count(),
        began.elapsed().as_secs_f64()
    );
    checker.assert_properties();
    assert!(checker.unique_state_count() > 100_000, "the model has become too small");
}

#[test]
fn every_planted_bug_is_found() {
    for (bug, promise) in ProtocolBug::ALL {
        let model = ReclaimProtocol { bug: Some(bug) };
        let checker = model.checker().finish_when(HasDiscoveries::AnyFailures);
        let checker = checker.threads(2).spawn_bfs().join();
        let broken: Vec<_> =
            checker.discoveries().into_keys().filter(|name| name.starts_with('P')).collect();
        println!("{bug:?}: {broken:?}, {} states", checker.unique_state_count());
        assert!(broken.iter().any(|name| name.starts_with(promise)), "{bug:?}: {broken:?}");
    }
}
