//! Byte-level BPE: a word's bytes become tokens by merging pairs of them, the pair that was learnt first before all others.

use std::borrow::{Borrow, Cow};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::Hasher;

use rustc_hash::{FxBuildHasher, FxHashMap, FxHasher};
use serde::Deserialize;
use tokenizers::ModelWrapper;
use tokenizers::models::bpe::BPE;

/// Words of more bytes are merged in a way that takes longer to begin with, and does not grow with the square of the length.
const SHORT: usize = 48;
/// In the place of a rank or an id: none.
const NONE: u32 = u32::MAX;

/// ByteLevel's alphabet: every byte has a printable character of its own. Bytes that print stand for themselves, the others
/// take the characters from U+0100 on, in order.
pub fn alphabet() -> [char; 256] {
    let mut alphabet = ['\0'; 256];
    let mut next = 0x100u32;
    for (byte, slot) in (0u8..=255).zip(&mut alphabet) {
        *slot = match byte {
            b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
            _ => {
                next += 1;
                char::from_u32(next - 1).unwrap_or_default()
            }
        };
    }
    alphabet
}

/// Whether a model gives other ids each time, as for training.
pub fn is_random(model: &ModelWrapper) -> bool {
    matches!(model, ModelWrapper::BPE(model) if drops_merges(model))
}

fn are_unique<'i>(ids: impl Iterator<Item = &'i u32>) -> bool {
    let mut ids: Vec<u32> = ids.copied().collect();
    ids.sort_unstable();
    ids.windows(2).all(|pair| pair[0] != pair[1])
}

fn drops_merges(model: &BPE) -> bool {
    model.dropout.is_some_and(|dropout| dropout > 0.0)
}

/// A BPE model.
pub struct BytePairs {
    /// Token of each byte; none for bytes that the model does not know, which texts lose.
    bytes: [u32; 256],
    /// Rank of each pair of tokens that is merged: the lowest goes first.
    ranks: FxHashMap<(u32, u32), u32>,
    /// What the pair of each rank becomes.
    merged: Vec<u32>,
    /// Words that are one token.
    words: Words,
}

/// The part of a `tokenizer.json` that makes the model. `tokenizers` keeps the merges to itself.
#[derive(Deserialize)]
#[serde(bound(deserialize = "Pair: Deserialize<'de>"))]
struct File<'j, Pair> {
    #[serde(borrow)]
    model: Model<'j, Pair>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "Pair: Deserialize<'de>"))]
struct Model<'j, Pair> {
    #[serde(borrow)]
    vocab: FxHashMap<Text<'j>, u32>,
    /// In order of rank.
    merges: Vec<Pair>,
}

/// Text in a file, nearly always as it stands there.
#[derive(Deserialize, PartialEq, Eq, Hash)]
struct Text<'j>(#[serde(borrow)] Cow<'j, str>);

