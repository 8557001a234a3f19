//! A model's tokenizer: encoding, whole decoding, and the bytes of a single token.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

use tokenizers::DecoderWrapper;

use crate::encoding::{Encoder, alphabet};

/// Why a tokenizer could not be loaded or used.
#[derive(Debug)]
pub enum Error {
    /// The file could not be read.
    Io(std::io::Error),
    /// The file is no tokenizer, or the text could not be encoded.
    Invalid(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Invalid(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Error {}

/// `tokenizer.json`, with tables that make a token's bytes a look-up.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Absent where a text can be encoded only as a whole.
    encoder: Option<Encoder>,
    kinds: Vec<TokenKind>,
    /// Present when the decoder is ByteLevel and nothing else: decoding is then concatenation.
    bytes: Option<ByteTable>,
    /// Without it: the bytes of every token that has been asked for.
    decoded: Box<[OnceLock<Box<[u8]>>]>,
    /// A visible token to decode others after, so that decoders which treat the first token of a sequence differently do not.
    context: Option<(u32, String)>,
    byte_fallback: bool,
    max_token_bytes: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TokenKind {
    Unknown,
    Plain,
    Special,
    /// `<0xNN>`: one byte, where the decoder knows byte fallback.
    Byte(u8),
}

/// The bytes of every token, end to end.
struct ByteTable {
    bytes: Vec<u8>,
    /// Token `id` is `bytes[ends[id]..ends[id + 1]]`.
    ends: Vec<u32>,
}

impl ByteTable {
    fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        match (self.ends.get(id), self.ends.get(id + 1)) {
            (Some(&start), Some(&end)) => &self.bytes[start as usize..end as usize],
            _ => &[],
        }
    }
}

impl Tokenizer {
    /// Load a `tokenizer.json`.
    ///
    /// # Errors
    /// The file cannot be read, or is not a tokenizer.
    pub fn from_file(path: &Path) -> Result<Self, Error> {
        Self::from_bytes(&std::fs::read(path).map_err(Error::Io)?)
    }

    /// Load from the content of a `tokenizer.json`.
    ///
    /// # Errors
    /// The bytes are not a tokenizer.
    pub fn from_bytes(json: &[u8]) -> Result<Self, Error> {
        let invalid = |error: tokenizers::Error| Error::Invalid(error.to_string());
        let mut inner = tokenizers::Tokenizer::from_bytes(json).map_err(invalid)?;
        // A model directory may carry the truncation and padding of its training.
        inner.with_truncation(None).map_err(invalid)?;
        inner.with_padding(None);

        let vocabulary = inner.get_vocab(true);
        let size = vocabulary.values().max().map_or(0, |&id| id as usize + 1);
        let byte_fallback = inner.get_decoder().is_some_and(knows_byte_fallback);
        let mut kinds = vec![TokenKind::Unknown; size];
        for (token, &id) in &vocabulary {
            kinds[id as usize] = if inner.get_added_vocabulary().is_special_token(token) {
                TokenKind::Special
            } else {
                match byte_of(token) {
                    Some(byte) if byte_fallback => TokenKind::Byte(byte),
                    _ => TokenKind::Plain,
                }
            };
        }
        let bytes = match inner.get_decoder() {
            Some(decoder) if is_byte_level(decoder) => Some(byte_table(&inner, size)?),
            _ => None,
        };
        let max_token_bytes = vocabulary.keys().map(String::len).max().unwrap_or(0);
        let decoded = if bytes.is_some() { Box::default() } else { (0..size).map(|_| OnceLock::new()).collect() };
        let encoder = Encoder::new(&inner, json);
        let mut tokenizer =
            Self { inner, encoder, kinds, bytes, decoded, context: None, byte_fallback, max_token_bytes };
        tokenizer.context = tokenizer.find_context();
        Ok(tokenizer)
    }

    /// The highest id plus one, added tokens included.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.kinds.len()
    }

    /// Bytes of the longest token, as the vocabulary spells it. A text of `n` bytes has `n` divided by it tokens at least.
    #[must_use]
    pub fn max_token_bytes(&self) -> usize {
        self.max_token_bytes
    }

    /// Id of a token, by its exact content.
    #[must_use]
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Content of a token, as the vocabulary spells it.
    #[must_use]
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Token ids of a text.
    ///
    /// # Errors
    /// The tokenizer cannot encode it.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, Error> {
        let ids = match &self.encoder {
            Some(encoder) => encoder.encode(&self.inner, text, add_special_tokens),
            None => self.inner.encode_fast(text, add_special_tokens).map(|encoding| encoding.get_ids().to_vec()),
        };
        ids.map_err(|error| Error::Invalid(error.to_string()))
    }

