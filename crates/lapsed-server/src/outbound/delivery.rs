//! A delivery over several attempts: the retry loop that webhooks and the outbox share.

use std::time::Duration;

/// A message that must reach its receiver.
pub trait Delivery: Sync {
    /// What ends the loop besides the attempts themselves, for example a store that does not
    /// answer.
    type Error;

    /// The number of attempts after which the delivery is given up; at least 1.
    fn attempts(&self) -> u32;

    /// How long to wait after attempt number `attempt`, counted from 1.
    fn pause(&self, attempt: u32) -> Duration;

    /// Makes one attempt. The error says why the receiver did not accept the message.
    fn send(&self, attempt: u32) -> impl Future<Output = Result<(), String>> + Send;

    /// Waits between two attempts. Returns false if this process must not make another attempt now.
    fn rest(&self, pause: Duration) -> impl Future<Output = Result<bool, Self::Error>> + Send;
}

/// The result of a delivery after its last attempt.
#[derive(Debug, PartialEq, Eq)]
pub enum Delivered {
    /// The receiver accepted the message.
    Taken,
    /// The receiver did not accept the message within the allowed number of attempts; `why` is the
    /// error of the last one.
    GivenUp { attempts: u32, why: String },
    /// The message was neither accepted nor given up: the process stops, or another process
    /// delivers it.
    BrokenOff,
}

/// Makes attempts until the receiver accepts the message, the allowed number is reached, or `rest`
/// returns false.
pub async fn deliver<D: Delivery>(delivery: &D) -> Result<Delivered, D::Error> {
    let attempts = delivery.attempts();
    for attempt in 1.. {
        let Err(why) = delivery.send(attempt).await else { return Ok(Delivered::Taken) };
        if attempt >= attempts {
            return Ok(Delivered::GivenUp { attempts, why });
        }
        if !delivery.rest(delivery.pause(attempt)).await? {
            break;
        }
    }
    Ok(Delivered::BrokenOff)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;

    use super::*;

    /// A receiver that accepts the attempt of one number, and a process that stops after a number
    /// of pauses.
    struct Scripted {
        taken_at: u32,
        stops_after: usize,
        paused: Mutex<Vec<Duration>>,
    }

    impl Delivery for Scripted {
        type Error = Infallible;

        fn attempts(&self) -> u32 {
            3
        }

        fn pause(&self, attempt: u32) -> Duration {
            Duration::from_secs(attempt.into())
        }

        async fn send(&self, attempt: u32) -> Result<(), String> {
            if attempt == self.taken_at { Ok(()) } else { Err(format!("no {attempt}")) }
        }

        async fn rest(&self, pause: Duration) -> Result<bool, Infallible> {
            let mut paused = self.paused.lock().unwrap();
            paused.push(pause);
            Ok(paused.len() < self.stops_after)
        }
    }

    fn run(taken_at: u32, stops_after: usize) -> (Delivered, usize) {
        let scripted = Scripted { taken_at, stops_after, paused: Mutex::default() };
        let Ok(done) = futures::executor::block_on(deliver(&scripted));
        let paused = scripted.paused.into_inner().unwrap();
        assert_eq!(paused, (1..).map(Duration::from_secs).take(paused.len()).collect::<Vec<_>>());
        (done, paused.len())
    }

    #[test]
    fn a_delivery_ends_when_it_is_taken_given_up_or_broken_off() {
        assert_eq!(run(1, 9), (Delivered::Taken, 0));
        assert_eq!(run(3, 9), (Delivered::Taken, 2));
        let given_up = Delivered::GivenUp { attempts: 3, why: "no 3".to_owned() };
        assert_eq!(run(9, 9), (given_up, 2), "no pause after the last try");
        assert_eq!(run(9, 1), (Delivered::BrokenOff, 1));
    }
}
