//! A text's words: what the pre-tokenizer splits it into, and no token reaches beyond.

use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::util::primitives::StateID;
use regex_automata::{Anchored, MatchKind};
use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{self, Ast, Visitor};
use tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::tokenizer::SplitDelimiterBehavior;

/// GPT-2's pattern, which is that of `ByteLevel` itself.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// How nearly all patterns end: white space, less its last character where a word follows. Engines without look-ahead do not
/// know it, and need not: see [`Pattern`].
const WHITE_SPACE: &str = r"|\s+(?!\S)|\s+";

/// Splits text into words, in steps that each split the words of the one before.
pub struct Splitter {
    steps: Vec<Step>,
}

enum Step {
    Pattern(Box<Pattern>),
    Digits { individual: bool },
}

impl Splitter {
    /// `None` where it does anything but splitting, other than the spelling of bytes by `ByteLevel` at its end.
    pub fn new(pre_tokenizer: &PreTokenizerWrapper) -> Option<Self> {
        let whole = std::slice::from_ref(pre_tokenizer);
        let steps = if let PreTokenizerWrapper::Sequence(sequence) = pre_tokenizer { sequence.as_ref() } else { whole };
        let (PreTokenizerWrapper::ByteLevel(ByteLevel { add_prefix_space: false, use_regex, .. }), steps) =
            steps.split_last()?
        else {
            return None;
        };
        let mut steps = steps.iter().map(Step::new).collect::<Option<Vec<_>>>()?;
        if *use_regex {
            steps.push(Step::Pattern(Box::new(Pattern::new(GPT2)?)));
        }
        Some(Self { steps })
    }

    /// The words of a text, in order.
    pub fn split<'t>(&self, text: &'t str, mut on_word: impl FnMut(&'t str)) {
        split_by(&self.steps, text, &mut on_word);
    }
}

fn split_by<'t>(steps: &[Step], text: &'t str, on_word: &mut dyn FnMut(&'t str)) {
    match steps {
        [] => on_word(text),
        [Step::Pattern(last)] => last.split(text, on_word),
        [Step::Pattern(pattern), rest @ ..] => pattern.split(text, |word| split_by(rest, word, on_word)),
        [Step::Digits { individual }, rest @ ..] => {
            split_digits(text, *individual, |word| split_by(rest, word, on_word));
        }
    }
}

impl Step {
    fn new(pre_tokenizer: &PreTokenizerWrapper) -> Option<Self> {
        match pre_tokenizer {
            PreTokenizerWrapper::Digits(digits) => Some(Self::Digits { individual: digits.individual_digits }),
            PreTokenizerWrapper::Split(split) => match &split.pattern {
                SplitPattern::Regex(regex) if split.behavior == SplitDelimiterBehavior::Isolated && !split.invert => {
                    Pattern::new(regex).map(|pattern| Self::Pattern(Box::new(pattern)))
                }
                _ => None,
            },
            _ => None,
        }
    }
}

/// Numeric characters apart from all others, in runs or each by itself.
fn split_digits<'t>(text: &'t str, individual: bool, mut on_word: impl FnMut(&'t str)) {
    let mut start = 0;
    let mut numeric = false;
    for (at, c) in text.char_indices() {
        let was = std::mem::replace(&mut numeric, c.is_numeric());
        if at > start && (was != numeric || (numeric && individual)) {
            on_word(&text[start..at]);
            start = at;
        }
    }
    if start < text.len() {
        on_word(&text[start..]);
    }
}

/// A regular expression whose matches, and the text between them, are the words.
///
/// It runs as an automaton, which knows no look-ahead. Where the expression ends in [`WHITE_SPACE`], that is left off, and
/// `\s+` stands in for it: of what this matches, the last character is given back if more text follows, which can only be a
/// word, and if that leaves anything.
struct Pattern {
    automaton: dense::DFA<Vec<u32>>,
    start: StateID,
}

/// The automaton's second pattern: white space that no other part of the expression takes.
const SPACE: usize = 1;

