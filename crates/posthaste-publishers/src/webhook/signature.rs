//! Signs requests by the rules of Standard Webhooks.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ring::hmac;

/// The fewest bytes of a secret.
const SHORTEST: usize = 24;

/// A secret that both ends know.
pub(super) struct Secret(hmac::Key);

/// What is wrong with a secret.
#[derive(Debug, thiserror::Error)]
pub(super) enum SecretError {
    #[error("a secret of webhooks is not base64; it looks like whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
    Encoding,
    #[error("a secret of webhooks has {0} bytes; it needs {SHORTEST} at least")]
    TooShort(usize),
}

impl Secret {
    /// A secret in base64, with `whsec_` before it or without.
    pub(super) fn new(text: &str) -> Result<Self, SecretError> {
        let encoded = text.strip_prefix("whsec_").unwrap_or(text);
        let bytes = BASE64_STANDARD.decode(encoded).map_err(|_| SecretError::Encoding)?;
        if bytes.len() < SHORTEST {
            return Err(SecretError::TooShort(bytes.len()));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }
}

/// One signature for each secret, so that receivers can change over from one to the next.
pub(super) fn sign(secrets: &[Secret], id: &str, timestamp: u64, body: &[u8]) -> String {
    let mut signatures = String::new();
    for Secret(key) in secrets {
        let mut context = hmac::Context::with_key(key);
        context.update(format!("{id}.{timestamp}.").as_bytes());
        context.update(body);
        if !signatures.is_empty() {
            signatures.push(' ');
        }
        signatures.push_str("v1,");
        BASE64_STANDARD.encode_string(context.sign(), &mut signatures);
    }
    signatures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_cannot_be_one_is_refused() {
        assert!(Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").is_ok());
        assert!(Secret::new("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").is_ok());
        assert!(matches!(Secret::new("whsec_not base64"), Err(SecretError::Encoding)));
        assert!(matches!(Secret::new("whsec_c2hvcnQ="), Err(SecretError::TooShort(5))));
    }
}
