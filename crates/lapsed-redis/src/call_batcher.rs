//! Calls that are made at the same time become one: much of what a script costs the server it costs once
//! a call, however much it does.
//!
//! Whoever asks while few calls are under way is sent at once; those who ask meanwhile wait for one of
//! these to be answered and then go together. A call is carried by a task of its own, so that somebody
//! who no longer waits takes nobody's answer along.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use lapsed_core::{Error, Result};
use tokio::sync::oneshot;

const LOCK: &str = "no holder of this lock panics";

/// What somebody asks for.
pub(crate) trait BatchableCall: Clone + Send + Sync + 'static {
    /// How much of a call it takes up, of `MOST`.
    fn weight(&self) -> usize;
    /// What one call may weigh; what weighs more by itself goes alone.
    const WEIGHT_MAX: usize;
    /// How many go together at the most, where each has keys of its own.
    const CALLS_MAX: usize = 64;
    /// How many calls are under way at a time: while one is answered the server has the next.
    const CONCURRENT_MAX: usize = 2;
    /// Whether one call can ask for both.
    fn can_join(&self, other: &Self) -> bool;
}

/// Asks for all of them in one call, and answers each in its place.
pub(crate) trait BatchExecutor<Q, A>: Clone + Send + Sync + 'static {
    fn execute(&self, requests: Vec<Q>) -> BoxFuture<'static, Result<Vec<A>>>;
}

/// Questions of one kind.
pub(crate) struct CallBatcher<Q, A> {
    state: Mutex<State<Q, A>>,
}

struct State<Q, A> {
    queued: VecDeque<QueuedCall<Q, A>>,
    under_way: usize,
}

struct QueuedCall<Q, A> {
    request: Q,
    answer: oneshot::Sender<Result<A>>,
}

impl<Q, A> Default for CallBatcher<Q, A> {
    fn default() -> Self {
        CallBatcher { state: Mutex::new(State { queued: VecDeque::new(), under_way: 0 }) }
    }
}

/// One of those under way; it ends however its task ends.
struct WorkerSlot<Q, A> {
    batcher: Arc<CallBatcher<Q, A>>,
    released: bool,
}

impl<Q, A> Drop for WorkerSlot<Q, A> {
    fn drop(&mut self) {
        if !self.released {
            self.batcher.state.lock().expect(LOCK).under_way -= 1;
        }
    }
}

impl<Q: BatchableCall, A: Send + 'static> CallBatcher<Q, A> {
    /// The answer to one question, together with others if there are any.
    pub async fn call(
        self: &Arc<Self>,
        request: Q,
        executor: &impl BatchExecutor<Q, A>,
    ) -> Result<A> {
        let (answer, answered) = oneshot::channel();
        if let Some(slot) = self.enqueue(QueuedCall { request, answer }) {
            tokio::spawn(run_worker(slot, executor.clone()));
        }
        answered.await.unwrap_or_else(|_| {
            let (store, what) = ("this process".to_owned(), "the call was given up".to_owned());
            Err(Error::Unavailable { store, what })
        })
    }

    /// `Some`: a further call may be sent.
    fn enqueue(self: &Arc<Self>, queued: QueuedCall<Q, A>) -> Option<WorkerSlot<Q, A>> {
        let mut state = self.state.lock().expect(LOCK);
        state.queued.push_back(queued);
        if state.under_way >= Q::CONCURRENT_MAX {
            return None;
        }
        state.under_way += 1;
        Some(WorkerSlot { batcher: self.clone(), released: false })
    }
}

