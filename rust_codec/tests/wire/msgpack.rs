use _codec::msgpack::{Error, MAX_DEPTH, Reader, Writer};
use proptest::prelude::*;

fn written(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::default();
    write(&mut writer);
    writer.into_bytes()
}

fn read<'a, T>(frame: &'a [u8], read: impl FnOnce(&mut Reader<'a>) -> Result<T, Error>) -> Result<T, String> {
    let mut reader = Reader::new(frame);
    let value = read(&mut reader).map_err(|error| error.to_string())?;
    reader.finish().map_err(|error| error.to_string())?;
    Ok(value)
}

fn skip(frame: &[u8]) -> Result<(), String> {
    read(frame, |reader| reader.skip(1))
}

#[test]
fn integers_take_the_shortest_form() {
    for (value, bytes) in [
        (0, &[0x00][..]),
        (127, &[0x7f]),
        (128, &[0xcc, 0x80]),
        (255, &[0xcc, 0xff]),
        (256, &[0xcd, 1, 0]),
        (65_535, &[0xcd, 0xff, 0xff]),
        (65_536, &[0xce, 0, 1, 0, 0]),
        (4_294_967_295, &[0xce, 0xff, 0xff, 0xff, 0xff]),
        (4_294_967_296, &[0xcf, 0, 0, 0, 1, 0, 0, 0, 0]),
        (i64::MAX, &[0xcf, 0x7f, 255, 255, 255, 255, 255, 255, 255]),
        (-1, &[0xff]),
        (-32, &[0xe0]),
        (-33, &[0xd0, 0xdf]),
        (-128, &[0xd0, 0x80]),
        (-129, &[0xd1, 0xff, 0x7f]),
        (-32_768, &[0xd1, 0x80, 0]),
        (-32_769, &[0xd2, 0xff, 0xff, 0x7f, 0xff]),
        (-2_147_483_648, &[0xd2, 0x80, 0, 0, 0]),
        (-2_147_483_649, &[0xd3, 255, 255, 255, 255, 0x7f, 255, 255, 255]),
        (i64::MIN, &[0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0]),
    ] {
        assert_eq!(written(|writer| writer.int(value)), bytes, "{value}");
        assert_eq!(read(bytes, Reader::i64), Ok(value));
        assert_eq!(skip(bytes), Ok(()));
        assert_eq!(read(bytes, Reader::u64).ok(), u64::try_from(value).ok());
        assert_eq!(read(bytes, Reader::u32).ok(), u32::try_from(value).ok());
    }
    let max = written(|writer| writer.uint(u64::MAX));
    assert_eq!(read(&max, Reader::u64), Ok(u64::MAX));
    assert_eq!(
        read(&max, Reader::i64).unwrap_err(),
        "expected an integer in -2^63..2^63, seen 18446744073709551615 (at byte 0)"
    );
}

#[test]
fn integers_are_read_from_any_width() {
    for bytes in [
        &[0x07][..],
        &[0xcc, 7],
        &[0xcd, 0, 7],
        &[0xce, 0, 0, 0, 7],
        &[0xcf, 0, 0, 0, 0, 0, 0, 0, 7],
        &[0xd0, 7],
        &[0xd1, 0, 7],
        &[0xd2, 0, 0, 0, 7],
        &[0xd3, 0, 0, 0, 0, 0, 0, 0, 7],
    ] {
        assert_eq!(read(bytes, Reader::u32), Ok(7));
        assert_eq!(read(bytes, Reader::u64), Ok(7));
        assert_eq!(read(bytes, Reader::i64), Ok(7));
        assert_eq!(read(bytes, Reader::f64), Ok(7.0));
    }
}

#[test]
fn floats_are_read_from_both_widths_and_from_integers() {
    assert_eq!(read(&[0xca, 0xbf, 0x40, 0, 0], Reader::f64), Ok(-0.75));
    assert_eq!(read(&[0xff], Reader::f64), Ok(-1.0));
    assert_eq!(read(&[0xc3], Reader::f64).unwrap_err(), "expected a number, seen a boolean (at byte 0)");
}

