/// Appends values to a buffer, each in its shortest form; floats always as 64 bits.
///
/// MessagePack counts in 32 bits. What is longer (over 4 GiB of text, over 2^32 elements) cannot be said in it; its
/// declared length is then 2^32 - 1 and the reader refuses the message.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// A writer with room for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { bytes: Vec::with_capacity(capacity) }
    }

    /// What was written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Nil.
    pub fn nil(&mut self) {
        self.bytes.push(0xc0);
    }

    /// A boolean.
    pub fn bool(&mut self, value: bool) {
        self.bytes.push(if value { 0xc3 } else { 0xc2 });
    }

    /// An integer that is not negative.
    pub fn uint(&mut self, value: u64) {
        match value {
            0..=0x7f => self.bytes.push(value as u8),
            0x80..=0xff => self.head(0xcc, [value as u8]),
            0x100..=0xffff => self.head(0xcd, (value as u16).to_be_bytes()),
            0x1_0000..=0xffff_ffff => self.head(0xce, (value as u32).to_be_bytes()),
            _ => self.head(0xcf, value.to_be_bytes()),
        }
    }

    /// An integer.
    pub fn int(&mut self, value: i64) {
        match value {
            0.. => self.uint(value as u64),
            -0x20..0 => self.bytes.push(value as u8),
            -0x80..-0x20 => self.head(0xd0, (value as i8).to_be_bytes()),
            -0x8000..-0x80 => self.head(0xd1, (value as i16).to_be_bytes()),
            -0x8000_0000..-0x8000 => self.head(0xd2, (value as i32).to_be_bytes()),
            _ => self.head(0xd3, value.to_be_bytes()),
        }
    }

    /// A float.
    pub fn f64(&mut self, value: f64) {
        self.head(0xcb, value.to_be_bytes());
    }

    /// A string.
    pub fn str(&mut self, text: &str) {
        match counted(text.len()) {
            length @ 0..=0x1f => self.bytes.push(0xa0 | length as u8),
            length @ 0x20..=0xff => self.head(0xd9, [length as u8]),
            length @ 0x100..=0xffff => self.head(0xda, (length as u16).to_be_bytes()),
            length => self.head(0xdb, length.to_be_bytes()),
        }
        self.bytes.extend_from_slice(text.as_bytes());
    }

    /// Raw bytes.
    pub fn bin(&mut self, bytes: &[u8]) {
        match counted(bytes.len()) {
            length @ 0..=0xff => self.head(0xc4, [length as u8]),
            length @ 0x100..=0xffff => self.head(0xc5, (length as u16).to_be_bytes()),
            length => self.head(0xc6, length.to_be_bytes()),
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The head of an array; its elements follow.
    pub fn array(&mut self, length: usize) {
        match counted(length) {
            length @ 0..=0xf => self.bytes.push(0x90 | length as u8),
            length @ 0x10..=0xffff => self.head(0xdc, (length as u16).to_be_bytes()),
            length => self.head(0xdd, length.to_be_bytes()),
        }
    }

    /// The head of a map; its keys and values follow, by turns.
    pub fn map(&mut self, length: usize) {
        match counted(length) {
            length @ 0..=0xf => self.bytes.push(0x80 | length as u8),
            length @ 0x10..=0xffff => self.head(0xde, (length as u16).to_be_bytes()),
            length => self.head(0xdf, length.to_be_bytes()),
        }
    }

    /// Values that another writer wrote.
    pub fn append(&mut self, other: &Self) {
        self.bytes.extend_from_slice(&other.bytes);
    }

    /// The value as `write` writes it, or nil.
    pub fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            Some(value) => write(self, value),
            None => self.nil(),
        }
    }

    /// An array of integers.
    pub fn u32s(&mut self, values: &[u32]) {
        self.array(values.len());
        for value in values {
            self.uint(u64::from(*value));
        }
    }

    /// An array of strings.
    pub fn strs<S: AsRef<str>>(&mut self, texts: &[S]) {
        self.array(texts.len());
        for text in texts {
            self.str(text.as_ref());
        }
    }

    #[inline]
    fn head<const N: usize>(&mut self, marker: u8, rest: [u8; N]) {
        self.bytes.push(marker);
        self.bytes.extend_from_slice(&rest);
    }
}

fn counted(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
