//! Text to token ids, as the `tokenizers` crate has them, at a fraction of the cost.
//!
//! A text is cut at the added tokens; the segments between them do not depend on each other, and the longer ones are
//! remembered: a chat comes again with every turn. Byte-level BPE, which most models use, is done here, anything else by
//! `tokenizers`. What a `tokenizer.json` asks for is looked at once: nothing is done that would not give the very same ids.

mod added_tokens;
mod byte_level;
mod byte_pairs;
mod segments;
mod words;

use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::{Encoding, PostProcessor, PostProcessorWrapper, PreTokenizerWrapper, Token, Tokenizer};

use added_tokens::{AddedTokens, Part};
use byte_level::ByteLevel;
pub(crate) use byte_pairs::alphabet;
use segments::Segments;

/// Encodes text for one tokenizer.
pub struct Encoder {
    added_tokens: AddedTokens,
    /// Absent where `tokenizers` encodes the segments.
    byte_level: Option<ByteLevel>,
    segments: Segments,
    /// Ids around a text: without special tokens, and with them.
    frames: [Frame; 2],
}

struct Frame {
    before: Vec<u32>,
    after: Vec<u32>,
}

impl Encoder {
    /// Bytes that byte-level BPE takes as long for as `tokenizers` does for one, at the least.
    const BYTE_LEVEL_SPEED: usize = 8;

    /// An encoder for what was read from `json`. `None` where a segment of the text depends on the others.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer, json: &[u8]) -> Option<Self> {
        let plain = tokenizer.get_added_tokens_decoder().into_iter().filter(|(_, token)| !token.normalized);
        let added_tokens = AddedTokens::new(plain)?;
        let byte_level = ByteLevel::new(tokenizer, json);
        if byte_level.is_none() && !is_independent(tokenizer) {
            return None;
        }
        let frame = |add_special_tokens| Frame::new(tokenizer.get_post_processor(), add_special_tokens);
        let frames = [frame(false)?, frame(true)?];
        // Remembering a segment is worth it where that takes less time than to encode it.
        let segments = Segments::new(if byte_level.is_some() { 256 } else { 16 });
        frames[0].is_empty().then_some(Self { added_tokens, byte_level, segments, frames })
    }

    /// Token ids of a text, for the tokenizer that the encoder was made for.
    ///
    /// # Errors
    /// Those of the tokenizer.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, tokenizers::Error> {
        let frame = &self.frames[usize::from(add_special_tokens)];
        let mut ids = Vec::with_capacity(text.len() / 3 + frame.before.len() + frame.after.len());
        ids.extend(&frame.before);
        let mut outcome = Ok(());
        self.added_tokens.cut(text, |part| match part {
            Part::Token(id) => ids.push(id),
            Part::Text(segment) if outcome.is_ok() => outcome = self.encode_segment(tokenizer, segment, &mut ids),
            Part::Text(_) => {}
        });
        outcome?;
        ids.extend(&frame.after);
        Ok(ids)
    }

    fn encode_segment(
        &self,
        tokenizer: &Tokenizer,
        segment: &str,
        ids: &mut Vec<u32>,
    ) -> Result<(), tokenizers::Error> {
        if self.segments.get(segment, ids) {
            return Ok(());
        }
        let start = ids.len();
        match &self.byte_level {
            Some(byte_level) => byte_level.encode(segment, ids),
            None => ids.extend(tokenizer.encode_fast(segment, false)?.get_ids()),
        }
        self.segments.insert(segment, &ids[start..]);
        Ok(())
    }

    /// What there is to do to encode a text, in bytes that `tokenizers` would encode in the time. Nothing for what is
    /// remembered.
    #[must_use]
    pub fn cost(&self, text: &str) -> usize {
        let mut bytes = 0;
        self.added_tokens.cut(text, |part| {
            if let Part::Text(segment) = part
                && !self.segments.contains(segment)
            {
                bytes += segment.len();
            }
        });
        if self.byte_level.is_some() { bytes / Self::BYTE_LEVEL_SPEED } else { bytes }
    }
}

/// Whether `tokenizers` encodes a segment the same wherever it stands, and every time.
fn is_independent(tokenizer: &Tokenizer) -> bool {
    fn splits_alike(pre_tokenizer: &PreTokenizerWrapper) -> bool {
        match pre_tokenizer {
            // Puts a space before the text's first segment only.
            PreTokenizerWrapper::Metaspace(metaspace) => metaspace.prepend_scheme != PrependScheme::First,
            PreTokenizerWrapper::Sequence(sequence) => sequence.as_ref().iter().all(splits_alike),
            _ => true,
        }
    }
    !byte_pairs::is_random(tokenizer.get_model()) && tokenizer.get_pre_tokenizer().is_none_or(splits_alike)
}

impl Frame {
    /// What a post-processor puts around a text, seen on one of a single token.
    fn new(processor: Option<&PostProcessorWrapper>, add_special_tokens: bool) -> Option<Self> {
        const TEXT: u32 = u32::MAX;
        let Some(processor) = processor else { return Some(Self { before: Vec::new(), after: Vec::new() }) };
        let text = Encoding::from_tokens(vec![Token::new(TEXT, String::new(), (0, 0))], 0);
        let framed = processor.process(text, None, add_special_tokens).ok()?;
        let mut parts = framed.get_ids().split(|&id| id == TEXT).map(<[u32]>::to_vec);
        match (parts.next(), parts.next(), parts.next()) {
            (Some(before), Some(after), None) => Some(Self { before, after }),
            _ => None,
        }
    }

    fn is_empty(&self) -> bool {
        self.before.is_empty() && self.after.is_empty()
    }
}
