//! Ids of segments that were encoded not long ago.

use std::collections::HashMap;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ahash::RandomState;

/// Bytes that all segments and their ids take together, at most.
const MAX_SIZE: usize = 16 << 20;
/// Bytes of the largest of them.
const MAX_ENTRY: usize = MAX_SIZE / 16;
/// About what an entry takes besides its text and ids.
const ENTRY: usize = 64;

/// A cache of two generations: what is used moves to the younger one, and once that is half of all there may be, the elder
/// is forgotten.
pub struct Segments {
    min_bytes: usize,
    generations: Mutex<[Generation; 2]>,
}

#[derive(Default)]
struct Generation {
    // Clients choose the keys: the hash is not for them to know.
    ids: HashMap<Box<str>, Box<[u32]>, RandomState>,
    size: usize,
}

impl Segments {
    /// Shorter segments than `min_bytes` are not remembered.
    pub fn new(min_bytes: usize) -> Self {
        Self { min_bytes, generations: Mutex::default() }
    }

    /// Append the ids of a segment, if they are known.
    pub fn get(&self, segment: &str, ids: &mut Vec<u32>) -> bool {
        if segment.len() < self.min_bytes {
            return false;
        }
        let mut generations = self.lock();
        let [young, old] = &mut *generations;
        if let Some(known) = young.ids.get(segment) {
            ids.extend(known);
        } else if let Some((segment, known)) = old.ids.remove_entry(segment) {
            ids.extend(&known);
            add(&mut generations, segment, known);
        } else {
            return false;
        }
        true
    }

    /// Whether the ids of a segment are known.
    pub fn contains(&self, segment: &str) -> bool {
        segment.len() >= self.min_bytes && self.lock().iter().any(|generation| generation.ids.contains_key(segment))
    }

    /// Remember the ids of a segment.
    pub fn insert(&self, segment: &str, ids: &[u32]) {
        if segment.len() >= self.min_bytes && size(segment, ids) <= MAX_ENTRY {
            add(&mut self.lock(), segment.into(), ids.into());
        }
    }

    fn lock(&self) -> MutexGuard<'_, [Generation; 2]> {
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn size(segment: &str, ids: &[u32]) -> usize {
    segment.len() + mem::size_of_val(ids) + ENTRY
}

fn add(generations: &mut [Generation; 2], segment: Box<str>, ids: Box<[u32]>) {
    let [young, old] = generations;
    let size = size(&segment, &ids);
    if young.size + size > MAX_SIZE / 2 {
        *old = mem::take(young);
    }
    // Two threads may have encoded the same segment.
    if young.ids.insert(segment, ids).is_none() {
        young.size += size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(segments: &Segments, segment: &str) -> Option<Vec<u32>> {
        let mut ids = vec![7];
        let found = segments.get(segment, &mut ids);
        assert_eq!(found, ids.len() > 1);
        found.then(|| ids.split_off(1))
    }

    #[test]
    fn a_segment_is_remembered_with_its_own_ids() {
        let segments = Segments::new(4);
        segments.insert("one segment", &[1, 2]);
        segments.insert("another", &[3]);
        segments.insert("abc", &[4]);
        assert_eq!(known(&segments, "one segment"), Some(vec![1, 2]));
        assert_eq!(known(&segments, "another"), Some(vec![3]));
        assert_eq!(known(&segments, "abc"), None);
        assert!(segments.contains("another") && !segments.contains("abc") && !segments.contains("unknown"));
    }

    #[test]
    fn what_is_used_stays_and_all_of_it_is_bounded() {
        let segments = Segments::new(4);
        segments.insert("in use", &[1]);
        let ids = [0; 1000];
        for number in 0..20_000 {
            segments.insert(&format!("segment {number}"), &ids);
            if number % 100 == 0 {
                assert_eq!(known(&segments, "in use"), Some(vec![1]));
            }
        }
        assert_eq!(known(&segments, "segment 0"), None);
        assert!(segments.contains("segment 19999"));
        let held = segments.lock().iter().flat_map(|one| &one.ids).map(|(key, ids)| size(key, ids)).sum::<usize>();
        assert!((MAX_SIZE / 4..=MAX_SIZE).contains(&held), "{held}");
    }

    #[test]
    fn a_segment_that_would_push_out_too_many_others_is_not_remembered() {
        let segments = Segments::new(4);
        let long = "x".repeat(MAX_ENTRY);
        segments.insert(&long, &[1]);
        assert!(!segments.contains(&long));
    }
}
