//! The verbs of availability: `lapsed schema` prints or creates the tables in Postgres.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use lapsed_core::SystemId;
use lapsed_postgres::{Applied, Layout, Postgres, PostgresAddress, Triggers, print_schema};
use serde_json::json;
use tokio::runtime::Builder;

use crate::backend::resolve;
use crate::cli::Output;
use lapsed_server::config::{Overrides, process_env};
use lapsed_server::failure::Failure;
use lapsed_server::node::Config;
use lapsed_server::print::{self, lines, plural};
use lapsed_server::systems::availability::tables;

#[derive(Debug, Subcommand)]
pub enum AvailabilityCommand {
    /// Print or create the tables that availability needs in Postgres.
    // The help lists it directly behind `token`.
    #[command(subcommand, display_order = 21)]
    Schema(Schema),
}

/// The subcommands of `lapsed schema`.
#[derive(Debug, Subcommand)]
pub enum Schema {
    /// Print the SQL that creates the tables, for a database administrator; no database is contacted.
    Print(SchemaArgs),
    /// Create the tables that are missing; existing tables are not changed.
    Apply(SchemaArgs),
}

#[derive(Debug, Args)]
pub struct SchemaArgs {
    /// Name of the system, as NAME, KIND or KIND/NAME; all systems
    /// that keep their data in Postgres if not given.
    pub system: Option<String>,

    /// Configuration file, which names the store and the tables. `apply` needs it; `print` uses the default table names without it.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Also create triggers that announce changes which an application makes to the tables directly,
    /// so that the mirror is updated at once.
    #[arg(long)]
    pub triggers: bool,

    #[command(flatten)]
    pub output: Output,
}

/// Prints the SQL of the tables, or creates those that are missing.
pub fn run(AvailabilityCommand::Schema(args): AvailabilityCommand) -> Result<(), Failure> {
    match args {
        Schema::Print(args) => show(&args),
        Schema::Apply(args) => apply(&args),
    }
}

/// One system whose tables are printed or created.
struct Target {
    id: SystemId,
    address: PostgresAddress,
    layout: Layout,
}

fn wanted(args: &SchemaArgs) -> Triggers {
    if args.triggers { Triggers::With } else { Triggers::Without }
}

fn show(args: &SchemaArgs) -> Result<(), Failure> {
    let usual = PostgresAddress::new("").prefix;
    let all: Vec<(Option<SystemId>, String)> = match args.config {
        None => vec![(None, print_schema(&usual, &Layout::default(), wanted(args)))],
        Some(_) => targets(args)?
            .into_iter()
            .map(|target| {
                let sql = print_schema(&target.address.prefix, &target.layout, wanted(args));
                (Some(target.id), sql)
            })
            .collect(),
    };
    for (id, sql) in all {
        match args.output.json {
            true => print::json(&json!({ "system": id.map(|id| id.to_string()), "sql": sql }))?,
            false => print::verbatim(sql.trim_end())?,
        }
    }
    Ok(())
}

fn apply(args: &SchemaArgs) -> Result<(), Failure> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    for target in targets(args)? {
        let applied = runtime.block_on(async {
            let postgres = Postgres::new(&target.address)?;
            postgres.apply_schema(&target.layout, wanted(args)).await
        })?;
        match args.output.json {
            true => print::json(&json!({
                "system": target.id.to_string(),
                "url": target.address.place(),
                "made": applied.made,
                "kept": applied.kept,
                "triggers": applied.triggers,
                "advice": applied.advice,
            }))?,
            false => lines(&describe(&target, &applied))?,
        }
    }
    Ok(())
}

fn describe(target: &Target, applied: &Applied) -> String {
    let mut text = format!(
        "{} in {}: {} made, {} there already and left as they are",
        target.id,
        target.address.place(),
        plural(applied.made.len() as u64, "table", "tables"),
        applied.kept.len()
    );
    for made in &applied.made {
        text.push_str(&format!("\n  made: {made}"));
    }
    if applied.triggers > 0 {
        let triggers = plural(applied.triggers as u64, "trigger reports", "triggers report");
        text.push_str(&format!("\n  {triggers} the application's own changes"));
    }
    if !applied.advice.is_empty() {
        text.push_str("\n  Indexes that tables of yours lack; run these when it suits:");
    }
    for advice in &applied.advice {
        text.push_str(&format!("\n    {advice}"));
    }
    text
}

fn targets(args: &SchemaArgs) -> Result<Vec<Target>, Failure> {
    let Some(file) = args.config.as_deref() else {
        return Err(Failure::usage("which database? Name the configuration with -c FILE"));
    };
    let config = Config::load(Some(file), &Overrides::default(), &process_env)?;
    let ids: Vec<SystemId> = config.systems.iter().map(|plan| plan.common().id.clone()).collect();
    let chosen = args.system.as_ref().map(|text| resolve(text, &ids)).transpose()?;
    let mut targets = Vec::new();
    for plan in &config.systems {
        let common = plan.common();
        if chosen.as_ref().is_some_and(|id| *id != common.id) {
            continue;
        }
        let place = &config.stores[&common.store].place;
        if let (Some(layout), Some(address)) = (tables(&**plan), place.get::<PostgresAddress>()) {
            let (id, layout) = (common.id.clone(), layout.clone());
            targets.push(Target { id, address: address.clone(), layout });
        }
    }
    match targets.is_empty() {
        false => Ok(targets),
        true => Err(Failure::usage(format!(
            "{}: {} has its truth in Postgres, so that there are no tables to make",
            file.display(),
            chosen.map_or("no system".to_owned(), |id| format!("not even `{id}`"))
        ))),
    }
}
