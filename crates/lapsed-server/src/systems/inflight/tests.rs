use super::*;
use crate::systems::tests::{assert_same, plan_by_default};

#[tokio::test]
async fn the_defaults_are_those_of_the_library() {
    let plan: Box<InflightPlan> = plan_by_default();
    let lapsed = lapsed::open("memory:").await.unwrap();
    assert_same(&plan.common, plan.spec(), lapsed.inflight("default").assembly().unwrap());
}