impl Borrow<str> for Text<'_> {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl BytePairs {
    /// `model` is what `tokenizers` has read from `json`. `None` where it is not plain byte-level BPE.
    pub fn new(model: &BPE, json: &[u8]) -> Option<Self> {
        if let Ok(File { model: Model { vocab, merges } }) =
            serde_json::from_slice::<File<'_, (Text<'_>, Text<'_>)>>(json)
        {
            return Self::from_parts(
                model,
                &vocab,
                merges.iter().map(|(left, right)| Some((left.borrow(), right.borrow()))),
            );
        }
        // As older files have them.
        let File { model: Model { vocab, merges } } = serde_json::from_slice::<File<'_, Text<'_>>>(json).ok()?;
        Self::from_parts(model, &vocab, merges.iter().map(|line| line.0.split_once(' ')))
    }

    fn from_parts<'m>(
        model: &BPE,
        vocabulary: &FxHashMap<Text<'_>, u32>,
        merges: impl Iterator<Item = Option<(&'m str, &'m str)>>,
    ) -> Option<Self> {
        let is_empty = |text: &Option<String>| text.as_ref().is_none_or(String::is_empty);
        if drops_merges(model)
            || !is_empty(&model.continuing_subword_prefix)
            || !is_empty(&model.end_of_word_suffix)
            || !are_unique(vocabulary.values())
        {
            return None;
        }
        let id_of = |token: &str| vocabulary.get(token).copied();
        let alphabet = alphabet();
        let bytes = alphabet.map(|c| id_of(c.encode_utf8(&mut [0; 4])).unwrap_or(NONE));
        if bytes.contains(&NONE) && (model.unk_token.is_some() || model.byte_fallback) {
            return None;
        }
        let room = merges.size_hint().0;
        let mut byte_pairs = Self {
            bytes,
            ranks: FxHashMap::with_capacity_and_hasher(room, FxBuildHasher),
            merged: Vec::with_capacity(room),
            words: Words::with_capacity(vocabulary.len()),
        };
        let mut both = String::new();
        for pair in merges {
            let (left, right) = pair?;
            both.clear();
            both.push_str(left);
            both.push_str(right);
            let rank = byte_pairs.merged.len() as u32;
            byte_pairs.merged.push(id_of(&both)?);
            if byte_pairs.ranks.insert((id_of(left)?, id_of(right)?), rank).is_some() {
                return None;
            }
        }

        // The alphabet lies below U+0144.
        let mut byte_of = [None; 0x144];
        for (byte, c) in (0..=255).zip(alphabet) {
            byte_of[c as usize] = Some(byte);
        }
        let (mut word, mut merged) = (Vec::new(), Vec::new());
        for (token, &id) in vocabulary {
            word.clear();
            word.extend(token.0.chars().map_while(|c| byte_of.get(c as usize).copied().flatten()));
            if word.len() < token.0.chars().count() {
                continue; // no text has a word like this
            }
            if !model.ignore_merges {
                merged.clear();
                byte_pairs.merge(&word, &mut merged);
                if merged != [id] {
                    continue; // a word like this is other tokens
                }
            }
            byte_pairs.words.insert(&word, id);
        }
        Some(byte_pairs)
    }

    /// Tokens of a word.
    pub fn encode(&self, word: &[u8], ids: &mut Vec<u32>) {
        match self.words.get(word) {
            Some(id) => ids.push(id),
            None => self.merge(word, ids),
        }
    }

    fn merge(&self, word: &[u8], ids: &mut Vec<u32>) {
        if word.len() <= SHORT { self.merge_short(word, ids) } else { self.merge_long(word, ids) }
    }

    fn rank(&self, left: u32, right: u32) -> u32 {
        self.ranks.get(&(left, right)).copied().unwrap_or(NONE)
    }

    fn merge_short(&self, word: &[u8], ids: &mut Vec<u32>) {
        let mut tokens = [NONE; SHORT];
        let mut len = 0;
        for &byte in word {
            tokens[len] = self.bytes[usize::from(byte)];
            len += usize::from(tokens[len] != NONE);
        }
        // Of each token with the next.
        let mut ranks = [NONE; SHORT];
        for at in 1..len {
            ranks[at - 1] = self.rank(tokens[at - 1], tokens[at]);
        }
        while len > 1 {
            let pairs = &ranks[..len - 1];
            // Two passes, for each of which there are vector instructions.
            let rank = pairs.iter().copied().min().unwrap_or(NONE);
            let Some(at) = pairs.iter().position(|&other| other == rank) else { break };
            if rank == NONE {
                break;
            }
            tokens[at] = self.merged[rank as usize];
            tokens.copy_within(at + 2..len, at + 1);
            ranks.copy_within(at + 1..len - 1, at);
            len -= 1;
            if at > 0 {
                ranks[at - 1] = self.rank(tokens[at - 1], tokens[at]);
            }
            if at + 1 < len {
                ranks[at] = self.rank(tokens[at], tokens[at + 1]);
            }
        }
        ids.extend(&tokens[..len]);
    }

    fn merge_long(&self, word: &[u8], ids: &mut Vec<u32>) {
        let mut tokens: Vec<u32> =
            word.iter().map(|&byte| self.bytes[usize::from(byte)]).filter(|&id| id != NONE).collect();
        let end = tokens.len();
        // Neighbours of the tokens that are left; one that was merged into the one before it is none.
        let mut next: Vec<usize> = (1..=end).collect();
        let mut previous: Vec<usize> = (0..end).map(|at| at.wrapping_sub(1)).collect();
        let mut queue: BinaryHeap<Reverse<(u32, usize)>> = (1..end)
            .map(|at| Reverse((self.rank(tokens[at - 1], tokens[at]), at - 1)))
            .filter(|Reverse((rank, _))| *rank != NONE)
            .collect();
        while let Some(Reverse((rank, at))) = queue.pop() {
            let right = next[at];
            if tokens[at] == NONE || right == end || self.rank(tokens[at], tokens[right]) != rank {
                continue; // one of the two has been merged with another
            }
            tokens[at] = self.merged[rank as usize];
            tokens[right] = NONE;
            next[at] = next[right];
            if let Some(&after) = tokens.get(next[at]) {
                previous[next[at]] = at;
                let rank = self.rank(tokens[at], after);
                if rank != NONE {
                    queue.push(Reverse((rank, at)));
                }
            }
            if let Some(&before) = tokens.get(previous[at]) {
                let rank = self.rank(before, tokens[at]);
                if rank != NONE {
                    queue.push(Reverse((rank, previous[at])));
                }
            }
        }
        ids.extend(tokens.iter().filter(|&&id| id != NONE));
    }
}

