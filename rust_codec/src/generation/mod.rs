//! One sequence's life: token columns, incremental text, stop strings. Neutral of engine and of rendering.
#![deny(unsafe_code)]

mod detokenizer;
mod logprobs;
mod offsets;
mod prompt;
mod stop;
mod tokenizer;

pub use detokenizer::Detokenizer;
pub use logprobs::{Candidates, Position, PromptLogprobs};
pub use prompt::{Echo, Prompt};
pub use stop::{Match, StopMatcher, StopStrings};
pub use tokenizer::{Error as TokenizerError, Tokenizer};

use offsets::TextOffsets;

use std::fmt;
use std::slice;
use std::sync::Arc;

use crate::protocol;

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
    /// Keep the logprobs of the sampled tokens, and of so many alternatives to each.
    pub logprobs: Option<usize>,
    /// Keep the logprobs of the prompt's tokens, and of so many alternatives to each.
    pub prompt_logprobs: Option<usize>,
    /// Count what is generated and show nothing of it.
    pub hide_output: bool,
}

/// Why a generation ended, as the API names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it, or a stop token or a stop string did.
    Stop,
    /// `max_tokens`, or the context, is used up.
    Length,
    /// The engine gave it up.
    Abort,
    /// The engine found the text repeating itself.
    Repetition,
}

/// Whom a generation is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// A client that reads the text as it grows.
    Stream,
    /// A client that gets the whole.
    Whole,
    /// A caller in this process, who wants the text to equal that of all tokens decoded at once: even where the last of
    /// them end within a character. A client is spared that.
    Program,
}

/// What ended a generation, where the request or the engine names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason<'a> {
    /// A stop string, or the engine's own word for it.
    Text(&'a str),
    /// A stop token.
    Token(u32),
}

/// A [`StopReason`], kept.
enum Cause {
    /// The index in the request's [`StopStrings`].
    StopString(usize),
    Text(Box<str>),
    Token(u32),
}

/// How an engine ended a generation, and what it says of the reason.
pub type End<'a> = (Finish, Option<StopReason<'a>>);

/// What a request asked for and its engine did not send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Logprobs of sampled tokens.
    Logprobs,
    /// Logprobs of alternatives to them.
    TopLogprobs,
    /// Logprobs of the prompt's tokens, all or some.
    PromptLogprobs,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Logprobs => "the engine sent no logprobs, which were asked for",
            Self::TopLogprobs => "the engine sent no top_logprobs, which were asked for",
            Self::PromptLogprobs => "the engine did not send all of prompt_logprobs, which were asked for",
        })
    }
}

impl std::error::Error for Missing {}

/// One sequence, from its first token to its last. Everything accumulates once; cursors say what an event has already carried.
pub struct Generation {
    tokenizer: Arc<Tokenizer>,
    options: Arc<TextOptions>,
    prompt: Arc<Prompt>,
    token_ids: Vec<u32>,
    logprobs: Vec<f64>,
    /// Present where alternatives were asked for.
    candidates: Option<Box<Candidates>>,
    /// Present where asked for.
    prompt_logprobs: Option<Box<PromptLogprobs>>,
    /// The echo's text counts. Kept with logprobs only.
    text_offsets: TextOffsets,
    /// Tokens whose text is in `text`, or in the detokenizer.
    detokenized: usize,
    /// Without events and stop strings nobody reads the text before the end.
    needs_text_at_once: bool,
    /// Show a character whose last bytes never came as U+FFFD.
    shows_unfinished: bool,
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
    stop_reason: Option<Box<Cause>>,
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
    candidates: Option<&'a Candidates>,
    /// All ids of the generation; this span's begin at `start`.
    all: &'a [u32],
    start: usize,
}

impl<'a> TokenSpan<'a> {
    /// The tokens before the one at `index` of this span, from the generation's first on.
    #[must_use]
    pub fn before(&self, index: usize) -> &'a [u32] {
        &self.all[..self.start + index]
    }

    /// The candidates for the token at `index` of this span; itself alone where no others were asked for. There must be
    /// logprobs.
    #[must_use]
    pub fn position(&self, index: usize) -> Position<'a> {
        match self.candidates {
            Some(candidates) => candidates.position(self.start + index),
            None => {
                Position { ids: slice::from_ref(&self.ids[index]), logprobs: slice::from_ref(&self.logprobs[index]) }
            }
        }
    }
}

