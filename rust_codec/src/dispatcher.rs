//! Request id -> generation. An engine's messages go in, bytes to write come out.
#![deny(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::generation::{EngineFinish, Generation, TextOptions, Tokenizer};
use crate::protocol::{FinishReason, Load, Message, Protocol, Row, StopReason, Tick};
use crate::render::{Format, Usage};

/// Where a dispatcher puts what its caller has to do. `S` is the caller's handle of a response.
pub trait Outbox<S> {
    /// Events of a stream, unframed, to be written now; more will follow.
    fn events(&mut self, sink: &S, events: &[u8]);
    /// A response ends.
    fn ended(&mut self, sink: S, ending: Ending);
    /// The engine must stop working on a request.
    fn abort(&mut self, rid: &[u8]);
    /// A request is in flight no more.
    fn finished(&mut self, rid: &[u8]);
    /// An engine's load.
    fn load(&mut self, load: Load);
    /// A message could not be read; no row of it was applied.
    fn refused(&mut self, error: crate::protocol::Error);
    /// An engine is gone.
    fn engine_dead(&mut self);
}

/// How a response ends.
pub enum Ending {
    /// The last events of a stream.
    Events(Vec<u8>),
    /// A whole JSON body.
    Body(Vec<u8>),
    /// The generations themselves, in the order of the choices.
    Outputs(Vec<Choice>),
    /// It failed; why.
    Failed(String),
}

/// What a response becomes.
pub enum Target {
    /// Events, as they come.
    Events(Format),
    /// One body, at the end.
    Body(Format),
    /// The generations themselves, at the end.
    Outputs,
}

/// A response to be opened.
pub struct Opening<S> {
    /// The caller's handle.
    pub sink: S,
    /// What it becomes.
    pub target: Target,
    /// The model's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// What the request asks of the text.
    pub options: Arc<TextOptions>,
    /// Request ids, in the order of the choices.
    pub rids: Vec<Box<[u8]>>,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Choices per prompt.
    pub n: usize,
}

/// Why a response cannot be opened.
#[derive(Debug, PartialEq, Eq)]
pub enum OpenError {
    /// There is no request id.
    NoRid,
    /// A request id is in flight already, or comes twice.
    Duplicate(String),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRid => f.write_str("a response needs at least one request id"),
            Self::Duplicate(rid) => write!(f, "request id {rid:?} is in flight already"),
        }
    }
}

impl std::error::Error for OpenError {}

/// One generation of a response.
pub struct Choice {
    rid: Box<[u8]>,
    in_flight: bool,
    /// The response it belongs to, and its place there.
    response: usize,
    index: usize,
    /// Whose row came behind this one's in the last tick: most likely it will again.
    successor: usize,
    /// The sequence itself.
    pub generation: Generation,
    /// Prompt tokens the engine found in its cache.
    pub cached_tokens: u32,
}

struct Response<S> {
    key: u64,
    sink: S,
    target: Target,
    /// In the order of the API.
    choices: Vec<usize>,
    in_flight: usize,
    prompt_tokens: u64,
    n: usize,
    paused: bool,
    /// Events rendered in this call; empty between calls.
    events: Vec<u8>,
}

/// All responses in flight of one worker.
pub struct Dispatcher<S> {
    choices: Slab<Choice>,
    responses: Slab<Response<S>>,
    /// Request id to choice, of those in flight.
    places: FxHashMap<Box<[u8]>, usize>,
    opened: u64,
    tick: Tick,
    /// Responses with events rendered in this call.
    touched: Vec<u64>,
    released: Released,
}

impl<S> Default for Dispatcher<S> {
    fn default() -> Self {
        Self {
            choices: Slab::default(),
            responses: Slab::default(),
            places: FxHashMap::default(),
            opened: 0,
            tick: Tick::default(),
            touched: Vec::new(),
            released: Released::default(),
        }
    }
}

