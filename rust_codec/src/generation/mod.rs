//! One sequence's life: token columns, incremental text, stop strings. Neutral of engine and of rendering.
#![deny(unsafe_code)]

mod detokenizer;
mod stop;
mod tokenizer;

pub use detokenizer::Detokenizer;
pub use stop::{Match, StopMatcher, StopStrings};
pub use tokenizer::{Error as TokenizerError, Tokenizer};

use std::sync::Arc;

/// What to do with the text of a generation, as its request says.
#[derive(Default)]
pub struct TextOptions {
    /// Strings that end the generation.
    pub stop: StopStrings,
    /// Token ids of the request that end the generation; the engine stops at them, their text is not shown.
    pub stop_token_ids: Vec<u32>,
    /// The model's end-of-sequence ids; the engine stops at them, their text is not shown.
    pub eos_token_ids: Vec<u32>,
    /// Show what ended the generation after all.
    pub include_stop_str: bool,
    /// A stop string that ends within so many tokens does not count.
    pub min_tokens: usize,
    /// Leave special tokens out of the text.
    pub skip_special_tokens: bool,
    /// Keep the logprobs of the sampled tokens.
    pub logprobs: bool,
}

/// Why a generation ended, as the API names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it, or a stop token did: its id, if the request named it.
    Stop(Option<u32>),
    /// A stop string matched: its index in the request's [`StopStrings`].
    StopString(usize),
    /// `max_tokens`, or the context, is used up.
    Length,
    /// The engine gave it up.
    Abort,
    /// The engine found the text repeating itself.
    Repetition,
}

/// How an engine ended a generation, before its stop tokens are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineFinish {
    /// See [`Finish::Stop`].
    Stop,
    /// See [`Finish::Length`].
    Length,
    /// See [`Finish::Abort`].
    Abort,
    /// See [`Finish::Repetition`].
    Repetition,
}

/// The engine sent no logprobs for tokens whose request asked for them.
#[derive(Debug, PartialEq, Eq)]
pub struct MissingLogprobs;

/// One sequence, from its first token to its last. Everything accumulates once; cursors say what an event has already carried.
pub struct Generation {
    tokenizer: Arc<Tokenizer>,
    options: Arc<TextOptions>,
    token_ids: Vec<u32>,
    logprobs: Vec<f64>,
    /// Characters of text before each token. Kept with logprobs only.
    text_offsets: Vec<u32>,
    text_chars: u32,
    /// Tokens whose text is in `text`, or in the detokenizer.
    detokenized: usize,
    /// Without events and stop strings nobody reads the text before the end.
    needs_text_at_once: bool,
    text: String,
    /// Text up to here is settled: no stop string can take it back.
    settled: usize,
    emitted_text: usize,
    emitted_tokens: usize,
    has_emitted: bool,
    has_emitted_finish: bool,
    detokenizer: Detokenizer,
    matcher: StopMatcher,
    finish: Option<Finish>,
}

/// Tokens of a generation with their logprobs, as slices of its columns.
#[derive(Clone, Copy)]
pub struct TokenSpan<'a> {
    /// Token ids.
    pub ids: &'a [u32],
    /// One per id; empty where not asked for.
    pub logprobs: &'a [f64],
    /// Characters of text before each token; one per logprob.
    pub text_offsets: &'a [u32],
}

