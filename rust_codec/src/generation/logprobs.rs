//! Logprobs of what may stand at a position of a sequence, shaped to the number that was asked for.

use std::ops::Range;

use crate::protocol;

/// The candidates for one position: the token that stands there, then the likeliest others in the order of their rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Position<'a> {
    /// At least one; none twice.
    pub ids: &'a [u32],
    /// One per id.
    pub logprobs: &'a [f64],
}

/// The candidates for one position after the other.
#[derive(Debug, Default)]
pub struct Candidates {
    ids: Vec<u32>,
    logprobs: Vec<f64>,
    /// Where each position's end.
    ends: Vec<usize>,
}

impl Candidates {
    /// Positions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no position.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// One of the positions.
    #[must_use]
    pub fn position(&self, index: usize) -> Position<'_> {
        let range = self.range(index);
        Position { ids: &self.ids[range.clone()], logprobs: &self.logprobs[range] }
    }

    /// All positions, in order.
    pub fn positions(&self) -> impl Iterator<Item = Position<'_>> {
        (0..self.len()).map(|index| self.position(index))
    }

    /// Append a row for every token. An engine may give more alternatives than the `count` that was asked for, where others
    /// in its batch asked for more; or fewer, where the vocabulary has no more.
    pub(super) fn extend(&mut self, tops: protocol::Tops<'_>, count: usize) {
        for (ids, logprobs) in tops.ids.chunks_exact(tops.width).zip(tops.logprobs.chunks_exact(tops.width)) {
            self.push(ids, logprobs, count);
        }
    }

    pub(super) fn truncate(&mut self, positions: usize) {
        self.ends.truncate(positions);
        let end = self.ends.last().copied().unwrap_or(0);
        self.ids.truncate(end);
        self.logprobs.truncate(end);
    }

    fn push(&mut self, ids: &[u32], logprobs: &[f64], count: usize) {
        for column in columns(ids, count) {
            self.ids.push(ids[column]);
            self.logprobs.push(logprobs[column]);
        }
        self.ends.push(self.ids.len());
    }

    fn range(&self, index: usize) -> Range<usize> {
        index.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[index]
    }
}

/// The columns to keep of a position's: its own token's, which is the first, and those of the `count` likeliest that are not it.
fn columns(ids: &[u32], count: usize) -> impl Iterator<Item = usize> {
    (0..ids.len().min(count.saturating_add(1))).filter(|&column| column == 0 || ids[column] != ids[0])
}

/// Logprobs of a prompt's tokens, from its second on: the first follows upon nothing.
#[derive(Debug, Default)]
pub struct PromptLogprobs {
    candidates: Candidates,
    /// One per candidate; the likeliest of a position has rank 1.
    ranks: Vec<u32>,
}

impl PromptLogprobs {
    /// The candidates; position 0 is the prompt's second token.
    #[must_use]
    pub fn candidates(&self) -> &Candidates {
        &self.candidates
    }

    /// The ranks of a position's candidates.
    #[must_use]
    pub fn ranks(&self, index: usize) -> &[u32] {
        &self.ranks[self.candidates.range(index)]
    }

    /// Append a part, up to the last of `positions`. What comes after it repeats the prompt, as after a preemption.
    pub(super) fn extend(&mut self, part: &protocol::PromptLogprobs, count: usize, positions: usize) {
        let width = part.width as usize;
        let rows = part.token_ids.chunks_exact(width).zip(part.logprobs.chunks_exact(width)).zip(&part.ranks);
        for ((ids, logprobs), &own) in rows.take(positions.saturating_sub(self.candidates.len())) {
            // Where the token is among the likeliest its place there counts: of equals the engine ranks it last.
            let likeliest = 1..ids.len().min(count.saturating_add(1));
            let own = likeliest.clone().find(|&column| ids[column] == ids[0]).map_or(own, |column| column as u32);
            let rank = |column| if column == 0 { own } else { column as u32 };
            self.ranks.extend(columns(ids, count).map(rank));
            self.candidates.push(ids, logprobs, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Tops;

    fn positions(candidates: &Candidates) -> Vec<(Vec<u32>, Vec<f64>)> {
        candidates.positions().map(|position| (position.ids.to_vec(), position.logprobs.to_vec())).collect()
    }

    /// Two tokens with columns for three alternatives each; the first was the second likeliest, the second none of them.
    const TOPS: Tops<'static> =
        Tops { width: 4, ids: &[7, 5, 7, 6, 9, 1, 2, 3], logprobs: &[-2.0, -1.0, -2.0, -3.0, -9.0, -1.0, -2.0, -3.0] };

    #[test]
    fn the_sampled_token_comes_first_and_once() {
        let mut candidates = Candidates::default();
        candidates.extend(TOPS, 3);
        let expected = [(vec![7, 5, 6], vec![-2.0, -1.0, -3.0]), (vec![9, 1, 2, 3], vec![-9.0, -1.0, -2.0, -3.0])];
        assert_eq!(positions(&candidates), expected);
    }

    #[test]
    fn more_alternatives_than_asked_for_are_left_out() {
        let mut candidates = Candidates::default();
        candidates.extend(TOPS, 1);
        assert_eq!(positions(&candidates), [(vec![7, 5], vec![-2.0, -1.0]), (vec![9, 1], vec![-9.0, -1.0])]);
        candidates.truncate(1);
        assert_eq!((positions(&candidates).len(), candidates.ids.len(), candidates.logprobs.len()), (1, 2, 2));
    }

    #[test]
    fn parts_of_a_prompt_are_joined_and_a_repetition_is_not() {
        let part = |ids: &[u32], ranks: &[u32]| protocol::PromptLogprobs {
            width: 3,
            token_ids: ids.to_vec(),
            logprobs: ids.iter().map(|&id| -f64::from(id)).collect(),
            ranks: ranks.to_vec(),
        };
        let mut prompt = PromptLogprobs::default();
        prompt.extend(&part(&[5, 1, 2], &[40]), 2, 2);
        // Equal to the likeliest: the engine says rank 2 of what it lists first.
        prompt.extend(&part(&[3, 3, 4, 8, 1, 2], &[2, 9]), 2, 2);
        let ids: Vec<_> = prompt.candidates().positions().map(|position| position.ids.to_vec()).collect();
        assert_eq!(ids, [vec![5, 1, 2], vec![3, 4]]);
        assert_eq!([prompt.ranks(0), prompt.ranks(1)], [&[40, 1, 2][..], &[1, 2]]);
    }
}