/// Token by word.
struct Words {
    /// An open hash table: a power of two of slots, a quarter of them empty at least.
    slots: Box<[Slot]>,
    /// Words that are too long for it.
    long: FxHashMap<Box<[u8]>, u32>,
}

#[derive(Clone, Copy)]
struct Slot {
    word: Short,
    /// None: the slot is empty.
    id: u32,
}

/// A word of up to fifteen bytes, and their number, in two numbers.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Short {
    low: u64,
    high: u64,
}

impl Short {
    fn new(word: &[u8]) -> Option<Self> {
        let len = word.len();
        // Two reads that may overlap cover all bytes of a word.
        let (low, high) = if let (Some(first), Some(last)) = (word.first_chunk::<8>(), word.last_chunk::<8>()) {
            (u64::from_le_bytes(*first), u64::from_le_bytes(*last) >> 8)
        } else if let (Some(first), Some(last)) = (word.first_chunk::<4>(), word.last_chunk::<4>()) {
            (u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << 32, 0)
        } else {
            (word.iter().rev().fold(0, |low, &byte| low << 8 | u64::from(byte)), 0)
        };
        (len <= 15).then_some(Self { low, high: high | (len as u64) << 56 })
    }

    fn hash(&self) -> usize {
        let mut hasher = FxHasher::default();
        hasher.write_u64(self.low);
        hasher.write_u64(self.high);
        hasher.finish() as usize
    }
}

impl Words {
    /// Room for so many words.
    fn with_capacity(words: usize) -> Self {
        let empty = Slot { word: Short::default(), id: NONE };
        let slots = vec![empty; (words * 4 / 3 + 1).next_power_of_two()];
        Self { slots: slots.into(), long: FxHashMap::default() }
    }

    /// Add a word that is not there yet.
    fn insert(&mut self, bytes: &[u8], id: u32) {
        let Some(word) = Short::new(bytes) else {
            self.long.insert(bytes.into(), id);
            return;
        };
        let mask = self.slots.len() - 1;
        let mut at = word.hash() & mask;
        while self.slots[at].id != NONE {
            at = (at + 1) & mask;
        }
        self.slots[at] = Slot { word, id };
    }

    fn get(&self, bytes: &[u8]) -> Option<u32> {
        let Some(word) = Short::new(bytes) else { return self.long.get(bytes).copied() };
        let mask = self.slots.len().wrapping_sub(1);
        let mut at = word.hash() & mask;
        loop {
            let slot = self.slots.get(at)?;
            if slot.id == NONE || slot.word == word {
                return (slot.id != NONE).then_some(slot.id);
            }
            at = (at + 1) & mask;
        }
    }
}
