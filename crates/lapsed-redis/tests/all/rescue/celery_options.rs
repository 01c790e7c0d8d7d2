//! Options of Celery's transport that change the names of its lists.

use super::*;
use crate::rescue::celery::{LATE, Place, STUCK, wait};

lapsed_testbed::steady_async_tests! {
    trap_f9_a_task_goes_to_a_list_of_the_applications_own_priorities,
    trap_f11_another_separator_is_refused,
}

async fn trap_f9_a_task_goes_to_a_list_of_the_applications_own_priorities() {
    let place = Place::new(Engine::Redis);
    let steps = ("STEPS", "0 5 9");
    place.add(&["a"], &[("PRIORITY", "4"), steps]);
    let env = [STUCK, &[steps]].concat();
    let (worker, job) = place.stuck("w1", &env);
    let layout = RescueLayout { priority_steps: vec![9, 0, 5], ..layout("celery", SOON) };
    let inflight = Arc::new(place.redis.rescued_inflight(id(), layout).unwrap());
    place.answering(&inflight, 1).await;
    place.leaves_alone(&inflight, 1).await;
    worker.kill().unwrap();
    put_back(&inflight, &place.redis, 1).await;
    assert_eq!(place.app.text(&["LLEN", "mails"]), "1", "nobody reads the list of step 3");
    let other = place.start(&["work", "w2"], &[LATE, &[steps]].concat());
    wait(&other, &format!("ran {job}"));
}

async fn trap_f11_another_separator_is_refused() {
    let place = Place::new(Engine::Redis);
    let env = [STUCK, &[("SEPARATOR", "/")]].concat();
    place.add(&["a"], &env);
    let (_worker, _) = place.stuck("w1", &env);
    let found = place.detected().await.unwrap();
    assert_eq!(found.version, "unknown", "{found:?}");
    assert!(found.notes[0].contains("another `sep`"), "{found:?}");
    let sweep: Arc<dyn Sweep> = place.inflight();
    let report = pass(&sweeper(&sweep, &place.redis, Policy::default())).await;
    assert_eq!((report.reclaimed, report.stopped), (0, Stopped::Error), "{report:?}");
}