impl Generation {
    /// A sequence without tokens yet. `is_streamed`: its text is read as it grows.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>, options: Arc<TextOptions>, is_streamed: bool) -> Self {
        let detokenizer = Detokenizer::new(&tokenizer, options.skip_special_tokens);
        let matcher = StopMatcher::new(&options.stop);
        let needs_text_at_once = is_streamed || !options.stop.is_empty();
        Self {
            tokenizer,
            options,
            token_ids: Vec::new(),
            logprobs: Vec::new(),
            text_offsets: Vec::new(),
            text_chars: 0,
            detokenized: 0,
            needs_text_at_once,
            text: String::new(),
            settled: 0,
            emitted_text: 0,
            emitted_tokens: 0,
            has_emitted: false,
            has_emitted_finish: false,
            detokenizer,
            matcher,
            finish: None,
        }
    }

    /// Take in what a tick adds. Afterwards [`Self::finish`] says whether the generation has ended, be it by a stop string.
    /// `logprobs` holds one per id, or nothing. Tokens after a stop string are dropped.
    ///
    /// # Errors
    /// The request asked for logprobs and there are none.
    pub fn extend(
        &mut self,
        ids: &[u32],
        logprobs: &[f64],
        finish: Option<EngineFinish>,
    ) -> Result<(), MissingLogprobs> {
        if self.options.logprobs {
            if logprobs.len() != ids.len() {
                return Err(MissingLogprobs);
            }
            self.logprobs.extend_from_slice(logprobs);
        }
        self.token_ids.extend_from_slice(ids);
        if self.needs_text_at_once || finish.is_some() {
            self.detokenize(finish);
        }
        Ok(())
    }

    /// Bring the text up to the tokens, and to its end if there is one.
    fn detokenize(&mut self, finish: Option<EngineFinish>) {
        let stop_token = match finish {
            Some(EngineFinish::Stop) => self.token_ids.last().copied().filter(|id| self.is_stop_token(*id)),
            _ => None,
        };
        let hides_last = stop_token.is_some() && !self.options.include_stop_str;
        while let Some(&id) = self.token_ids.get(self.detokenized) {
            self.detokenized += 1;
            if self.options.logprobs {
                self.text_offsets.push(self.text_chars);
            }
            if hides_last && self.detokenized == self.token_ids.len() {
                break;
            }
            let before = self.text.len();
            self.detokenizer.push(&self.tokenizer, id, &mut self.text);
            if self.took_stop_string(before) {
                return;
            }
        }
        let Some(finish) = finish else {
            self.settled = self.text.len() - self.matcher.held_back(&self.options.stop);
            return;
        };
        let before = self.text.len();
        self.detokenizer.finish(&self.tokenizer, &mut self.text);
        if self.took_stop_string(before) {
            return;
        }
        self.settled = self.text.len();
        self.finish = Some(match finish {
            EngineFinish::Stop => Finish::Stop(
                stop_token
                    .filter(|id| self.options.stop_token_ids.contains(id) && !self.options.eos_token_ids.contains(id)),
            ),
            EngineFinish::Length => Finish::Length,
            EngineFinish::Abort => Finish::Abort,
            EngineFinish::Repetition => Finish::Repetition,
        });
    }

    /// Match stop strings in the text from `before` on; on a match the generation ends there.
    fn took_stop_string(&mut self, before: usize) -> bool {
        let new = &self.text[before..];
        if self.options.logprobs {
            self.text_chars += new.chars().count() as u32;
        }
        let may_match = self.detokenized > self.options.min_tokens;
        let Some(found) = self.matcher.feed(&self.options.stop, new, may_match) else { return false };
        let end = before + found.end;
        self.text.truncate(if self.options.include_stop_str { end } else { end - found.len });
        self.settled = self.text.len();
        self.token_ids.truncate(self.detokenized);
        self.logprobs.truncate(self.detokenized);
        self.finish = Some(Finish::StopString(found.index));
        true
    }

    fn is_stop_token(&self, id: u32) -> bool {
        self.options.eos_token_ids.contains(&id) || self.options.stop_token_ids.contains(&id)
    }

    /// How the generation ended, once it has.
    #[must_use]
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// The end, if no event has told it yet.
    #[must_use]
    pub fn new_finish(&self) -> Option<Finish> {
        self.finish.filter(|_| !self.has_emitted_finish)
    }

    /// The stop string or the stop token that ended the generation.
    #[must_use]
    pub fn stop_reason(&self) -> Option<StopReason<'_>> {
        match self.finish? {
            Finish::StopString(index) => Some(StopReason::String(self.options.stop.text(index))),
            Finish::Stop(Some(id)) => Some(StopReason::Token(id)),
            _ => None,
        }
    }

    /// All tokens so far.
    #[must_use]
    pub fn tokens(&self) -> TokenSpan<'_> {
        self.tokens_from(0)
    }

    /// All settled text so far.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text[..self.settled]
    }

    /// Settled text that no event has carried.
    #[must_use]
    pub fn new_text(&self) -> &str {
        &self.text[self.emitted_text..self.settled]
    }

    /// Tokens that no event has carried.
    #[must_use]
    pub fn new_tokens(&self) -> TokenSpan<'_> {
        self.tokens_from(self.emitted_tokens)
    }

    /// Whether any event has carried something.
    #[must_use]
    pub fn has_emitted(&self) -> bool {
        self.has_emitted
    }

    /// An event carries everything up to now.
    pub fn mark_emitted(&mut self) {
        self.emitted_text = self.settled;
        self.emitted_tokens = self.token_ids.len();
        self.has_emitted = true;
        self.has_emitted_finish = self.finish.is_some();
    }

    fn tokens_from(&self, start: usize) -> TokenSpan<'_> {
        let kept = if self.options.logprobs { start.. } else { 0.. };
        TokenSpan {
            ids: &self.token_ids[start..],
            logprobs: &self.logprobs[kept.clone()],
            text_offsets: &self.text_offsets[kept],
        }
    }

    /// The tokenizer that this generation's ids belong to.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// What the request asked of the text.
    #[must_use]
    pub fn options(&self) -> &TextOptions {
        &self.options
    }

    /// The finished columns, moved out: token ids, logprobs, text.
    #[must_use]
    pub fn into_columns(mut self) -> (Vec<u32>, Vec<f64>, String) {
        self.text.truncate(self.settled);
        (self.token_ids, self.logprobs, self.text)
    }
}

/// What ended a generation, where the request named it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason<'a> {
    /// A stop string.
    String(&'a str),
    /// A stop token.
    Token(u32),
}
