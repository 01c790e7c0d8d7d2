//! Combines concurrent calls into one, because much of a script's cost on the server is per call.
//!
//! A call that arrives while fewer than `CONCURRENT_MAX` batches are in progress is sent at once. Calls that
//! arrive later wait until one of these is answered, and then go together in one batch. Batches are sent by
//! tasks of their own, so that a caller that gives up does not cancel the others.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use lapsed_core::{Error, Result};
use tokio::sync::oneshot;

const LOCK: &str = "no holder of this lock panics";

/// A call that can be combined with others of its kind.
pub(crate) trait BatchableCall: Clone + Send + Sync + 'static {
    /// How much of a batch's `WEIGHT_MAX` this call takes up.
    fn weight(&self) -> usize;
    /// The largest sum of weights in one batch; a heavier call is sent alone.
    const WEIGHT_MAX: usize;
    /// The largest number of calls in one batch.
    const CALLS_MAX: usize = 64;
    /// How many batches are in progress at a time, so that the server has work while an answer travels.
    const CONCURRENT_MAX: usize = 2;
    /// Whether both calls can be in one batch.
    fn can_join(&self, other: &Self) -> bool;
}

/// Sends a batch; returns one answer per request, in their order.
pub(crate) trait BatchExecutor<Q, A>: Clone + Send + Sync + 'static {
    fn execute(&self, requests: Vec<Q>) -> BoxFuture<'static, Result<Vec<A>>>;
}

/// Combines calls of one kind.
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

/// The right to send batches. Dropping it frees the slot, also when its task panics or is cancelled.
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
    /// Sends one request, combined with others if there are any, and waits for its answer.
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

    /// Queues a call. `Some`: the caller must start a worker with this slot.
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
    /// Takes the calls at the head of the queue that fit into one batch. Empty: no call waits, and the slot is
    /// freed under the same lock, so that no call is queued behind a worker that has ended.
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
        // Calls that did not fit stay in the queue, before those that were not examined.
        rest.append(&mut state.queued);
        state.queued = rest;
        batch
    }
}

/// Sends batches for as long as calls wait. Callers that were just answered usually call again, so they run
/// first: then the next batch contains all of their calls.
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

/// If the server refuses a batch of several calls, each call is sent alone, because one of them may be the cause.
/// A call that may have been carried out is never sent again.
async fn answer<Q: BatchableCall, A: Send + 'static>(
    batch: Vec<QueuedCall<Q, A>>,
    executor: &impl BatchExecutor<Q, A>,
) {
    let requests = batch.iter().map(|call| call.request.clone()).collect();
    match executor.execute(requests).await {
        // A closed channel means that this caller gave up.
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

    /// A number of one kind; the answer is the number itself.
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

    /// Answers when the test allows it, and records which calls came in one batch.
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

    /// Makes all calls concurrently, then lets the server answer.
    async fn ask_all(echo: &Echo, requests: Vec<Number>) -> Vec<Result<usize>> {
        let batcher: Arc<CallBatcher<Number, usize>> = Arc::default();
        let gate = echo.gate.clone();
        let asked = join_all(requests.into_iter().map(|request| batcher.call(request, echo)));
        let (answers, ()) = tokio::join!(asked, async { gate.0.add_permits(1_000) });
        // The worker that sent the last batch finds that no call waits.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(batcher.state.lock().unwrap().under_way, 0);
        answers
    }

    #[tokio::test]
    async fn concurrent_calls_are_batched_and_answered_separately() {
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
    async fn calls_of_another_kind_or_too_heavy_are_sent_separately() {
        let echo = Echo::default();
        let asked = ["a", "b", "a", "b", "a", "b"].map(|kind| Number(kind, 2)).to_vec();
        assert!(ask_all(&echo, asked).await.iter().all(|answer| matches!(answer, Ok(2))));
        let large = Echo::default();
        let asked = vec![Number("a", 99), Number("a", 98), Number("a", 97), Number("a", 96)];
        assert!(ask_all(&large, asked).await.iter().all(Result::is_ok));
        assert_eq!(large.calls.lock().unwrap().len(), 4, "each is too large for company");
    }

    #[tokio::test]
    async fn a_refused_call_does_not_fail_the_other_calls_of_its_batch() {
        let echo = Echo { refuses: Some(3), ..Echo::default() };
        let asked = [1, 2, 3, 4].map(|n| Number("a", n)).to_vec();
        let answers = ask_all(&echo, asked).await;
        let answers: Vec<Option<usize>> = answers.into_iter().map(Result::ok).collect();
        assert_eq!(answers, [Some(1), Some(2), None, Some(4)]);
    }

    #[tokio::test]
    async fn a_call_whose_caller_gave_up_is_not_sent() {
        let (echo, batcher) = (Echo::default(), Arc::new(CallBatcher::default()));
        let execute = |n: usize| {
            let (echo, batcher) = (echo.clone(), batcher.clone());
            tokio::spawn(async move { batcher.call(Number("a", n), &echo).await })
        };
        // Each is too heavy for a shared batch and is sent alone.
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
