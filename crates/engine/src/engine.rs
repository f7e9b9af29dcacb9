//! The engine: boxes on one state root. It is opened by every command and by
//! every server; what can be asked of it is in the files beside this one, one
//! subject each.

use std::path::PathBuf;

use crate::attached::Attached;
use crate::create::{Ends, Reserve};
use crate::error::{Doing, Error};
use crate::host::Host;
use crate::id::BoxId;
use crate::keeper::Unmade;
use crate::layout::Layout;
use crate::record::{self, Locked};
use crate::spec::Spec;
use crate::stdio::Stdin;
use crate::tag::Tag;
use crate::teardown::Site;

#[derive(Debug)]
pub struct Engine {
    pub(crate) layout: Layout,
    pub(crate) host: Host,
    /// Boxes that nobody looked after, and that are gone since this was opened.
    pub(crate) tended: Vec<BoxId>,
}

impl Engine {
    /// Opens a state root, making it if need be; `None` for the default one.
    /// Boxes that somebody has to look after are looked after on the way.
    pub fn open(state_root: Option<PathBuf>) -> Result<Self, Error> {
        let host = Host::probe();
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let root = state_root.unwrap_or_else(|| Layout::default_root(host.uid, runtime));
        let layout = Layout::new(root.clone(), Tag::of(&root));
        record::prepare_state_root(&layout)?;
        let mut engine = Self {
            layout,
            host,
            tended: Vec::new(),
        };
        engine.tended = engine.tend_some();
        Ok(engine)
    }

    pub(crate) fn site<'a>(&'a self, id: &'a BoxId) -> Site<'a> {
        Site {
            layout: &self.layout,
            host: &self.host,
            id,
        }
    }

    /// Makes a box whose life hangs on the returned value and on this process.
    pub fn run(&self, spec: &Spec, stdin: Stdin) -> Result<Attached, Error> {
        let id = BoxId::random();
        let reserve = Reserve::take().doing(|| "cannot reserve descriptors".into())?;
        let mut record = Locked::create(&self.layout, &id, &self.host, spec, None)?;
        match self.make(spec, Ends::Callers(stdin), &id, &mut record) {
            Ok(made) => Ok(Attached::new(
                self.layout.clone(),
                self.host.clone(),
                id,
                record,
                made,
                reserve,
            )),
            Err(Unmade { error, keeper }) => {
                drop(reserve);
                self.unmake(&id, record, keeper.as_ref())?;
                Err(error)
            }
        }
    }
}
