//! The resource that a client names as the owner of a file, in a form or a query, and the access
//! that follows from it.
//!
//! Later clients name a kind and an id, and for a skill its version. First-generation clients name
//! an agent (`entity_id`) or nothing, also for files that they uploaded with an agent.

use serde::Deserialize;

use crate::error::ServiceError;
use crate::store::Object;
use crate::store::owner::{Owner, Principal, Resource};

/// The longest accepted id. LibreChat's ids are far shorter.
const ID_BYTES_MAX: usize = 256;

/// The fields as the client sent them. Other fields of a query are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct ResourceFields {
    pub kind: Option<String>,
    pub id: Option<String>,
    pub version: Option<String>,
    pub entity_id: Option<String>,
}

/// The meaning of the fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResourceClaim {
    /// The client named nothing.
    Nothing,
    /// A resource, and for a user the id that the client gives.
    Resource(Resource, Option<String>),
}

impl ResourceFields {
    pub fn claim(&self) -> Result<ResourceClaim, ServiceError> {
        let refused = |message: &str| Err(ServiceError::invalid("invalid_resource", message));
        let given = |value: &Option<String>| value.clone().filter(|text| !text.is_empty());
        let id = given(&self.id);
        if !self.all().all(is_id) {
            return refused("Invalid resource: an id is too long or has control characters");
        }
        let version = given(&self.version);
        match (given(&self.kind).as_deref(), id, version) {
            (Some("user"), id, None) => Ok(ResourceClaim::Resource(Resource::User, id)),
            (Some("agent"), Some(id), None) => {
                Ok(ResourceClaim::Resource(Resource::Agent(id), None))
            }
            (Some("skill"), Some(id), Some(version)) => match version.parse() {
                Ok(version) => Ok(ResourceClaim::Resource(Resource::Skill { id, version }, None)),
                Err(_) => refused("Invalid resource: a version is a whole number"),
            },
            (Some("agent"), None, _) | (Some("skill"), None, _) => {
                refused("Invalid resource: it has no id")
            }
            (Some("skill"), Some(_), None) => refused("Invalid resource: a skill has a version"),
            (Some("user" | "agent"), _, Some(_)) => {
                refused("Invalid resource: only a skill has a version")
            }
            (Some(_), _, _) => refused("Invalid resource: a kind is skill, agent or user"),
            (None, _, _) => Ok(match given(&self.entity_id) {
                Some(agent) => ResourceClaim::Resource(Resource::Agent(agent), None),
                None => ResourceClaim::Nothing,
            }),
        }
    }

    fn all(&self) -> impl Iterator<Item = &str> {
        let fields = [&self.kind, &self.id, &self.version, &self.entity_id];
        fields.into_iter().filter_map(|field| field.as_deref())
    }
}

fn is_id(text: &str) -> bool {
    text.len() <= ID_BYTES_MAX && !text.chars().any(char::is_control)
}

impl ResourceClaim {
    /// The owner of a file that is uploaded with this claim.
    pub fn owner(&self, principal: &Principal) -> Owner {
        match self {
            Self::Nothing => principal.owner(&Resource::User),
            Self::Resource(resource, _) => principal.owner(resource),
        }
    }

    /// The user that the client names as the owner.
    pub fn user(&self) -> Option<&str> {
        match self {
            Self::Resource(Resource::User, said) => said.as_deref(),
            Self::Nothing | Self::Resource(Resource::Agent(_) | Resource::Skill { .. }, _) => None,
        }
    }

    /// Whether a request with this claim may access the file.
    pub fn allows(&self, principal: &Principal, object: &Object) -> bool {
        let is_owner = object.owner == self.owner(principal);
        match self {
            // An authenticated user names other resources explicitly.
            Self::Nothing if principal.user.is_some() => is_owner,
            Self::Nothing => is_owner || is_of_an_agent(principal, &object.owner),
            Self::Resource(_, said) => is_owner && !conflicts(said.as_ref(), object),
        }
    }

    pub fn check(&self, principal: &Principal, object: &Object) -> Result<(), ServiceError> {
        if self.allows(principal, object) { Ok(()) } else { Err(forbidden()) }
    }
}

pub fn forbidden() -> ServiceError {
    let message = "This file belongs to another user";
    ServiceError::forbidden("not_owner", message)
}

/// Whether the client names another user than the file's, even if no token proves either.
fn conflicts(said: Option<&String>, object: &Object) -> bool {
    match (said, &object.said_by) {
        (Some(said), Some(by)) => said != by,
        (None, _) | (_, None) => false,
    }
}

