//! Clients: look keys up, move them, and call every other operation at random.

use std::sync::Arc;
use std::time::Duration;

use lapsed_core::owner::Claim;
use lapsed_core::registry::{Registry, RegistryParts, TakePolicy};
use lapsed_core::system::System;
use lapsed_core::{Name, Result};

use crate::promise::{Promise, holds};
use crate::run_context::{RunContext, THRESHOLD_MS};

pub fn join(context: &Arc<RunContext>) {
    let registry = registry(context, &context.new_name("client"));
    let client = Client { context: context.clone(), registry };
    context.world.spawn(client.run());
}

/// A `Registry` of the library in a process of this name.
pub fn registry(context: &Arc<RunContext>, name: &str) -> Registry {
    let process = context.process(name);
    let remote = context.remote(&process);
    let threshold = Duration::from_millis(THRESHOLD_MS);
    Registry::new(
        RegistryParts::new(remote.clone(), remote, threshold)
            .clock(context.clock(&process))
            .timeout(Duration::from_millis(1_200))
            .batch(3)
            .sweeper(name.to_owned()),
    )
}

struct Client {
    context: Arc<RunContext>,
    registry: Registry,
}

impl Client {
    async fn run(self) {
        while !self.context.is_quiet() {
            self.context.wait(200, 1_600).await;
            // After a refusal or a lost answer, a client just tries something else.
            let _ = self.do_something().await;
        }
    }

    async fn do_something(&self) -> Result<()> {
        let random = &self.context.world.random;
        match random.between(0, 15) {
            0..=6 => self.look_up().await,
            7..=9 => {
                let claim = Claim::newest(self.somebody());
                self.registry
                    .register_many(&claim, &self.context.keys(3), TakePolicy::Always)
                    .await?;
                Ok(())
            }
            10 => {
                let claim = Claim::newest(self.somebody());
                self.registry.unregister(&claim, &self.context.keys(3)).await?;
                Ok(())
            }
            11 => {
                self.registry.entries(&Claim::newest(self.somebody()), None, 5).await?;
                Ok(())
            }
            12 => {
                self.registry.owners(None, 5).await?;
                Ok(())
            }
            13 => {
                self.registry.explain(self.context.key().as_str()).await?;
                Ok(())
            }
            14 => {
                self.registry.retire(&Claim::newest(self.stray())).await?;
                Ok(())
            }
            _ => {
                self.registry.beat(&Claim::newest(self.stray())).await?;
                Ok(())
            }
        }
    }

    /// A process that runs an owner.
    fn somebody(&self) -> Name {
        let owners = self.context.owners();
        let owner = self.context.world.random.pick(&owners).map(|member| member.name.clone());
        drop(owners);
        owner.unwrap_or_else(|| self.stray())
    }

    /// A name that only clients use. Its first beat starts it, and nobody keeps it live.
    fn stray(&self) -> Name {
        let number = self.context.world.random.between(1, 3);
        Name::new(&format!("stray{number}")).expect("it is a valid name")
    }

    async fn look_up(&self) -> Result<()> {
        let keys = self.context.keys(4);
        let found = self.registry.lookup_many(&keys).await?;
        for (key, found) in keys.iter().zip(found) {
            let ended = found.as_ref().and_then(|found| found.ended);
            self.context.world.check(holds(ended.is_none(), Promise::Lookup, || {
                format!("`{key}` was looked up and found with an owner that ended: {found:?}")
            }));
        }
        Ok(())
    }
}
