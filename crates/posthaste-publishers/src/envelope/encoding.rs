//! Text where not all of it can stay as it is.

use std::borrow::Cow;
use std::fmt::Write;

/// The text with every character percent-encoded, as UTF-8, that is not to be kept.
pub(crate) fn percent_encoded(text: &str, keep: impl Fn(char) -> bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for c in text.chars() {
        if keep(c) {
            encoded.push(c);
        } else {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                write!(encoded, "%{byte:02X}").expect("a string takes whatever is written to it");
            }
        }
    }
    encoded
}

/// As CloudEvents have their attributes in headers of HTTP and NATS.
pub(super) fn attribute_in_header(value: &str) -> String {
    percent_encoded(value, |c| c.is_ascii_graphic() && c != '"' && c != '%')
}

/// A value as it is, or, if a header of HTTP or NATS could not hold it, as attributes of CloudEvents are written there.
pub(super) fn fits_header(value: &str) -> Cow<'_, str> {
    let bytes = value.as_bytes();
    // All of them are looked at, which is quicker than to ask each time whether to go on.
    let inside = bytes.iter().fold(true, |inside, byte| inside & matches!(byte, b' '..=b'~'));
    let is_outer = |byte: Option<&u8>| byte == Some(&b' ');
    let fits = inside && !is_outer(bytes.first()) && !is_outer(bytes.last());
    if fits { Cow::Borrowed(value) } else { Cow::Owned(attribute_in_header(value)) }
}

/// What a string of CloudEvents may hold. It may not hold control characters, nor what Unicode says is no character.
pub(super) fn attribute(value: &str) -> Cow<'_, str> {
    let allowed = |c: char| {
        let code = u32::from(c);
        !c.is_control() && code & 0xFFFE != 0xFFFE && !(0xFDD0..=0xFDEF).contains(&code)
    };
    if value.chars().all(allowed) { Cow::Borrowed(value) } else { Cow::Owned(percent_encoded(value, allowed)) }
}

/// The characters of which URI references are made; a percent sign stays where it encodes something.
pub(super) fn uri_reference(text: &str) -> String {
    let mut reference = String::with_capacity(text.len());
    for (at, piece) in text.split('%').enumerate() {
        if at > 0 {
            let encodes = piece.len() >= 2 && piece.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
            reference.push_str(if encodes { "%" } else { "%25" });
        }
        let keep = |c: char| c.is_ascii_alphanumeric() || "-._~:/?#[]@!$&'()*+,;=".contains(c);
        reference.push_str(&percent_encoded(piece, keep));
    }
    reference
}

/// Whether a content type says that the body is JSON.
pub(crate) fn is_json(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default().trim().as_bytes();
    let end = media_type.get(media_type.len().saturating_sub(5)..).unwrap_or_default();
    end.eq_ignore_ascii_case(b"/json") || end.eq_ignore_ascii_case(b"+json")
}

/// Base64 with padding, as in RFC 4648.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let number = (bits >> (18 - 6 * digit)) & 0x3F;
            text.push(if digit <= group.len() { char::from(DIGITS[number as usize]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_rfc_4648() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xFB, 0xFF, 0xFE]), "+//+");
    }

    #[test]
    fn attributes_in_headers_are_encoded_as_the_binding_says() {
        assert_eq!(attribute_in_header("Euro € 😀"), "Euro%20%E2%82%AC%20%F0%9F%98%80");
        assert_eq!(attribute_in_header("a\"b%c~!"), "a%22b%25c~!");
        assert_eq!(attribute_in_header("a\r\nb\u{7f}"), "a%0D%0Ab%7F");
    }

    #[test]
    fn only_what_a_header_cannot_hold_is_encoded() {
        assert_eq!(fits_header("a b=\"c\" 100%"), "a b=\"c\" 100%");
        assert_eq!(fits_header("a é%"), "a%20%C3%A9%25");
        assert_eq!(fits_header("a\r\nx: y"), "a%0D%0Ax:%20y");
        assert_eq!(fits_header(" a"), "%20a");
    }

    #[test]
    fn strings_of_cloud_events_have_no_control_characters() {
        assert_eq!(attribute("Grüße\u{1F600}"), "Grüße\u{1F600}");
        assert_eq!(attribute("a\nb\u{85}\u{FDD0}\u{1FFFE}"), "a%0Ab%C2%85%EF%B7%90%F0%9F%BF%BE");
    }

    #[test]
    fn in_uri_references_a_percent_sign_encodes_something() {
        for (text, reference) in [
            ("https://shop.example/a%20b?c=d#e", "https://shop.example/a%20b?c=d#e"),
            ("/100%", "/100%25"),
            ("/100%/a%2", "/100%25/a%252"),
            ("/%zz%C3%a9", "/%25zz%C3%a9"),
            ("%", "%25"),
            ("/größe €", "/gr%C3%B6%C3%9Fe%20%E2%82%AC"),
        ] {
            assert_eq!(uri_reference(text), reference);
        }
    }

    #[test]
    fn content_types_of_json() {
        for json in ["application/json", "Application/JSON; charset=utf-8", "application/vnd.shop+json", "text/json ;x"]
        {
            assert!(is_json(json), "{json}");
        }
        for other in ["", "json", "application/jsonp", "application/x-json-stream", "text/plain; a=/json"] {
            assert!(!is_json(other), "{other}");
        }
    }
}
