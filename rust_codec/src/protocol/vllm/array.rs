//! Numeric arrays: `[dtype, shape, data]`, the data in the message itself or in one of its auxiliary frames.

use crate::msgpack::{Error, Reader};

/// The extension type of raw bytes.
const RAW: i8 = 3;

/// How the bytes of an element are read. All are little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Signed,
    Unsigned,
    Float,
    /// The upper half of a float of 32 bits.
    Brain,
}

#[derive(Debug, Clone, Copy)]
struct Dtype {
    kind: Kind,
    /// Bytes of an element.
    width: usize,
}

impl Dtype {
    /// Reads numpy's short names with or without a mark of byte order, and torch's long ones.
    fn parse(name: &[u8]) -> Option<Self> {
        let name = match name {
            [b'<' | b'=' | b'|', rest @ ..] => rest,
            _ => name,
        };
        let (kind, width) = match name {
            b"i1" | b"int8" => (Kind::Signed, 1),
            b"i2" | b"int16" => (Kind::Signed, 2),
            b"i4" | b"int32" => (Kind::Signed, 4),
            b"i8" | b"int64" => (Kind::Signed, 8),
            b"u1" | b"uint8" => (Kind::Unsigned, 1),
            b"u2" | b"uint16" => (Kind::Unsigned, 2),
            b"u4" | b"uint32" => (Kind::Unsigned, 4),
            b"u8" | b"uint64" => (Kind::Unsigned, 8),
            b"f2" | b"float16" => (Kind::Float, 2),
            b"f4" | b"float32" => (Kind::Float, 4),
            b"f8" | b"float64" => (Kind::Float, 8),
            b"bfloat16" => (Kind::Brain, 2),
            _ => return None,
        };
        Some(Self { kind, width })
    }
}

/// The auxiliary frames of a message, from which arrays may take as many bytes as there are: none is meant to serve
/// twice, so a small message cannot stand for a large one.
pub struct Frames<'a> {
    frames: &'a [&'a [u8]],
    left: usize,
}

impl<'a> Frames<'a> {
    /// All frames of a message; the first is the one that refers to the others.
    pub fn new(frames: &'a [&'a [u8]]) -> Self {
        Self { frames, left: frames.iter().skip(1).map(|frame| frame.len()).sum() }
    }

    fn take(&mut self, offset: usize, index: usize) -> Result<&'a [u8], Error> {
        let Some(bytes) = self.frames.get(index).filter(|_| index != 0) else {
            let expected = format!("the index of an auxiliary frame, of which there are {}", self.frames.len() - 1);
            return Err(Error::new(offset, expected, index.to_string()));
        };
        let Some(left) = self.left.checked_sub(bytes.len()) else {
            return Err(Error::new(offset, "an auxiliary frame of its own", "one that was taken before"));
        };
        self.left = left;
        Ok(bytes)
    }
}

/// An array of one or two dimensions, its elements unread.
#[derive(Debug, Clone, Copy)]
pub struct Array<'a> {
    bytes: &'a [u8],
    dtype: Dtype,
    rows: usize,
    /// `None`: it has one dimension.
    columns: Option<usize>,
    offset: usize,
}

impl<'a> Array<'a> {
    /// Reads an array as far as its data.
    ///
    /// # Errors
    /// Not an array, or its data are not as many as the shape says.
    pub fn decode(reader: &mut Reader<'a>, frames: &mut Frames<'a>) -> Result<Self, Error> {
        let offset = reader.position();
        let length = reader.array()?;
        if length != 3 {
            return Err(Error::new(offset, "a dtype, a shape and data", format!("{length} elements")));
        }
        let dtype = reader.field("dtype", decode_dtype)?;
        let (rows, columns) = reader.field("shape", decode_shape)?;
        let bytes = reader.field("data", |reader| decode_data(reader, frames))?;
        let elements = columns.map_or(Some(rows), |columns| rows.checked_mul(columns));
        if elements.and_then(|elements| elements.checked_mul(dtype.width)) != Some(bytes.len()) {
            let shape = columns.map_or_else(|| format!("{rows}"), |columns| format!("{rows} by {columns}"));
            let expected = format!("data of {shape} elements of {} bytes", dtype.width);
            return Err(Error::new(offset, expected, format!("{} bytes", bytes.len())));
        }
        Ok(Self { bytes, dtype, rows, columns, offset })
    }

    /// Rows, or elements where there is one dimension.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of a matrix that has at least one.
    ///
    /// # Errors
    /// It is none.
    pub fn width(&self) -> Result<usize, Error> {
        match self.columns {
            Some(columns @ 1..) => Ok(columns),
            Some(_) => Err(Error::new(self.offset, "columns", "none")),
            None => Err(Error::new(self.offset, "two dimensions", "one")),
        }
    }

    /// Checks that the shape is this one; no columns for one dimension.
    ///
    /// # Errors
    /// It is another.
    pub fn expect(&self, rows: usize, columns: Option<usize>) -> Result<(), Error> {
        if (self.rows, self.columns) == (rows, columns) {
            return Ok(());
        }
        let shape = |rows, columns| match columns {
            None => format!("shape ({rows})"),
            Some(columns) => format!("shape ({rows}, {columns})"),
        };
        Err(Error::new(self.offset, shape(rows, columns), shape(self.rows, self.columns)))
    }

