//! Added tokens: found in a text before anything else is done with it.

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::AddedToken;

/// Cuts a text at the added tokens in it.
pub struct AddedTokens {
    /// Absent where there are none.
    finder: Option<AhoCorasick>,
    /// By the finder's pattern.
    tokens: Vec<Found>,
}

struct Found {
    id: u32,
    /// Whether the token takes the white space before it, and that after it.
    lstrip: bool,
    rstrip: bool,
}

/// A piece of a text.
pub enum Part<'t> {
    /// An added token.
    Token(u32),
    /// What lies between two of them; not empty.
    Text(&'t str),
}

impl AddedTokens {
    /// `None` for tokens that are found only as words of their own, which takes a look at what is around them.
    pub fn new(tokens: impl IntoIterator<Item = (u32, AddedToken)>) -> Option<Self> {
        let (tokens, contents): (Vec<_>, Vec<_>) = tokens
            .into_iter()
            .map(|(id, AddedToken { lstrip, rstrip, single_word, content, .. })| {
                ((Found { id, lstrip, rstrip }, single_word), content)
            })
            .unzip();
        if tokens.iter().any(|(_, single_word)| *single_word) {
            return None;
        }
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&contents).ok()?;
        Some(Self {
            finder: (!contents.is_empty()).then_some(finder),
            tokens: tokens.into_iter().map(|(token, _)| token).collect(),
        })
    }

    /// The parts of a text, in order.
    pub fn cut<'t>(&self, text: &'t str, mut on_part: impl FnMut(Part<'t>)) {
        let mut rest = 0;
        if let Some(finder) = &self.finder {
            for found in finder.find_iter(text) {
                let token = &self.tokens[found.pattern().as_usize()];
                let before = &text[rest.min(found.start())..found.start()];
                let before = if token.lstrip { before.trim_end() } else { before };
                if !before.is_empty() {
                    on_part(Part::Text(before));
                }
                on_part(Part::Token(token.id));
                rest = found.end();
                if token.rstrip {
                    rest = text.len() - text[rest..].trim_start().len();
                }
            }
        }
        if rest < text.len() {
            on_part(Part::Text(&text[rest..]));
        }
    }
}