impl<S> Dispatcher<S> {
    /// Generations in flight.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether nothing is in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Begin a response; its key.
    ///
    /// # Errors
    /// No request id, or one that is in flight already. Nothing is opened then.
    pub fn open(&mut self, opening: Opening<S>) -> Result<u64, OpenError> {
        let Opening { sink, target, tokenizer, options, rids, prompt_tokens, n } = opening;
        if rids.is_empty() {
            return Err(OpenError::NoRid);
        }
        let mut seen = FxHashSet::default();
        if let Some(rid) = rids.iter().find(|rid| self.places.contains_key(*rid) || !seen.insert(*rid)) {
            return Err(OpenError::Duplicate(String::from_utf8_lossy(rid).into_owned()));
        }
        let slot = self.responses.vacant();
        // The slot finds the response, the count tells it from others that had the slot before.
        let key = (self.opened << 32) | slot as u64;
        self.opened += 1;
        let is_streamed = matches!(target, Target::Events(_));
        let mut choices = Vec::with_capacity(rids.len());
        for (index, rid) in rids.into_iter().enumerate() {
            let generation = Generation::new(tokenizer.clone(), options.clone(), is_streamed);
            let choice = self.choices.insert(Choice {
                rid: rid.clone(),
                in_flight: true,
                response: slot,
                index,
                successor: usize::MAX,
                generation,
                cached_tokens: 0,
            });
            self.places.insert(rid, choice);
            choices.push(choice);
        }
        let in_flight = choices.len();
        let n = n.max(1);
        self.responses.insert(Response {
            key,
            sink,
            target,
            choices,
            in_flight,
            prompt_tokens,
            n,
            paused: false,
            events: Vec::new(),
        });
        Ok(key)
    }

