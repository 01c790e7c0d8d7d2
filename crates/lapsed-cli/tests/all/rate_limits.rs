//! Rate limits per token, and per address for wrong tokens.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use crate::support::{CALM, Daemon, Home, JSON, Reply};
use serde_json::json;

lapsed_testbed::steady_tests! {
    each_token_has_its_own_rate_limit,
    wrong_tokens_are_throttled_and_valid_ones_are_not,
}

/// Too long to be found by trying.
const LONG: &str = "a-token-of-more-than-twenty-characters";

fn beat(daemon: &Daemon, token: &str) -> Reply {
    let bearer = format!("Bearer {token}");
    let body = json!({ "owner": "a" }).to_string();
    let path = "/v1/registry/devices/beat";
    daemon.call("POST", path, Some(body), &[JSON, ("authorization", &bearer)])
}

#[track_caller]
fn is_throttled(reply: &Reply) {
    reply.is_problem(429, "throttled");
    let wait: u64 = reply.header("retry-after").parse().unwrap();
    assert!(wait >= 1, "{reply:?}");
}

fn each_token_has_its_own_rate_limit() {
    let home = Home::with(
        "1m",
        CALM,
        "token = \"all-of-it\"\nrate_limit = { per_second = 1, burst = 3 }\n\
         [[server.tokens]]\nname = \"busy\"\ntoken = \"busy-one\"\nscopes = [\"write\"]\n\
         rate_limit = { per_second = 1000, burst = 1000 }",
    );
    let daemon = home.serve();
    let answers: Vec<Reply> = (0..20).map(|_| beat(&daemon, "all-of-it")).collect();
    let good = answers.iter().filter(|reply| reply.status == 200).count();
    assert!((3..10).contains(&good), "{good}");
    is_throttled(answers.iter().find(|reply| reply.status != 200).unwrap());
    assert!((0..20).all(|_| beat(&daemon, "busy-one").status == 200));
    for (wrong, says) in [("per_second = 0", "above 0"), ("per_secnd = 1", "`per_second`")] {
        let home = Home::with("1m", CALM, &format!("rate_limit = {{ {wrong} }}"));
        let told = home.run(&["check"]);
        assert!(told.code == 2 && told.err.contains(says), "{told:?}");
    }
}

fn wrong_tokens_are_throttled_and_valid_ones_are_not() {
    let token = |name: &str, token: &str| {
        format!("[[server.tokens]]\nname = \"{name}\"\ntoken = \"{token}\"\nscopes = [\"write\"]\n")
    };
    let unseen: Vec<String> = (0..20).map(|n| format!("unseen-{n}")).collect();
    let more: String = unseen.iter().map(|name| token(name, name)).collect();
    let more = more + &token("long", LONG);
    let home = Home::with("1m", CALM, &format!("token = \"all-of-it\"\n{more}"));
    let daemon = home.serve();
    assert_eq!(beat(&daemon, "all-of-it").status, 200);
    let guesses: Vec<Reply> = (0..300).map(|n| beat(&daemon, &format!("guess-{n}"))).collect();
    let refused = guesses.iter().filter(|reply| reply.status == 401).count();
    assert!(refused >= 50, "{refused}");
    is_throttled(guesses.iter().find(|reply| reply.status != 401).expect("one too many"));
    assert_eq!(beat(&daemon, "all-of-it").status, 200, "it was good from here before");
    // While guesses are not checked, a right one must look like a wrong one.
    // Many guess at a time, for as long as it takes: more than ten a second also on a busy machine.
    let asked = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let guess = || {
            while !asked.load(Relaxed) {
                drop(beat(&daemon, "guess"));
            }
        };
        (0..8).for_each(|_| drop(scope.spawn(guess)));
        (0..300).for_each(|n| drop(beat(&daemon, &format!("guess-{n}"))));
        // Ten a second are listened to, and one of those may be the right one: not most of them.
        let heard: Vec<u16> = unseen.iter().map(|token| beat(&daemon, token).status).collect();
        // A token that cannot be guessed is accepted at once: the guesses of others must not lock it out.
        let long = beat(&daemon, LONG).status;
        asked.store(true, Relaxed);
        let refused = heard.iter().filter(|status| **status == 429).count();
        assert!(refused > unseen.len() / 2 && long == 200, "{heard:?}, {long}");
    });
    crate::support::until("to be listened to again", || {
        unseen.iter().all(|token| beat(&daemon, token).status == 200).then_some(())
    });
}
