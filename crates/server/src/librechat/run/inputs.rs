//! Files that an execution works on: references to stored files, and whether the client may use
//! them.

use std::collections::BTreeMap;
use std::io;

use serde::{Deserialize, Serialize};
use tare_engine::spec::quantity;

use crate::error::ServiceError;
use crate::librechat::body_fields::FileRef;
use crate::librechat::files::claim::{ResourceClaim, ResourceFields};
use crate::librechat::files::name::{self, NameRule};
use crate::librechat::state::LibreChat;
use crate::store::id::Id;
use crate::store::owner::{Principal, Resource};
use crate::store::{Object, Store};
use crate::work::files::{self, Content, InputFile};

/// A file that is copied into a box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInput {
    /// The path below the box's data directory.
    pub name: String,
    pub object: Object,
    /// The time of the last change in the box, in seconds since 1970. A file with another time was
    /// changed since. `None` if a later change could have the same time.
    pub mtime: Option<i64>,
}

/// The inputs by name. If two have the same name, the later one counts.
pub type SessionInputs = BTreeMap<String, SessionInput>;

/// File times have whole seconds. Only a time that is at least this old proves that the file was not
/// changed since.
const MTIME_SETTLED_S: i64 = 2;

/// Returns the time of a change unless a later change could have the same time.
pub fn mtime_if_usable(mtime: i64) -> Option<i64> {
    (mtime <= files::now() - MTIME_SETTLED_S).then_some(mtime)
}

pub async fn find(
    app: &LibreChat,
    principal: &Principal,
    references: Vec<FileRef>,
    user_id: Option<&str>,
) -> Result<SessionInputs, ServiceError> {
    if references.is_empty() {
        return Ok(SessionInputs::new());
    }
    let (principal, user_id) = (principal.clone(), user_id.map(str::to_owned));
    let find_all = app.files.call(move |store| {
        let find = |reference| find_one(store, &principal, reference, user_id.as_deref());
        references.into_iter().map(find).collect::<Result<SessionInputs, ServiceError>>()
    });
    let inputs = find_all.await?;
    check_size(&inputs, app.service.config().librechat.boxes.scratch.0)?;
    Ok(inputs)
}

/// A client sends all files of its conversation with every call. So their number has no limit of
/// its own, and they only have to fit into the box.
fn check_size(inputs: &SessionInputs, scratch_bytes: u64) -> Result<(), ServiceError> {
    let bytes = inputs.values().map(|input| input.object.size).sum::<u64>();
    if bytes <= scratch_bytes {
        return Ok(());
    }
    let (bytes, most) = (quantity::show_bytes(bytes), quantity::show_bytes(scratch_bytes));
    let message = format!("files: together they have {bytes}, and a box has room for {most}");
    Err(ServiceError::too_large("inputs_too_large", message)
        .with_hint("the operator's limit is [librechat.boxes] scratch"))
}

fn find_one(
    store: &Store,
    principal: &Principal,
    reference: FileRef,
    user_id: Option<&str>,
) -> Result<(String, SessionInput), ServiceError> {
    let FileRef { name, .. } = &reference;
    name::check(name, NameRule::Nested)?;
    let session = reference.storage_session_id.as_ref();
    let session = session.or(reference.session_id.as_ref());
    let session = session.and_then(|text| Id::parse(text));
    let (Some(session), Some(id)) = (session, Id::parse(&reference.id)) else {
        let message = format!("files: {name:?} has no valid id");
        return Err(ServiceError::invalid("invalid_id", message));
    };
    let claim = reference.claim(user_id)?;
    let object = store.find(&session, &id)?.ok_or_else(|| gone(name))?;
    claim.check(principal, &object)?;
    let created = i64::try_from(object.created_at.as_ms() / 1000).unwrap_or(0);
    let input = SessionInput {
        name: name.clone(),
        object,
        mtime: Some(created.min(files::now() - MTIME_SETTLED_S)),
    };
    Ok((reference.name, input))
}

/// The client shows the file as rejected, and sends it again.
fn gone(name: &str) -> ServiceError {
    ServiceError::unprocessable(
        "session_input_unavailable",
        format!("files: {name:?} has expired or was removed"),
    )
}

impl FileRef {
    /// For a file of a user, the user that the code runs for counts: the id in the reference may be
    /// anything.
    fn claim(&self, user_id: Option<&str>) -> Result<ResourceClaim, ServiceError> {
        let said = ResourceFields {
            kind: self.kind.clone(),
            id: self.resource_id.clone(),
            version: self.version.map(|version| version.to_string()),
            entity_id: self.entity_id.clone(),
        };
        Ok(match said.claim()? {
            ResourceClaim::Resource(Resource::User, _) => {
                ResourceClaim::Resource(Resource::User, user_id.map(str::to_owned))
            }
            claim @ (ResourceClaim::Nothing | ResourceClaim::Resource(_, _)) => claim,
        })
    }
}

impl SessionInput {
    /// The file is opened when it is copied. It may have expired by then.
    pub fn file(&self, app: &LibreChat) -> InputFile {
        let (app, object) = (app.clone(), self.object.clone());
        let open = move || {
            let lost = |error: ServiceError| io::Error::other(error.message);
            let store = app.files.open().map_err(lost)?;
            let file = store.read(&object).map_err(lost)?;
            file.ok_or_else(|| io::ErrorKind::NotFound.into())
        };
        InputFile {
            path: format!("work/{}", self.name),
            mtime: self.mtime.unwrap_or_else(files::now),
            content: Content::File { open: Box::new(open), size: self.object.size },
        }
    }
}