    /// Apply messages in order; how many. Several ticks of one response share one write, as separate events.
    ///
    /// It ends behind a message that is refused: what that held is lost, and the caller has to settle what becomes of the
    /// generations it may have been about before a later message continues, or even finishes, them.
    pub fn feed<'a>(
        &mut self,
        protocol: Protocol,
        messages: impl IntoIterator<Item = &'a [&'a [u8]]>,
        out: &mut impl Outbox<S>,
    ) -> usize {
        let mut consumed = 0;
        // Taken out, so that rows can be applied while the tick is read.
        let mut tick = std::mem::take(&mut self.tick);
        for frames in messages {
            consumed += 1;
            match protocol.decode(frames, &mut tick) {
                Ok(Message::Tick) => {
                    let frame = frames.first().copied().unwrap_or_default();
                    let mut previous = usize::MAX;
                    for row in &tick.rows {
                        let rid = &frame[row.id.start as usize..row.id.end as usize];
                        if let Some(choice) = self.find(rid, previous) {
                            self.apply(frame, &tick, row, choice, out);
                            previous = choice;
                        } else if self.released.is_unheard_of(rid, row.finish.is_some()) {
                            out.abort(rid);
                        }
                    }
                    if let Some(load) = tick.load {
                        out.load(load);
                    }
                }
                Ok(Message::EngineDead) => out.engine_dead(),
                Err(error) => {
                    out.refused(error);
                    break;
                }
            }
        }
        self.tick = tick;
        for key in self.touched.drain(..) {
            if let Some(response) = self.responses.get_mut(slot_of(key)).filter(|response| response.key == key) {
                out.events(&response.sink, &response.events);
                response.events.clear();
            }
        }
        consumed
    }

    /// The choice of a request in flight. Engines keep the order of their rows, so the row before tells this one, mostly.
    fn find(&mut self, rid: &[u8], previous: usize) -> Option<usize> {
        let guess = self.choices.get(previous).map(|choice| choice.successor);
        if let Some(guess) = guess
            && self.choices.get(guess).is_some_and(|choice| choice.in_flight && *choice.rid == *rid)
        {
            return Some(guess);
        }
        let choice = *self.places.get(rid)?;
        if let Some(previous) = self.choices.get_mut(previous) {
            previous.successor = choice;
        }
        Some(choice)
    }

    fn apply(&mut self, frame: &[u8], tick: &Tick, row: &Row, slot: usize, out: &mut impl Outbox<S>) {
        let Some(choice) = self.choices.get_mut(slot) else { return };
        choice.cached_tokens = choice.cached_tokens.max(row.cached_tokens);
        let ids = &tick.token_ids[row.tokens.start as usize..row.tokens.end as usize];
        let logprobs = &tick.logprobs[row.logprobs.start as usize..row.logprobs.end as usize];
        let finish = match row.finish {
            None => None,
            Some(FinishReason::Stop) => Some(EngineFinish::Stop),
            Some(FinishReason::Length) => Some(EngineFinish::Length),
            Some(FinishReason::Abort) => Some(EngineFinish::Abort),
            Some(FinishReason::Repetition) => Some(EngineFinish::Repetition),
            Some(FinishReason::Error) => return self.fail_from(slot, &failure(frame, tick, row), true, out),
        };
        if choice.generation.extend(ids, logprobs, finish).is_err() {
            let why = "the engine sent no logprobs, which were asked for";
            return self.fail_from(slot, why, finish.is_some(), out);
        }
        if finish == Some(EngineFinish::Abort) && choice.generation.tokens().ids.is_empty() {
            return self.fail_from(slot, "the engine aborted the request", true, out);
        }
        let Some(response) = self.responses.get_mut(choice.response) else { return };
        if choice.generation.finish().is_some() {
            choice.in_flight = false;
            response.in_flight -= 1;
            self.places.remove(&choice.rid);
            out.finished(&choice.rid);
            if finish.is_none() {
                self.released.remember(&choice.rid);
                out.abort(&choice.rid);
            }
            if response.in_flight == 0 {
                let slot = choice.response;
                return self.end(slot, out);
            }
        }
        if let Target::Events(format) = &response.target
            && !response.paused
        {
            let was_empty = response.events.is_empty();
            format.write_events(&mut response.events, choice.index, &mut choice.generation);
            if was_empty && !response.events.is_empty() {
                self.touched.push(response.key);
            }
        }
    }

    /// A response whose generations have all ended.
    fn end(&mut self, slot: usize, out: &mut impl Outbox<S>) {
        let Some(mut response) = self.responses.remove(slot) else { return };
        let mut choices: Vec<Choice> =
            response.choices.iter().filter_map(|&choice| self.choices.remove(choice)).collect();
        let usage = response.usage(&choices);
        let ending = match &response.target {
            Target::Events(format) => {
                for choice in &mut choices {
                    format.write_events(&mut response.events, choice.index, &mut choice.generation);
                }
                format.write_end(&mut response.events, usage);
                Ending::Events(response.events)
            }
            Target::Body(format) => {
                let mut body = Vec::new();
                format.write_body(&mut body, choices.iter().map(|choice| &choice.generation), usage);
                Ending::Body(body)
            }
            Target::Outputs => Ending::Outputs(choices),
        };
        out.ended(response.sink, ending);
    }

    /// End the responses that these generations belong to with an error. Ids not in flight are passed over.
    pub fn fail<'a>(&mut self, rids: impl IntoIterator<Item = &'a [u8]>, why: &str, out: &mut impl Outbox<S>) {
        for rid in rids {
            if let Some(&slot) = self.places.get(rid) {
                self.fail_from(slot, why, true, out);
            }
        }
    }

    /// End a response with an error that comes from one of its generations. `engine_knows`: the engine has ended that one.
    /// What a stream has so far, a slow reader's backlog included, comes before the error.
    fn fail_from(&mut self, slot: usize, why: &str, engine_knows: bool, out: &mut impl Outbox<S>) {
        let Some(mut response) = self.choices.get(slot).and_then(|choice| self.responses.remove(choice.response))
        else {
            return;
        };
        for &choice_slot in &response.choices {
            let Some(mut choice) = self.choices.remove(choice_slot) else { continue };
            if let Target::Events(format) = &response.target {
                format.write_events(&mut response.events, choice.index, &mut choice.generation);
            }
            if !choice.in_flight {
                continue;
            }
            self.places.remove(&choice.rid);
            out.finished(&choice.rid);
            if choice_slot != slot || !engine_knows {
                self.released.remember(&choice.rid);
                out.abort(&choice.rid);
            }
        }
        if !response.events.is_empty() {
            out.events(&response.sink, &response.events);
        }
        out.ended(response.sink, Ending::Failed(why.to_owned()));
    }

    /// Forget a response; gives back its sink and the request ids that an engine is still working on.
    pub fn cancel(&mut self, key: u64) -> Option<(S, Vec<Box<[u8]>>)> {
        self.response(key)?;
        let response = self.responses.remove(slot_of(key))?;
        let mut rids = Vec::new();
        for choice in response.choices.iter().filter_map(|&choice| self.choices.remove(choice)) {
            if choice.in_flight {
                self.places.remove(&choice.rid);
                self.released.remember(&choice.rid);
                rids.push(choice.rid);
            }
        }
        Some((response.sink, rids))
    }

    /// Render no events for a response until it is resumed or ends; it goes on accumulating.
    pub fn pause(&mut self, key: u64) {
        if let Some(response) = self.response(key) {
            response.paused = true;
        }
    }

    /// End a pause; the events that gathered in it, at most two or three for each generation.
    pub fn resume(&mut self, key: u64) -> Vec<u8> {
        let Some(response) = self.responses.get_mut(slot_of(key)).filter(|response| response.key == key) else {
            return Vec::new();
        };
        response.paused = false;
        if let Target::Events(format) = &response.target {
            for &slot in &response.choices {
                if let Some(choice) = self.choices.get_mut(slot) {
                    format.write_events(&mut response.events, choice.index, &mut choice.generation);
                }
            }
        }
        std::mem::take(&mut response.events)
    }

    fn response(&mut self, key: u64) -> Option<&mut Response<S>> {
        self.responses.get_mut(slot_of(key)).filter(|response| response.key == key)
    }
}