    /// What [`Self::encode`] has to do for a text, in bytes that `tokenizers` would encode in the time. Nothing for what it
    /// remembers.
    #[must_use]
    pub fn encoding_cost(&self, text: &str) -> usize {
        self.encoder.as_ref().map_or(text.len(), |encoder| encoder.cost(text))
    }

    /// Text of a whole sequence at once. Ids outside the vocabulary contribute nothing.
    ///
    /// # Errors
    /// The decoder fails.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, Error> {
        self.inner.decode(ids, skip_special_tokens).map_err(|error| Error::Invalid(error.to_string()))
    }

    /// Whether the token is left out of text unless special tokens are asked for.
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        self.kind(id) == TokenKind::Special
    }

    /// Whether the vocabulary has this id.
    #[must_use]
    pub fn is_known(&self, id: u32) -> bool {
        self.kind(id) != TokenKind::Unknown
    }

    /// The bytes a token stands for by itself: what a logprob entry shows.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        match &self.bytes {
            Some(table) => table.get(id),
            None => self.decoded.get(id as usize).map_or(&[], |bytes| bytes.get_or_init(|| self.decode_token(id))),
        }
    }

    fn decode_token(&self, id: u32) -> Box<[u8]> {
        match self.kind(id) {
            TokenKind::Unknown => Box::default(),
            TokenKind::Byte(byte) => Box::new([byte]),
            TokenKind::Special => self.inner.id_to_token(id).unwrap_or_default().into_bytes().into(),
            TokenKind::Plain => {
                if let Some((context, text)) = &self.context
                    && let Ok(both) = self.decode(&[*context, id], false)
                    && let Some(own) = both.strip_prefix(text.as_str())
                {
                    return own.as_bytes().into();
                }
                self.decode(&[id], false).unwrap_or_default().into_bytes().into()
            }
        }
    }

    /// What a token adds to those before it: its bytes, or none where it ends within a character; the token that ends the
    /// character has it whole.
    #[must_use]
    pub fn token_bytes_after(&self, before: &[u32], id: u32) -> Cow<'_, [u8]> {
        let own = self.token_bytes(id);
        if !ends_within_a_character(own) {
            return Cow::Borrowed(own);
        }
        // No character has more than four bytes.
        let earliest = before.len().saturating_sub(3);
        let mut joined = Vec::new();
        for &id in before[earliest..].iter().rev() {
            let bytes = self.token_bytes(id);
            if !ends_within_a_character(bytes) {
                break;
            }
            if joined.is_empty() {
                joined.extend_from_slice(own);
            }
            joined.splice(..0, bytes.iter().copied());
            if !ends_within_a_character(&joined) {
                return Cow::Owned(joined);
            }
        }
        Cow::Borrowed(&[])
    }

    /// [`Self::token_bytes_after`] as text.
    #[must_use]
    pub fn token_text_after(&self, before: &[u32], id: u32) -> Cow<'_, str> {
        match self.token_bytes_after(before, id) {
            Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
            Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
        }
    }

    /// The token that is exactly this text wherever it stands, and that no text leaves out. `None` where there is none, or where
    /// the decoder spells a token by its place.
    #[must_use]
    pub fn stop_token(&self, text: &str) -> Option<u32> {
        let table = self.bytes.as_ref()?;
        let alphabet = alphabet();
        let spelled: String = text.bytes().map(|byte| alphabet[usize::from(byte)]).collect();
        // Added tokens are spelled as they are.
        [spelled.as_str(), text]
            .into_iter()
            .filter_map(|token| self.token_to_id(token))
            .find(|&id| self.kind(id) == TokenKind::Plain && table.get(id) == text.as_bytes())
    }

    /// The byte table's entry, where decoding is concatenation of bytes.
    pub(super) fn table_bytes(&self, id: u32) -> Option<&[u8]> {
        self.bytes.as_ref().map(|table| table.get(id))
    }

    /// Whether decoding is concatenation of bytes.
    #[must_use]
    pub fn is_byte_level(&self) -> bool {
        self.bytes.is_some()
    }

    /// A run of byte tokens is decoded as one: its text is settled only when the run ends.
    pub(super) fn continues_a_run(&self, id: u32) -> bool {
        self.byte_fallback && matches!(self.kind(id), TokenKind::Byte(_))
    }

    fn kind(&self, id: u32) -> TokenKind {
        self.kinds.get(id as usize).copied().unwrap_or(TokenKind::Unknown)
    }

    fn find_context(&self) -> Option<(u32, String)> {
        if self.bytes.is_some() {
            return None;
        }
        (0u32..).zip(&self.kinds).filter(|(_, kind)| **kind == TokenKind::Plain).find_map(|(id, _)| {
            let text = self.decode(&[id], false).ok()?;
            (!text.is_empty() && text.chars().all(char::is_alphanumeric)).then_some((id, text))
        })
    }
}

