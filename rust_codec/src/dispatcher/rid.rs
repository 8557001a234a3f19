//! Request ids, kept where they are compared.

use std::ops::Deref;

/// Bytes of an id that are kept in place: those of a chat or a completion fit.
const SHORT: usize = 46;

/// A request id. It is looked at for every row of every tick: one more place in memory for each would be felt.
pub enum Rid {
    Short { len: u8, bytes: [u8; SHORT] },
    Long(Box<[u8]>),
}

impl From<Box<[u8]>> for Rid {
    fn from(id: Box<[u8]>) -> Self {
        if id.len() > SHORT {
            return Self::Long(id);
        }
        let mut bytes = [0; SHORT];
        bytes[..id.len()].copy_from_slice(&id);
        Self::Short { len: id.len() as u8, bytes }
    }
}

impl Deref for Rid {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Short { len, bytes } => &bytes[..usize::from(*len)],
            Self::Long(id) => id,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_any_length_come_back() {
        for length in [0, 1, SHORT - 1, SHORT, SHORT + 1, 300] {
            let id: Box<[u8]> = (0..length).map(|i| i as u8).collect();
            assert_eq!(*Rid::from(id.clone()), *id);
        }
    }
}
