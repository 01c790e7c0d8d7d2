//! What a bearer is limited to: systems, operations and owners. Each limit that is not given allows
//! everything.

use std::fmt;

use lapsed_core::{Kind, Name, SystemId};

use super::document::unknown;

/// The lists of a section as they are written in the file.
#[derive(Debug, Default)]
pub struct LimitLists {
    /// Patterns of systems as `KIND/NAME`, in which `*` stands for any text.
    pub systems: Option<Vec<String>>,
    /// Names of operations; each includes its batch form.
    pub operations: Option<Vec<String>>,
    /// Patterns of owners, in which `*` stands for any text.
    pub owners: Option<Vec<String>>,
}

/// The limits of one bearer.
#[derive(Clone, Debug, Default)]
pub struct BearerLimits {
    systems: Option<Vec<String>>,
    operations: Option<Vec<String>>,
    owners: OwnerLimit,
}

/// The owners as which a bearer may act.
#[derive(Clone, Debug, Default)]
enum OwnerLimit {
    #[default]
    Any,
    Patterns(Vec<String>),
    Only(Name),
}

impl BearerLimits {
    /// Checks the lists as far as that is possible without the systems of the configuration.
    pub fn plan(lists: LimitLists) -> Result<BearerLimits, String> {
        let LimitLists { systems, operations, owners } = lists;
        for (key, list) in [("systems", &systems), ("operations", &operations), ("owners", &owners)]
        {
            if list.as_ref().is_some_and(Vec::is_empty) {
                return Err(format!("`{key}` is empty, which would allow nothing; leave it out"));
            }
        }
        if owners.iter().flatten().any(String::is_empty) {
            return Err("`owners` has an empty pattern; write a name, or `*`".to_owned());
        }
        let owners = owners.map_or(OwnerLimit::Any, OwnerLimit::Patterns);
        Ok(BearerLimits { systems, operations, owners })
    }

    /// The same limits for a bearer that may act as `owner` only.
    pub fn only(&self, owner: Name) -> BearerLimits {
        BearerLimits { owners: OwnerLimit::Only(owner), ..self.clone() }
    }

    /// Refuses names that do not exist: a pattern that fits no system, an unknown operation.
    pub fn check_names(&self, systems: &[SystemId], operations: &[&str]) -> Result<(), String> {
        let ids: Vec<String> = systems.iter().map(ToString::to_string).collect();
        for pattern in self.systems.iter().flatten() {
            if !ids.iter().any(|id| fits(pattern, id)) {
                let valid: Vec<&str> = ids.iter().map(String::as_str).collect();
                return Err(format!("`systems`: {}", unknown("system", pattern, &valid)));
            }
        }
        for given in self.operations.iter().flatten() {
            if !operations.contains(&given.as_str()) {
                return Err(format!("`operations`: {}", unknown("operation", given, operations)));
            }
        }
        Ok(())
    }

    /// Whether there is any limit at all.
    pub fn is_limited(&self) -> bool {
        self.systems.is_some() || self.operations.is_some() || self.limits_owners()
    }

    pub fn limits_systems(&self) -> bool {
        self.systems.is_some()
    }

    pub fn limits_operations(&self) -> bool {
        self.operations.is_some()
    }

    pub fn limits_owners(&self) -> bool {
        !matches!(self.owners, OwnerLimit::Any)
    }

    pub fn allows_system(&self, kind: Kind, name: &str) -> bool {
        let Some(patterns) = &self.systems else { return true };
        let id = format!("{kind}/{name}");
        patterns.iter().any(|pattern| fits(pattern, &id))
    }

    pub fn allows_operation(&self, operation: &str) -> bool {
        let allowed = self.operations.as_ref();
        allowed.is_none_or(|allowed| allowed.iter().any(|name| name == operation))
    }

    pub fn allows_owner(&self, owner: &str) -> bool {
        match &self.owners {
            OwnerLimit::Any => true,
            OwnerLimit::Only(only) => only.as_str() == owner,
            OwnerLimit::Patterns(patterns) => patterns.iter().any(|pattern| fits(pattern, owner)),
        }
    }

    pub fn systems(&self) -> Option<&[String]> {
        self.systems.as_deref()
    }

    pub fn operations(&self) -> Option<&[String]> {
        self.operations.as_deref()
    }

    /// The patterns of owners, or the one owner; `None` if any owner is allowed.
    pub fn owners(&self) -> Option<Vec<String>> {
        match &self.owners {
            OwnerLimit::Any => None,
            OwnerLimit::Only(only) => Some(vec![only.to_string()]),
            OwnerLimit::Patterns(patterns) => Some(patterns.clone()),
        }
    }
}

impl fmt::Display for BearerLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owners = self.owners();
        for (what, list) in [
            ("in", self.systems.as_ref()),
            ("only", self.operations.as_ref()),
            ("as", owners.as_ref()),
        ] {
            if let Some(list) = list {
                write!(f, ", {what} {}", list.join(" "))?;
            }
        }
        Ok(())
    }
}

/// Whether `text` fits `pattern`, in which each `*` stands for any text, also for none. Takes time
/// proportional to the product of both lengths at most.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut left) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = left.find(part) else { return false };
        left = &left[at + part.len()..];
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, good, bad) in [
            ("gateway-*", "gateway-", "gateway"),
            ("gateway-*", "gateway-7/x*", "a-gateway-7"),
            ("*", "", "-"),
            ("a*b*c", "a-b-b-c", "a-b-cd"),
            ("a*a", "aa", "a"),
            ("exact", "exact", "exact1"),
            ("inflight/*", "inflight/jobs", "leases/jobs"),
        ] {
            assert!(fits(pattern, good), "{pattern} {good}");
            assert!(pattern == "*" || !fits(pattern, bad), "{pattern} {bad}");
        }
    }

    #[test]
    fn unknown_names_are_refused_with_the_nearest() {
        let list = |text: &str| Some(vec![text.to_owned()]);
        let ids = [SystemId::new(Kind::Registry, "devices").unwrap()];
        let plan = |systems, operations| {
            BearerLimits::plan(LimitLists { systems, operations, owners: None })
        };
        let check = |limits: BearerLimits| limits.check_names(&ids, &["beat", "register"]);
        assert_eq!(check(plan(list("registry/*"), list("beat")).unwrap()), Ok(()));
        let told = check(plan(list("registry/device"), None).unwrap()).unwrap_err();
        assert!(told.contains("nearest valid one is `registry/devices`"), "{told}");
        let told = check(plan(None, list("beet")).unwrap()).unwrap_err();
        assert!(told.contains("nearest valid one is `beat`"), "{told}");
        assert!(plan(Some(Vec::new()), None).is_err());
    }
}
