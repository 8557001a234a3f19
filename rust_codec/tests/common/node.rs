//! MessagePack as a tree, read and written without the crate's own reader and writer.
#![allow(dead_code, clippy::unwrap_used, clippy::panic, reason = "shared by several test binaries")]

/// One value.
#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    Nil,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(String),
    Bin(Vec<u8>),
    Array(Vec<Node>),
    Map(Vec<(Node, Node)>),
    Ext(i8, Vec<u8>),
}

impl Node {
    pub fn str(text: &str) -> Self {
        Self::Str(text.to_owned())
    }

    pub fn ints(values: &[u32]) -> Self {
        Self::Array(values.iter().map(|value| Self::Int(i128::from(*value))).collect())
    }

    pub fn map(pairs: Vec<(&str, Self)>) -> Self {
        Self::Map(pairs.into_iter().map(|(key, value)| (Self::str(key), value)).collect())
    }

    pub fn items(&self) -> &[Self] {
        match self {
            Self::Array(items) => items,
            other => panic!("not an array: {other:?}"),
        }
    }

    pub fn int(&self) -> i128 {
        match self {
            Self::Int(value) => *value,
            other => panic!("not an integer: {other:?}"),
        }
    }

    pub fn text(&self) -> &str {
        match self {
            Self::Str(text) => text,
            other => panic!("not a string: {other:?}"),
        }
    }

    /// The same meaning in one form: whole floats as integers, pairs in the order of their keys.
    pub fn normal(&self) -> Self {
        match self {
            Self::Float(value) if value.fract() == 0.0 => Self::Int(*value as i128),
            Self::Array(items) => Self::Array(items.iter().map(Self::normal).collect()),
            Self::Map(pairs) => {
                let mut pairs: Vec<_> = pairs.iter().map(|(key, value)| (key.normal(), value.normal())).collect();
                pairs.sort_by_key(|(key, _)| format!("{key:?}"));
                Self::Map(pairs)
            }
            other => other.clone(),
        }
    }

    pub fn unpack(bytes: &[u8]) -> Self {
        let mut rest = bytes;
        let node = take(&mut rest);
        assert!(rest.is_empty(), "{} bytes more", rest.len());
        node
    }

    pub fn pack(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Nil => out.push(0xc0),
            Self::Bool(value) => out.push(0xc2 + u8::from(*value)),
            Self::Int(value @ 0..=0x7f) => out.push(*value as u8),
            Self::Int(value @ 0x80..=0xffff) => head(out, 0xcd, &(*value as u16).to_be_bytes()),
            Self::Int(value @ 0x1_0000..=0xffff_ffff) => head(out, 0xce, &(*value as u32).to_be_bytes()),
            Self::Int(value @ 0..) => head(out, 0xcf, &(*value as u64).to_be_bytes()),
            Self::Int(value) => head(out, 0xd3, &(*value as i64).to_be_bytes()),
            Self::Float(value) => head(out, 0xcb, &value.to_be_bytes()),
            Self::Str(text) => {
                match text.len() {
                    length @ 0..=31 => out.push(0xa0 | length as u8),
                    length => head(out, 0xda, &(length as u16).to_be_bytes()),
                }
                out.extend_from_slice(text.as_bytes());
            }
            Self::Bin(bytes) => {
                head(out, 0xc6, &(bytes.len() as u32).to_be_bytes());
                out.extend_from_slice(bytes);
            }
            Self::Array(items) => {
                match items.len() {
                    length @ 0..=15 => out.push(0x90 | length as u8),
                    length => head(out, 0xdc, &(length as u16).to_be_bytes()),
                }
                items.iter().for_each(|item| item.write(out));
            }
            Self::Map(pairs) => {
                match pairs.len() {
                    length @ 0..=15 => out.push(0x80 | length as u8),
                    length => head(out, 0xde, &(length as u16).to_be_bytes()),
                }
                for (key, value) in pairs {
                    key.write(out);
                    value.write(out);
                }
            }
            Self::Ext(kind, bytes) => {
                match bytes.len() {
                    4 => out.push(0xd6),
                    8 => out.push(0xd7),
                    length => head(out, 0xc8, &(length as u16).to_be_bytes()),
                }
                out.push(kind.to_be_bytes()[0]);
                out.extend_from_slice(bytes);
            }
        }
    }
}

fn head(out: &mut Vec<u8>, marker: u8, rest: &[u8]) {
    out.push(marker);
    out.extend_from_slice(rest);
}

fn split<'a>(rest: &mut &'a [u8], length: usize) -> &'a [u8] {
    let (bytes, more) = rest.split_at(length);
    *rest = more;
    bytes
}

fn unsigned(rest: &mut &[u8], width: usize) -> usize {
    split(rest, width).iter().fold(0, |value, byte| value << 8 | usize::from(*byte))
}

fn take(rest: &mut &[u8]) -> Node {
    let marker = split(rest, 1)[0];
    match marker {
        0x00..=0x7f => Node::Int(marker.into()),
        0xe0..=0xff => Node::Int(i128::from(marker) - 256),
        0xcc..=0xcf => Node::Int(unsigned(rest, 1 << (marker - 0xcc)) as i128),
        0xd0..=0xd3 => {
            let width = 1 << (marker - 0xd0);
            let bits = 8 * width;
            let value = unsigned(rest, width) as i128;
            Node::Int(if value >> (bits - 1) == 0 { value } else { value - (1 << bits) })
        }
        0xca => Node::Float(f64::from(f32::from_bits(unsigned(rest, 4) as u32))),
        0xcb => Node::Float(f64::from_bits(unsigned(rest, 8) as u64)),
        0xc0 => Node::Nil,
        0xc2 | 0xc3 => Node::Bool(marker == 0xc3),
        0xa0..=0xbf => string(rest, usize::from(marker & 0x1f)),
        0xd9..=0xdb => {
            let length = unsigned(rest, 1 << (marker - 0xd9));
            string(rest, length)
        }
        0xc4..=0xc6 => {
            let length = unsigned(rest, 1 << (marker - 0xc4));
            Node::Bin(split(rest, length).to_vec())
        }
        0x90..=0x9f => array(rest, usize::from(marker & 0xf)),
        0xdc | 0xdd => {
            let length = unsigned(rest, 2 << (marker - 0xdc));
            array(rest, length)
        }
        0x80..=0x8f => map(rest, usize::from(marker & 0xf)),
        0xde | 0xdf => {
            let length = unsigned(rest, 2 << (marker - 0xde));
            map(rest, length)
        }
        0xd4..=0xd8 => ext(rest, 1 << (marker - 0xd4)),
        0xc7..=0xc9 => {
            let length = unsigned(rest, 1 << (marker - 0xc7));
            ext(rest, length)
        }
        0xc1 => panic!("the reserved byte"),
    }
}

fn string(rest: &mut &[u8], length: usize) -> Node {
    Node::Str(String::from_utf8(split(rest, length).to_vec()).unwrap())
}

fn array(rest: &mut &[u8], length: usize) -> Node {
    Node::Array((0..length).map(|_| take(rest)).collect())
}

fn map(rest: &mut &[u8], length: usize) -> Node {
    Node::Map((0..length).map(|_| (take(rest), take(rest))).collect())
}

fn ext(rest: &mut &[u8], length: usize) -> Node {
    let kind = i8::from_be_bytes([split(rest, 1)[0]]);
    Node::Ext(kind, split(rest, length).to_vec())
}