impl<Q: BatchableCall, A: Send + 'static> WorkerSlot<Q, A> {
    /// Those at the head of the line that go together. None: nobody waits, and the turn is over; both
    /// under one lock, so that nobody lines up behind a turn that has ended.
    fn next(&mut self) -> Vec<QueuedCall<Q, A>> {
        let mut state = self.batcher.state.lock().expect(LOCK);
        state.queued.retain(|call| !call.answer.is_closed());
        let Some(first) = state.queued.pop_front() else {
            state.under_way -= 1;
            self.released = true;
            return Vec::new();
        };
        let mut weight = first.request.weight();
        let (mut batch, mut rest) = (vec![first], VecDeque::new());
        while batch.len() < Q::CALLS_MAX
            && let Some(call) = state.queued.pop_front()
        {
            let more = weight + call.request.weight();
            let fits = more <= Q::WEIGHT_MAX;
            if fits && batch[0].request.can_join(&call.request) {
                (weight, _) = (more, batch.push(call));
            } else {
                rest.push_back(call);
            }
        }
        // Whoever was passed over stays in front of those who were not looked at.
        rest.append(&mut state.queued);
        state.queued = rest;
        batch
    }
}

/// Sends calls for as long as somebody waits. Whoever was just answered mostly asks again: they are let go
/// first, so that one call carries all of them and not each a few.
async fn run_worker<Q: BatchableCall, A: Send + 'static>(
    mut slot: WorkerSlot<Q, A>,
    executor: impl BatchExecutor<Q, A>,
) {
    loop {
        tokio::task::yield_now().await;
        let batch = slot.next();
        if batch.is_empty() {
            return;
        }
        answer(batch, &executor).await;
    }
}

