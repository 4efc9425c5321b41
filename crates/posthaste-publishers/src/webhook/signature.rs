//! Signs requests by the rules of Standard Webhooks.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ring::hmac;
use url::Url;

use super::options::WebhookOptions;

/// The fewest bytes of a secret.
const SHORTEST: usize = 24;

/// What is before a secret in base64.
const PREFIX: &str = "whsec_";

/// A secret that both ends know.
pub(super) struct Secret(hmac::Key);

/// What is wrong with secrets.
#[derive(Debug, thiserror::Error)]
pub(super) enum SecretError {
    #[error("a secret of webhooks is not base64; it looks like whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")]
    Encoding,
    #[error("a secret of webhooks has {0} bytes; it needs {SHORTEST} at least")]
    TooShort(usize),
    #[error("secrets_for has {0:?}, which is no origin; write a scheme and a host, such as https://partner.example")]
    Origin(String),
    #[error("secrets_for has no secret for {0:?}; give one, or leave it out")]
    NoneFor(String),
    #[error("secrets_for has the origin of {0:?} twice; give all of its secrets in one list")]
    Twice(String),
}

impl Secret {
    /// A secret in base64, with `whsec_` before it or without.
    pub(super) fn new(text: &str) -> Result<Self, SecretError> {
        let encoded = text.strip_prefix(PREFIX).unwrap_or(text);
        let bytes = BASE64_STANDARD.decode(encoded).map_err(|_| SecretError::Encoding)?;
        if bytes.len() < SHORTEST {
            return Err(SecretError::TooShort(bytes.len()));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }

    /// The bytes of the secret that an endpoint has, if this is the one that those of all are made of.
    fn derived(&self, origin: &str) -> hmac::Tag {
        hmac::sign(&self.0, origin.as_bytes())
    }
}

/// Which secrets requests to an endpoint are signed with.
pub(super) struct Signing {
    /// Of all endpoints that have none of their own, or what theirs are made of.
    all: Arc<[Secret]>,
    by_origin: HashMap<String, Arc<[Secret]>>,
    derives: bool,
    is_unsigned: bool,
}

impl Signing {
    /// # Errors
    /// When a secret is none, or is for no endpoint.
    pub(super) fn new(options: &WebhookOptions) -> Result<Self, SecretError> {
        let read = |secrets: &[String]| secrets.iter().map(|secret| Secret::new(secret)).collect::<Result<_, _>>();
        let mut by_origin = HashMap::new();
        for (url, secrets) in &options.secrets_for {
            let origin = origin(url).ok_or_else(|| SecretError::Origin(url.clone()))?;
            if secrets.is_empty() {
                return Err(SecretError::NoneFor(url.clone()));
            }
            if by_origin.insert(origin, read(secrets)?).is_some() {
                return Err(SecretError::Twice(url.clone()));
            }
        }
        let is_unsigned = options.secrets.is_empty() && by_origin.is_empty();
        Ok(Self { all: read(&options.secrets)?, by_origin, derives: options.derive_secrets, is_unsigned })
    }

    /// Those of an endpoint, none if nothing is signed; nothing if something is, and there is no secret for it.
    pub(super) fn of(&self, origin: &str) -> Option<Arc<[Secret]>> {
        if let Some(own) = self.by_origin.get(origin) {
            return Some(Arc::clone(own));
        }
        if self.derives {
            let derived = |master: &Secret| Secret(hmac::Key::new(hmac::HMAC_SHA256, master.derived(origin).as_ref()));
            return Some(self.all.iter().map(derived).collect());
        }
        (self.is_unsigned || !self.all.is_empty()).then(|| Arc::clone(&self.all))
    }

    /// Whether several endpoints have the same secret.
    pub(super) fn is_shared(&self) -> bool {
        !self.derives && !self.all.is_empty()
    }