/// Whether the last bytes are no text, or not yet.
fn ends_within_a_character(bytes: &[u8]) -> bool {
    // Nearly all are whole, and that is soon seen.
    std::str::from_utf8(bytes).is_err() && bytes.utf8_chunks().last().is_some_and(|chunk| !chunk.invalid().is_empty())
}

fn is_byte_level(decoder: &DecoderWrapper) -> bool {
    match decoder {
        DecoderWrapper::ByteLevel(_) => true,
        DecoderWrapper::Sequence(sequence) => matches!(sequence.get_decoders(), [only] if is_byte_level(only)),
        _ => false,
    }
}

fn knows_byte_fallback(decoder: &DecoderWrapper) -> bool {
    match decoder {
        DecoderWrapper::ByteFallback(_) => true,
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().any(knows_byte_fallback),
        _ => false,
    }
}

/// The byte of `<0xNN>`.
fn byte_of(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok()).flatten()
}

fn byte_table(tokenizer: &tokenizers::Tokenizer, size: usize) -> Result<ByteTable, Error> {
    // The alphabet lies below U+0144.
    let mut byte_of_char = [None; 0x144];
    for (byte, c) in (0u8..=255).zip(alphabet()) {
        if let Some(slot) = byte_of_char.get_mut(c as usize) {
            *slot = Some(byte);
        }
    }
    let mut table = ByteTable { bytes: Vec::with_capacity(size * 8), ends: Vec::with_capacity(size + 1) };
    table.ends.push(0);
    for id in 0..size {
        if let Some(token) = tokenizer.id_to_token(id as u32) {
            let start = table.bytes.len();
            for c in token.chars() {
                if let Some(byte) = byte_of_char.get(c as usize).copied().flatten() {
                    table.bytes.push(byte);
                } else {
                    // An added token outside the alphabet stands for its own text.
                    table.bytes.truncate(start);
                    table.bytes.extend_from_slice(token.as_bytes());
                    break;
                }
            }
        }
        let end = u32::try_from(table.bytes.len()).map_err(|_| Error::Invalid("vocabulary over 4 GiB".into()))?;
        table.ends.push(end);
    }
    Ok(table)
}