    /// Appends `count` integers, every `step`th of the array from its first on.
    ///
    /// # Errors
    /// It holds no integers, or one outside of 0..2^32.
    #[inline]
    pub fn append_u32s(&self, step: usize, count: usize, out: &mut Vec<u32>) -> Result<(), Error> {
        let read = Strided { bytes: self.bytes, step, count };
        let taken = match (self.dtype.kind, self.dtype.width) {
            (Kind::Signed, 4) => read.append(out, |bytes| u32::try_from(i32::from_le_bytes(bytes)).ok()),
            (Kind::Signed, 8) => read.append(out, |bytes| u32::try_from(i64::from_le_bytes(bytes)).ok()),
            (Kind::Signed, 1) => read.append(out, |bytes| u32::try_from(i8::from_le_bytes(bytes)).ok()),
            (Kind::Signed, 2) => read.append(out, |bytes| u32::try_from(i16::from_le_bytes(bytes)).ok()),
            (Kind::Unsigned, 1) => read.append(out, |bytes| Some(u32::from(u8::from_le_bytes(bytes)))),
            (Kind::Unsigned, 2) => read.append(out, |bytes| Some(u32::from(u16::from_le_bytes(bytes)))),
            (Kind::Unsigned, 4) => read.append(out, |bytes| Some(u32::from_le_bytes(bytes))),
            (Kind::Unsigned, 8) => read.append(out, |bytes| u32::try_from(u64::from_le_bytes(bytes)).ok()),
            _ => return Err(Error::new(self.offset, "integers", "floats").in_field("dtype")),
        };
        if taken == count {
            return Ok(());
        }
        Err(Error::new(self.offset, "integers in 0..2^32", "another").in_element(taken * step))
    }

    /// Appends `count` numbers, every `step`th of the array from its first on. Widening is exact.
    ///
    /// # Errors
    /// It holds no floats.
    #[inline]
    pub fn append_f64s(&self, step: usize, count: usize, out: &mut Vec<f64>) -> Result<(), Error> {
        let read = Strided { bytes: self.bytes, step, count };
        match (self.dtype.kind, self.dtype.width) {
            (Kind::Float, 4) => read.append(out, |bytes| Some(f64::from(f32::from_le_bytes(bytes)))),
            (Kind::Float, 8) => read.append(out, |bytes| Some(f64::from_le_bytes(bytes))),
            (Kind::Float, 2) => read.append(out, |bytes| Some(half(u16::from_le_bytes(bytes)))),
            (Kind::Brain, 2) => read.append(out, |bytes| {
                let upper = u32::from(u16::from_le_bytes(bytes));
                Some(f64::from(f32::from_bits(upper << 16)))
            }),
            _ => return Err(Error::new(self.offset, "floats", "integers").in_field("dtype")),
        };
        Ok(())
    }
}

fn decode_dtype(reader: &mut Reader<'_>) -> Result<Dtype, Error> {
    let offset = reader.position();
    let name = reader.str_bytes()?;
    Dtype::parse(name).ok_or_else(|| {
        let expected = "integers or floats, little-endian";
        Error::new(offset, expected, format!("{:?}", String::from_utf8_lossy(&name[..name.len().min(32)])))
    })
}

fn decode_shape(reader: &mut Reader<'_>) -> Result<(usize, Option<usize>), Error> {
    let offset = reader.position();
    match reader.array()? {
        1 => Ok((reader.u32()? as usize, None)),
        2 => Ok((reader.u32()? as usize, Some(reader.u32()? as usize))),
        length => Err(Error::new(offset, "one or two dimensions", length.to_string())),
    }
}

fn decode_data<'a>(reader: &mut Reader<'a>, frames: &mut Frames<'a>) -> Result<&'a [u8], Error> {
    let offset = reader.position();
    if !reader.at_ext() {
        let index = reader.u32()?;
        return frames.take(offset, index as usize);
    }
    match reader.ext()? {
        (RAW, bytes) => Ok(bytes),
        (kind, _) => Err(Error::new(offset, format!("an extension value of type {RAW}"), format!("type {kind}"))),
    }
}

/// Elements at equal distances.
struct Strided<'a> {
    bytes: &'a [u8],
    step: usize,
    count: usize,
}

impl Strided<'_> {
    /// Appends the elements up to the first that does not convert; how many those were.
    #[inline]
    fn append<const N: usize, T>(&self, out: &mut Vec<T>, convert: impl Fn([u8; N]) -> Option<T>) -> usize {
        let before = out.len();
        let (elements, _) = self.bytes.as_chunks();
        let chosen = elements.iter().step_by(self.step).take(self.count);
        out.extend(chosen.map_while(|bytes| convert(*bytes)));
        out.len() - before
    }
}

/// A float of 16 bits: 1 of sign, 5 of exponent, 10 of mantissa.
fn half(bits: u16) -> f64 {
    let exponent = i32::from(bits >> 10 & 0x1f);
    let mantissa = f64::from(bits & 0x3ff);
    let magnitude = match exponent {
        0 => mantissa * 2f64.powi(-24),
        0x1f if mantissa == 0.0 => f64::INFINITY,
        0x1f => f64::NAN,
        _ => (1024.0 + mantissa) * 2f64.powi(exponent - 25),
    };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}
