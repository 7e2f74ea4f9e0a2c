//! Configuration from JSON, with errors that name the field.
//!
//! A small parser of its own: `serde_json` with its derive makes a guest two to three times as large, which is why
//! `typed` is behind the feature `serde`. The host has validated the configuration against the policy's schema already; this is the guest's own second look.
//! Accepts exactly RFC 8259, nested at most [`DEPTH_MAX`] deep, each key of an object once.

use crate::Error;

/// How deep arrays and objects may nest.
pub const DEPTH_MAX: usize = 32;

/// A JSON value. Objects keep the order of their keys.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A finite number.
    Number(f64),
    /// A text.
    Text(String),
    /// An array.
    Array(Vec<Value>),
    /// An object.
    Object(Vec<(String, Value)>),
}

impl Value {
    /// Parses a whole text.
    ///
    /// Errors with [`Error::InvalidConfig`], which names the byte where the text stops being JSON.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut parser = Parser { text, at: 0 };
        let value = parser.value(0)?;
        parser.space();
        if parser.at < text.len() {
            return Err(parser.error("text after the end of the value"));
        }
        Ok(value)
    }
}

/// The fields of one configuration object, taken one by one.
///
/// Call a getter for each field that exists, then [`finish`](Self::finish), which refuses what is left.
#[derive(Debug)]
pub struct Fields(Vec<(String, Value)>);

impl Fields {
    /// Parses a configuration.
    ///
    /// Errors with [`Error::InvalidConfig`] if it is not one JSON object.
    pub fn parse(text: &str) -> Result<Self, Error> {
        match Value::parse(text)? {
            Value::Object(fields) => Ok(Self(fields)),
            _ => Err(Error::InvalidConfig("the configuration must be a JSON object".into())),
        }
    }

    /// Takes a field as it is, if it is there.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        let at = self.0.iter().position(|(key, _)| key == name)?;
        Some(self.0.swap_remove(at).1)
    }

    /// Takes a number in `range`, or `default` if the field is absent.
    pub fn number(
        &mut self,
        name: &str,
        range: impl std::ops::RangeBounds<f64>,
        default: f64,
    ) -> Result<f64, Error> {
        match self.take(name) {
            None => Ok(default),
            Some(Value::Number(number)) if range.contains(&number) => Ok(number),
            Some(Value::Number(_)) => Err(invalid(name, "is out of range, see the configuration's schema")),
            Some(_) => Err(invalid(name, "must be a number")),
        }
    }

    /// Takes a whole number in `range`, or `default` if the field is absent.
    pub fn integer(
        &mut self,
        name: &str,
        range: std::ops::RangeInclusive<u32>,
        default: u32,
    ) -> Result<u32, Error> {
        let number =
            self.number(name, f64::from(*range.start())..=f64::from(*range.end()), f64::from(default))?;
        if number.fract() == 0.0 { Ok(number as u32) } else { Err(invalid(name, "must be a whole number")) }
    }

    /// Takes one of a few words, or `default` if the field is absent.
    pub fn choice<T: Copy>(&mut self, name: &str, words: &[(&str, T)], default: T) -> Result<T, Error> {
        match self.take(name) {
            None => Ok(default),
            Some(Value::Text(text)) => match words.iter().find(|(word, _)| *word == text) {
                Some((_, choice)) => Ok(*choice),
                None => {
                    let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
                    Err(invalid(name, &["must be one of: ", &words.join(", ")].concat()))
                }
            },
            Some(_) => Err(invalid(name, "must be a text")),
        }
    }

    /// Refuses fields that nobody took.
    pub fn finish(self) -> Result<(), Error> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => Err(invalid(name, "is not a field of this configuration")),
        }
    }
}

/// Reads a configuration into a type of the policy's own.
///
/// Errors with [`Error::InvalidConfig`], in serde's words.
///
/// ```
/// #[derive(serde::Deserialize)]
/// #[serde(default, deny_unknown_fields, rename_all = "camelCase")]
/// struct Config {
///     far_cost: f64,
/// }
///
/// impl Default for Config {
///     fn default() -> Self {
///         Self { far_cost: 10.0 }
///     }
/// }
///
/// let config: Config = fulcrum_guest::config::typed(r#"{"farCost": 5}"#).unwrap();
/// assert_eq!(config.far_cost, 5.0);
/// ```
#[cfg(feature = "serde")]
pub fn typed<T: serde::de::DeserializeOwned>(config: &str) -> Result<T, Error> {
    serde_json::from_str(config).map_err(|error| Error::InvalidConfig(error.to_string()))
}

