//! Who asks, and whose a file is.

use serde::{Deserialize, Serialize};

/// Who asks; in the request's extensions. What is behind a key or a token is one
/// tenant's; without either everybody is the same one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Principal {
    pub tenant: String,
    /// As proven. A key is shared by all users of a LibreChat, and proves none.
    pub user: Option<String>,
}

/// What a file belongs to, as the client names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resource {
    /// The one who asks.
    User,
    Agent(String),
    Skill {
        id: String,
        version: u64,
    },
}

/// Whose a file is: `<tenant>:user:<id>`, `<tenant>:agent:<id>` or
/// `<tenant>:skill:<id>:v:<version>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Owner(String);

impl Principal {
    pub fn owner(&self, resource: &Resource) -> Owner {
        let tenant = escaped(&self.tenant);
        Owner(match resource {
            Resource::User => {
                let user = self.user.as_deref().unwrap_or_default();
                format!("{tenant}:user:{}", escaped(user))
            }
            Resource::Agent(id) => format!("{tenant}:agent:{}", escaped(id)),
            Resource::Skill { id, version } => {
                format!("{tenant}:skill:{}:v:{version}", escaped(id))
            }
        })
    }
}

impl Owner {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A name cannot pretend to be more than one part.
fn escaped(part: &str) -> String {
    part.replace('%', "%25").replace(':', "%3A")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(tenant: &str, user: &str) -> Principal {
        Principal { tenant: tenant.to_owned(), user: Some(user.to_owned()) }
    }

    #[test]
    fn no_two_owners_have_the_same_name() {
        let plain = of("legacy", "u").owner(&Resource::User);
        assert_eq!(plain.0, "legacy:user:u");
        let tricks = [
            of("legacy:user", "u").owner(&Resource::User),
            of("legacy", "x").owner(&Resource::Agent("a:v:1".to_owned())),
            of("legacy", "x").owner(&Resource::Skill { id: "a".to_owned(), version: 1 }),
        ];
        for (place, one) in tricks.iter().enumerate() {
            assert_ne!(*one, plain);
            assert!(!tricks[..place].contains(one));
        }
    }
}
