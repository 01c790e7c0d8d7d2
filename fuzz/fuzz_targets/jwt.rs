#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| (lapsed_fuzz::target("jwt").read)(input));
