//! Byte-level BPE from a segment of a text to its ids.

use std::borrow::Cow;

use tokenizers::{AddedToken, ModelWrapper, NormalizedString, NormalizerWrapper, Tokenizer};
use unicode_normalization_alignments::{IsNormalized, is_nfc_quick};

use super::added_tokens::{AddedTokens, Part};
use super::byte_pairs::BytePairs;
use super::words::Splitter;

/// Normalizes a segment, splits it into words, and makes tokens of their bytes.
pub struct ByteLevel {
    /// Whether text is brought into Unicode's form C.
    nfc: bool,
    /// Added tokens that are looked for in normalized text.
    added_tokens: AddedTokens,
    splitter: Splitter,
    byte_pairs: BytePairs,
}

impl ByteLevel {
    /// `tokenizer` is what was read from `json`. `None` where it has a part that is not known here.
    pub fn new(tokenizer: &Tokenizer, json: &[u8]) -> Option<Self> {
        let ModelWrapper::BPE(model) = tokenizer.get_model() else { return None };
        let nfc = match tokenizer.get_normalizer() {
            None => false,
            Some(NormalizerWrapper::NFC(_)) => true,
            Some(NormalizerWrapper::Sequence(sequence)) if sequence.as_ref().is_empty() => false,
            Some(_) => return None,
        };
        let normalized = tokenizer.get_added_tokens_decoder().into_iter().filter(|(_, token)| token.normalized);
        let normalized = normalized.map(|(id, token)| {
            let content = normalize(&token.content, nfc).into_owned();
            (id, AddedToken { content, ..token })
        });
        Some(Self {
            nfc,
            added_tokens: AddedTokens::new(normalized)?,
            splitter: Splitter::new(tokenizer.get_pre_tokenizer()?)?,
            byte_pairs: BytePairs::new(model, json)?,
        })
    }

    /// Append the ids of a segment.
    pub fn encode(&self, segment: &str, ids: &mut Vec<u32>) {
        self.added_tokens.cut(&normalize(segment, self.nfc), |part| match part {
            Part::Token(id) => ids.push(id),
            Part::Text(text) => self.splitter.split(text, |word| self.byte_pairs.encode(word.as_bytes(), ids)),
        });
    }
}

fn normalize(text: &str, nfc: bool) -> Cow<'_, str> {
    if !nfc || text.is_ascii() || is_nfc_quick(text.chars()) == IsNormalized::Yes {
        return Cow::Borrowed(text);
    }
    let mut normalized = NormalizedString::from(text);
    normalized.nfc();
    Cow::Owned(normalized.get().to_owned())
}
