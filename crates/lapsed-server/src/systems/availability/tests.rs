use super::*;
use crate::systems::tests::{assert_same, plan_by_default, plan_of};

#[tokio::test]
async fn the_defaults_are_those_of_the_library() {
    let plan: Box<AvailabilityPlan> = plan_by_default();
    let lapsed = lapsed::open("memory:").await.unwrap();
    assert_same(&plan.common, plan.spec(), lapsed.availability("default").assembly().unwrap());
}

#[tokio::test]
async fn the_default_names_of_tables_and_keys_are_those_of_the_library() {
    let plan: Box<AvailabilityPlan> = plan_of(
        "[store.facts]\nurl = \"postgres://127.0.0.1/app\"\n\
         [store.cache]\nurl = \"redis://127.0.0.1:6379/0\"\n\
         [[system]]\nkind = \"availability\"\nstore = \"facts\"\n",
    );
    let lapsed = lapsed::open("memory:").await.unwrap();
    let (_, library) = lapsed.availability("default").assembly().unwrap();
    assert_eq!(format!("{:#?}", plan.spec()), format!("{library:#?}"));
}
