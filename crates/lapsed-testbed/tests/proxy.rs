//! The proxy: what the client sees, and what the server did.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use lapsed_testbed::resp::RespConnection;
use lapsed_testbed::{Engine, Proxy, RedisServer};

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn an_answer_is_lost_and_the_command_was_carried_out() {
    for engine in Engine::ALL {
        let server = RedisServer::start(engine).unwrap();
        let proxy = Proxy::start(server.port()).unwrap();
        let mut client = RespConnection::open(proxy.port(), LIMIT).unwrap();
        assert_eq!(client.call(&["INCR", "n"]).unwrap().to_string(), "1");

        proxy.drop_answers(1);
        assert!(client.call(&["INCR", "n"]).is_err());
        assert_eq!(proxy.dropped(), 1);
        assert_eq!(server.command(&["GET", "n"]).unwrap(), "2");

        let mut client = RespConnection::open(proxy.port(), LIMIT).unwrap();
        assert_eq!(client.call(&["INCR", "n"]).unwrap().to_string(), "3");
    }
}

#[test]
fn only_the_answer_meant_is_lost() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let mut client = RespConnection::open(proxy.port(), LIMIT).unwrap();
    proxy.drop_answers_matching("incrby");
    assert_eq!(client.call(&["SET", "n", "1"]).unwrap().to_string(), "OK");
    assert_eq!(client.call(&["GET", "n"]).unwrap().to_string(), "1");
    assert!(client.call(&["INCRBY", "n", "5"]).is_err());
    assert_eq!(server.command(&["GET", "n"]).unwrap(), "6");
}

/// Three requests in one packet, the second one's answer is lost: the first is answered, the second
/// carried out, the third never arrives.
#[test]
fn the_right_answer_among_pipelined_ones_is_lost() {
    use std::io::{Read, Write};

    let server = RedisServer::start(Engine::Redis).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    proxy.drop_answers_matching("second");
    let mut client = std::net::TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
    client.write_all(b"INCR first\r\nINCR second\r\nINCR third\r\n").unwrap();
    let mut answers = String::new();
    client.read_to_string(&mut answers).unwrap();
    assert_eq!(answers, ":1\r\n");
    assert_eq!(server.command(&["MGET", "first", "second", "third"]).unwrap(), "1\n1\n(nil)");
}

#[test]
fn a_cut_closes_and_refuses_until_it_is_mended() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let mut client = RespConnection::open(proxy.port(), LIMIT).unwrap();
    client.call(&["PING"]).unwrap();
    for _ in 0..3 {
        proxy.cut();
        assert!(client.call(&["PING"]).is_err());
        assert!(RespConnection::open(proxy.port(), LIMIT).is_err());
        proxy.mend().unwrap();
        client = RespConnection::open(proxy.port(), LIMIT).unwrap();
        client.call(&["PING"]).unwrap();
    }
}

#[test]
fn answers_are_delayed() {
    let server = RedisServer::start(Engine::Redis).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let mut client = RespConnection::open(proxy.port(), LIMIT).unwrap();
    proxy.delay(Duration::from_millis(100));
    let before = Instant::now();
    client.call(&["PING"]).unwrap();
    assert!(before.elapsed() >= Duration::from_millis(100));
}

#[test]
fn long_answers_pass() {
    let server = RedisServer::start(Engine::Valkey).unwrap();
    let proxy = Proxy::start(server.port()).unwrap();
    let mut client = RespConnection::open(proxy.port(), LIMIT).unwrap();
    let long = "x".repeat(1_000_000);
    client.call(&["SET", "k", &long]).unwrap();
    assert_eq!(client.call(&["GET", "k"]).unwrap().to_string(), long);
}

#[test]
fn a_redirected_proxy_leads_to_the_other_server() {
    let (one, two) =
        (RedisServer::start(Engine::Redis).unwrap(), RedisServer::start(Engine::Redis).unwrap());
    one.command(&["SET", "who", "one"]).unwrap();
    two.command(&["SET", "who", "two"]).unwrap();
    let proxy = Proxy::start(one.port()).unwrap();
    let mut client = RespConnection::open(proxy.port(), LIMIT).unwrap();
    assert_eq!(client.call(&["GET", "who"]).unwrap().to_string(), "one");
    proxy.redirect(two.port());
    assert!(client.call(&["GET", "who"]).is_err(), "the old connection is closed");
    let mut client = RespConnection::open(proxy.port(), LIMIT).unwrap();
    assert_eq!(client.call(&["GET", "who"]).unwrap().to_string(), "two");
}
