//! Requests that nobody here waits for any more, though an engine may still speak of them.

use rustc_hash::FxHashSet;

/// Request ids that engines were told to stop: rows of theirs may still arrive and are no news. The oldest are forgotten.
#[derive(Default)]
pub struct Released {
    recent: FxHashSet<Box<[u8]>>,
    older: FxHashSet<Box<[u8]>>,
}

impl Released {
    /// Half of what is remembered at most.
    const GENERATION: usize = 8192;

    /// An engine was told to stop working on this.
    pub fn remember(&mut self, rid: &[u8]) {
        if self.recent.len() >= Self::GENERATION {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(rid.into());
    }

    /// An engine is done with this.
    pub fn forget(&mut self, rid: &[u8]) {
        self.recent.remove(rid);
        self.older.remove(rid);
    }

    /// A row came for a request that is not in flight. Whether its engine must be told to stop; says so once.
    pub fn is_unheard_of(&mut self, rid: &[u8], engine_is_done: bool) -> bool {
        if engine_is_done {
            self.forget(rid);
            return false;
        }
        if self.recent.contains(rid) || self.older.contains(rid) {
            return false;
        }
        self.remember(rid);
        true
    }
}
