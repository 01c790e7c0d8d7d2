use std::any::Any;
use std::fmt::Debug;

use lapsed::assembly::Assembly;
use lapsed_core::sweep::brake::Brake;

use super::*;
use crate::config::Overrides;
use crate::config::common::SystemSettings;
use crate::node::Config;

#[test]
fn every_kind_is_in_the_table() {
    Kind::ALL.iter().for_each(|kind| assert_eq!(of(*kind).kind(), *kind));
}

/// The only plan of the type `P` in the configuration `text`, without any environment variable.
pub fn plan_of<P: SystemPlan>(text: &str) -> Box<P> {
    let config = Config::parse(text, &Overrides::default(), &|_| None).unwrap();
    let plans = config.systems.into_iter().map(|plan| plan as Box<dyn Any>);
    let mut plans: Vec<Box<P>> = plans.filter_map(|plan| plan.downcast().ok()).collect();
    assert_eq!(plans.len(), 1);
    plans.remove(0)
}

/// The plan of the type `P` if the configuration says nothing: on an embedded store, which only lapsed uses.
pub fn plan_by_default<P: SystemPlan>() -> Box<P> {
    plan_of("")
}

/// Panics unless the daemon and a builder of the library start the same system.
pub fn assert_same<S: Debug>(
    common: &SystemSettings,
    spec: S,
    (library, library_spec): (Assembly, S),
) {
    assert_eq!(common.policy, library.policy);
    assert_eq!(common.retention, library.retention);
    let brake = Brake::new(common.brake.clone(), common.threshold);
    assert_eq!(format!("{brake:?}"), format!("{:?}", library.brake));
    assert_eq!(format!("{spec:#?}"), format!("{library_spec:#?}"));
}
