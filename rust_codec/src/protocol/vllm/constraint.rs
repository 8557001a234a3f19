//! Constraints on the text.

use crate::msgpack::{Error, Reader, Writer};
use std::borrow::Cow;

/// What the text must be. The engine takes one at a time.
#[derive(Debug, Clone, PartialEq)]
pub enum Constraint<'a> {
    /// JSON that a schema, itself JSON, accepts.
    Json(Cow<'a, str>),
    /// A text that a regular expression matches.
    Regex(Cow<'a, str>),
    /// One of these texts.
    Choice(Vec<Cow<'a, str>>),
    /// A text of a grammar.
    Grammar(Cow<'a, str>),
    /// A JSON object of any schema.
    JsonObject,
    /// A structural tag, as JSON.
    StructuralTag(Cow<'a, str>),
}

/// A constraint and how it is enforced.
#[derive(Debug, Clone, PartialEq)]
pub struct StructuredOutputs<'a> {
    /// The constraint.
    pub constraint: Constraint<'a>,
    /// Who enforces it, such as `guidance` or `xgrammar`. An engine that is not told may fail the request.
    pub backend: Option<Cow<'a, str>>,
    /// Leave no choice of white space in JSON.
    pub disable_any_whitespace: bool,
    /// Allow no property in JSON that its schema does not name.
    pub disable_additional_properties: bool,
    /// A regular expression for the white space in JSON.
    pub whitespace_pattern: Option<Cow<'a, str>>,
}

impl<'a> StructuredOutputs<'a> {
    /// A constraint that this backend enforces in its own way.
    pub fn new(constraint: Constraint<'a>, backend: Option<Cow<'a, str>>) -> Self {
        Self {
            constraint,
            backend,
            disable_any_whitespace: false,
            disable_additional_properties: false,
            whitespace_pattern: None,
        }
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        let constraint = &self.constraint;
        let text = |writer: &mut Writer, key: &str, value: Option<&Cow<'_, str>>| {
            writer.str(key);
            writer.optional(value.map(AsRef::as_ref), Writer::str);
        };
        writer.map(11);
        text(writer, "json", if let Constraint::Json(schema) = constraint { Some(schema) } else { None });
        text(writer, "regex", if let Constraint::Regex(regex) = constraint { Some(regex) } else { None });
        writer.str("choice");
        writer.optional(
            if let Constraint::Choice(texts) = constraint { Some(texts) } else { None },
            |writer, texts| {
                writer.strs(texts);
            },
        );
        text(writer, "grammar", if let Constraint::Grammar(grammar) = constraint { Some(grammar) } else { None });
        writer.str("json_object");
        writer.optional((*constraint == Constraint::JsonObject).then_some(true), Writer::bool);
        writer.str("disable_any_whitespace");
        writer.bool(self.disable_any_whitespace);
        writer.str("disable_additional_properties");
        writer.bool(self.disable_additional_properties);
        text(writer, "whitespace_pattern", self.whitespace_pattern.as_ref());
        text(writer, "structural_tag", if let Constraint::StructuralTag(tag) = constraint { Some(tag) } else { None });
        text(writer, "_backend", self.backend.as_ref());
        writer.str("_backend_was_auto");
        writer.bool(false);
    }

    pub(super) fn decode(reader: &mut Reader<'a>) -> Result<Self, Error> {
        let offset = reader.position();
        let mut constraints = Vec::new();
        let mut outputs = Self::new(Constraint::JsonObject, None);
        for _ in 0..reader.map()? {
            let key = reader.str()?;
            if reader.take_nil() {
                continue;
            }
            reader.field(key, |reader| {
                match key {
                    "json" => constraints.push(Constraint::Json(reader.str()?.into())),
                    "regex" => constraints.push(Constraint::Regex(reader.str()?.into())),
                    "choice" => constraints.push(Constraint::Choice(decode_texts(reader)?)),
                    "grammar" => constraints.push(Constraint::Grammar(reader.str()?.into())),
                    "json_object" if reader.bool()? => constraints.push(Constraint::JsonObject),
                    "structural_tag" => constraints.push(Constraint::StructuralTag(reader.str()?.into())),
                    "json_object" => {}
                    "disable_any_whitespace" => outputs.disable_any_whitespace = reader.bool()?,
                    "disable_additional_properties" => outputs.disable_additional_properties = reader.bool()?,
                    "whitespace_pattern" => outputs.whitespace_pattern = Some(reader.str()?.into()),
                    "_backend" => outputs.backend = Some(reader.str()?.into()),
                    _ => reader.skip(1)?,
                }
                Ok(())
            })?;
        }
        let seen = constraints.len();
        match constraints.pop() {
            Some(constraint) if seen == 1 => Ok(Self { constraint, ..outputs }),
            _ => Err(Error::new(offset, "one constraint", seen.to_string())),
        }
    }
}

fn decode_texts<'a>(reader: &mut Reader<'a>) -> Result<Vec<Cow<'a, str>>, Error> {
    let mut texts = Vec::new();
    for index in 0..reader.array()? {
        texts.push(reader.str().map_err(|error| error.in_element(index))?.into());
    }
    Ok(texts)
}
