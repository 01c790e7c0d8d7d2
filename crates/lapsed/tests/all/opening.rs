//! What a URL and a name must be like.

use lapsed::{Error, open};

async fn refusal(url: &str) -> String {
    match open(url).await {
        Err(Error::Invalid(why)) => why,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("`{url}` was opened"),
    }
}

#[tokio::test]
async fn an_unknown_scheme_is_refused_with_those_that_are_known() {
    let why = refusal("mongodb://localhost/db").await;
    assert!(why.contains("`mongodb`") && why.contains("redis://"), "{why}");
    assert!(refusal("data").await.contains("starts with its kind"));
    assert!(refusal("embedded:").await.contains("needs a folder"));
    assert!(refusal("memory:x").await.contains("takes nothing"));
}

#[cfg(not(feature = "redis"))]
#[tokio::test]
async fn a_store_whose_feature_is_off_names_the_feature() {
    for url in ["redis://127.0.0.1/0", "valkeys+cluster://127.0.0.1:7000"] {
        assert!(refusal(url).await.contains("feature `redis`"));
    }
    #[cfg(not(feature = "postgres"))]
    assert!(refusal("postgres://127.0.0.1/db").await.contains("feature `postgres`"));
    #[cfg(not(feature = "object"))]
    assert!(refusal("s3://bucket/prefix").await.contains("feature `object`"));
}

#[tokio::test]
async fn a_wrong_name_of_a_system_an_owner_or_a_key_is_refused() {
    let lapsed = open("memory:").await.unwrap();
    let started = lapsed.registry("two words").start().await;
    assert!(matches!(started, Err(Error::Invalid(_))));
    let devices = lapsed.registry("devices").start().await.unwrap();
    assert!(matches!(devices.join("").await, Err(Error::Invalid(_))));
    let me = devices.join("gateway-1").await.unwrap();
    assert!(matches!(me.register("a\nb").await, Err(Error::Invalid(_))));
    assert!(matches!(devices.lookup("").await, Err(Error::Invalid(_))));
}

#[tokio::test]
async fn a_folder_that_another_store_has_open_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("embedded:{}", folder.path().display());
    let _first = open(&url).await.unwrap();
    assert!(matches!(open(&url).await, Err(Error::InUse { .. })));
}
