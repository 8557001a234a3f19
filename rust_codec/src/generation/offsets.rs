//! Where tokens begin in their text.

use super::Tokenizer;

/// Characters of text before each token. The tokens of a character begin where the first of them does.
#[derive(Debug, Default)]
pub(super) struct TextOffsets {
    offsets: Vec<u32>,
    chars: u32,
    /// Where the last token begins, if it ends within a character.
    unfinished: Option<u32>,
}

impl TextOffsets {
    /// The beginning of a text that has so many characters before it.
    pub(super) fn after(chars: u32) -> Self {
        Self { chars, ..Self::default() }
    }

    /// One per token.
    pub(super) fn as_slice(&self) -> &[u32] {
        &self.offsets
    }

    /// The next token has come and added `text`, which may be less or more than its own.
    pub(super) fn push(&mut self, tokenizer: &Tokenizer, before: &[u32], id: u32, text: &str) {
        let begin = self.chars;
        self.chars += text.chars().count() as u32;
        let own = tokenizer.token_bytes_after(before, id);
        let offset = match self.unfinished {
            None => begin,
            Some(first) if own.is_empty() => first,
            Some(first) => first.max(self.chars.saturating_sub(String::from_utf8_lossy(&own).chars().count() as u32)),
        };
        self.unfinished = own.is_empty().then_some(offset);
        self.offsets.push(offset);
    }
}