/// That an engine failed a request, and why, where it says so.
fn failure(frame: &[u8], tick: &Tick, row: &Row) -> String {
    let failed = "the engine failed the request";
    match tick.stop_reason(row) {
        Some(StopReason::Text(why)) => {
            format!("{failed}: {}", String::from_utf8_lossy(&frame[why.start as usize..why.end as usize]))
        }
        _ => failed.to_owned(),
    }
}

/// The slot in a response's key.
fn slot_of(key: u64) -> usize {
    (key & u64::from(u32::MAX)) as usize
}

impl<S> Response<S> {
    fn usage(&self, choices: &[Choice]) -> Usage {
        let completion = |choice: &Choice| choice.generation.tokens().ids.len() as u64;
        Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: choices.iter().map(completion).sum(),
            // The choices of one prompt report the same prompt.
            cached_tokens: choices.iter().step_by(self.n).map(|choice| u64::from(choice.cached_tokens)).sum(),
        }
    }
}

/// Values in slots that are used again: an index finds one without hashing, and memory follows the most at once.
struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// The slot that the next insertion takes.
    fn vacant(&self) -> usize {
        self.free.last().copied().unwrap_or(self.slots.len())
    }

    fn insert(&mut self, value: T) -> usize {
        let slot = self.vacant();
        if self.free.pop().is_some() {
            self.slots[slot] = Some(value);
        } else {
            self.slots.push(Some(value));
        }
        slot
    }

    fn get(&self, slot: usize) -> Option<&T> {
        self.slots.get(slot)?.as_ref()
    }

    fn get_mut(&mut self, slot: usize) -> Option<&mut T> {
        self.slots.get_mut(slot)?.as_mut()
    }

    fn remove(&mut self, slot: usize) -> Option<T> {
        let value = self.slots.get_mut(slot)?.take()?;
        self.free.push(slot);
        Some(value)
    }
}

/// Request ids that engines were told to stop: rows of theirs may still arrive and are no news. The oldest are forgotten.
#[derive(Default)]
struct Released {
    recent: FxHashSet<Box<[u8]>>,
    older: FxHashSet<Box<[u8]>>,
}

impl Released {
    /// Half of what is remembered at most.
    const GENERATION: usize = 8192;

    fn remember(&mut self, rid: &[u8]) {
        if self.recent.len() >= Self::GENERATION {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(rid.into());
    }

    /// A row came for a request that is not in flight. Whether its engine must be told to stop; says so once.
    fn is_unheard_of(&mut self, rid: &[u8], engine_is_done: bool) -> bool {
        if engine_is_done {
            self.recent.remove(rid);
            self.older.remove(rid);
            return false;
        }
        if self.recent.contains(rid) || self.older.contains(rid) {
            return false;
        }
        self.remember(rid);
        true
    }
}