/// Of several that the server refuses together, each is asked by itself: it may be the fault of one.
/// What may have been carried out is never sent again.
async fn answer<Q: BatchableCall, A: Send + 'static>(
    batch: Vec<QueuedCall<Q, A>>,
    executor: &impl BatchExecutor<Q, A>,
) {
    let requests = batch.iter().map(|call| call.request.clone()).collect();
    match executor.execute(requests).await {
        // Somebody who does not wait any more is told nothing.
        Ok(answers) => batch.into_iter().zip(answers).for_each(|(call, answer)| {
            let _ = call.answer.send(Ok(answer));
        }),
        Err(error) if batch.len() == 1 || matches!(error, Error::Unavailable { .. }) => {
            batch.into_iter().for_each(|call| {
                let _ = call.answer.send(Err(error.clone()));
            });
        }
        Err(_) => {
            for call in batch {
                let alone = executor.execute(vec![call.request]).await;
                if let Some(answer) = alone.map(|mut answers| answers.pop()).transpose() {
                    let _ = call.answer.send(answer);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::{FutureExt, join_all};
    use tokio::sync::Semaphore;

    use super::*;

    /// A number of a kind; it is answered by itself.
    #[derive(Clone, Debug, PartialEq)]
    struct Number(&'static str, usize);

    impl BatchableCall for Number {
        const WEIGHT_MAX: usize = 10;
        fn weight(&self) -> usize {
            self.1
        }
        fn can_join(&self, other: &Self) -> bool {
            self.0 == other.0
        }
    }

    /// Answers when it is let, and notes what came together.
    #[derive(Clone, Default)]
    struct Echo {
        calls: Arc<Mutex<Vec<Vec<usize>>>>,
        gate: Arc<Gate>,
        refuses: Option<usize>,
        under_way: Arc<AtomicUsize>,
    }

    struct Gate(Semaphore);

    impl Default for Gate {
        fn default() -> Self {
            Gate(Semaphore::new(0))
        }
    }

    impl BatchExecutor<Number, usize> for Echo {
        fn execute(&self, requests: Vec<Number>) -> BoxFuture<'static, Result<Vec<usize>>> {
            let (echo, numbers) = (self.clone(), requests.iter().map(|q| q.1).collect::<Vec<_>>());
            async move {
                echo.calls.lock().unwrap().push(numbers.clone());
                assert!(echo.under_way.fetch_add(1, Ordering::SeqCst) < Number::CONCURRENT_MAX);
                echo.gate.0.acquire().await.unwrap().forget();
                echo.under_way.fetch_sub(1, Ordering::SeqCst);
                match echo.refuses.filter(|no| numbers.contains(no)) {
                    Some(_) => Err(Error::Invalid("no".to_owned())),
                    None => Ok(numbers),
                }
            }
            .boxed()
        }
    }

    /// All of them ask at once; then the calls are let through.
    async fn ask_all(echo: &Echo, requests: Vec<Number>) -> Vec<Result<usize>> {
        let batcher: Arc<CallBatcher<Number, usize>> = Arc::default();
        let gate = echo.gate.clone();
        let asked = join_all(requests.into_iter().map(|request| batcher.call(request, echo)));
        let (answers, ()) = tokio::join!(asked, async { gate.0.add_permits(1_000) });
        // Who carried the last call finds out that nobody waits any more.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(batcher.state.lock().unwrap().under_way, 0);
        answers
    }

    #[tokio::test]
    async fn who_asks_meanwhile_goes_together_and_everybody_gets_the_own_answer() {
        let echo = Echo::default();
        let asked = [1, 2, 3, 4, 5, 6, 7].map(|n| Number("a", n)).to_vec();
        let answers = ask_all(&echo, asked).await;
        let answers: Vec<usize> = answers.into_iter().map(Result::unwrap).collect();
        assert_eq!(answers, [1, 2, 3, 4, 5, 6, 7]);
        let calls = echo.calls.lock().unwrap().clone();
        assert!(calls.len() < 7, "{calls:?}");
        assert!(
            calls.iter().all(|call| call.iter().sum::<usize>() <= Number::WEIGHT_MAX),
            "{calls:?}"
        );
    }

    #[tokio::test]
    async fn what_cannot_go_together_goes_apart() {
        let echo = Echo::default();
        let asked = ["a", "b", "a", "b", "a", "b"].map(|kind| Number(kind, 2)).to_vec();
        assert!(ask_all(&echo, asked).await.iter().all(|answer| matches!(answer, Ok(2))));
        let large = Echo::default();
        let asked = vec![Number("a", 99), Number("a", 98), Number("a", 97), Number("a", 96)];
        assert!(ask_all(&large, asked).await.iter().all(Result::is_ok));
        assert_eq!(large.calls.lock().unwrap().len(), 4, "each is too large for company");
    }

    #[tokio::test]
    async fn one_that_is_refused_does_not_refuse_the_others() {
        let echo = Echo { refuses: Some(3), ..Echo::default() };
        let asked = [1, 2, 3, 4].map(|n| Number("a", n)).to_vec();
        let answers = ask_all(&echo, asked).await;
        let answers: Vec<Option<usize>> = answers.into_iter().map(Result::ok).collect();
        assert_eq!(answers, [Some(1), Some(2), None, Some(4)]);
    }

    #[tokio::test]
    async fn somebody_who_gave_up_is_not_asked_for() {
        let (echo, batcher) = (Echo::default(), Arc::new(CallBatcher::default()));
        let execute = |n: usize| {
            let (echo, batcher) = (echo.clone(), batcher.clone());
            tokio::spawn(async move { batcher.call(Number("a", n), &echo).await })
        };
        // Too large for company: one call each.
        let first: Vec<_> = (1..=Number::CONCURRENT_MAX).map(|n| execute(90 + n)).collect();
        while echo.calls.lock().unwrap().len() < Number::CONCURRENT_MAX {
            tokio::task::yield_now().await;
        }
        let gone = execute(9);
        while batcher.state.lock().unwrap().queued.is_empty() {
            tokio::task::yield_now().await;
        }
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        let last = execute(7);
        while batcher.state.lock().unwrap().queued.len() < 2 {
            tokio::task::yield_now().await;
        }
        echo.gate.0.add_permits(100);
        for task in first {
            task.await.unwrap().unwrap();
        }
        assert_eq!(last.await.unwrap().unwrap(), 7);
        assert!(!echo.calls.lock().unwrap().concat().contains(&9));
    }
}