/// Makes [`Error::InvalidConfig`] for a field.
#[must_use]
pub fn invalid(field: &str, problem: &str) -> Error {
    Error::InvalidConfig([field, " ", problem].concat())
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn error(&self, problem: &str) -> Error {
        Error::InvalidConfig(["not JSON at byte ", &self.at.to_string(), ": ", problem].concat())
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    /// Steps over `byte` and the space before it, if it is there.
    fn eat(&mut self, byte: u8) -> bool {
        self.space();
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn value(&mut self, depth: usize) -> Result<Value, Error> {
        self.space();
        if DEPTH_MAX < depth {
            return Err(self.error("nested too deep"));
        }
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => Ok(Value::Text(self.string()?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => {
                for (word, value) in
                    [("null", Value::Null), ("true", Value::Bool(true)), ("false", Value::Bool(false))]
                {
                    if self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
                        self.at += word.len();
                        return Ok(value);
                    }
                }
                Err(self.error("a value was expected"))
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, Error> {
        self.at += 1;
        let mut fields: Vec<(String, Value)> = Vec::new();
        if self.eat(b'}') {
            return Ok(Value::Object(fields));
        }
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return Err(self.error("a key in double quotes was expected"));
            }
            let key = self.string()?;
            if fields.iter().any(|(other, _)| *other == key) {
                return Err(invalid(&key, "is there twice"));
            }
            if !self.eat(b':') {
                return Err(self.error("a colon was expected"));
            }
            fields.push((key, self.value(depth + 1)?));
            if self.eat(b'}') {
                return Ok(Value::Object(fields));
            }
            if !self.eat(b',') {
                return Err(self.error("a comma or a closing brace was expected"));
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, Error> {
        self.at += 1;
        let mut items = Vec::new();
        if self.eat(b']') {
            return Ok(Value::Array(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            if self.eat(b']') {
                return Ok(Value::Array(items));
            }
            if !self.eat(b',') {
                return Err(self.error("a comma or a closing bracket was expected"));
            }
        }
    }

    fn digits(&mut self) -> Result<(), Error> {
        if !matches!(self.peek(), Some(b'0'..=b'9')) {
            return Err(self.error("a digit was expected"));
        }
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<Value, Error> {
        let start = self.at;
        self.at += usize::from(self.peek() == Some(b'-'));
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            self.at += usize::from(matches!(self.peek(), Some(b'+' | b'-')));
            self.digits()?;
        }
        match self.text[start..self.at].parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Value::Number(number)),
            _ => Err(self.error("the number is too large")),
        }
    }

    fn string(&mut self) -> Result<String, Error> {
        self.at += 1;
        let mut text = String::new();
        loop {
            let start = self.at;
            while !matches!(self.peek(), None | Some(b'"' | b'\\' | 0..0x20)) {
                self.at += 1;
            }
            // Stops at ASCII bytes only, so both ends are character boundaries.
            text.push_str(&self.text[start..self.at]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(text);
                }
                Some(b'\\') => {
                    self.at += 1;
                    text.push(self.escape()?);
                }
                _ => return Err(self.error("the text has no end, or holds a control character")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Error> {
        let kind = self.peek();
        self.at += 1;
        Ok(match kind {
            Some(same @ (b'"' | b'\\' | b'/')) => char::from(same),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let mut code = self.hex()?;
                if (0xD800..0xDC00).contains(&code) && self.text.as_bytes()[self.at..].starts_with(b"\\u") {
                    self.at += 2;
                    let low = self.hex()?;
                    if !(0xDC00..0xE000).contains(&low) {
                        return Err(self.error("half a surrogate pair"));
                    }
                    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
                }
                char::from_u32(code).ok_or_else(|| self.error("half a surrogate pair"))?
            }
            _ => {
                self.at -= 1;
                return Err(self.error("an unknown escape"));
            }
        })
    }

    fn hex(&mut self) -> Result<u32, Error> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            code = code * 16 + digit.ok_or_else(|| self.error("four hexadecimal digits were expected"))?;
            self.at += 1;
        }
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn from_serde(value: &serde_json::Value) -> Value {
        match value {
            serde_json::Value::Null => Value::Null,
            serde_json::Value::Bool(bool) => Value::Bool(*bool),
            serde_json::Value::Number(number) => Value::Number(number.as_f64().expect("a float")),
            serde_json::Value::String(text) => Value::Text(text.clone()),
            serde_json::Value::Array(items) => Value::Array(items.iter().map(from_serde).collect()),
            serde_json::Value::Object(fields) => {
                Value::Object(fields.iter().map(|(key, value)| (key.clone(), from_serde(value))).collect())
            }
        }
    }

    #[test]
    fn reads_what_json_is_and_nothing_else() {
        for good in [
            "{}",
            " { } ",
            "[]",
            "null",
            "-0.5e-3",
            "[1, 2.5, -3e2, true, false, null]",
            r#"{"a":{"b":[{"c":"d"}]},"e":"\u00e9\n\"\\\/\ud83d\ude00 ü"}"#,
        ] {
            let theirs = serde_json::from_str::<serde_json::Value>(good).ok().as_ref().map(from_serde);
            assert_eq!(Value::parse(good).ok(), theirs, "{good}");
        }
        for bad in [
            "",
            "{",
            "}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a:1}",
            "[1,]",
            "01",
            "1.",
            ".5",
            "+1",
            "1e",
            "nul",
            "\"\\x\"",
            "\"\\ud800\"",
            "\"\\ud800\\u0041\"",
            "\"\n\"",
            "\"",
            "1e999",
            "{} {}",
            "{\"a\":1,\"a\":2}",
            "NaN",
        ] {
            assert!(matches!(Value::parse(bad), Err(Error::InvalidConfig(_))), "{bad}");
        }
        assert!(Value::parse(&"[".repeat(100_000)).is_err(), "does not overflow the stack");
    }

    #[test]
    fn a_bad_field_is_named() {
        let check = |text: &str, expected: &str| {
            let read = || -> Result<(), Error> {
                let mut fields = Fields::parse(text)?;
                fields.number("weight", 0.0..=10.0, 1.0)?;
                fields.integer("choices", 1..=16, 2)?;
                fields.choice("mode", &[("a", 1), ("b", 2)], 1)?;
                fields.finish()
            };
            match read() {
                Err(Error::InvalidConfig(problem)) => {
                    assert!(problem.starts_with(expected), "{text}: {problem}");
                }
                other => assert_eq!(format!("{other:?}"), expected, "{text}"),
            }
        };
        check("{}", "Ok(())");
        check(r#"{"weight":10,"choices":16,"mode":"b"}"#, "Ok(())");
        check(r#"{"weight":-1}"#, "weight is out of range");
        check(r#"{"weight":"1"}"#, "weight must be a number");
        check(r#"{"choices":1.5}"#, "choices must be a whole number");
        check(r#"{"choices":0}"#, "choices is out of range");
        check(r#"{"mode":"c"}"#, "mode must be one of: a, b");
        check(r#"{"mode":null}"#, "mode must be a text");
        check(r#"{"wieght":1}"#, "wieght is not a field");
        check("[]", "the configuration must be a JSON object");
        check("{", "not JSON at byte 1");
    }

    proptest! {
        #[test]
        fn agrees_with_serde_json(text in r#"[\[\]{}:,"a1\\u0e.\- -]{0,24}"#) {
            // serde_json keeps the last of two equal keys; we refuse them.
            if let Ok(ours) = Value::parse(&text) {
                let theirs: serde_json::Value = serde_json::from_str(&text).expect("ours took it");
                let sorted = |value: &Value| format!("{value:?}").len();
                prop_assert_eq!(sorted(&ours), sorted(&from_serde(&theirs)));
            } else if let Ok(theirs) = serde_json::from_str::<serde_json::Value>(&text) {
                prop_assert!(text.matches(':').count() > 1, "{:?}", theirs);
            }
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn configurations_are_read_into_types() {
        #[derive(Debug, PartialEq, serde::Deserialize)]
        #[serde(default, deny_unknown_fields, rename_all = "camelCase")]
        struct Config {
            zone: String,
            far_cost: f64,
        }
        impl Default for Config {
            fn default() -> Self {
                Self { zone: String::new(), far_cost: 10.0 }
            }
        }
        let check = |text: &str, expected: Result<Config, &str>| match (typed::<Config>(text), expected) {
            (Err(Error::InvalidConfig(found)), Err(words)) => {
                assert!(found.contains(words), "{text}: {found}");
            }
            (found, expected) => assert_eq!(found.ok(), expected.ok(), "{text}"),
        };
        check("{}", Ok(Config::default()));
        check(r#"{"zone":"z1","farCost":5}"#, Ok(Config { zone: "z1".to_owned(), far_cost: 5.0 }));
        check(r#"{"farCost":"5"}"#, Err("expected f64"));
        check(r#"{"farcost":5}"#, Err("unknown field `farcost`"));
        check("[", Err("EOF"));
        check("", Err("EOF"));
    }
}
