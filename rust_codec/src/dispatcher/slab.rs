//! Values by the index of their slot.

/// Values in slots that are used again: an index finds one without hashing, and memory follows the most at once.
pub struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// The slot that the next insertion takes.
    pub fn vacant(&self) -> usize {
        self.free.last().copied().unwrap_or(self.slots.len())
    }

    /// Keep a value; its slot.
    pub fn insert(&mut self, value: T) -> usize {
        let slot = self.vacant();
        if self.free.pop().is_some() {
            self.slots[slot] = Some(value);
        } else {
            self.slots.push(Some(value));
        }
        slot
    }

    /// The value in a slot.
    pub fn get(&self, slot: usize) -> Option<&T> {
        self.slots.get(slot)?.as_ref()
    }

    /// The value in a slot.
    pub fn get_mut(&mut self, slot: usize) -> Option<&mut T> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// Take a value out of its slot.
    pub fn remove(&mut self, slot: usize) -> Option<T> {
        let value = self.slots.get_mut(slot)?.take()?;
        self.free.push(slot);
        Some(value)
    }
}
