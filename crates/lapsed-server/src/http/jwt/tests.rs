//! Tokens of every algorithm, and every way around the check that we could think of.

use std::path::Path;

use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256,
    RsaKeyPair,
};
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject;
use serde_json::json;

use super::*;
use crate::config::jwt::JwtSection;

const NOW_MS: u64 = 1_800_000_000_000;
const NOW: u64 = NOW_MS / 1_000;
const SECRET: &str = "a secret of at least thirty-two bytes";
const RSA: &[u8] = include_bytes!("testdata/rsa.pem");
const RSA_PUBLIC: &[u8] = include_bytes!("testdata/rsa_public.pem");
const RSA_PKCS1: &[u8] = include_bytes!("testdata/rsa_pkcs1.pem");

/// A private key of the issuer.
enum Signer {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
    Secret(Vec<u8>),
}

impl Signer {
    fn rsa() -> Signer {
        let der = PrivatePkcs8KeyDer::from_pem_slice(RSA).unwrap();
        Signer::Rsa(RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()).unwrap())
    }

    fn p256() -> Signer {
        let (random, kind) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
        Signer::P256(EcdsaKeyPair::from_pkcs8(kind, pkcs8.as_ref(), &random).unwrap())
    }

    fn ed25519() -> Signer {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Signer::Ed25519(Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap())
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Signer::Rsa(_) => "RS256",
            Signer::P256(_) => "ES256",
            Signer::Ed25519(_) => "EdDSA",
            Signer::Secret(_) => "HS256",
        }
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Signer::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).unwrap();
                signature
            }
            Signer::P256(key) => key.sign(&random, message).unwrap().as_ref().to_vec(),
            Signer::Ed25519(key) => key.sign(message).as_ref().to_vec(),
            Signer::Secret(secret) => {
                let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
                ring::hmac::sign(&key, message).as_ref().to_vec()
            }
        }
    }

    fn token(&self, claims: &Value) -> String {
        self.sealed(
            &json!({ "alg": self.algorithm(), "typ": "JWT" }).to_string(),
            &claims.to_string(),
        )
    }

    fn sealed(&self, header: &str, claims: &str) -> String {
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let message = format!("{}.{}", part(header), part(claims));
        let signature = URL_SAFE_NO_PAD.encode(self.sign(message.as_bytes()));
        format!("{message}.{signature}")
    }

    /// The public key as an element of a JSON Web Key Set.
    fn jwk(&self, id: &str) -> Value {
        let part = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let mut key = match self {
            Signer::Rsa(key) => {
                let public: RsaPublicKeyParts = key.public().into();
                json!({ "kty": "RSA", "n": part(&public.n), "e": part(&public.e) })
            }
            Signer::P256(key) => {
                let point = key.public_key().as_ref();
                json!({ "kty": "EC", "crv": "P-256", "x": part(&point[1..33]), "y": part(&point[33..]) })
            }
            Signer::Ed25519(key) => {
                json!({ "kty": "OKP", "crv": "Ed25519", "x": part(key.public_key().as_ref()) })
            }
            Signer::Secret(secret) => json!({ "kty": "oct", "k": part(secret) }),
        };
        key["kid"] = json!(id);
        key
    }
}

type RsaPublicKeyParts = ring::rsa::PublicKeyComponents<Vec<u8>>;

fn config(lines: &str) -> JwtConfig {
    let section: JwtSection = toml::from_str(&format!("{lines}\nscopes = [\"write\"]")).unwrap();
    JwtConfig::plan(section, None).unwrap()
}

fn claims() -> Value {
    json!({ "sub": "gateway-7", "exp": NOW + 60 })
}

fn of_secret(lines: &str) -> (JwtConfig, KeySet, Signer) {
    let config = config(&format!("algorithm = \"HS256\"\nsecret = \"{SECRET}\"\n{lines}"));
    let keys = KeySet::read(&config).unwrap();
    (config, keys, Signer::Secret(SECRET.into()))
}

/// The configuration and the keys for `signer`, from a JSON Web Key Set of `others` and its own.
fn of_set(signer: &Signer, others: &[Value]) -> (JwtConfig, KeySet) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("jwks.json");
    let keys: Vec<Value> = others.iter().cloned().chain([signer.jwk("own")]).collect();
    std::fs::write(&file, json!({ "keys": keys }).to_string()).unwrap();
    let config = config(&format!("algorithm = {:?}\njwks = {file:?}", signer.algorithm()));
    let keys = KeySet::read(&config).unwrap();
    (config, keys)
}