impl Pattern {
    /// `None` for an expression that means something else here than to `tokenizers`, or cannot be run.
    fn new(regex: &str) -> Option<Self> {
        let (words, space) = match regex.strip_suffix(WHITE_SPACE) {
            Some(words) => (words, Some(r"\s+")),
            None => (regex, None),
        };
        if !is_plain(words) {
            return None;
        }
        let patterns: Vec<&str> = std::iter::once(words).chain(space).collect();
        let automaton = dense::Builder::new()
            .configure(
                dense::Config::new()
                    .match_kind(MatchKind::LeftmostFirst)
                    .start_kind(StartKind::Anchored)
                    .accelerate(false)
                    .dfa_size_limit(Some(16 << 20))
                    .determinize_size_limit(Some(64 << 20)),
            )
            .build_many(&patterns)
            .ok()?;
        let start = automaton.universal_start_state(Anchored::Yes)?;
        Some(Self { automaton, start })
    }

    fn split<'t>(&self, text: &'t str, mut on_word: impl FnMut(&'t str)) {
        let mut start = 0;
        let mut at = 0;
        while at < text.len() {
            let Some(end) = self.match_at(text, at) else {
                at += text[at..].chars().next().map_or(1, char::len_utf8);
                continue;
            };
            if start < at {
                on_word(&text[start..at]);
            }
            on_word(&text[at..end]);
            (start, at) = (end, end);
        }
        if start < text.len() {
            on_word(&text[start..]);
        }
    }

    /// End of the match that begins here.
    fn match_at(&self, text: &str, at: usize) -> Option<usize> {
        let bytes = text.as_bytes();
        let mut state = self.start;
        let mut found = None;
        // The automaton tells of a match when it has seen the byte behind it.
        for (end, &byte) in bytes.iter().enumerate().skip(at) {
            state = self.automaton.next_state(state, byte);
            if self.automaton.is_special_state(state) {
                if !self.automaton.is_match_state(state) {
                    break;
                }
                found = Some((end, self.automaton.match_pattern(state, 0).as_usize()));
            }
        }
        // Nothing comes after a dead end.
        state = self.automaton.next_eoi_state(state);
        if self.automaton.is_match_state(state) {
            found = Some((text.len(), self.automaton.match_pattern(state, 0).as_usize()));
        }
        let (end, pattern) = found?;
        if pattern == SPACE && end < text.len() {
            let last = text[at..end].chars().next_back().map_or(0, char::len_utf8);
            if at < end - last {
                return Some(end - last);
            }
        }
        Some(end)
    }
}

/// Whether an expression reads the same here and in `tokenizers`' engine, and what it matches does not depend on what is around.
fn is_plain(regex: &str) -> bool {
    let Ok(read) = Parser::new().parse(regex) else { return false };
    ast::visit(&read, Plain).is_ok()
        && regex_syntax::parse(regex).is_ok_and(|parsed| {
            let properties = parsed.properties();
            properties.look_set().is_empty() && properties.minimum_len().is_some_and(|len| len > 0)
        })
}

/// Fails where the two engines differ.
struct Plain;

impl Visitor for Plain {
    type Output = ();
    type Err = ();

    fn finish(self) -> Result<(), ()> {
        Ok(())
    }

