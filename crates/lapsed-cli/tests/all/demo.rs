//! The demo runs to its end, and all of its checks pass.

lapsed_testbed::steady_tests! {
    the_demo_runs_to_its_end_and_every_check_passes,
}

fn the_demo_runs_to_its_end_and_every_check_passes() {
    let told = crate::support::run(&["demo", "--pace", "0.4"]);
    assert_eq!(told.code, 0, "{told:?}");
    let kept = told.out.lines().filter(|line| line.starts_with("kept  ")).count();
    assert_eq!(kept, 6, "{}", told.out);
    for scene in ["kill -9", "SIGSTOP", "is told: Lost", "leaves gracefully"] {
        assert!(told.out.contains(scene), "{scene} is missing: {}", told.out);
    }
}
