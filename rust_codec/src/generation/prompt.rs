//! What the answers to a prompt need of it.

use super::offsets::TextOffsets;
use super::{Detokenizer, Tokenizer};

/// One prompt of a response.
pub struct Prompt {
    len: usize,
    echo: Option<Echo>,
}

/// A text that goes before every answer, and the prompt's tokens.
pub struct Echo {
    /// The text.
    pub text: Box<str>,
    /// Its characters, counted.
    pub chars: u32,
    /// The tokens.
    pub ids: Box<[u32]>,
}

impl Prompt {
    /// A prompt of these tokens.
    #[must_use]
    pub fn new(ids: &[u32], echo: Option<String>) -> Self {
        let echo = echo.map(|text| Echo { chars: text.chars().count() as u32, text: text.into(), ids: ids.into() });
        Self { len: ids.len(), echo }
    }

    /// Its tokens, counted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What goes before its answers.
    #[must_use]
    pub fn echo(&self) -> Option<&Echo> {
        self.echo.as_ref()
    }
}

impl Echo {
    /// Characters of the text before each token. Special tokens count where the text has them: a tokenizer may have put some
    /// around it.
    #[must_use]
    pub fn text_offsets(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let shows_special = tokenizer.decode(&self.ids, false).is_ok_and(|text| *text == *self.text);
        let mut detokenizer = Detokenizer::new(tokenizer, !shows_special);
        let (mut text, mut offsets) = (String::new(), TextOffsets::default());
        for (index, &id) in self.ids.iter().enumerate() {
            text.clear();
            detokenizer.push(tokenizer, id, &mut text);
            offsets.push(tokenizer, &self.ids[..index], id, &text);
        }
        offsets.as_slice().iter().map(|&offset| self.chars.min(offset)).collect()
    }
}