    fn visit_pre(&mut self, part: &Ast) -> Result<(), ()> {
        match part {
            // For all that follows, the white space at the end too.
            Ast::Flags(_) => Err(()),
            // `x*+`, which there means that nothing is given back.
            Ast::Repetition(outer) if matches!(*outer.ast, Ast::Repetition(_)) => Err(()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::LazyLock;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    /// Patterns of models in use, all but GPT-2's, which `ByteLevel` has itself.
    const PATTERNS: [&str; 6] = [
        // cl100k, Llama 3, Qwen 2 and 3, GLM 4
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        // o200k, gpt-oss
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        // Tekken, Mistral's
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        // DeepSeek V3, the last of its three, and the second, which leaves most of a text unmatched
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
        "[一-龥぀-ゟ゠-ヿ]+",
    ];

    fn split(pattern: &str) -> serde_json::Value {
        serde_json::json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
    }

    fn byte_level(use_regex: bool) -> serde_json::Value {
        serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
    }

    fn pre_tokenizer(steps: &[serde_json::Value]) -> PreTokenizerWrapper {
        serde_json::from_value(serde_json::json!({"type": "Sequence", "pretokenizers": steps})).unwrap()
    }

    static ALL: LazyLock<Vec<(Splitter, PreTokenizerWrapper)>> =
        LazyLock::new(|| all().into_iter().map(|each| (Splitter::new(&each).unwrap(), each)).collect());

    fn all() -> Vec<PreTokenizerWrapper> {
        let digits = |individual| serde_json::json!({"type": "Digits", "individual_digits": individual});
        let mut all: Vec<_> =
            PATTERNS.iter().map(|pattern| pre_tokenizer(&[split(pattern), byte_level(false)])).collect();
        all.push(pre_tokenizer(&[byte_level(true)]));
        all.push(pre_tokenizer(&[digits(true), byte_level(true)]));
        all.push(pre_tokenizer(&[digits(false), byte_level(true)]));
        all.push(pre_tokenizer(&[split(r"\p{N}{1,3}"), split(PATTERNS[5]), split(PATTERNS[4]), byte_level(false)]));
        all.push(serde_json::from_value(byte_level(true)).unwrap());
        all
    }

    fn words<'t>(splitter: &Splitter, text: &'t str) -> Vec<&'t str> {
        let mut words = Vec::new();
        splitter.split(text, |word| words.push(word));
        words
    }

    fn words_of_tokenizers<'t>(pre_tokenizer: &PreTokenizerWrapper, text: &'t str) -> Vec<&'t str> {
        let mut split = PreTokenizedString::from(text);
        pre_tokenizer.pre_tokenize(&mut split).unwrap();
        let splits = split.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|(_, (start, end), _)| &text[start..end]).collect()
    }

    fn check(texts: impl Iterator<Item = String>) {
        for text in texts {
            for (ours, theirs) in ALL.iter() {
                assert_eq!(words(ours, &text), words_of_tokenizers(theirs, &text), "{theirs:?}");
            }
        }
    }

    #[test]
    fn characters_are_of_the_same_classes() {
        let characters = (0..0x3000).chain((0x3000..=0x0010_FFFF).step_by(97)).filter_map(char::from_u32);
        check(characters.map(|c| format!("a{c}B1{c} {c}\n{c}'s{c}")));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn a_text_is_split_as_tokenizers_does(
            text in "([ \t\r\n\u{a0}\u{3000}\u{85}]{0,3}(\\PC{0,4}|[a-zA-Zé]{1,6}|[0-9²¾]{1,5}|'(s|S|ll|LL|ſ|Ve|x)|[一-龥ぁ-ん]{1,3}|[!-/:-@]{1,4}|.))*"
        ) {
            check(std::iter::once(text));
        }
    }

    #[test]
    fn what_would_read_differently_is_left_alone() {
        for pattern in
            [r"\p{L}++|\s+", r"a|\s+(?=b)", r"(?i)a|\s+(?!\S)|\s+", r"^a|b", r"a*|b", r"\bx+", r"(?>a)b", r"(a)\1", "("]
        {
            assert!(Pattern::new(pattern).is_none(), "{pattern}");
        }
        let with = |pre_tokenizer: serde_json::Value| Splitter::new(&serde_json::from_value(pre_tokenizer).unwrap());
        assert!(with(serde_json::json!({"type": "Whitespace"})).is_none());
        assert!(
            with(serde_json::json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true})).is_none()
        );
        assert!(Splitter::new(&pre_tokenizer(&[split("a")])).is_none());
        assert!(Splitter::new(&pre_tokenizer(&[byte_level(true), byte_level(false)])).is_none());
    }
}
