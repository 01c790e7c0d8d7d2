//! `lapsed webhook`

use clap::{Args, Subcommand};

use super::{Output, TargetArgs};

/// `lapsed webhook`
#[derive(Debug, Subcommand)]
pub enum WebhookCommand {
    /// List the webhooks of the daemon, and how far each has come.
    List(ListWebhooks),
    /// List the deliveries of a webhook that were given up.
    Dead(DeadOfWebhook),
    /// Have a delivery that was given up tried again.
    PutBack(OneOfWebhook),
    /// Forget a delivery that was given up.
    Delete(OneOfWebhook),
    /// Send an event that says nothing, to see whether the receiver takes it.
    Test(TestWebhook),
}

#[derive(Debug, Args)]
pub struct ListWebhooks {
    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct DeadOfWebhook {
    /// The webhook's name.
    pub name: String,

    /// At most so many of each system.
    #[arg(short = 'n', long, default_value_t = 100, value_name = "N")]
    pub limit: usize,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct OneOfWebhook {
    /// The webhook's name.
    pub name: String,

    /// The id of the dead letter, as `lapsed webhook dead` shows it.
    pub id: String,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct TestWebhook {
    /// The webhook's name.
    pub name: String,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}