/// Whether the owner is any agent of the same tenant.
fn is_of_an_agent(principal: &Principal, owner: &Owner) -> bool {
    let agents = principal.owner(&Resource::Agent(String::new()));
    owner.as_str().starts_with(agents.as_str())
}

#[cfg(test)]
mod tests {
    use tare_engine::Timestamp;

    use super::*;
    use crate::store::id::Id;

    fn said(fields: [&str; 4]) -> ResourceFields {
        let given = |text: &str| (text != "-").then(|| text.to_owned());
        let [kind, id, version, entity_id] = fields.map(given);
        ResourceFields { kind, id, version, entity_id }
    }

    fn agent(id: &str) -> ResourceClaim {
        ResourceClaim::Resource(Resource::Agent(id.to_owned()), None)
    }

    #[test]
    fn every_generation_of_clients_names_its_resource() {
        let meant = |fields| said(fields).claim().expect("it means something");
        let user = ResourceClaim::Resource(Resource::User, Some("u1".to_owned()));
        assert_eq!(meant(["user", "u1", "-", "-"]), user);
        assert_eq!(meant(["agent", "a1", "-", "-"]), agent("a1"));
        let skill = Resource::Skill { id: "s1".to_owned(), version: 3 };
        assert_eq!(meant(["skill", "s1", "3", "-"]), ResourceClaim::Resource(skill, None));
        assert_eq!(meant(["-", "-", "-", "a1"]), agent("a1"));
        assert_eq!(meant(["-", "-", "-", "-"]), ResourceClaim::Nothing);
        assert_eq!(meant(["", "", "", ""]), ResourceClaim::Nothing);
        for wrong in [
            ["team", "x", "-", "-"],
            ["agent", "-", "-", "-"],
            ["skill", "s", "-", "-"],
            ["skill", "s", "new", "-"],
            ["skill", "-", "1", "-"],
            ["user", "u", "1", "-"],
            ["agent", "a\nb", "-", "-"],
        ] {
            assert!(said(wrong).claim().is_err(), "{wrong:?}");
        }
    }

    fn principal(tenant: &str, user: Option<&str>) -> Principal {
        Principal { tenant: tenant.to_owned(), user: user.map(str::to_owned) }
    }

    fn object(owner: Owner, said_by: Option<&str>) -> Object {
        let text = serde_json::json!({
            "session": Id::random(), "id": Id::random(), "name": "a", "size": 0,
            "sha256": "0".repeat(64), "owner": owner, "said_by": said_by,
            "created_at": Timestamp::now(),
        });
        serde_json::from_value(text).expect("it has every field")
    }

    #[test]
    fn a_resource_of_another_owner_is_refused() {
        let (one, other) = (principal("t", Some("u1")), principal("t", Some("u2")));
        let user = |id: &str| ResourceClaim::Resource(Resource::User, Some(id.to_owned()));
        let mine = object(user("u1").owner(&one), Some("u1"));
        assert!(user("u1").allows(&one, &mine) && ResourceClaim::Nothing.allows(&one, &mine));
        assert!(!user("u1").allows(&other, &mine) && !ResourceClaim::Nothing.allows(&other, &mine));
        assert!(!user("u1").allows(&principal("else", Some("u1")), &mine));
        assert!(!agent("u1").allows(&one, &mine));
        let of_agent = object(agent("a").owner(&one), None);
        assert!(agent("a").allows(&other, &of_agent), "agents are shared");
        assert!(!agent("b").allows(&one, &of_agent));
        assert!(!ResourceClaim::Nothing.allows(&one, &of_agent));
    }

    #[test]
    fn a_key_proves_no_user_but_the_client_may_still_tell_two_apart() {
        let key = principal("t", None);
        let user = |id: &str| ResourceClaim::Resource(Resource::User, Some(id.to_owned()));
        let sent = object(user("u1").owner(&key), Some("u1"));
        assert!(user("u1").allows(&key, &sent) && ResourceClaim::Nothing.allows(&key, &sent));
        assert!(!user("u2").allows(&key, &sent));
        let of_agent = object(agent("a").owner(&key), Some("u1"));
        assert!(ResourceClaim::Nothing.allows(&key, &of_agent), "as the first clients ask");
        assert!(!ResourceClaim::Nothing.allows(&principal("else", None), &of_agent));
    }
}