#[test]
fn a_token_of_each_algorithm_is_accepted_by_its_own_key_only() {
    for make in [Signer::p256, Signer::ed25519, Signer::rsa] {
        let signer = make();
        let (config, keys) = of_set(&signer, &[]);
        let good = signer.token(&claims());
        let bearer = verify(&config, &keys, &good, NOW_MS).unwrap();
        assert_eq!((bearer.owner.as_str(), bearer.expires_ms), ("gateway-7", NOW_MS + 60_000));
        for at in [good.find('.').unwrap() + 5, good.len() - 5] {
            let mut bytes = good.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).unwrap();
            assert!(verify(&config, &keys, &changed, NOW_MS).is_err(), "byte {at} was changed");
        }
    }
    for make in [Signer::p256, Signer::ed25519] {
        let (config, keys) = of_set(&make(), &[]);
        let foreign = make().token(&claims());
        let told = verify(&config, &keys, &foreign, NOW_MS).unwrap_err();
        assert!(told.contains("no key"), "{told}");
    }
}

#[test]
fn public_keys_in_pem_are_read_and_other_files_refused() {
    let dir = tempfile::tempdir().unwrap();
    let write = |text: &[u8]| {
        let file = dir.path().join("key.pem");
        std::fs::write(&file, text).unwrap();
        file
    };
    let read = |algorithm: &str, file: &Path| {
        let config = config(&format!("algorithm = {algorithm:?}\nkey = {file:?}"));
        KeySet::read(&config).map(|keys| (config, keys))
    };
    for pem in [RSA_PUBLIC, RSA_PKCS1] {
        let (config, keys) = read("RS256", &write(pem)).unwrap();
        assert!(verify(&config, &keys, &Signer::rsa().token(&claims()), NOW_MS).is_ok());
    }
    for (algorithm, kind) in
        [("ES256", &rcgen::PKCS_ECDSA_P256_SHA256), ("EdDSA", &rcgen::PKCS_ED25519)]
    {
        let pair = rcgen::KeyPair::generate_for(kind).unwrap();
        let signer = match algorithm {
            "ES256" => Signer::P256(
                EcdsaKeyPair::from_pkcs8(
                    &ECDSA_P256_SHA256_FIXED_SIGNING,
                    &pair.serialize_der(),
                    &SystemRandom::new(),
                )
                .unwrap(),
            ),
            _ => Signer::Ed25519(
                Ed25519KeyPair::from_pkcs8_maybe_unchecked(&pair.serialize_der()).unwrap(),
            ),
        };
        let (config, keys) = read(algorithm, &write(pair.public_key_pem().as_bytes())).unwrap();
        assert!(verify(&config, &keys, &signer.token(&claims()), NOW_MS).is_ok(), "{algorithm}");
        let other = if algorithm == "ES256" { "EdDSA" } else { "ES256" };
        for (algorithm, text) in [
            (other, pair.public_key_pem()),
            ("RS256", pair.public_key_pem()),
            (algorithm, pair.serialize_pem()),
            (algorithm, String::new()),
        ] {
            assert!(read(algorithm, &write(text.as_bytes())).is_err(), "{algorithm}: {text}");
        }
    }
    assert!(read("RS256", &write(RSA)).is_err(), "a private key is no public key");
    assert!(read("RS256", dir.path()).is_err());
}

#[test]
fn the_algorithm_of_the_token_never_counts() {
    let rsa = Signer::rsa();
    let (config, keys) = of_set(&rsa, &[Signer::p256().jwk("p"), Signer::Secret(vec![1]).jwk("s")]);
    let text = claims().to_string();
    // HS256 with the public key as its secret, in each form in which it is published.
    for secret in [RSA_PUBLIC, RSA_PKCS1] {
        let forged = Signer::Secret(secret.to_vec());
        for header in [r#"{"alg":"HS256"}"#, r#"{"alg":"RS256"}"#] {
            assert!(verify(&config, &keys, &forged.sealed(header, &text), NOW_MS).is_err());
        }
    }
    for alg in ["none", "None", "NONE", "", "hs256", "rs256", "RS384", "PS256", "ES256", "EdDSA"] {
        let header = json!({ "alg": alg }).to_string();
        let told = verify(&config, &keys, &rsa.sealed(&header, &text), NOW_MS).unwrap_err();
        assert!(told.contains("another algorithm"), "{alg}: {told}");
        let message = rsa.sealed(&header, &text);
        let bare = format!("{}.", message.rsplit_once('.').unwrap().0);
        assert!(verify(&config, &keys, &bare, NOW_MS).is_err(), "{alg} without a signature");
    }
    for header in [r#"{}"#, r#"{"alg":null}"#, r#"{"alg":["RS256"]}"#, r#""RS256""#] {
        assert!(verify(&config, &keys, &rsa.sealed(header, &text), NOW_MS).is_err(), "{header}");
    }
}

