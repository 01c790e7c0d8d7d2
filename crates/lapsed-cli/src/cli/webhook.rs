//! `lapsed webhook`: the arguments.

use clap::{Args, Subcommand};

use super::{Output, TargetArgs};

/// The subcommands of `lapsed webhook`.
#[derive(Debug, Subcommand)]
pub enum WebhookCommand {
    /// List the daemon's webhooks, and the newest receipt that each has delivered.
    List(ListWebhooks),
    /// List the dead letters of a webhook: deliveries that will not be retried automatically.
    Dead(ListDeadDeliveries),
    /// Retry the delivery of one dead letter.
    PutBack(DeadDeliveryArgs),
    /// Delete one dead letter permanently.
    Delete(DeadDeliveryArgs),
    /// Send a test event to a webhook, and show whether its receiver accepts it.
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
pub struct ListDeadDeliveries {
    /// Name of the webhook.
    pub name: String,

    /// Show at most N dead letters of each system.
    #[arg(short = 'n', long, default_value_t = 100, value_name = "N")]
    pub limit: usize,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct DeadDeliveryArgs {
    /// Name of the webhook.
    pub name: String,

    /// Id of the dead letter, as `lapsed webhook dead` prints it.
    pub id: String,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Debug, Args)]
pub struct TestWebhook {
    /// Name of the webhook.
    pub name: String,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub target: TargetArgs,
}
