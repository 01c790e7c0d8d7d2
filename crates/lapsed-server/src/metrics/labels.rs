//! The labels of the series that every system has. Systems of different kinds may have the same
//! name, so every series has both labels: `system` first, `kind` last.

use lapsed_core::SystemId;
use lapsed_core::receipt::Reason;
use lapsed_core::reconcile::Healed;
use lapsed_core::sweep::Stopped;
use lapsed_core::sweep::brake::HeldBy;
use prometheus_client::encoding::EncodeLabelSet;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct OfSystem {
    pub system: String,
    pub kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByReason {
    system: String,
    reason: &'static str,
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByStopped {
    system: String,
    stopped: &'static str,
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByError {
    system: String,
    error: &'static str,
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByState {
    system: String,
    state: &'static str,
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByChange {
    system: String,
    change: &'static str,
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByEnded {
    system: String,
    ended: &'static str,
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByAccount {
    system: String,
    what: &'static str,
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByRecovery {
    system: String,
    did: &'static str,
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByCleaner {
    system: String,
    by: &'static str,
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByCause {
    system: String,
    cause: &'static str,
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct BySource {
    system: String,
    op: &'static str,
    source: &'static str,
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByOutcome {
    system: String,
    outcome: &'static str,
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct BySetting {
    system: String,
    setting: &'static str,
    kind: &'static str,
}

impl OfSystem {
    pub fn of(system: &SystemId) -> OfSystem {
        OfSystem { system: system.name.to_string(), kind: system.kind.as_str() }
    }

    pub fn by_reason(&self, reason: Reason) -> ByReason {
        ByReason { system: self.system.clone(), reason: reason.as_str(), kind: self.kind }
    }

    pub fn by_stopped(&self, stopped: Stopped) -> ByStopped {
        ByStopped { system: self.system.clone(), stopped: stopped.as_str(), kind: self.kind }
    }

    pub fn by_error(&self, error: &'static str) -> ByError {
        ByError { system: self.system.clone(), error, kind: self.kind }
    }

    pub fn by_state(&self, state: &'static str) -> ByState {
        ByState { system: self.system.clone(), state, kind: self.kind }
    }

    pub fn by_change(&self, change: Healed) -> ByChange {
        ByChange { system: self.system.clone(), change: change.as_str(), kind: self.kind }
    }

    pub fn by_account(&self, what: &'static str) -> ByAccount {
        ByAccount { system: self.system.clone(), what, kind: self.kind }
    }

    pub fn by_recovery(&self, did: &'static str) -> ByRecovery {
        ByRecovery { system: self.system.clone(), did, kind: self.kind }
    }

    pub fn by_cleaner(&self, by: &'static str) -> ByCleaner {
        ByCleaner { system: self.system.clone(), by, kind: self.kind }
    }

    pub fn by_cause(&self, cause: HeldBy) -> ByCause {
        ByCause { system: self.system.clone(), cause: cause.as_str(), kind: self.kind }
    }

    pub fn by_source(&self, op: &'static str, source: &'static str) -> BySource {
        BySource { system: self.system.clone(), op, source, kind: self.kind }
    }

    pub fn by_outcome(&self, outcome: &'static str) -> ByOutcome {
        ByOutcome { system: self.system.clone(), outcome, kind: self.kind }
    }

    pub fn by_setting(&self, setting: &'static str) -> BySetting {
        BySetting { system: self.system.clone(), setting, kind: self.kind }
    }

    pub fn by_ended(&self, ended: &'static str) -> ByEnded {
        ByEnded { system: self.system.clone(), ended, kind: self.kind }
    }
}
