//! A machine that stands still while a story is told: this process is stopped and goes on.
#![allow(clippy::unwrap_used)]

use std::process::{Child, Command};

use lapsed_testbed::{steadily, steadily_async};

/// Stops this process for a third of a second; the child has gone when it goes on.
fn stand_still() {
    let me = std::process::id();
    let order = format!("kill -STOP {me}; sleep 0.3; kill -CONT {me}");
    let mut child: Child = Command::new("sh").args(["-c", &order]).spawn().unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_story_that_stood_still_is_told_again() {
    let mut tellings = 0;
    steadily(|| {
        tellings += 1;
        if tellings < 3 {
            stand_still();
            panic!("somebody was declared dead");
        }
    });
    assert_eq!(tellings, 3);
}

#[tokio::test]
async fn an_async_story_that_stood_still_is_told_again() {
    let mut tellings = 0;
    steadily_async(async || {
        tellings += 1;
        tokio::task::yield_now().await;
        if tellings < 3 {
            stand_still();
            panic!("somebody was declared dead");
        }
    })
    .await;
    assert_eq!(tellings, 3);
}

#[test]
fn a_failure_that_repeats_is_a_failure() {
    let told = std::panic::catch_unwind(|| steadily(|| panic!("every time")));
    assert!(told.is_err());
}