#[test]
fn heads_change_form_at_their_bounds() {
    for (length, array, map, text, bin) in [
        (0, 1, 1, 1, 2),
        (15, 1, 1, 1, 2),
        (16, 3, 3, 1, 2),
        (31, 3, 3, 1, 2),
        (32, 3, 3, 2, 2),
        (255, 3, 3, 2, 2),
        (256, 3, 3, 3, 3),
        (65_535, 3, 3, 3, 3),
        (65_536, 5, 5, 5, 5),
    ] {
        let nils = vec![0xc0; 2 * length];
        let mut frame = written(|writer| writer.array(length));
        assert_eq!(frame.len(), array);
        frame.extend_from_slice(&nils[length..]);
        assert_eq!(
            read(&frame, |reader| {
                let n = reader.array()?;
                reader.skip(n)?;
                Ok(n)
            }),
            Ok(length)
        );
        assert_eq!(skip(&frame), Ok(()));

        let mut frame = written(|writer| writer.map(length));
        assert_eq!(frame.len(), map);
        frame.extend_from_slice(&nils);
        assert_eq!(
            read(&frame, |reader| {
                let n = reader.map()?;
                reader.skip(2 * n)?;
                Ok(n)
            }),
            Ok(length)
        );
        assert_eq!(skip(&frame), Ok(()));

        let value = "x".repeat(length);
        let frame = written(|writer| writer.str(&value));
        assert_eq!(frame.len(), text + length);
        assert_eq!(read(&frame, Reader::str), Ok(value.as_str()));
        assert_eq!(read(&frame, Reader::str_range), Ok(text..text + length));
        assert_eq!(skip(&frame), Ok(()));

        let frame = written(|writer| writer.bin(value.as_bytes()));
        assert_eq!(frame.len(), bin + length);
        assert_eq!(read(&frame, Reader::bin), Ok(value.as_bytes()));
        assert_eq!(skip(&frame), Ok(()));
    }
}

#[test]
fn extension_values_of_every_form() {
    for (frame, kind, length) in [
        (&[0xd4, 3, 1][..], 3, 1),
        (&[0xd5, 3, 1, 2], 3, 2),
        (&[0xd6, 0xff, 1, 2, 3, 4], -1, 4),
        (&[0xd7, 3, 1, 2, 3, 4, 5, 6, 7, 8], 3, 8),
        (&[0xd8, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16], 3, 16),
        (&[0xc7, 3, 5, 1, 2, 3], 5, 3),
        (&[0xc8, 0, 3, 5, 1, 2, 3], 5, 3),
        (&[0xc9, 0, 0, 0, 3, 5, 1, 2, 3], 5, 3),
    ] {
        let data = &frame[frame.len() - length..];
        assert_eq!(read(frame, Reader::ext), Ok((kind, data)));
        assert_eq!(skip(frame), Ok(()));
        for end in 0..frame.len() {
            assert!(read(&frame[..end], Reader::ext).is_err());
            assert!(skip(&frame[..end]).is_err());
        }
    }
}

#[test]
fn lengths_beyond_the_message_are_refused() {
    assert_eq!(
        read(&[0xdd, 0xff, 0xff, 0xff, 0xff, 0xc0], Reader::array).unwrap_err(),
        "expected an array of 4294967295 elements, seen only 1 more bytes (at byte 0)"
    );
    assert_eq!(
        read(&[0xdf, 0, 0, 0, 1, 0xc0], Reader::map).unwrap_err(),
        "expected a map of 1 pairs, seen only 1 more bytes (at byte 0)"
    );
    assert_eq!(
        read(&[0xdb, 0xff, 0xff, 0xff, 0xff, b'x'], Reader::str).unwrap_err(),
        "expected a string of 4294967295 bytes, seen only 1 more bytes (at byte 0)"
    );
    assert_eq!(
        read(&[0xc6, 0, 0, 1, 0], Reader::bin).unwrap_err(),
        "expected raw bytes of 256 bytes, seen only 0 more bytes (at byte 0)"
    );
}