    /// What an endpoint is told, as receivers have it in their settings.
    pub(super) fn told_to(&self, origin: &str, options: &WebhookOptions) -> Vec<String> {
        let own = options.secrets_for.iter().find(|(url, _)| self::origin(url).as_deref() == Some(origin));
        let with_prefix = |secret: &String| format!("{PREFIX}{}", secret.strip_prefix(PREFIX).unwrap_or(secret));
        match own {
            Some((_, secrets)) => secrets.iter().map(with_prefix).collect(),
            None if self.derives => {
                let shown = |master: &Secret| format!("{PREFIX}{}", BASE64_STANDARD.encode(master.derived(origin)));
                self.all.iter().map(shown).collect()
            }
            None => options.secrets.iter().map(with_prefix).collect(),
        }
    }
}

/// The origin that a text says and nothing else, as it is compared.
fn origin(text: &str) -> Option<String> {
    let url = Url::parse(text).ok()?;
    let is_bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
    (is_bare && matches!(url.scheme(), "http" | "https")).then(|| url.origin().ascii_serialization())
}

/// One signature for each secret, so that receivers can change over from one to the next.
pub(super) fn sign(secrets: &[Secret], id: &str, timestamp: u64, body: &[u8]) -> String {
    // Of a signature there are 44 characters and three before it.
    let mut signatures = String::with_capacity(secrets.len() * 48);
    let mut time = String::with_capacity(24);
    write!(time, ".{timestamp}.").expect("a string takes whatever is written to it");
    for Secret(key) in secrets {
        let mut context = hmac::Context::with_key(key);
        for part in [id.as_bytes(), time.as_bytes(), body] {
            context.update(part);
        }
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

    const ONE: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const OTHER: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

    #[test]
    fn a_secret_that_cannot_be_one_is_refused() {
        assert!(Secret::new(ONE).is_ok());
        assert!(Secret::new("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").is_ok());
        assert!(matches!(Secret::new("whsec_not base64"), Err(SecretError::Encoding)));
        assert!(matches!(Secret::new("whsec_c2hvcnQ="), Err(SecretError::TooShort(5))));
        for origin in ["partner.example", "https://partner.example/hooks", "https://partner.example?x", "ftp://a"] {
            let options = WebhookOptions::unsigned().secret_for(origin, ONE);
            assert!(matches!(Signing::new(&options), Err(SecretError::Origin(_))), "{origin}");
        }
    }

    #[test]
    fn an_endpoint_has_its_own_secret_or_that_of_all_or_one_that_is_made_for_it() {
        let signed = |signing: &Signing, origin: &str| {
            signing.of(origin).map(|secrets| sign(&secrets, "id", 1_700_000_000, b"body"))
        };
        let with = |secret: &str| Some(sign(&[Secret::new(secret).unwrap()], "id", 1_700_000_000, b"body"));
        let (a, b) = ("https://a.example", "https://b.example:8443");

        let options = WebhookOptions::unsigned().secret_for("HTTPS://A.example:443/", ONE);
        let signing = Signing::new(&options).unwrap();
        assert_eq!((signed(&signing, a), signed(&signing, b)), (with(ONE), None));
        assert!(!signing.is_shared());
        assert_eq!(signing.told_to(a, &options), [ONE]);

        let options = options.secret(OTHER);
        let signing = Signing::new(&options).unwrap();
        assert_eq!((signed(&signing, a), signed(&signing, b)), (with(ONE), with(OTHER)));
        assert!(signing.is_shared());

        let options = options.derive_secrets(true);
        let signing = Signing::new(&options).unwrap();
        assert!(!signing.is_shared());
        let told = signing.told_to(b, &options);
        assert_eq!((signed(&signing, a), signed(&signing, b)), (with(ONE), with(&told[0])));
        // As openssl makes it: printf %s https://b.example:8443 | openssl dgst -sha256 -mac hmac -macopt hexkey:… -binary | base64
        assert_eq!(told, ["whsec_Wpw3Caj4zSuMbIXlFwQHQahv3S1e5qguyD92SzYtGsY="]);

        let unsigned = Signing::new(&WebhookOptions::unsigned()).unwrap();
        assert_eq!(unsigned.of(a).map(|secrets| secrets.len()), Some(0));
        assert!(!unsigned.is_shared());
    }
}
