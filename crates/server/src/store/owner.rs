//! The owner of a file, and the user and tenant of a request.

use serde::{Deserialize, Serialize};

/// The sender of a request. A key or a token stands for one tenant. Requests without either
/// all belong to the same tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Principal {
    pub tenant: String,
    /// The user that a token proves. A key proves none: all users of a LibreChat share it.
    pub user: Option<String>,
}

/// What a file belongs to, as the client says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resource {
    /// The sender of the request.
    User,
    Agent(String),
    Skill {
        id: String,
        version: u64,
    },
}

/// The owner of a file: `<tenant>:user:<id>`, `<tenant>:agent:<id>` or
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

/// Escapes the separator, so that no name can look like two parts.
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
    fn different_owners_have_different_names() {
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