#[test]
fn headers_that_are_not_understood_are_refused() {
    let (config, keys, signer) = of_secret("");
    let sealed = |header: &str| {
        let token = signer.sealed(header, &claims().to_string());
        verify(&config, &keys, &token, NOW_MS)
    };
    assert!(sealed(r#"{"alg":"HS256","typ":"at+jwt","jku":"https://x","kid":"any"}"#).is_ok());
    for bad in [
        r#"{"alg":"HS256","crit":["exp"],"exp":1}"#,
        r#"{"alg":"HS256","crit":[]}"#,
        r#"{"alg":"HS256","alg":"HS256"}"#,
        r#"{"alg":"none","alg":"HS256"}"#,
        r#"{"alg":"HS256","kid":7}"#,
        r#"{"alg":"HS256""#,
        "",
    ] {
        assert!(sealed(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_key_set_is_searched_by_the_id_of_the_key() {
    let (old, own) = (Signer::p256(), Signer::p256());
    let (config, keys) = of_set(&own, &[old.jwk("old"), Signer::ed25519().jwk("other")]);
    let token = |signer: &Signer, header: Value| {
        let token = signer.sealed(&header.to_string(), &claims().to_string());
        verify(&config, &keys, &token, NOW_MS)
    };
    assert!(token(&own, json!({ "alg": "ES256", "kid": "own" })).is_ok());
    assert!(token(&old, json!({ "alg": "ES256", "kid": "old" })).is_ok());
    assert!(token(&own, json!({ "alg": "ES256", "kid": "old" })).is_err(), "another key's id");
    assert!(token(&own, json!({ "alg": "ES256", "kid": "unknown" })).is_err());
    assert!(token(&own, json!({ "alg": "ES256", "kid": "" })).is_err());
    assert!(token(&own, json!({ "alg": "ES256" })).is_err(), "two keys, and no id");
    let (config, keys) = of_set(&own, &[]);
    assert!(verify(&config, &keys, &own.token(&claims()), NOW_MS).is_ok(), "one key needs no id");
}

#[test]
fn times_are_checked_with_the_leeway() {
    let (config, keys, signer) = of_secret("leeway = \"5s\"");
    let at = |claims: Value| verify(&config, &keys, &signer.token(&claims), NOW_MS);
    for (exp, good) in [
        (json!(NOW + 60), true),
        (json!(NOW - 4), true),
        (json!(NOW - 5), false),
        (json!(NOW as f64 + 0.5), true),
        (json!(1e300), true),
        (json!(-1), false),
        (json!(0), false),
        (json!(format!("{}", NOW + 60)), false),
        (json!(null), false),
        (json!([NOW + 60]), false),
    ] {
        assert_eq!(at(json!({ "sub": "a", "exp": exp })).is_ok(), good, "exp {exp}");
    }
    let told = at(json!({ "sub": "a" })).unwrap_err();
    assert!(told.contains("no `exp`"), "{told}");
    for (nbf, good) in [
        (json!(NOW - 1), true),
        (json!(NOW + 5), true),
        (json!(NOW + 6), false),
        (json!("now"), false),
        (json!(1e300), false),
    ] {
        let claims = json!({ "sub": "a", "exp": NOW + 60, "nbf": nbf });
        assert_eq!(at(claims).is_ok(), good, "nbf {nbf}");
    }
}

#[test]
fn audience_and_issuer_must_be_the_configured_ones() {
    let (config, keys, signer) = of_secret("audience = \"lapsed\"\nissuer = \"https://id\"");
    let (open, open_keys, _) = of_secret("");
    for (aud, iss, good) in [
        (json!("lapsed"), json!("https://id"), true),
        (json!(["other", "lapsed"]), json!("https://id"), true),
        (json!("other"), json!("https://id"), false),
        (json!(["other"]), json!("https://id"), false),
        (json!(["lapsed", 7]), json!("https://id"), false),
        (json!([]), json!("https://id"), false),
        (json!(null), json!("https://id"), false),
        (json!("lapsed"), json!("https://id/"), false),
        (json!("lapsed"), json!(["https://id"]), false),
        (json!("lapsed"), json!(null), false),
    ] {
        let token = signer.token(&json!({ "sub": "a", "exp": NOW + 9, "aud": aud, "iss": iss }));
        assert_eq!(verify(&config, &keys, &token, NOW_MS).is_ok(), good, "{aud} {iss}");
        let told = verify(&open, &open_keys, &token, NOW_MS);
        assert!(told.is_err(), "a token for an audience is not for everybody: {aud}");
    }
    assert!(verify(&config, &keys, &signer.token(&claims()), NOW_MS).is_err());
}

#[test]
fn the_owner_is_a_name_in_the_configured_claim() {
    let (config, keys, signer) = of_secret("owner_claim = \"device\"");
    let of = |device: Value| {
        let token = signer.token(&json!({ "sub": "x", "device": device, "exp": NOW + 9 }));
        verify(&config, &keys, &token, NOW_MS).map(|bearer| bearer.owner.to_string())
    };
    assert_eq!(of(json!("imei-7")).as_deref(), Ok("imei-7"));
    for bad in
        [json!(""), json!(7), json!(null), json!("a\nb"), json!("x".repeat(5_000)), json!(["a"])]
    {
        assert!(of(bad.clone()).is_err(), "{bad}");
    }
    assert!(verify(&config, &keys, &signer.token(&claims()), NOW_MS).is_err(), "no such claim");
    let exp = NOW + 9;
    for twice in [
        format!(r#"{{"device":"a","device":"b","exp":{exp}}}"#),
        format!(r#"{{"device":"a","exp":1,"exp":{exp}}}"#),
        format!(r#"{{"device":"a","exp":{exp},"x":{{"y":1,"y":1}}}}"#),
        format!(r#"["device","a","exp",{exp}]"#),
    ] {
        let token = signer.sealed(r#"{"alg":"HS256"}"#, &twice);
        assert!(verify(&config, &keys, &token, NOW_MS).is_err(), "{twice}");
    }
}

#[test]
fn huge_and_malformed_tokens_are_refused() {
    let (config, keys, signer) = of_secret("");
    let good = signer.token(&claims());
    let [header, body, seal] = good.split('.').collect::<Vec<_>>().try_into().unwrap();
    for bad in [
        String::new(),
        ".".to_owned(),
        "..".to_owned(),
        format!("{header}.{body}"),
        format!("{header}.{body}."),
        format!("{header}..{seal}"),
        format!(".{body}.{seal}"),
        format!("{good}."),
        format!("{good}.{seal}"),
        format!("{good}="),
        format!("{header}=.{body}.{seal}"),
        format!(" {good}"),
        format!("{header}.{body}.{seal}A"),
        format!("{header}.{body}.{}", seal.replace(['-', '_'], "+")) + "/",
        format!("{header}.{body}.\u{e9}{seal}"),
        "A".repeat(1 << 20),
        format!("{}.{body}.{seal}", "A".repeat(1 << 20)),
    ] {
        let shown: String = bad.chars().take(80).collect();
        assert!(verify(&config, &keys, &bad, NOW_MS).is_err(), "{shown}");
    }
    let long = json!({ "sub": "a", "exp": NOW + 9, "x": "y".repeat(JWT_BYTES_MAX) });
    let told = verify(&config, &keys, &signer.token(&long), NOW_MS).unwrap_err();
    assert!(told.contains("longer"), "{told}");
}

#[test]
fn subjects_have_a_rate_each_and_their_number_is_bounded() {
    let (mut config, ..) = of_secret("");
    config.rate_limit = Some(crate::config::limit::RateLimit { per_second: 1, burst: 2 });
    let verifier = JwtVerifier::new(&config);
    let (now, name) = (Duration::from_secs(9), |text: &str| Name::new(text).unwrap());
    assert_eq!([0; 2].map(|_| verifier.count(&name("a"), now).is_ok()), [true; 2]);
    assert!(verifier.count(&name("a"), now).is_err());
    assert!(verifier.count(&name("b"), now).is_ok());
    for number in 0..SUBJECTS_MAX + 10 {
        let _ = verifier.count(&name(&format!("s{number}")), now);
    }
    assert!(verifier.buckets.lock().unwrap().len() <= SUBJECTS_MAX);
}