/// The columns of a generation, moved out.
pub struct Columns {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Their logprobs, where asked for.
    pub logprobs: Option<Vec<f64>>,
    /// The candidates for every token, where alternatives were asked for.
    pub candidates: Option<Box<Candidates>>,
    /// Of the prompt's tokens, where asked for.
    pub prompt_logprobs: Option<Box<PromptLogprobs>>,
    /// The text.
    pub text: String,
}

impl Generation {
    /// A sequence without tokens yet.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>, options: Arc<TextOptions>, prompt: Arc<Prompt>, reader: Reader) -> Self {
        let detokenizer = Detokenizer::new(&tokenizer, options.skip_special_tokens);
        let matcher = StopMatcher::new(&options.stop);
        let needs_text_at_once = reader == Reader::Stream || !options.stop.is_empty();
        Self {
            token_ids: Vec::new(),
            logprobs: Vec::new(),
            candidates: options.logprobs.filter(|&count| count > 0).map(|_| Box::default()),
            prompt_logprobs: options.prompt_logprobs.map(|_| Box::default()),
            text_offsets: TextOffsets::after(prompt.echo().map_or(0, |echo| echo.chars)),
            detokenized: 0,
            needs_text_at_once,
            shows_unfinished: reader == Reader::Program,
            text: String::new(),
            settled: 0,
            emitted_text: 0,
            emitted_tokens: 0,
            has_emitted: false,
            has_emitted_finish: false,
            detokenizer,
            matcher,
            finish: None,
            stop_reason: None,
            tokenizer,
            options,
            prompt,
        }
    }

    /// Take in logprobs of the prompt's tokens: all, or the next part of them.
    pub fn extend_prompt(&mut self, part: &protocol::PromptLogprobs) {
        if let (Some(logprobs), Some(count)) = (&mut self.prompt_logprobs, self.options.prompt_logprobs) {
            logprobs.extend(part, count, self.prompt.len().saturating_sub(1));
        }
    }

    /// Whether logprobs of the prompt were asked for and are not all here.
    #[must_use]
    pub fn awaits_prompt_logprobs(&self) -> bool {
        self.prompt_logprobs.as_ref().is_some_and(|logprobs| logprobs.candidates().len() + 1 < self.prompt.len())
    }

    /// Whether alternatives to the tokens were asked for.
    #[must_use]
    pub fn wants_candidates(&self) -> bool {
        self.candidates.is_some()
    }

    /// Take in the candidates for the tokens that the next call of [`Self::extend`] brings.
    pub fn extend_candidates(&mut self, tops: protocol::Tops<'_>) {
        if let (Some(candidates), Some(count)) = (&mut self.candidates, self.options.logprobs)
            && !tops.ids.is_empty()
        {
            candidates.extend(tops, count);
        }
    }

    /// Take in what a tick adds. Afterwards [`Self::finish`] says whether the generation has ended, be it by a stop string.
    /// `logprobs` holds one per id, or nothing. Tokens after a stop string are dropped.
    ///
    /// # Errors
    /// Something that the request asked for is not there.
    pub fn extend(&mut self, ids: &[u32], logprobs: &[f64], end: Option<End<'_>>) -> Result<(), Missing> {
        if self.options.logprobs.is_some() {
            if logprobs.len() != ids.len() {
                return Err(Missing::Logprobs);
            }
            let tokens = self.token_ids.len() + ids.len();
            if self.candidates.as_ref().is_some_and(|candidates| candidates.len() != tokens) {
                return Err(Missing::TopLogprobs);
            }
            self.logprobs.extend_from_slice(logprobs);
        }
        self.token_ids.extend_from_slice(ids);
        if self.needs_text_at_once || end.is_some() {
            self.detokenize(end);
        }
        if self.finish.is_some() && self.awaits_prompt_logprobs() {
            return Err(Missing::PromptLogprobs);
        }
        Ok(())
    }

    /// Bring the text up to the tokens, and to its end if there is one.
    fn detokenize(&mut self, end: Option<End<'_>>) {
        // Where the engine stopped at a token in the place of a stop string, that is none of these and shows in the text.
        let stop_token = match end {
            Some((Finish::Stop, _)) => self.token_ids.last().copied().filter(|id| self.is_stop_token(*id)),
            _ => None,
        };
        let hides_last = stop_token.is_some() && !self.options.include_stop_str;
        while let Some(&id) = self.token_ids.get(self.detokenized) {
            self.detokenized += 1;
            let before = self.text.len();
            if !hides_last || self.detokenized < self.token_ids.len() {
                self.detokenizer.push(&self.tokenizer, id, &mut self.text);
            }
            if self.options.logprobs.is_some() {
                let ids = &self.token_ids[..self.detokenized - 1];
                self.text_offsets.push(&self.tokenizer, ids, id, &self.text[before..]);
            }
            if self.took_stop_string(before) {
                return;
            }
        }
        let Some((finish, reason)) = end else {
            self.settled = self.text.len() - self.matcher.held_back(&self.options.stop);
            return;
        };
        let before = self.text.len();
        self.detokenizer.finish(&self.tokenizer, &mut self.text);
        if !self.shows_unfinished {
            let whole = self.text[before..].trim_end_matches(char::REPLACEMENT_CHARACTER).len();
            self.text.truncate(before + whole);
        }
        if self.took_stop_string(before) {
            return;
        }
        self.settled = self.text.len();
        self.finish = Some(finish);
        let cause = match reason {
            Some(StopReason::Token(id)) => Some(Cause::Token(id)),
            Some(StopReason::Text(text)) => Some(Cause::Text(text.into())),
            None => stop_token
                .filter(|id| self.options.stop_token_ids.contains(id) && !self.options.eos_token_ids.contains(id))
                .map(Cause::Token),
        };
        self.stop_reason = cause.map(Box::new);
    }

    /// Match stop strings in the text from `before` on; on a match the generation ends there.
    fn took_stop_string(&mut self, before: usize) -> bool {
        let new = &self.text[before..];
        let may_match = self.detokenized > self.options.min_tokens;
        let Some(found) = self.matcher.feed(&self.options.stop, new, may_match) else { return false };
        let end = before + found.end;
        self.text.truncate(if self.options.include_stop_str { end } else { end - found.len });
        self.settled = self.text.len();
        self.token_ids.truncate(self.detokenized);
        self.logprobs.truncate(self.detokenized);
        if let Some(candidates) = &mut self.candidates {
            candidates.truncate(self.detokenized);
        }
        self.finish = Some(Finish::Stop);
        self.stop_reason = Some(Box::new(Cause::StopString(found.index)));
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

    /// What ended the generation: the engine's reason, or the stop string or stop token of the request.
    #[must_use]
    pub fn stop_reason(&self) -> Option<StopReason<'_>> {
        Some(match self.stop_reason.as_deref()? {
            Cause::StopString(index) => StopReason::Text(self.options.stop.text(*index)),
            Cause::Text(text) => StopReason::Text(text),
            Cause::Token(id) => StopReason::Token(*id),
        })
    }

    /// Tokens generated so far, hidden ones too.
    #[must_use]
    pub fn completion_tokens(&self) -> usize {
        self.token_ids.len()
    }

    /// All tokens so far that may be shown.
    #[must_use]
    pub fn tokens(&self) -> TokenSpan<'_> {
        self.tokens_from(0)
    }

    /// All settled text so far that may be shown.
    #[must_use]
    pub fn text(&self) -> &str {
        self.text_from(0)
    }

    /// Settled text that no event has carried.
    #[must_use]
    pub fn new_text(&self) -> &str {
        self.text_from(self.emitted_text)
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

    fn text_from(&self, start: usize) -> &str {
        if self.options.hide_output { "" } else { &self.text[start..self.settled] }
    }

    fn tokens_from(&self, start: usize) -> TokenSpan<'_> {
        let start = if self.options.hide_output { self.token_ids.len() } else { start };
        let kept = if self.options.logprobs.is_some() { start.. } else { 0.. };
        TokenSpan {
            ids: &self.token_ids[start..],
            logprobs: &self.logprobs[kept.clone()],
            text_offsets: &self.text_offsets.as_slice()[kept],
            candidates: self.candidates.as_deref(),
            all: &self.token_ids,
            start,
        }
    }

    /// The prompt that this answers.
    #[must_use]
    pub fn prompt(&self) -> &Prompt {
        &self.prompt
    }

    /// Logprobs of the prompt's tokens, where asked for.
    #[must_use]
    pub fn prompt_logprobs(&self) -> Option<&PromptLogprobs> {
        self.prompt_logprobs.as_deref()
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

    /// The columns, once finished, moved out: as far as they may be shown.
    #[must_use]
    pub fn into_columns(mut self) -> Columns {
        self.text.truncate(self.settled);
        if self.options.hide_output {
            self.text.clear();
            self.token_ids.clear();
            self.logprobs.clear();
            if let Some(candidates) = &mut self.candidates {
                candidates.truncate(0);
            }
        }
        Columns {
            ids: self.token_ids,
            logprobs: self.options.logprobs.map(|_| self.logprobs),
            candidates: self.candidates,
            prompt_logprobs: self.prompt_logprobs,
            text: self.text,
        }
    }
}
