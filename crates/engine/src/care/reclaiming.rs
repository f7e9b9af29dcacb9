//! Whoever lives on with an engine is told what it reclaims: any call may find what
//! somebody left behind, and end it in passing.

use std::fmt;

use crate::audit::findings::left_behind;
use crate::engine::Engine;
use crate::observe::Observed;
use crate::spec::BoxId;

/// Told once for each box, by whoever has ended it, when it is gone: the box, and what
/// there was of it, in sentences.
type Tell = dyn Fn(&BoxId, &[String]) + Send + Sync;

#[derive(Default)]
pub struct Listener(Option<Box<Tell>>);

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listener").field(&self.0.is_some()).finish()
    }
}

impl Engine {
    /// From now on `tell` hears of every box that somebody left behind and that this
    /// engine has ended. It must not wait: whoever asked for something else does.
    pub fn telling(mut self, tell: impl Fn(&BoxId, &[String]) + Send + Sync + 'static) -> Self {
        self.listener = Listener(Some(Box::new(tell)));
        self
    }

    pub(crate) fn tell_reclaimed(&self, id: &BoxId, found: &[String]) {
        if let Listener(Some(tell)) = &self.listener {
            tell(id, found);
        }
    }

    /// What is to be told of a box when it is gone; nothing of one whose time is over.
    pub(crate) fn to_tell(&self, id: &BoxId, observed: &Observed) -> Option<String> {
        let lost = left_behind(id, observed)?;
        observed.is_leftover(&self.root.host).then_some(lost.sentence)
    }
}
