//! A bearer JWT, read in two ways: as it is, and as the header and the claims of a token that the fuzzer
//! signs itself, so that what comes after the signature is reached. The keys are read from the input as
//! well, as PEM and as a JSON Web Key Set.

use std::sync::OnceLock;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use lapsed_server::config::Overrides;
use lapsed_server::config::jwt::{JwtAlgorithm, JwtConfig};
use lapsed_server::http::jwt::{KeySet, verify};
use lapsed_server::node::Config;
use ring::hmac;

const SECRET: &str = "a secret of at least thirty-two bytes";

const CONFIG: &str = r#"
[server.jwt]
algorithm = "HS256"
secret = "a secret of at least thirty-two bytes"
audience = "lapsed"
scopes = ["write"]
"#;

/// A moment at which the tokens of the corpus are valid, in milliseconds.
const NOW_MS: u64 = 1_800_000_000_000;

fn keys() -> &'static (JwtConfig, KeySet) {
    static KEYS: OnceLock<(JwtConfig, KeySet)> = OnceLock::new();
    KEYS.get_or_init(|| {
        let overrides =
            Overrides { listen: Some("127.0.0.1:0".to_owned()), data: None, token: None };
        let config = Config::parse(CONFIG, &overrides, &|_| None).expect("it is right");
        let config = config.server.jwt.expect("it has a section for JWTs");
        let keys = KeySet::read(&config).expect("a secret is a key");
        (config, keys)
    })
}

fn signature(message: &str) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    hmac::sign(&key, message.as_bytes()).as_ref().to_vec()
}

/// Reads the input as a token, as header and claims in two lines, and as a file of keys.
pub fn read(input: &[u8]) {
    let (config, keys) = keys();
    for algorithm in [JwtAlgorithm::Rs256, JwtAlgorithm::Es256, JwtAlgorithm::EdDsa] {
        let _ = KeySet::from_pem_bytes(algorithm, input);
        let _ = KeySet::from_jwks_bytes(algorithm, input);
    }
    let Ok(text) = std::str::from_utf8(input) else { return };
    if verify(config, keys, text.trim(), NOW_MS).is_ok() {
        let (message, seal) = text.trim().rsplit_once('.').expect("a token has three parts");
        let made = URL_SAFE_NO_PAD.encode(signature(message));
        assert_eq!(seal, made, "a token was accepted that nobody signed");
    }
    let Some((header, claims)) = text.split_once('\n') else { return };
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text.trim());
    let message = format!("{}.{}", part(header), part(claims));
    let token = format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature(&message)));
    if let Ok(bearer) = verify(config, keys, &token, NOW_MS) {
        let header: serde_json::Value = serde_json::from_str(header.trim()).expect("it was read");
        let claims: serde_json::Value = serde_json::from_str(claims.trim()).expect("it was read");
        assert_eq!(header["alg"], "HS256", "the algorithm is the configured one");
        assert_eq!(claims["sub"], bearer.owner.as_str());
        assert!(header.get("crit").is_none() && claims.get("exp").is_some());
    }
}