#[test]
fn truncated_heads_are_the_end_of_the_message() {
    for marker in (0xc4..=0xdf).filter(|marker| !(0xca..=0xcb).contains(marker)) {
        assert!(skip(&[marker]).is_err(), "{marker:x}");
        assert_eq!(
            read(&[marker], Reader::bool).unwrap_err(),
            "expected a boolean, seen the end of the message (at byte 0)",
            "{marker:x}"
        );
    }
    assert_eq!(
        read(&[], Reader::u32).unwrap_err(),
        "expected an integer in 0..2^32, seen the end of the message (at byte 0)"
    );
    for frame in [&[0xcb, 0, 0][..], &[0xca, 0, 0, 0], &[0xce, 0, 0, 0], &[0xcd, 0], &[0xd3, 0]] {
        assert!(read(frame, Reader::f64).is_err());
        assert!(read(frame, Reader::u32).is_err());
    }
}

#[test]
fn strings_must_be_utf8_where_they_are_read() {
    for frame in [&[0xa2, 0xc3, 0x28][..], &[0xa1, 0xff], &[0xa3, 0xed, 0xa0, 0x80]] {
        let refusal = "expected a string, seen bytes that are not UTF-8 (at byte 0)";
        assert_eq!(read(frame, Reader::str).unwrap_err(), refusal);
        assert_eq!(read(frame, Reader::str_range).unwrap_err(), refusal);
        assert_eq!(skip(frame), Ok(()));
    }
    let frame = written(|writer| writer.str("é→😀"));
    assert_eq!(read(&frame, Reader::str_range), Ok(1..frame.len()));
}

#[test]
fn nesting_is_bounded_where_values_are_skipped() {
    let nested = |depth| {
        let mut frame = vec![0x91; depth];
        frame.push(0xc0);
        frame
    };
    assert_eq!(skip(&nested(MAX_DEPTH)), Ok(()));
    assert_eq!(
        skip(&nested(MAX_DEPTH + 1)).unwrap_err(),
        "expected at most 32 levels of nesting, seen more (at byte 32)"
    );
    assert!(skip(&nested(1_000_000)).is_err());
}

#[test]
fn what_follows_a_message_is_refused() {
    assert_eq!(
        read(&[0x01, 0x02, 0x03], Reader::u32).unwrap_err(),
        "expected the end of the message, seen 2 more bytes (at byte 1)"
    );
}

#[test]
fn the_reserved_byte_is_no_value() {
    assert_eq!(skip(&[0xc1]).unwrap_err(), "expected a value, seen the reserved byte c1 (at byte 0)");
}

#[test]
fn an_error_names_the_field_from_the_outside_in() {
    let error =
        Error::new(9, "a number", "nil").in_element(2).in_field("top_p").in_field("sampling_params").in_element(0);
    assert_eq!(error.path(), "[0].sampling_params.top_p[2]");
    assert_eq!(error.offset(), 9);
    assert_eq!(error.to_string(), "[0].sampling_params.top_p[2]: expected a number, seen nil (at byte 9)");
}

proptest! {
    #[test]
    fn values_come_back(int: i64, uint: u64, float: f64, text: String, flag: bool, bytes: Vec<u8>, ids: Vec<u32>) {
        let frame = written(|writer| {
            writer.int(int);
            writer.uint(uint);
            writer.f64(float);
            writer.str(&text);
            writer.bool(flag);
            writer.bin(&bytes);
            writer.u32s(&ids);
            writer.optional(None, Writer::int);
            writer.optional(Some(int), Writer::int);
        });
        let mut reader = Reader::new(&frame);
        prop_assert_eq!(reader.i64().unwrap(), int);
        prop_assert_eq!(reader.u64().unwrap(), uint);
        prop_assert_eq!(reader.f64().unwrap().to_bits(), float.to_bits());
        prop_assert_eq!(reader.str().unwrap(), text);
        prop_assert_eq!(reader.bool().unwrap(), flag);
        prop_assert_eq!(reader.bin().unwrap(), bytes);
        let mut column = vec![5];
        prop_assert_eq!(reader.append_u32s(&mut column).unwrap(), ids.len());
        prop_assert_eq!(&column[1..], ids);
        prop_assert_eq!(reader.optional(Reader::i64).unwrap(), None);
        prop_assert_eq!(reader.optional(Reader::i64).unwrap(), Some(int));
        reader.finish().unwrap();
        let mut skipped = Reader::new(&frame);
        skipped.skip(9).unwrap();
        skipped.finish().unwrap();
    }
}
