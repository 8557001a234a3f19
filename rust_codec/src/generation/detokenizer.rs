//! Incremental decoding of one sequence: what is given out, joined, is the decoding of all ids at once.

use super::tokenizer::Tokenizer;

const REPLACEMENT: &str = "\u{FFFD}";
/// With more unsettled tokens than this, a window is looked at only once in so many: a sequence that never settles stays cheap.
const PATIENCE: usize = 64;

/// The state between two tokens. Small: one exists per generation in flight.
pub struct Detokenizer {
    skip_special_tokens: bool,
    state: State,
}

enum State {
    /// Decoding is concatenation of bytes; the start of an unfinished character waits here.
    Bytes { waiting: [u8; 4], len: u8 },
    /// Any other decoder looks at the tokens since the last settled text, behind the ones that gave that text.
    Window(Window),
}

#[derive(Default)]
struct Window {
    ids: Vec<u32>,
    /// The first `context` ids have given out their text, `context_text`.
    context: usize,
    context_text: String,
}

impl Detokenizer {
    /// A sequence's beginning.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer, skip_special_tokens: bool) -> Self {
        let state = if tokenizer.is_byte_level() {
            State::Bytes { waiting: [0; 4], len: 0 }
        } else {
            State::Window(Window::default())
        };
        Self { skip_special_tokens, state }
    }

    /// Append to `text` what `id` settles.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, text: &mut String) {
        if self.skip_special_tokens && tokenizer.is_special(id) {
            return;
        }
        match &mut self.state {
            State::Bytes { waiting, len } => {
                let bytes = tokenizer.table_bytes(id).unwrap_or_default();
                if *len == 0
                    && let Ok(whole) = std::str::from_utf8(bytes)
                {
                    text.push_str(whole);
                } else {
                    let mut joined = Vec::with_capacity(usize::from(*len) + bytes.len());
                    joined.extend_from_slice(&waiting[..usize::from(*len)]);
                    joined.extend_from_slice(bytes);
                    let rest = push_lossy(&joined, text);
                    waiting[..rest.len()].copy_from_slice(rest);
                    *len = rest.len() as u8;
                }
            }
            State::Window(window) => window.push(tokenizer, id, text),
        }
    }

    /// Append what was still held back: the sequence ends here.
    pub fn finish(&mut self, tokenizer: &Tokenizer, text: &mut String) {
        match &mut self.state {
            State::Bytes { len, .. } => {
                if std::mem::take(len) > 0 {
                    text.push_str(REPLACEMENT);
                }
            }
            State::Window(window) => window.settle(tokenizer, text, true),
        }
    }
}

/// Append the text of `bytes`, with U+FFFD for what is not UTF-8; gives back an unfinished character at the end, at most three bytes.
fn push_lossy<'a>(mut bytes: &'a [u8], text: &mut String) -> &'a [u8] {
    loop {
        match std::str::from_utf8(bytes) {
            Ok(whole) => {
                text.push_str(whole);
                return &[];
            }
            Err(error) => {
                let (valid, rest) = bytes.split_at(error.valid_up_to());
                text.push_str(std::str::from_utf8(valid).unwrap_or_default());
                let Some(invalid) = error.error_len() else { return rest };
                text.push_str(REPLACEMENT);
                bytes = &rest[invalid..];
            }
        }
    }
}

impl Window {
    fn push(&mut self, tokenizer: &Tokenizer, id: u32, text: &mut String) {
        if !tokenizer.is_known(id) {
            return;
        }
        self.ids.push(id);
        if tokenizer.continues_a_run(id) {
            return;
        }
        let unsettled = self.ids.len() - self.context;
        if unsettled < PATIENCE || unsettled.is_multiple_of(PATIENCE) {
            self.settle(tokenizer, text, false);
        }
    }

    fn settle(&mut self, tokenizer: &Tokenizer, text: &mut String, at_end: bool) {
        if self.ids.len() == self.context {
            return;
        }
        // Ids that the decoder fails on have no text of their own; they wait for others to give them one.
        let Ok(all) = tokenizer.decode(&self.ids, false) else { return };
        let Some(new) = all.strip_prefix(self.context_text.as_str()) else {
            // The decoder has taken back what it gave before. That is out: go on with what came since.
            self.ids.drain(..self.context);
            self.context = 0;
            self.context_text.clear();
            return self.settle(tokenizer, text, at_end);
        };
        // U+FFFD at the end may be a character whose other bytes are to come.
        if new.is_empty() || (new.ends_with(REPLACEMENT) && !at_end) {
            return;
        }
        text.push_str(new);
        self.advance(tokenizer, all);
    }

    /// The ids that gave text become the context of what follows. Only if their text alone is visible: a decoder may treat the
    /// beginning of a sequence differently (strip a space), and a context that decodes to nothing would move that beginning.
    fn advance(&mut self, tokenizer: &Tokenizer, all: String) {
        if let Ok(alone) = tokenizer.decode(&self.ids[self.context..], false)
            && !alone.trim().is_empty()
        {
            self.ids.drain(..self.context);
            self.context_text = alone;
        } else {
            self.context_text = all;
        }
        self.context = self.ids.len();
    }
}
