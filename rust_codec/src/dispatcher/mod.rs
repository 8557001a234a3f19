//! Request id -> generation. An engine's messages go in, bytes to write come out.
#![deny(unsafe_code)]

mod opening;
mod released;
mod rid;
mod slab;

use std::ops::Range;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::generation::{Finish, Generation, Reader, StopReason};
use crate::protocol::{self, FinishReason, Load, Message, Protocol, Row, Tick, Utility, Wave};
use crate::render::Usage;
pub use opening::{OpenError, Opening, Target};
use released::Released;
use rid::Rid;
use slab::Slab;

/// Where a dispatcher puts what its caller has to do. `S` is the caller's handle of a response.
pub trait Outbox<S> {
    /// Events of a stream, unframed, to be written now; more will follow.
    fn events(&mut self, sink: &mut S, events: &[u8]);
    /// A response ends.
    fn ended(&mut self, sink: S, ending: Ending);
    /// The engine must stop working on a request.
    fn abort(&mut self, rid: &[u8]);
    /// A request is in flight no more.
    fn finished(&mut self, rid: &[u8]);
    /// An engine's load.
    fn load(&mut self, load: Load);
    /// An engine's news of the waves of its data-parallel group.
    fn wave(&mut self, wave: Wave);
    /// An engine's answer to a utility call.
    fn utility(&mut self, utility: Utility);
    /// A message could not be read; no row of it was applied.
    fn refused(&mut self, error: protocol::Error);
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

/// One generation of a response.
pub struct Choice {
    rid: Rid,
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
    /// Its events in [`Dispatcher::events`], and those behind them; nothing between calls.
    first: Range<usize>,
    more: Vec<u8>,
}

/// All responses in flight of one worker.
pub struct Dispatcher<S> {
    choices: Slab<Choice>,
    responses: Slab<Response<S>>,
    /// Request id to choice, of those in flight.
    places: FxHashMap<Box<[u8]>, usize>,
    opened: u64,
    tick: Tick,
    /// Responses with events rendered in this call, and the first events of each, one behind another: memory that is
    /// written to for every response at every tick had better be the same.
    touched: Vec<u64>,
    events: Vec<u8>,
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
            events: Vec::new(),
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
    /// See [`OpenError`]. Nothing is opened then.
    pub fn open(&mut self, opening: Opening<S>) -> Result<u64, OpenError> {
        let Opening { sink, target, tokenizer, options, rids, prompts } = opening;
        if rids.is_empty() {
            return Err(OpenError::NoRid);
        }
        if !rids.len().is_multiple_of(prompts.len()) {
            return Err(OpenError::Uneven { rids: rids.len(), prompts: prompts.len() });
        }
        let mut seen = FxHashSet::default();
        if let Some(rid) = rids.iter().find(|rid| self.places.contains_key(*rid) || !seen.insert(*rid)) {
            return Err(OpenError::Duplicate(String::from_utf8_lossy(rid).into_owned()));
        }
        let slot = self.responses.vacant();
        // The slot finds the response, the count tells it from others that had the slot before.
        let key = (self.opened << 32) | slot as u64;
        self.opened += 1;
        let reader = match target {
            Target::Events(_) => Reader::Stream,
            Target::Body(_) => Reader::Whole,
            Target::Outputs => Reader::Program,
        };
        let n = rids.len() / prompts.len();
        let mut choices = Vec::with_capacity(rids.len());
        for (index, rid) in rids.into_iter().enumerate() {
            let prompt = prompts[index / n].clone();
            let generation = Generation::new(tokenizer.clone(), options.clone(), prompt, reader);
            let choice = self.choices.insert(Choice {
                rid: rid.clone().into(),
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
        let prompt_tokens = prompts.iter().map(|prompt| prompt.len() as u64).sum();
        self.responses.insert(Response {
            key,
            sink,
            target,
            choices,
            in_flight,
            prompt_tokens,
            n,
            paused: false,
            first: 0..0,
            more: Vec::new(),
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
                    self.take_tick(protocol, frame, &tick, out);
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
                let first = &self.events[std::mem::take(&mut response.first)];
                if response.more.is_empty() {
                    out.events(&mut response.sink, first);
                } else {
                    response.more.splice(..0, first.iter().copied());
                    out.events(&mut response.sink, &response.more);
                    response.more.clear();
                }
            }
        }
        self.events.clear();
        consumed
    }

    fn take_tick(&mut self, protocol: Protocol, frame: &[u8], tick: &Tick, out: &mut impl Outbox<S>) {
        let mut previous = usize::MAX;
        for row in &tick.rows {
            let rid = slice(frame, &row.id);
            if let Some(choice) = self.find(rid, previous) {
                self.apply(protocol, frame, tick, row, choice, out);
                previous = choice;
            } else if self.released.is_unheard_of(rid, row.finish.is_some()) {
                out.abort(rid);
            }
        }
        for rid in tick.finished.iter().map(|range| slice(frame, range)) {
            // Its rows would have said so.
            match self.places.get(rid) {
                Some(&choice) => self.fail_from(choice, "the engine ended the request and did not say how", true, out),
                None => self.released.forget(rid),
            }
        }
        if let Some(load) = tick.load {
            out.load(load);
        }
        if let Some(utility) = &tick.utility {
            out.utility(utility.clone());
        }
        if let Some(wave) = tick.wave() {
            out.wave(wave);
        }
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

    fn apply(
        &mut self,
        protocol: Protocol,
        frame: &[u8],
        tick: &Tick,
        row: &Row,
        slot: usize,
        out: &mut impl Outbox<S>,
    ) {
        let Some(choice) = self.choices.get_mut(slot) else { return };
        choice.cached_tokens = choice.cached_tokens.max(row.cached_tokens);
        if let Some(part) = tick.prompt_logprobs(row) {
            choice.generation.extend_prompt(part);
        }
        let finish = match row.finish {
            None => None,
            Some(FinishReason::Stop) => Some(Finish::Stop),
            Some(FinishReason::Length) => Some(Finish::Length),
            Some(FinishReason::Abort) => Some(Finish::Abort),
            Some(FinishReason::Repetition) => Some(Finish::Repetition),
            Some(FinishReason::Error) => return self.fail_from(slot, &failure(frame, tick, row), true, out),
        };
        if choice.generation.wants_candidates() {
            choice.generation.extend_candidates(tick.tops(row));
        }
        let ids = slice(&tick.token_ids, &row.tokens);
        let logprobs = slice(&tick.logprobs, &row.logprobs);
        let end = finish.map(|finish| (finish, stop_reason(frame, tick, row)));
        if let Err(missing) = choice.generation.extend(ids, logprobs, end) {
            return self.fail_from(slot, &missing.to_string(), finish.is_some(), out);
        }
        if finish == Some(Finish::Abort) && protocol.refuses_by_abort() && choice.generation.completion_tokens() == 0 {
            return self.fail_from(slot, "the engine aborted the request", true, out);
        }
        let Some(response) = self.responses.get_mut(choice.response) else { return };
        if choice.generation.finish().is_some() {
            choice.in_flight = false;
            response.in_flight -= 1;
            self.places.remove(&*choice.rid);
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
            if response.first.is_empty() {
                let start = self.events.len();
                format.write_events(&mut self.events, choice.index, &mut choice.generation);
                response.first = start..self.events.len();
                if !response.first.is_empty() {
                    self.touched.push(response.key);
                }
            } else {
                format.write_events(&mut response.more, choice.index, &mut choice.generation);
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
                let mut events = self.events[response.first].to_vec();
                events.append(&mut response.more);
                for choice in &mut choices {
                    format.write_events(&mut events, choice.index, &mut choice.generation);
                }
                format.write_end(&mut events, usage);
                Ending::Events(events)
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
        let mut events = self.events[response.first].to_vec();
        events.append(&mut response.more);
        for &choice_slot in &response.choices {
            let Some(mut choice) = self.choices.remove(choice_slot) else { continue };
            if let Target::Events(format) = &response.target {
                format.write_events(&mut events, choice.index, &mut choice.generation);
            }
            if !choice.in_flight {
                continue;
            }
            self.places.remove(&*choice.rid);
            out.finished(&choice.rid);
            if choice_slot != slot || !engine_knows {
                self.released.remember(&choice.rid);
                out.abort(&choice.rid);
            }
        }
        if !events.is_empty() {
            out.events(&mut response.sink, &events);
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
                self.places.remove(&*choice.rid);
                self.released.remember(&choice.rid);
                rids.push((*choice.rid).into());
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

    /// End a pause, with the events that gathered in it: at most two or three for each generation.
    pub fn resume(&mut self, key: u64, out: &mut impl Outbox<S>) {
        let Some(response) = self.responses.get_mut(slot_of(key)).filter(|response| response.key == key) else {
            return;
        };
        response.paused = false;
        if let Target::Events(format) = &response.target {
            for &slot in &response.choices {
                if let Some(choice) = self.choices.get_mut(slot) {
                    format.write_events(&mut self.events, choice.index, &mut choice.generation);
                }
            }
        }
        if !self.events.is_empty() {
            out.events(&mut response.sink, &self.events);
            self.events.clear();
        }
    }

    /// The caller's handle of a response in flight.
    pub fn sink_mut(&mut self, key: u64) -> Option<&mut S> {
        self.response(key).map(|response| &mut response.sink)
    }

    fn response(&mut self, key: u64) -> Option<&mut Response<S>> {
        self.responses.get_mut(slot_of(key)).filter(|response| response.key == key)
    }
}

/// A part of one of a message's columns or of its first frame; the protocol has checked that it is there.
fn slice<'a, T>(column: &'a [T], range: &Range<u32>) -> &'a [T] {
    &column[range.start as usize..range.end as usize]
}

/// Why an engine ended a generation, where it says so.
fn stop_reason<'a>(frame: &'a [u8], tick: &Tick, row: &Row) -> Option<StopReason<'a>> {
    Some(match tick.stop_reason(row)? {
        protocol::StopReason::Token(id) => StopReason::Token(*id),
        protocol::StopReason::Text(text) => {
            StopReason::Text(std::str::from_utf8(slice(frame, text)).unwrap_or_default())
        }
    })
}

/// That an engine failed a request, and why, where it says so.
fn failure(frame: &[u8], tick: &Tick, row: &Row) -> String {
    let failed = "the engine failed the request";
    match stop_reason(frame, tick, row) {
        Some(StopReason::Text(why)) => format!("{failed}: {why}"),
        _ => failed.to_owned(),
    }
}

/// The slot in a response's key.
fn slot_of(key: u64) -> usize {
    (key & u64::from(u32::MAX)) as usize
}

impl<S> Response<S> {
    fn usage(&self, choices: &[Choice]) -> Usage {
        let completion = |choice: &Choice| choice.generation.completion_tokens() as u64;
        Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: choices.iter().map(completion).sum(),
            // The choices of one prompt report the same prompt.
            cached_tokens: Some(choices.iter().step_by(self.n).map(|choice| u64::from(choice.cached_tokens)).sum()),
        }
    }
}
