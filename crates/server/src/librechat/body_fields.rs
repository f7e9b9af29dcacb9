//! Fields that the bodies of several requests have, as clients of all ages write them.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::http::bounded::List;

/// Bounds the list of references to inputs. Their size has its own limit.
pub const REFERENCES_MAX: usize = 10_000;
/// An id of a user is far shorter.
pub const USER_ID_BYTES_MAX: usize = 256;

/// A reference to a stored file, as clients of all ages write it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct FileRef {
    pub id: String,
    pub name: String,
    pub storage_session_id: Option<String>,
    /// `storage_session_id` in requests of first-generation clients.
    pub session_id: Option<String>,
    pub kind: Option<String>,
    pub resource_id: Option<String>,
    pub version: Option<u64>,
    /// An agent, in requests of first-generation clients.
    pub entity_id: Option<String>,
}

impl FileRef {
    /// The memory that the reference takes.
    pub fn bytes(&self) -> usize {
        let Self { id, name, version: _, storage_session_id, session_id, .. } = self;
        let Self { kind, resource_id, entity_id, .. } = self;
        let optional = [storage_session_id, session_id, kind, resource_id, entity_id];
        let texts = optional.into_iter().flatten().chain([id, name]);
        size_of::<Self>() + texts.map(String::len).sum::<usize>()
    }
}

/// A list with a bound. Clients write `null` for what they leave out.
pub fn few_or_none<'de, D, T, const MAX: usize>(input: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::<List<T, MAX>>::deserialize(input)?.unwrap_or_default().0)
}

/// The id of a user, which has at most [`USER_ID_BYTES_MAX`] bytes.
pub fn user_id_or_none<'de, D: Deserializer<'de>>(input: D) -> Result<Option<String>, D::Error> {
    match Option::<String>::deserialize(input)? {
        Some(id) if id.len() > USER_ID_BYTES_MAX => {
            let message = format!("a user id has at most {USER_ID_BYTES_MAX} bytes");
            Err(D::Error::custom(message))
        }
        id => Ok(id),
    }
}

/// Clients write `null` for what they leave out.
pub fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    input: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(input)?.unwrap_or_default())
}
