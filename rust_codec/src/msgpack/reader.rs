use super::Error;
use std::ops::Range;

/// How deep values may nest where they are skipped unread.
pub const MAX_DEPTH: usize = 32;

const END: &str = "the end of the message";

/// Reads values from the front of a frame.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
    length: usize,
}

impl<'a> Reader<'a> {
    /// A reader at the first byte of `frame`.
    pub fn new(frame: &'a [u8]) -> Self {
        Self { rest: frame, length: frame.len() }
    }

    /// Bytes read so far.
    #[inline]
    pub fn position(&self) -> usize {
        self.length - self.rest.len()
    }

    /// Checks that nothing follows.
    ///
    /// # Errors
    /// Bytes are left.
    pub fn finish(&self) -> Result<(), Error> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(Error::new(self.position(), END, format!("{left} more bytes"))),
        }
    }

    /// Whether the next value is a string. Reads nothing.
    pub fn at_str(&self) -> bool {
        matches!(self.rest.first(), Some(0xa0..=0xbf | 0xd9..=0xdb))
    }

    /// Whether the next value is an extension value. Reads nothing.
    pub fn at_ext(&self) -> bool {
        matches!(self.rest.first(), Some(0xc7..=0xc9 | 0xd4..=0xd8))
    }

    /// Reads nil if it is next.
    #[inline]
    pub fn take_nil(&mut self) -> bool {
        if let [0xc0, rest @ ..] = self.rest {
            self.rest = rest;
            return true;
        }
        false
    }

    /// Nil as `None`, anything else with `read`.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn optional<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<Option<T>, Error> {
        if self.take_nil() {
            return Ok(None);
        }
        read(self).map(Some)
    }

    /// A boolean.
    ///
    /// # Errors
    /// Something else is next.
    pub fn bool(&mut self) -> Result<bool, Error> {
        let [marker @ (0xc2 | 0xc3), rest @ ..] = self.rest else {
            return Err(self.unexpected("a boolean"));
        };
        self.rest = rest;
        Ok(*marker == 0xc3)
    }

    /// An integer of any width whose value is in 0..2^32.
    ///
    /// # Errors
    /// Something else is next.
    #[inline(always)]
    pub fn u32(&mut self) -> Result<u32, Error> {
        match *self.rest {
            [value @ 0..=0x7f, ref rest @ ..] => {
                self.rest = rest;
                Ok(u32::from(value))
            }
            [0xcc, value, ref rest @ ..] => {
                self.rest = rest;
                Ok(u32::from(value))
            }
            [0xcd, a, b, ref rest @ ..] => {
                self.rest = rest;
                Ok(u32::from(u16::from_be_bytes([a, b])))
            }
            [0xce, a, b, c, d, ref rest @ ..] => {
                self.rest = rest;
                Ok(u32::from_be_bytes([a, b, c, d]))
            }
            _ => self.narrowed("an integer in 0..2^32"),
        }
    }

    /// An integer of any width whose value is in 0..2^64.
    ///
    /// # Errors
    /// Something else is next.
    pub fn u64(&mut self) -> Result<u64, Error> {
        self.narrowed("an integer in 0..2^64")
    }

    /// An integer of any width whose value is in -2^63..2^63.
    ///
    /// # Errors
    /// Something else is next.
    pub fn i64(&mut self) -> Result<i64, Error> {
        self.narrowed("an integer in -2^63..2^63")
    }

    /// A number: a float of either width, or an integer, which some encoders write for a whole float.
    ///
    /// # Errors
    /// Something else is next.
    #[inline(always)]
    pub fn f64(&mut self) -> Result<f64, Error> {
        if let [0xcb, rest @ ..] = self.rest
            && let Some((bytes, rest)) = rest.split_first_chunk()
        {
            self.rest = rest;
            return Ok(f64::from_be_bytes(*bytes));
        }
        self.other_number()
    }

    /// A string.
    ///
    /// # Errors
    /// Something else is next, or it is not UTF-8.
    pub fn str(&mut self) -> Result<&'a str, Error> {
        let offset = self.position();
        let bytes = self.str_bytes()?;
        std::str::from_utf8(bytes).map_err(|_| not_utf8(offset))
    }

    /// Where the next value, a string, lies in the frame. Cheaper than [`Self::str`] where the text itself is not wanted.
    ///
    /// # Errors
    /// Something else is next, or it is not UTF-8.
    #[inline(always)]
    pub fn str_range(&mut self) -> Result<Range<usize>, Error> {
        let offset = self.position();
        let bytes = self.str_bytes()?;
        if !bytes.is_ascii() && std::str::from_utf8(bytes).is_err() {
            return Err(not_utf8(offset));
        }
        let end = self.position();
        Ok(end - bytes.len()..end)
    }

    /// A string as its bytes, which are not checked to be UTF-8. For comparing with what is known.
    ///
    /// # Errors
    /// Something else is next.
    #[inline(always)]
    pub fn str_bytes(&mut self) -> Result<&'a [u8], Error> {
        let (length, rest) = match *self.rest {
            [marker @ 0xa0..=0xbf, ref rest @ ..] => (usize::from(marker & 0x1f), rest),
            [0xd9, a, ref rest @ ..] => (usize::from(a), rest),
            [0xda, a, b, ref rest @ ..] => (wide16([a, b]), rest),
            [0xdb, a, b, c, d, ref rest @ ..] => (wide32([a, b, c, d]), rest),
            _ => return Err(self.unexpected("a string")),
        };
        let (bytes, rest) = self.split(rest, length, "a string")?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Raw bytes.
    ///
    /// # Errors
    /// Something else is next.
    pub fn bin(&mut self) -> Result<&'a [u8], Error> {
        let (length, rest) = match *self.rest {
            [0xc4, a, ref rest @ ..] => (usize::from(a), rest),
            [0xc5, a, b, ref rest @ ..] => (wide16([a, b]), rest),
            [0xc6, a, b, c, d, ref rest @ ..] => (wide32([a, b, c, d]), rest),
            _ => return Err(self.unexpected("raw bytes")),
        };
        let (bytes, rest) = self.split(rest, length, "raw bytes")?;
        self.rest = rest;
        Ok(bytes)
    }

    /// An extension value: its type and its bytes.
    ///
    /// # Errors
    /// Something else is next.
    pub fn ext(&mut self) -> Result<(i8, &'a [u8]), Error> {
        let (length, kind, rest) = match *self.rest {
            [marker @ 0xd4..=0xd8, kind, ref rest @ ..] => (1 << (marker - 0xd4), kind, rest),
            [0xc7, a, kind, ref rest @ ..] => (usize::from(a), kind, rest),
            [0xc8, a, b, kind, ref rest @ ..] => (wide16([a, b]), kind, rest),
            [0xc9, a, b, c, d, kind, ref rest @ ..] => (wide32([a, b, c, d]), kind, rest),
            _ => return Err(self.unexpected("an extension value")),
        };
        let (bytes, rest) = self.split(rest, length, "an extension value")?;
        self.rest = rest;
        Ok((i8::from_be_bytes([kind]), bytes))
    }

    /// The head of an array: how many elements follow. Never more than there are bytes left.
    ///
    /// # Errors
    /// Something else is next, or the message is too short for so many.
    #[inline(always)]
    pub fn array(&mut self) -> Result<usize, Error> {
        let (length, rest) = match *self.rest {
            [marker @ 0x90..=0x9f, ref rest @ ..] => (usize::from(marker & 0xf), rest),
            [0xdc, a, b, ref rest @ ..] => (wide16([a, b]), rest),
            [0xdd, a, b, c, d, ref rest @ ..] => (wide32([a, b, c, d]), rest),
            _ => return Err(self.unexpected("an array")),
        };
        if length > rest.len() {
            return Err(self.too_short("an array", length, "elements", rest.len()));
        }
        self.rest = rest;
        Ok(length)
    }

    /// The head of a map: how many pairs follow. Never more than the bytes left could hold.
    ///
    /// # Errors
    /// Something else is next, or the message is too short for so many.
    pub fn map(&mut self) -> Result<usize, Error> {
        let (length, rest) = match *self.rest {
            [marker @ 0x80..=0x8f, ref rest @ ..] => (usize::from(marker & 0xf), rest),
            [0xde, a, b, ref rest @ ..] => (wide16([a, b]), rest),
            [0xdf, a, b, c, d, ref rest @ ..] => (wide32([a, b, c, d]), rest),
            _ => return Err(self.unexpected("a map")),
        };
        if length > rest.len() / 2 {
            return Err(self.too_short("a map", length, "pairs", rest.len()));
        }
        self.rest = rest;
        Ok(length)
    }

    /// An array of integers in 0..2^32, appended to `column`. Returns how many.
    ///
    /// # Errors
    /// Something else is next.
    #[inline(always)]
    pub fn append_u32s(&mut self, column: &mut Vec<u32>) -> Result<usize, Error> {
        let length = self.array()?;
        for index in 0..length {
            let value = self.u32().map_err(|error| error.in_element(index))?;
            column.push(value);
        }
        Ok(length)
    }

    /// An array of numbers, appended to `column`. Returns how many.
    ///
    /// # Errors
    /// Something else is next.
    #[inline(always)]
    pub fn append_f64s(&mut self, column: &mut Vec<f64>) -> Result<usize, Error> {
        let length = self.array()?;
        for index in 0..length {
            let value = self.f64().map_err(|error| error.in_element(index))?;
            column.push(value);
        }
        Ok(length)
    }

    /// Whatever `read` reads; an error in it names the field.
    ///
    /// # Errors
    /// Those of `read`.
    #[inline]
    pub fn field<T>(&mut self, name: &str, read: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        read(self).map_err(|error| error.in_field(name))
    }

    /// Reads so many values of any kind and drops them.
    ///
    /// # Errors
    /// A value is malformed, or nests deeper than [`MAX_DEPTH`].
    pub fn skip(&mut self, count: usize) -> Result<(), Error> {
        for _ in 0..count {
            self.skip_within(MAX_DEPTH)?;
        }
        Ok(())
    }

    fn skip_within(&mut self, depth: usize) -> Result<(), Error> {
        let offset = self.position();
        let elements = match self.rest.first() {
            Some(0x90..=0x9f | 0xdc | 0xdd) => self.array()?,
            Some(0x80..=0x8f | 0xde | 0xdf) => 2 * self.map()?,
            _ => return self.skip_scalar(),
        };
        let Some(depth) = depth.checked_sub(1) else {
            return Err(Error::new(offset, format!("at most {MAX_DEPTH} levels of nesting"), "more"));
        };
        for _ in 0..elements {
            self.skip_within(depth)?;
        }
        Ok(())
    }

    fn skip_scalar(&mut self) -> Result<(), Error> {
        match self.rest.first() {
            Some(0xc0) => self.rest = &self.rest[1..],
            Some(0xc2 | 0xc3) => drop(self.bool()?),
            Some(0xca | 0xcb) => drop(self.f64()?),
            Some(0x00..=0x7f | 0xcc..=0xd3 | 0xe0..=0xff) => {
                self.narrowed::<i128>("an integer")?;
            }
            // Nobody reads a skipped string: it need not be UTF-8.
            Some(0xa0..=0xbf | 0xd9..=0xdb) => drop(self.str_bytes()?),
            Some(0xc4..=0xc6) => drop(self.bin()?),
            Some(0xc7..=0xc9 | 0xd4..=0xd8) => drop(self.ext()?),
            _ => return Err(self.unexpected("a value")),
        }
        Ok(())
    }

    /// An integer by the marker that is next, where it is one.
    fn integer(&mut self) -> Option<i128> {
        let (value, rest) = match *self.rest {
            [value @ 0..=0x7f, ref rest @ ..] => (i128::from(value), rest),
            [value @ 0xe0..=0xff, ref rest @ ..] => (i128::from(i8::from_be_bytes([value])), rest),
            [marker @ 0xcc..=0xd3, ref rest @ ..] => {
                let (bytes, rest) = rest.split_at_checked(1 << ((marker - 0xcc) & 3))?;
                let signed = marker >= 0xd0 && bytes[0] >= 0x80;
                let start = if signed { -1 } else { 0 };
                let value = bytes.iter().fold(start, |value: i128, byte| value << 8 | i128::from(*byte));
                (value, rest)
            }
            _ => return None,
        };
        self.rest = rest;
        Some(value)
    }

    #[inline(never)]
    fn narrowed<T: TryFrom<i128>>(&mut self, expected: &'static str) -> Result<T, Error> {
        let offset = self.position();
        let Some(value) = self.integer() else {
            return Err(self.unexpected(expected));
        };
        T::try_from(value).map_err(|_| Error::new(offset, expected, value.to_string()))
    }

    #[inline(never)]
    fn other_number(&mut self) -> Result<f64, Error> {
        if let [0xca, a, b, c, d, ref rest @ ..] = *self.rest {
            self.rest = rest;
            return Ok(f64::from(f32::from_be_bytes([a, b, c, d])));
        }
        match self.integer() {
            Some(value) => Ok(value as f64),
            None => Err(self.unexpected("a number")),
        }
    }

    #[inline]
    fn split(&self, rest: &'a [u8], length: usize, what: &str) -> Result<(&'a [u8], &'a [u8]), Error> {
        rest.split_at_checked(length).ok_or_else(|| self.too_short(what, length, "bytes", rest.len()))
    }

    #[cold]
    #[inline(never)]
    fn too_short(&self, what: &str, length: usize, unit: &str, left: usize) -> Error {
        Error::new(self.position(), format!("{what} of {length} {unit}"), format!("only {left} more bytes"))
    }

    #[cold]
    #[inline(never)]
    fn unexpected(&self, expected: &'static str) -> Error {
        Error::new(self.position(), expected, self.next_kind())
    }

    /// What is next, in words.
    fn next_kind(&self) -> &'static str {
        let Some((marker, rest)) = self.rest.split_first() else {
            return END;
        };
        let (kind, head) = match marker {
            0x00..=0x7f | 0xe0..=0xff => ("an integer", 0),
            0xcc..=0xd3 => ("an integer", 1 << ((marker - 0xcc) & 3)),
            0xca => ("a float", 4),
            0xcb => ("a float", 8),
            0xc0 => ("nil", 0),
            0xc1 => ("the reserved byte c1", 0),
            0xc2 | 0xc3 => ("a boolean", 0),
            0xa0..=0xbf => ("a string", 0),
            0xd9..=0xdb => ("a string", 1 << (marker - 0xd9)),
            0xc4..=0xc6 => ("raw bytes", 1 << (marker - 0xc4)),
            0x90..=0x9f => ("an array", 0),
            0xdc | 0xdd => ("an array", 2 << (marker - 0xdc)),
            0x80..=0x8f => ("a map", 0),
            0xde | 0xdf => ("a map", 2 << (marker - 0xde)),
            0xc7..=0xc9 => ("an extension value", 1 + (1 << (marker - 0xc7))),
            0xd4..=0xd8 => ("an extension value", 1),
        };
        if rest.len() < head { END } else { kind }
    }
}

#[inline]
fn wide16(bytes: [u8; 2]) -> usize {
    usize::from(u16::from_be_bytes(bytes))
}

#[inline]
fn wide32(bytes: [u8; 4]) -> usize {
    u32::from_be_bytes(bytes) as usize
}

#[cold]
#[inline(never)]
fn not_utf8(offset: usize) -> Error {
    Error::new(offset, "a string", "bytes that are not UTF-8")
}
