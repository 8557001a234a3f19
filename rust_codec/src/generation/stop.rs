//! Stop strings: found across token borders, with text held back only while it may be part of one.

/// The stop strings of a request, prepared once for all its generations.
#[derive(Default)]
pub struct StopStrings {
    patterns: Vec<Pattern>,
}

struct Pattern {
    text: Box<str>,
    /// `fallback[i]`: length of the longest proper prefix of `text` that ends `text[..=i]`.
    fallback: Box<[u32]>,
}

impl StopStrings {
    /// Empty strings match nowhere and are left out.
    #[must_use]
    pub fn new<T: AsRef<str>>(strings: &[T]) -> Self {
        let patterns = strings.iter().map(AsRef::as_ref).filter(|text| !text.is_empty()).map(Pattern::new).collect();
        Self { patterns }
    }

    /// Whether there is nothing to match.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// The text of a stop string, by the index in [`Match`].
    #[must_use]
    pub fn text(&self, index: usize) -> &str {
        &self.patterns[index].text
    }
}

impl Pattern {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes();
        let mut fallback = vec![0u32; bytes.len()].into_boxed_slice();
        let mut matched = 0usize;
        for i in 1..bytes.len() {
            while matched > 0 && bytes[matched] != bytes[i] {
                matched = fallback[matched - 1] as usize;
            }
            matched += usize::from(bytes[matched] == bytes[i]);
            fallback[i] = matched as u32;
        }
        Self { text: text.into(), fallback }
    }

    /// The length matched after `byte`, given the length before it.
    fn step(&self, mut matched: usize, byte: u8) -> usize {
        let bytes = self.text.as_bytes();
        if matched == bytes.len() {
            matched = self.fallback[matched - 1] as usize;
        }
        while matched > 0 && bytes[matched] != byte {
            matched = self.fallback[matched - 1] as usize;
        }
        matched + usize::from(bytes[matched] == byte)
    }
}

/// A stop string that occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// Which stop string.
    pub index: usize,
    /// Where it ends in the text just fed, in bytes.
    pub end: usize,
    /// Its length in bytes; it may have begun in text fed before.
    pub len: usize,
}

/// How far each stop string has matched at the end of one generation's text.
#[derive(Default)]
pub struct StopMatcher {
    matched: Box<[usize]>,
}

impl StopMatcher {
    /// The beginning of a text.
    #[must_use]
    pub fn new(strings: &StopStrings) -> Self {
        Self { matched: vec![0; strings.patterns.len()].into_boxed_slice() }
    }

    /// Continue with `text`. The match that ends first wins, of those that end together the first in the request. A match is passed over
    /// unless `may_match`; one that ends later may still begin in this text.
    pub fn feed(&mut self, strings: &StopStrings, text: &str, may_match: bool) -> Option<Match> {
        if self.matched.is_empty() {
            return None;
        }
        for (at, &byte) in text.as_bytes().iter().enumerate() {
            let mut found: Option<Match> = None;
            for (index, (pattern, matched)) in strings.patterns.iter().zip(&mut self.matched).enumerate() {
                *matched = pattern.step(*matched, byte);
                let len = pattern.text.len();
                if *matched == len && may_match && found.is_none() {
                    found = Some(Match { index, end: at + 1, len });
                }
            }
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Bytes at the end of the text that may be the beginning of a stop string.
    #[must_use]
    pub fn held_back(&self, strings: &StopStrings) -> usize {
        let proper = |(pattern, &matched): (&Pattern, &usize)| {
            let len = pattern.text.len();
            // A whole match that was passed over holds back only what may begin another.
            if matched == len { pattern.fallback[len - 1] as usize } else { matched }
        };
        strings.patterns.iter().zip(&self.matched).map(proper).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feed piece by piece; gives what is safe to show after each piece, and the match.
    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, Option<(String, String)>) {
        let strings = StopStrings::new(stops);
        let mut matcher = StopMatcher::new(&strings);
        let (mut text, mut shown, mut steps) = (String::new(), 0, Vec::new());
        for piece in pieces {
            let before = text.len();
            text.push_str(piece);
            if let Some(found) = matcher.feed(&strings, piece, true) {
                text.truncate(before + found.end - found.len);
                return (steps, Some((text, strings.text(found.index).to_owned())));
            }
            let safe = text.len() - matcher.held_back(&strings);
            steps.push(text[shown..safe].to_owned());
            shown = safe;
        }
        (steps, None)
    }

    #[test]
    fn a_match_across_pieces_ends_the_text_before_it() {
        let (steps, found) = run(&["STOP"], &["ab S", "TO", "P cd"]);
        assert_eq!(steps, ["ab ", ""]);
        assert_eq!(found, Some(("ab ".into(), "STOP".into())));
    }

    #[test]
    fn what_turns_out_not_to_be_a_stop_string_is_released() {
        let (steps, found) = run(&["STOP"], &["ST", "AR", "T"]);
        assert_eq!(steps, ["", "STAR", "T"]);
        assert_eq!(found, None);
    }

    #[test]
    fn repeated_beginnings_are_not_lost() {
        let (_, found) = run(&["aab"], &["a", "a", "a", "b"]);
        assert_eq!(found, Some(("a".into(), "aab".into())));
    }

    #[test]
    fn the_first_to_end_wins_and_the_first_asked_for_of_those() {
        assert_eq!(run(&["b", "cd"], &["abcd"]).1, Some(("a".into(), "b".into())));
        assert_eq!(run(&["b", "ab"], &["xab"]).1, Some(("xa".into(), "b".into())));
        assert_eq!(run(&["ab", "b"], &["xab"]).1, Some(("x".into(), "ab".into())));
    }

    #[test]
    fn characters_of_several_bytes_are_held_back_whole() {
        let (steps, found) = run(&["é!", "日本"], &["aé", "日", "x"]);
        assert_eq!(steps, ["a", "é", "日x"]);
        assert_eq!(found, None);
    }

    #[test]
    fn a_match_that_may_not_count_is_passed_over() {
        let strings = StopStrings::new(&["aa"]);
        let mut matcher = StopMatcher::new(&strings);
        assert_eq!(matcher.feed(&strings, "aa", false), None);
        assert_eq!(matcher.held_back(&strings), 1);
        assert_eq!(matcher.feed(&strings, "a", true), Some(Match { index: 0, end: 1, len: 2 }));
    }
}
